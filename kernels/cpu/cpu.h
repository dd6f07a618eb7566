/* SPDX-License-Identifier: MIT */
/* cpu.h: the CPU backend's object, its layouts, and the stage functions that the team runs.
 *
 * Widths are padded to 16 floats wherever a vector walks over them; paddings hold zeros from kern_open() on
 * and every stage keeps them so. A matrix is stored as panels of 16 outputs (cpu_ops.h); matrices that read
 * the same input stand behind each other as one. */
#ifndef GLMD_CPU_H
#define GLMD_CPU_H

#include "backend.h"
#include "cpu_ops.h"
#include "cpu_pool.h"

static inline uint64_t pad16(uint64_t n) {
    return (n + 15) & ~15ull;
}

enum { CPU_MAX_ROPE = 1 << 10 }; /* rope_dim's bound in the configuration check */

/* Padded widths, all in floats. */
struct cpu_dims {
    uint32_t e;                /* hidden */
    uint32_t hc, hc_rows;      /* streams; rows of an mHC projection */
    uint32_t kda_dim, kda_all; /* one head, all heads */
    uint32_t kda_z;            /* q | k | v | f_a | g_a | b */
    uint32_t z_fa, z_ga, z_b;  /* where the gates' parts start */
    uint32_t q_rank, kv_rank, v;
    uint32_t rope, q_head, lat; /* rotary numbers; nope and rope of a query; a latent and its rotary numbers */
    uint32_t q_all, qa_all, v_all; /* heads x q_head, heads x lat, heads x v */
    uint32_t idx_dim, idx_all;
    uint32_t mla_z; /* q_a | kv_a | key | gate | head weights */
    uint32_t z_kv, z_key, z_gate, z_w;
    uint32_t cq_n; /* q | index q */
    uint32_t dense, expert, shared;
    uint32_t vocab, logits; /* this rank's rows of the head, and the whole model's */
    uint32_t max_pools; /* of one sequence */
    uint32_t sel;       /* pools a query selects at most */
};

/* Byte offsets into KERN_MEM_WEIGHTS; 0 outputs: the layer has no such matrix. Where every tensor of it is BF16 it is
 * one run of panels at off; otherwise each tensor is a segment of its own. */
struct cpu_mat {
    uint64_t off, bytes;
    uint64_t weights; /* of the checkpoint, without paddings */
    uint32_t k, panels;
    uint32_t first_seg, n_segs; /* 0: BF16 */
};

/* One tensor of a matrix: panel i of it is panel out0 + i * step of the product. */
struct cpu_seg {
    struct cpu_packed m;
    uint64_t bytes;
    uint32_t part, out0, step, panels;
};

struct cpu_layer {
    uint64_t in_norm, post_norm;
    uint64_t hc_fn[2], hc_base[2], hc_scale[2];
    struct cpu_mat in;                     /* everything that reads the layer's input */
    uint64_t conv, dt_bias, o_norm, a_log; /* KDA */
    struct cpu_mat fb, gb;
    uint64_t qa_norm, kva_norm, knorm_w, knorm_b, ape; /* MLA and indexer */
    struct cpu_mat cq, uk, uv;
    struct cpu_mat out;
    struct cpu_mat gate_up, down; /* dense, or the shared expert */
    uint64_t router, router_bias; /* rows in the format of its store; so are those of hc_fn */
    /* Expert 0; the others follow at exp_stride, or with their segments three by three. */
    struct cpu_mat exp_gate_up, exp_down;
    uint64_t exp_stride;
    uint64_t enorm, hnorm, draft_norm;
    struct cpu_mat eh;
    uint64_t slot; /* bytes into a slot's committed part: state + window, or the ring */
    uint64_t pend; /* bytes into a slot: pending rows of a KDA layer */
    uint64_t page; /* bytes into a page: latents, then pooled keys */
};

/* One pending row of a KDA layer, in floats. */
struct cpu_pend {
    uint32_t k, v, a, z, b, size;
};

/* Floats and words into a lane's work memory. */
struct cpu_lane_layout {
    uint64_t streams, plain, u, y, z, hc_mix, hc_coef, wide, qa, attn_out, sel, n_sel, act, router, top_id,
        top_w, expert_act, hidden, draft, gather, eh_in, logits, logits_at, turn, plan_rows, bytes;
};

struct cpu_layout {
    struct cpu_dims d;
    struct cpu_pend pend;
    uint64_t embed, embed_scale, embed_global, final_norm;
    struct cpu_seg *seg; /* NULL: only counted */
    uint32_t n_segs;
    struct cpu_mat head;
    struct cpu_layer layer[KERN_MAX_LAYERS];
    uint64_t weight_bytes;
    uint64_t slot_bytes, slot_stride; /* committed part; with pending rows */
    uint64_t page_bytes;
    uint64_t latent_bytes, key_bytes; /* of a stored row: widths are padded as everywhere */
    struct cpu_lane_layout lane[KERN_LANES];
    uint64_t lane_at[KERN_LANES], thread_at, thread_bytes, work_bytes;
    uint64_t thread_group; /* in a thread's scratch: expert lists, after the floats */
    uint64_t thread_room;  /* and CPU_PACKED_ROOM floats, where there are segments */
};

/* The rows one group of stages works on: all of the plan's, or those of the draft layers. */
struct cpu_seq {
    uint32_t slot, row0, n_rows, pos0, keep, flags;
    const uint32_t *pages;
};
struct cpu_rows {
    uint32_t n, n_seqs;
    struct cpu_seq *seq; /* [max_seqs] */
    uint32_t *row;       /* plan row of each */
    uint32_t *seq_of;    /* index into seq */
    uint32_t *pos;
};

struct cpu_lane {
    float *streams;        /* [rows][hc][e] trunk */
    float *plain;          /* [rows][e] draft */
    float *u, *y;          /* [rows][e] */
    float *z;              /* [rows][max of the input widths] */
    float *hc_mix;         /* [rows][hc_rows + 1]: raw products, sum of squares; padded to 16 */
    float *hc_coef;        /* [rows][post | comb] */
    float *wide;           /* [rows][cq_n or 2 x dense]: products before an activation */
    float *qa;             /* [rows][heads x lat] */
    float *attn_out;       /* [rows][kda_all or v_all] */
    uint32_t *sel, *n_sel; /* [rows][sel] pools ascending; KERN_NONE: everything visible */
    float *act;            /* [rows][dense or shared] */
    float *router;         /* [rows][experts] */
    uint32_t *top_id;      /* [rows][n_top], ascending ids */
    float *top_w;
    float *expert_act;     /* [rows x n_top][3 x expert]: gate|up, then the activation */
    float *hidden, *draft; /* [rows][e] */
    float *gather;         /* [samples][e] */
    float *eh_in;          /* [rows][2 e] */
    float *logits;         /* [samples][logits] */
    uint32_t *logits_at; /* [samples] row of logits of a plan's entry: the trunk's first, then the draft's */
    float *turn; /* [plan rows][rope_dim]: cosine and sine of each pair's angle */
    uint32_t n_trunk_samples;
    struct cpu_rows rows[2]; /* trunk, draft */
};

struct cpu {
    struct kern *k;
    const struct cpu_ops *ops;
    uint32_t n_threads;
    struct cpu_layout l;
    struct cpu_lane lane[KERN_LANES];
    const char *weights;
    char *slots, *pages, *work;
    double rope_freq[CPU_MAX_ROPE / 2]; /* angle of each pair a position */
    struct pool pool;
    const void *part[COMM_MAX_RANKS]; /* of the exchange last made */
    int failed; /* an exchange's error; every program since does nothing */
};

/* What a stage function is handed. */
struct cpu_run {
    struct cpu *c;
    const struct cpu_ops *ops;
    struct cpu_lane *lane;
    uint32_t lane_id;
    const struct kern_plan *plan;
    const struct kern_stage *stage;
    int failed; /* this program ends: a rank is lost. Every member sees it at the same place */
    struct kern_counters *count; /* member 0 only */
    uint32_t me, n;              /* this member, members */
    float *scratch;              /* this member's */
    uint32_t *group;
    float *room;
};

/* ---- layout (cpu_layout.c) ---- */

/* segs: room for as many segments as a first call without it counts. */
void cpu_layout(const struct kern_config *cfg, uint32_t vocab_rows, uint32_t threads, struct cpu_seg *segs,
                struct cpu_layout *ret);
uint32_t cpu_threads(const struct kern_config *cfg);
static inline uint64_t cpu_expert_group_words(const struct kern_config *cfg, uint32_t rows) {
    return (uint64_t)rows * cfg->model.n_top * 4 + cfg->model.n_experts + 16;
}

/* ---- packing (cpu_pack.c) ---- */

void cpu_clear_paddings(struct cpu *c);
int cpu_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
             const void *bytes, uint64_t n);
int cpu_pack_done(struct kern *k);

/* ---- stored weights (cpu_stored.c) ---- */

/* Panels p0 .. p1-1 of m for `rows` rows; panel p0 is written at out. */
void cpu_prod(struct cpu_run *r, const struct cpu_mat *m, uint32_t p0, uint32_t p1, const float *x, size_t ldx,
              const uint32_t *idx, uint32_t rows, float *out, size_t ldo);
uint64_t cpu_mat_bytes(const struct cpu_layout *l, const struct cpu_mat *m);
/* A row of the embedding, padded; and what it takes. */
void cpu_embed_row(const struct cpu_run *r, uint32_t token, float *out);
uint64_t cpu_embed_bytes(const struct cpu_layout *l, const struct kern_config *cfg);
/* The segment a tensor lies in; NULL: panels of BF16. */
const struct cpu_seg *cpu_seg_of(const struct cpu_layout *l, const struct cpu_mat *m, uint32_t part);
void cpu_pack_seg(struct cpu *c, const struct cpu_seg *s, const struct cpu_seg *key_rows, uint32_t piece,
                  uint64_t offset, const uint8_t *src, uint64_t n);
void cpu_clear_seg(struct cpu *c, const struct cpu_seg *s);

/* ---- rotary positions (cpu_rope.c) ---- */

void cpu_rope_open(struct cpu *c);
/* Cosines and sines of the positions of this member's share of the trunk's rows. */
void cpu_rope_rows(struct cpu_run *r);
/* out = the pairs of x, turned as row `row` of the plan stands; may be x. */
void cpu_rope_turn(const struct cpu_run *r, uint32_t row, const float *x, float *out);

/* ---- ranks (cpu_ranks.c); with one rank none of these is called ---- */

/* The stage's exchange, by all members: what they wrote into the slot is sent, and all ranks' parts are there after it.
 * false: a rank is lost, and the stage returns at once. */
bool cpu_exchange(struct cpu_run *r, uint64_t bytes, const void *ret_part[COMM_MAX_RANKS]);
/* The embeddings of the rows, or of their next tokens: row i goes to to + i * ld. */
bool cpu_gather_embeddings(struct cpu_run *r, const struct cpu_rows *rows, bool next, float *to, size_t ld);
/* The sub-layer's output, summed over ranks: this member's share of pieces lo .. hi-1 of 16 columns, and no other. */
bool cpu_sum_ranks(struct cpu_run *r, uint32_t rows, uint64_t lo, uint64_t hi);
/* Where the products of this rank's rows of the head go; then n rows of logits, from `first` on, have all ranks'. */
float *cpu_own_logits(const struct cpu_run *r);
bool cpu_gather_logits(struct cpu_run *r, uint32_t first, uint32_t n);
/* This rank has chosen the pools of its share of the rows (cpu_rank_lo()) and learns the others'. */
bool cpu_gather_selection(struct cpu_run *r, uint32_t rows);
static inline uint32_t cpu_rank_lo(const struct cpu_run *r, uint32_t n, uint32_t rank) {
    return (uint32_t)((uint64_t)n * rank / r->c->k->cfg.n_ranks);
}

/* ---- stages ---- */

void cpu_stage_embed(struct cpu_run *r);
void cpu_stage_site_in(struct cpu_run *r, uint32_t layer, uint32_t site);
void cpu_stage_site_out(struct cpu_run *r, uint32_t layer, uint32_t site);
void cpu_stage_final(struct cpu_run *r);
void cpu_stage_draft_in(struct cpu_run *r, uint32_t layer);
void cpu_stage_draft_out(struct cpu_run *r, uint32_t layer);
void cpu_stage_head(struct cpu_run *r, uint32_t source);
void cpu_stage_kda(struct cpu_run *r, uint32_t layer);
void cpu_stage_mla(struct cpu_run *r, uint32_t layer);
void cpu_stage_dense(struct cpu_run *r, uint32_t layer);
void cpu_stage_moe(struct cpu_run *r, uint32_t layer);

/* ---- small helpers ---- */

static inline const float *cpu_vec(const struct cpu_run *r, uint64_t off) {
    return (const float *)(const void *)(r->c->weights + off);
}
static inline const uint32_t *cpu_words(const struct cpu_run *r, uint64_t off) {
    return (const uint32_t *)(const void *)(r->c->weights + off);
}
static inline struct kern_store cpu_store(const struct kern_config *cfg, uint32_t part, uint32_t layer) {
    return kern_matrix_store(cfg, &(struct kern_tensor_id){.part = part, .layer = layer});
}
/* Bytes of a number of a matrix that is kept in rows. */
static inline uint64_t cpu_plain_size(const struct kern_store *s) {
    return s->format == KERN_F32 ? 4 : 2;
}
static inline bool is_draft(const struct cpu_run *r, uint32_t layer) {
    return layer >= r->c->k->cfg.model.n_layers;
}
static inline struct cpu_rows *rows_of(const struct cpu_run *r, uint32_t layer) {
    return &r->lane->rows[is_draft(r, layer)];
}
static inline char *slot_at(const struct cpu_run *r, uint32_t slot, uint64_t off) {
    return r->c->slots + slot * r->c->l.slot_stride + off;
}
static inline float *cpu_scratch(const struct cpu *c, uint32_t member) {
    return (float *)(void *)(c->work + c->l.thread_at + member * c->l.thread_bytes);
}
static inline void run_barrier(struct cpu_run *r) {
    pool_barrier(&r->c->pool, r->me);
}
/* This member's share of n items in order; shares differ by one item at most. */
static inline uint32_t share_lo(const struct cpu_run *r, uint32_t n) {
    return (uint32_t)((uint64_t)n * r->me / r->n);
}
static inline uint32_t share_hi(const struct cpu_run *r, uint32_t n) {
    return (uint32_t)((uint64_t)n * (r->me + 1) / r->n);
}
/* This member's share of a product: its panels for all rows. No barrier. */
static inline void run_prod(struct cpu_run *r, const struct cpu_mat *m, const float *x, size_t ldx,
                            uint32_t rows, float *out, size_t ldo) {
    uint32_t p0 = share_lo(r, m->panels), p1 = share_hi(r, m->panels);
    for (uint32_t i = 0; FAULT(cpu_row_by_row) && p0 < p1 && rows <= 16 && i + 1 < rows; i++)
        cpu_prod(r, m, p0, p1, x, ldx, NULL, 1, out + 16 * (size_t)p0, ldo);
    if (p0 < p1 && rows)
        cpu_prod(r, m, p0, p1, x, ldx, NULL, rows, out + 16 * (size_t)p0, ldo);
}
static inline void count_mat(struct cpu_run *r, const struct cpu_mat *m, uint64_t rows) {
    if (r->me == 0 && rows) {
        r->count->weight_bytes += cpu_mat_bytes(&r->c->l, m) * (FAULT(cpu_row_by_row) ? rows : 1);
        r->count->flops += 2 * m->weights * rows;
    }
}
static inline void count_bytes(struct cpu_run *r, uint64_t bytes) {
    if (r->me == 0)
        r->count->weight_bytes += bytes;
}

#endif
