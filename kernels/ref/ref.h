/* SPDX-License-Identifier: MIT */
/* ref.h: the oracle backend, private to kernels/ref/. Scalar code, every sum in double, activations and state
 * stored as F32, weights kept as their pieces on disk and unpacked row by row. One thread: the caller's, inside
 * kern_wait().
 *
 * With ranks, dimensions are those of the rank's share, but for logits and token ids.
 *
 * Layout of a slot (all F32), committed part first:
 *   per KDA layer: state [heads][key][value], window [conv_width - 1][3P] of raw q|k|v, oldest first
 *   per indexed layer: ring [KERN_TAIL_RING][key | gate][index_dim], by position modulo the ring; none where each
 *   token is a pool of its own
 * then the pending part:
 *   per KDA layer: KERN_MAX_WINDOW rows of { raw q|k|v 3P, key P, value P, log decay P, beta heads }
 * Layout of a page: per MLA layer latents [256][kv_rank | rope_dim], and where the layer has its own indexer pooled
 * keys [256 / kpool][index_dim], both in the cache's format. */
#ifndef GLMD_REF_H
#define GLMD_REF_H

#include "host_unpack.h"

enum { REF_QUEUE = 256, REF_ALL = KERN_NONE }; /* REF_ALL: a row attends to every position it may see */

struct ref_lane {
    float *streams;  /* [rows][hc][E] */
    float *hidden;   /* [rows][E] */
    float *dstream;  /* [rows][E] the draft layer's one stream */
    float *dhidden;  /* [rows][E] */
    float *x, *y;    /* [rows][E] input and output of the sub-layer */
    float *post;     /* [rows][hc] */
    float *comb;     /* [rows][hc][hc] source, destination */
    float *logits;   /* [samples][vocab_rows], of the whole model */
    uint32_t *sel;   /* [rows][topk / kpool] selected pools, ascending; kept for SHARED layers */
    uint32_t *sel_n; /* [rows] or REF_ALL */
    uint8_t *draft;  /* [rows] 1: the draft stages run this row */
    uint32_t n_draft;
    /* KDA, rows of one layer */
    float *z, *qkv;   /* [rows][3P] before and after the convolution */
    float *g, *e, *o; /* [rows][P] log decay, output gate's argument, read-out */
    float *beta;      /* [rows][heads] */
    /* MLA, rows of one layer */
    float *cq;   /* [rows][q_rank] */
    float *kraw; /* [rows][key | gate][index_dim] */
    int err;
};

/* The matrix whose rows were asked for last; id.part 0: none. */
struct ref_matrix {
    struct kern_tensor_id id;
    struct kern_store store;
    uint64_t rows, cols;
    uint64_t unit;     /* rows that are unpacked together */
    uint64_t unpacked; /* which of them lie in ref.unpacked; UINT64_MAX: none */
    const void *piece[KERN_PIECES];
};

struct ref {
    struct kern *k;
    const struct kern_model_desc *m;
    uint64_t *offset; /* [kern_part_count()][KERN_PIECES] into weights */
    struct ref_matrix open;
    float *unpacked; /* rows of the open matrix, its unit of them */
    char *weights, *pages, *slots;
    uint64_t page_bytes, slot_bytes, slot_committed;
    uint64_t latent_bytes, key_bytes; /* of a stored row */
    uint64_t latent_at[KERN_MAX_LAYERS], pooled_at[KERN_MAX_LAYERS]; /* inside a page */
    uint64_t state_at[KERN_MAX_LAYERS], window_at[KERN_MAX_LAYERS], ring_at[KERN_MAX_LAYERS];
    uint64_t pending_at[KERN_MAX_LAYERS];
    struct ref_lane lane[KERN_LANES];
    float *state_copy; /* [heads][key][value]: a window that is not committed runs on this */
    double *chunk;     /* scratch of the chunked form: G, D, A, M of one head */
    double *scores;    /* [max_context] */
    uint32_t *heap;    /* [topk / kpool] */
    double *acc;       /* [widest vector] */
    float *tmp[4];     /* [widest vector] */
    float *rounded;    /* [widest vector] a product's input as BF16; NULL: inputs are taken as they are */
    float *attn;       /* [mla_heads][v_dim] of one row */
    void *sampling;    /* host_sample_scratch() */
    uint8_t *touched;  /* [n_experts] */
    const struct kern_prog *queue[REF_QUEUE];
    uint32_t queued;
};

/* Context of one stage. */
struct ref_ctx {
    struct ref *r;
    struct ref_lane *l;
    const struct kern_plan *p;
    struct kern_counters *c;
    const struct kern_stage *stage;
    uint32_t layer, n_rows;
    bool is_draft;
};

static inline uint32_t ref_p(const struct kern_model_desc *m) {
    return m->kda_heads * m->kda_dim;
}
static inline bool ref_active(const struct ref_ctx *x, uint32_t row) {
    return !x->is_draft || x->l->draft[row];
}
/* Rows of the sequence this stage runs: all, or the first ones in the draft layer. */
static inline uint32_t ref_seq_rows(const struct ref_ctx *x, const struct kern_seq *s) {
    return x->is_draft ? host_draft_rows(x->p, s) : s->n_rows;
}

/* ---- ref_layout.c ---- */
int ref_query(const struct kern_config *cfg, uint32_t vocab_rows, uint64_t bytes[KERN_MEM_N], char *err,
              size_t err_len);
void ref_place(struct ref *r, const struct kern_config *cfg, uint32_t vocab_rows, char *const base[KERN_MEM_N],
               uint64_t ret_bytes[KERN_MEM_N]);
int ref_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
             const void *bytes, uint64_t n);
int ref_pack_done(struct kern *k);

/* ---- ref_math.c ---- */
/* One row of a matrix as numbers; valid until the next call. */
const float *ref_row(struct ref *r, uint32_t part, uint32_t layer, uint32_t expert, uint64_t row);
const float *ref_vector(const struct ref *r, uint32_t part, uint32_t layer);
double ref_dot(const float *a, const float *b, uint64_t n);
double ref_sigmoid(double z);
double ref_silu(double z);
/* What a product takes in: in itself, or rounded to BF16, valid until the next call. */
const float *ref_input(struct ref *r, const float *in, uint64_t n);
/* y = W x; counts the products. Weight bytes are counted by ref_count(), once a stage. */
void ref_linear(struct ref_ctx *x, uint32_t part, uint32_t expert, const float *in, float *out);
void ref_count(struct ref_ctx *x, uint32_t part, uint32_t layer);
void ref_count_expert(struct ref_ctx *x, uint32_t part, uint32_t expert);
void ref_count_row(struct ref_ctx *x, uint32_t part); /* one row of a global matrix */
/* Turns the pairs (2i, 2i+1) of x by the angles of a position. */
void ref_rope(const struct kern_model_desc *m, float *x, uint32_t pos);
/* eps is the model's; out may be in */
void ref_rmsnorm(const float *in, const float *w, uint64_t n, float eps, float *out);

/* ---- stages ---- */
int ref_embed(struct ref_ctx *x);
void ref_site_in(struct ref_ctx *x, uint32_t site);
int ref_site_out(struct ref_ctx *x, uint32_t site);
void ref_final(struct ref_ctx *x);
int ref_draft_in(struct ref_ctx *x);
void ref_draft_out(struct ref_ctx *x);
int ref_head(struct ref_ctx *x, uint32_t source);
void ref_kda(struct ref_ctx *x);
int ref_mla(struct ref_ctx *x);
void ref_mlp(struct ref_ctx *x);

/* ---- inside the mixers ---- */
/* One row of the recurrence on S [key][value]; o NULL: the state only. q must be scaled, q and k normalised.
 */
void ref_kda_step(uint32_t dim, float *state, const float *q, const float *k, const float *v, const float *g,
                  float beta, float *o);
/* n <= KERN_GRID rows of head h, starting on the grid, from and to S. */
void ref_kda_chunk(struct ref_ctx *x, uint32_t row0, uint32_t n, uint32_t head, float *state);
/* Keys, gates, pools and tail ring of a sequence's rows, then each row's selection. */
int ref_index(struct ref_ctx *x, const struct kern_seq *s);
void *ref_page(const struct ref_ctx *x, const struct kern_seq *s, uint32_t pos);
/* A latent or pooled key in the cache's format; loading gives the row itself, or widens it into buf. */
void ref_store_row(const struct ref *r, void *at, const float *x, uint32_t n);
const float *ref_load_row(const struct ref *r, const void *at, uint32_t n, float *buf);

#endif
