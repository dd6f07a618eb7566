/* SPDX-License-Identifier: MIT */
/* cuda_host.h: the host half of the CUDA backend, private to kernels/cuda/: where everything lies, programs as graphs,
 * what a plan becomes on its way to the device, loading.
 *
 * One thread calls everything but cuda_pack(). The object, the graphs' table, the bytes of plans under way and the
 * staging for weights lie behind kern.c's part of KERN_MEM_CTL, which is pinned host memory that the device can read
 * and write. Everything is enqueued on one stream, so that the order of launches is the order on the device; weights
 * travel on streams of their own, which nothing else uses. */
#ifndef GLMD_CUDA_HOST_H
#define GLMD_CUDA_HOST_H

#include <pthread.h>

#include "cuda_dev.h"
#include "host.h"

enum {
    CUDA_CLASSES = 16,      /* row classes of a lane: a graph of a program for each */
    CUDA_STAGES = 4,        /* windows of weights on their way at once */
    CUDA_STAGE_BYTES = 4 << 20,
};

/* Where the embedding and the ends lie; mats by layer in cuda_layer. */
struct cuda_layout {
    struct cuda_dims d;
    struct cuda_mix mix;
    struct cuda_layer layer[KERN_MAX_LAYERS];
    uint64_t embed, embed_scale, embed_global; /* rows as stored */
    uint64_t final_norm;
    struct cuda_mat head;
    uint32_t hc_splits, y_parts;
    uint64_t slot_bytes; /* committed: what a reader gets */
    uint64_t step_bytes[KERN_LANES];
    /* offsets into their blocks */
    uint64_t progs, upload[KERN_LANES], reports, seen, stage_host, ctl_bytes;
    uint64_t last, step[KERN_LANES], stage_dev, work_bytes;
    uint64_t weight_bytes;
    struct cuda_lane lane[KERN_LANES]; /* addresses; offsets where the base is NULL */
};

/* What a program reads and computes, by row table (trunk, draft), to be multiplied by a plan's numbers. */
struct cuda_cost {
    uint64_t weight_bytes[2]; /* once, when the table has a row */
    uint64_t flops[2];        /* a row */
    uint64_t state_bytes;     /* of all its KDA layers' states of one sequence */
    uint64_t expert_bytes;    /* of one expert of each MoE layer, summed */
    uint32_t moe, embeds[2], heads[2];
};

struct cuda_prog {
    cudaGraphExec_t exec[CUDA_CLASSES];
    struct cuda_cost cost;
};

struct cuda_stage {
    pthread_mutex_t lock;
    cudaStream_t stream;
    cudaEvent_t done; /* of the last window that went through here */
};

struct cuda {
    struct kern *k;
    struct cuda_layout l;
    char *weights, *pages, *slots;
    uint32_t *last; /* device */
    cudaStream_t stream;
    cudaEvent_t done[KERN_LANES]; /* of the lane's last launch */
    struct cuda_step *upload[KERN_LANES]; /* pinned */
    struct cuda_report *report[KERN_LANES]; /* pinned */
    bool uploading[KERN_LANES]; /* loaded and not waited for since */
    uint32_t n_classes[KERN_LANES], class_rows[KERN_LANES][CUDA_CLASSES];
    struct cuda_prog *progs; /* [KERN_MAX_PROGS] */
    uint8_t *seen;           /* a bit per token id */
    uint32_t embeds[KERN_LANES][2]; /* distinct rows of the embedding that the plan reads, by table */
    uint32_t state_uses[KERN_LANES]; /* readings and writings of a layer's states by the plan's sequences */
    uint64_t moe_bytes[KERN_LANES];  /* of one expert, summed over the MoE stages launched */
    uint32_t moe_stages[KERN_LANES];
    struct cuda_stage stage[CUDA_STAGES];
    _Atomic uint32_t stage_turn;
    uint32_t streams_made, events_made, stages_made; /* what close has to give back */
};

/* Numbers that lie as they are, in rows. */
static inline bool cuda_is_plain(const struct kern_store *s) {
    return s->format == KERN_F32 || s->format == KERN_BF16 || s->format == KERN_F16;
}

static inline uint64_t cuda_pad(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* cuda_layout.c: pure arithmetic. -EINVAL and a sentence: a shape or store that the kernels cannot take. base NULL:
 * lane has offsets. */
int cuda_layout(const struct kern_config *cfg, uint32_t vocab_rows, char *work, struct cuda_layout *l, char *err,
                size_t err_len);

/* cuda_load.c */
int cuda_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
              const void *bytes, uint64_t n);
int cuda_pack_done(struct kern *k);

/* cuda_upload.c: the loaded plan as the device reads it; returns its bytes. */
uint64_t cuda_step_make(struct cuda *c, uint32_t lane);
/* What a step will have cost: at launch, and when the device's report is there. */
void cuda_cost_stage(const struct cuda *c, const struct kern_stage *s, struct cuda_cost *cost);
void cuda_count_launch(struct cuda *c, const struct kern_prog *prog);
void cuda_count_done(struct cuda *c, uint32_t lane);

/* cuda_graph.c */
int cuda_capture(struct kern *k, const struct kern_prog *prog);
uint32_t cuda_class_of(const struct cuda *c, uint32_t lane, uint32_t rows);
void cuda_classes(struct cuda *c);
struct cuda_run cuda_run_of(const struct cuda *c, uint32_t lane, uint32_t rows);

/* cuda_memory.c */
int cuda_mem_alloc(enum kern_mem cls, uint64_t bytes, struct kern_block *ret, char *err, size_t err_len);
void cuda_mem_free(enum kern_mem cls, struct kern_block *block);
int cuda_mem_where(enum kern_mem cls, uint64_t *ret_free, char *err, size_t err_len);
int cuda_device_check(char *err, size_t err_len);
/* Nothing more can be computed: says so once, -EIO. */
int cuda_lost(struct kern *k, const char *what, cudaError_t e);

#endif
