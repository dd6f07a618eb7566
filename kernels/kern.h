/* SPDX-License-Identifier: MIT */
/* kern.h: the only outward header of kernels/. Plain C, no allocation, no logging, no knowledge of
 * daemons, files or sockets.
 *
 * A backend ("ref", "cpu", "cuda", "script") computes one rank's share of a model. Everything it
 * needs is decided before the first token: kern_query() tells the bytes of each memory class, the caller
 * provides them, kern_open() places everything inside them, kern_pack() receives windows of checkpoint
 * tensors and writes the backend's own layout (nobody else knows a layout), kern_capture_*() records the
 * stage sequences the engine will launch. After that a step is: kern_plan_load(), kern_launch(),
 * kern_wait(). Nothing is allocated or captured any more.
 *
 * The model is computed in *stages*, not in operations over loose tensors, so that a backend may fuse,
 * reorder inside a stage, and keep every intermediate where it wants. A stage reads the lane's loaded plan
 * (row count, tokens, positions, page tables, sampling parameters), so one captured program serves any plan
 * that fits the lane.
 *
 * Lanes. Lane 0 is decode, lane 1 is prefill. Each has its own plan, activations and result block, so a
 * half-done prefill chunk (some layers done) survives decode steps that run between its layer slices.
 *
 * Ranks. Each rank is an instance of its own with its share of the model. All are given the same plans and launch the
 * same programs in the same order; stages exchange what they must (comm.h): the sub-layers' outputs, which are summed
 * in rank order, embedding rows from the rank that has them, and the logits, of which each rank draws by itself. So
 * streams, hidden states, logits and results have the same bits on all ranks. A rank's slots hold its heads only; its
 * pages hold what all ranks' pages hold.
 *
 * Numbers (the promise every backend keeps):
 *  - decode rows: the bits of a row's results depend on that row's sequence only, never on what runs beside
 *    it or in which order sequences stand in the plan;
 *  - prefill: cuts on the absolute KERN_GRID-token grid give the same bits wherever the cuts are;
 *  - ties: larger score first, then the smaller id (experts, pools, tokens), +0 equals -0;
 *  - everything named fp32 in the model's precision map is fp32 or better.
 *
 * Errors: 0 or negative errno; kern_last_error() keeps one sentence. -EIO means the device, or a rank, is lost: no
 * further call but kern_close() is meaningful.
 *
 * Threads: one thread calls everything except kern_pack(), which any number of threads may call at once for
 * windows that do not overlap. */
#ifndef GLMD_KERN_H
#define GLMD_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format.h"

enum {
    KERN_MAX_LAYERS = 128,  /* trunk + draft layers */
    KERN_GRID = 64,         /* tokens; prefill cuts and state checkpoints lie on multiples of it */
    KERN_PAGE_TOKENS = 256, /* tokens in a latent page */
    KERN_MAX_WINDOW = 16,   /* rows of one sequence in one decode step, and pending rows in a slot */
    KERN_TAIL_RING = 32,    /* index tail ring slots: >= kpool - 1 + KERN_MAX_WINDOW, power of two */
    KERN_MAX_ALTS = 20,
    KERN_MAX_KPOOL = 16,
    KERN_MAX_HC = 8,
    KERN_LANE_DECODE = 0,
    KERN_LANE_PREFILL = 1,
    KERN_LANES = 2,
};

/* ---- the model ------------------------------------------------------------------------------------------ */

enum kern_mix { KERN_MIX_KDA = 1, KERN_MIX_MLA = 2 };
enum kern_index {
    KERN_INDEX_NONE = 0,   /* KDA layers; MLA without an indexer attends to everything */
    KERN_INDEX_FULL = 1,   /* own indexer; pooled when index_kpool > 1, per token when it is 1 */
    KERN_INDEX_SHARED = 2, /* reuses the selection of the previous FULL layer of the same step */
};
enum kern_resid { KERN_RESID_MHC = 1, KERN_RESID_PLAIN = 2 };
enum kern_mlp { KERN_MLP_DENSE = 1, KERN_MLP_MOE = 2 };

struct kern_layer_desc {
    uint8_t mix;   /* enum kern_mix */
    uint8_t index; /* enum kern_index */
    uint8_t resid; /* enum kern_resid */
    uint8_t mlp;   /* enum kern_mlp */
    uint8_t kvb_split; /* MLA: 1: kv_b is two tensors, KERN_MLA_KB and KERN_MLA_VB, as GGUF files have it */
};

/* Every value comes from the checkpoint's configuration (daemon/model reads it; nothing is assumed here).
 * Layers 0 .. n_layers-1 are the trunk, n_layers .. n_layers+n_draft-1 the MTP layers. */
struct kern_model_desc {
    uint32_t vocab_rows;   /* rows of embedding and head */
    uint32_t vocab_tokens; /* ids below this can be sampled; rows above are padding and never are */
    uint32_t hidden;       /* E */
    uint32_t n_layers, n_draft;
    float rms_eps;

    uint32_t dense_width, expert_width;
    uint32_t n_experts, n_top, n_shared; /* routed experts, experts per token, shared experts */
    float routed_scale;                  /* applied to the renormalised routed weights only */
    float swiglu_limit;                  /* gate: min(x, limit); up: clamp to +-limit; 0 = no clamp */

    /* RoPE turns neighbours (2i, 2i+1) by position * theta^(-2i / rope_dim): the last rope_dim numbers of a head's
     * query and of kv_a's row, the first rope_dim of an indexer's queries and keys (after their norm). The score is
     * divided by the root of nope_dim + rope_dim. */
    uint32_t mla_heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim;
    float rope_theta; /* 0 when rope_dim is 0 */

    uint32_t index_heads, index_dim, index_topk, index_kpool; /* topk in tokens */

    uint32_t kda_heads, kda_dim, conv_width;
    float gate_bound; /* multiplier of the decay gate's sigmoid, negative */

    uint32_t hc_mult, hc_iters; /* residual streams, Sinkhorn passes */
    float hc_eps;

    struct kern_layer_desc layer[KERN_MAX_LAYERS];
};

/* ---- weights -------------------------------------------------------------------------------------------- */

/* One checkpoint tensor each. Shapes as stored, [out, in] row-major, in terms of kern_model_desc. */
enum kern_part {
    KERN_EMBED = 1,  /* [vocab_rows, E]; layer = 0 for the three global parts */
    KERN_HEAD,       /* [vocab_rows, E] */
    KERN_FINAL_NORM, /* [E] */

    KERN_IN_NORM,     /* [E] */
    KERN_POST_NORM,   /* [E] */
    KERN_HC_ATTN_FN,  /* [hc*(2+hc), hc*E] rows: pre, post, comb */
    KERN_HC_ATTN_BASE, /* [hc*(2+hc)] */
    KERN_HC_ATTN_SCALE, /* [3] */
    KERN_HC_FFN_FN,
    KERN_HC_FFN_BASE,
    KERN_HC_FFN_SCALE,

    KERN_KDA_Q, /* [P, E], P = kda_heads * kda_dim */
    KERN_KDA_K,
    KERN_KDA_V,
    KERN_KDA_QCONV, /* [P, 1, conv_width]; the last tap multiplies the current token */
    KERN_KDA_KCONV,
    KERN_KDA_VCONV,
    KERN_KDA_FA,     /* [kda_dim, E] */
    KERN_KDA_FB,     /* [P, kda_dim] */
    KERN_KDA_GA,     /* [kda_dim, E] */
    KERN_KDA_GB,     /* [P, kda_dim] */
    KERN_KDA_B,      /* [kda_heads, E] */
    KERN_KDA_A_LOG,  /* [kda_heads] */
    KERN_KDA_DT_BIAS, /* [P] */
    KERN_KDA_O_NORM, /* [kda_dim] */
    KERN_KDA_O,      /* [E, P] */

    KERN_MLA_QA,       /* [q_rank, E] */
    KERN_MLA_QA_NORM,  /* [q_rank] */
    KERN_MLA_QB,       /* [mla_heads * (nope + rope), q_rank] */
    KERN_MLA_KVA,      /* [kv_rank + rope, E] */
    KERN_MLA_KVA_NORM, /* [kv_rank] */
    KERN_MLA_KVB,      /* [mla_heads * (nope + v), kv_rank]; per head: key rows, then value rows; not with kvb_split */
    KERN_MLA_O,        /* [E, mla_heads * v_dim] */

    KERN_IDX_QB,     /* [index_heads * index_dim, q_rank] */
    KERN_IDX_K,      /* [index_dim, E] */
    KERN_IDX_KNORM_W, /* [index_dim] LayerNorm */
    KERN_IDX_KNORM_B,
    KERN_IDX_W,    /* [index_heads, E] */
    KERN_IDX_APE,  /* [kpool, index_dim] */
    KERN_IDX_GATE, /* [index_dim, E] */

    KERN_MLP_GATE, /* [dense_width, E] */
    KERN_MLP_UP,
    KERN_MLP_DOWN, /* [E, dense_width] */

    KERN_ROUTER,      /* [n_experts, E] */
    KERN_ROUTER_BIAS, /* [n_experts] selection only */
    KERN_EXP_GATE,    /* [expert_width, E], one tensor per expert */
    KERN_EXP_UP,
    KERN_EXP_DOWN, /* [E, expert_width] */
    KERN_SH_GATE,  /* [n_shared * expert_width, E] */
    KERN_SH_UP,
    KERN_SH_DOWN,

    KERN_DRAFT_ENORM, /* [E] norm of the next token's embedding */
    KERN_DRAFT_HNORM, /* [E] norm of the trunk's final hidden */
    KERN_DRAFT_EH,    /* [E, 2E]: embedding columns first */
    KERN_DRAFT_NORM,  /* [E] shared_head.norm */

    KERN_MLA_KB, /* [mla_heads * kv_rank, nope]: the key half of kv_b, each head's transposed */
    KERN_MLA_VB, /* [mla_heads * v, kv_rank]: the value half */
    KERN_PART_END
};

struct kern_tensor_id {
    uint32_t part; /* enum kern_part */
    uint32_t layer;
    uint32_t expert; /* routed expert, 0 otherwise */
    uint32_t piece;  /* enum kern_piece */
};

struct kern_tensor {
    struct kern_store store; /* how the bytes handed over are encoded */
    uint64_t rows, cols; /* of the whole matrix, whichever piece; a vector is [n, 1]; a conv tensor [P, conv_width] */
};

/* ---- opening -------------------------------------------------------------------------------------------- */

enum kern_mem {
    KERN_MEM_CTL = 0, /* host: the backend object, programs, plan copies, result blocks */
    KERN_MEM_WEIGHTS, /* read-only once packed */
    KERN_MEM_PAGES,   /* latent and pooled-key pages */
    KERN_MEM_SLOTS,   /* recurrent state, conv windows, index tails, pending factors */
    KERN_MEM_WORK,    /* activations of both lanes */
    KERN_MEM_N
};

/* How latents and pooled keys are stored. FP8: each number in E4M3 with one F32 factor a row, its largest magnitude
 * divided by 448, whatever that is: 528 bytes for a latent of 512, 132 for a pooled key of 128. The rotary numbers of
 * a latent keep BF16: they are not of the normalised row's size, and 64 of them make 656 bytes. Backend cuda rounds
 * what it reads to BF16 before it multiplies, an F32 cache too. */
enum kern_cache { KERN_CACHE_F32 = 1, KERN_CACHE_BF16 = 2, KERN_CACHE_FP8 = 3 };

struct comm;

struct kern_config {
    struct kern_model_desc model;
    uint32_t rank, n_ranks;      /* 0, 1: the whole model; otherwise this rank's share of it (shard.h) */
    struct comm *comm;           /* this rank's end of the exchange (comm.h), borrowed until kern_close(), with slots
                                  * of kern_comm_bytes(); NULL: one rank. Not looked at by kern_query(). */
    uint32_t threads;            /* host backends: threads incl. the caller; 0 = online CPUs */
    uint32_t cache;              /* enum kern_cache */
    uint32_t n_pages, n_slots;   /* page and slot ids run from 0 */
    uint32_t max_seqs;           /* sequences in one plan */
    uint32_t max_rows[KERN_LANES]; /* prefill: a multiple of KERN_GRID */
    uint32_t max_samples;        /* sample entries in one plan */
    uint32_t max_context;        /* tokens of one sequence */
    uint64_t max_plan_bytes;
    /* How each weight matrix is stored: [kern_part_count(&model)], by kern_part_slot(); entries of vectors and of
     * tensors the model lacks are not looked at. NULL: every matrix is BF16. Borrowed by kern_query(), copied by
     * kern_open(). */
    const struct kern_store *stores;
    const char *isa;             /* cpu: NULL = best available, or "avx2", "avx512", "neon", "scalar". ref: "bf16"
                                  * rounds the inputs of products to BF16, as the tensor cores of devices take them */
    const char *script;          /* backend "script": its text, NUL-terminated, borrowed until kern_close */
};

/* What a script says about the model it stands for (format: glmd-script(5)). */
enum { KERN_SCRIPT_MAX_STOPS = 16, KERN_SCRIPT_MAX_BYTES = 16 << 20 };
struct kern_script_info {
    char model[512];       /* checkpoint directory for configuration and tokenizer; empty: a bare vocabulary */
    uint32_t vocab_tokens; /* 0 with a model */
    uint32_t context_tokens; /* 0 = not said */
    uint32_t layers;       /* programs a prompt passes through */
    uint32_t n_stops, stops[KERN_SCRIPT_MAX_STOPS];
    /* For a self-test: a prompt of the one id `probe` that comes first is answered with first_token. KERN_NONE:
     * the script leaves no such id, or its first answer is a failure. */
    uint32_t probe, first_token;
};
/* text: NUL-terminated. -EINVAL, err gets one sentence that begins with the line's number. */
int kern_script_info(const char *text, struct kern_script_info *ret, char *err, size_t err_len);

struct kern_block {
    void *base; /* 4096-aligned; an opaque device address for device backends */
    uint64_t bytes;
};

struct kern;
struct kern_prog;

/* Bytes of each class for this backend and configuration. -ENOENT unknown backend, -EINVAL a value out of
 * range or a shape this backend cannot compute (kern_open_error() says which), -EOVERFLOW absurd sizes. */
int kern_query(const char *backend, const struct kern_config *cfg, uint64_t ret_bytes[KERN_MEM_N]);

/* What a slot of comm needs for this configuration's exchanges; 0: there is one rank, or it cannot be cut. */
uint64_t kern_comm_bytes(const struct kern_config *cfg);

/* Memory of one class from where the backend wants it (host: anonymous mapping). -ENOMEM; a device backend has more to
 * say in kern_open_error(), and -ENODEV where it has no device. */
int kern_mem_alloc(const char *backend, enum kern_mem cls, uint64_t bytes, struct kern_block *ret);
void kern_mem_free(const char *backend, enum kern_mem cls, struct kern_block *block);
/* Where memory of a class lies. 0: in the machine's, as everything else; 1: in a device's own, of which *ret_free bytes
 * are free now. -ENOENT; -ENODEV: there is no device, kern_open_error() says why. */
int kern_mem_where(const char *backend, enum kern_mem cls, uint64_t *ret_free);

/* Places the backend into mem (borrowed until kern_close). cfg is copied. Starts the thread pool. */
int kern_open(const char *backend, const struct kern_config *cfg, const struct kern_block mem[KERN_MEM_N],
              struct kern **ret);
struct kern *kern_close(struct kern *k); /* NULL ok; returns NULL; joins threads; frees no block */

const char *kern_name(const struct kern *k);       /* "ref", "cpu/avx2", … static storage */
const char *kern_last_error(const struct kern *k); /* one sentence, valid until the next call; never NULL */
const char *kern_open_error(void); /* the same for kern_query, kern_mem_alloc and kern_open; thread-local */

/* The shape a part must have in this model; -ENOENT when the model has no such tensor (wrong layer kind, expert
 * out of range). ret_matrix: weight matrices are accepted as their store says and kept so; everything else (norms,
 * convolution taps, gates' vectors, biases, ape) is accepted as BF16, F16 or F32 and kept as F32. */
int kern_part_shape(const struct kern_model_desc *m, const struct kern_tensor_id *id, uint64_t *ret_rows,
                    uint64_t *ret_cols, bool *ret_matrix);
const char *kern_part_name(uint32_t part); /* "kda.q_proj", …; "?" for an unknown part */
/* A number for each tensor the model can have, below kern_part_count(); the piece does not matter. id must be one
 * that kern_part_shape() knows. */
uint64_t kern_part_count(const struct kern_model_desc *m);
uint64_t kern_part_slot(const struct kern_model_desc *m, const struct kern_tensor_id *id);
/* How cfg says the matrix is stored. */
struct kern_store kern_matrix_store(const struct kern_config *cfg, const struct kern_tensor_id *id);

/* A window of one piece's bytes (kern_store_piece()), at any offset and of any length; copied before return. A
 * matrix comes in its store, all pieces of it; all windows of a vector have the same format; together the windows
 * cover each piece exactly once. Tensors are the whole model's for every rank, which keeps its part of each window
 * (kern_shard_piece() says which bytes: the others need not be read). */
int kern_pack(struct kern *k, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
              const void *bytes, uint64_t n);
/* Every part complete? -ENODATA names the first that is not. Afterwards weights are read-only. */
int kern_pack_done(struct kern *k);

/* ---- the plan: one flat, pointer-free, serialisable description of a step -------------------------------- */

#define KERN_PLAN_MAGIC 0x4e4c504bu /* "KPLN" */
#define KERN_NONE       0xffffffffu
#define KERN_TOKEN_LAST 0xfffffffeu /* the token last sampled for the row's slot (stays on the device) */

enum kern_seq_flags {
    KERN_SEQ_RESET = 1u << 0,   /* the slot's state starts from zero; pos0 is 0 */
    KERN_SEQ_PREFILL = 1u << 1, /* chunked form; lane 1 only; pos0 on the grid */
    KERN_SEQ_COMMIT = 1u << 2,  /* state after the last row is stored at once; otherwise rows stay pending */
    KERN_SEQ_DRAFT = 1u << 3,   /* the draft stages run rows whose next token is known */
    KERN_SEQ_ALL_FLAGS = (1u << 4) - 1,
};

struct kern_row {
    uint32_t token; /* id, or KERN_TOKEN_LAST */
    uint32_t seq;   /* index into seqs */
    uint32_t pos;   /* absolute position */
    uint32_t next;  /* token at pos + 1 for the draft stages, KERN_TOKEN_LAST (the token this step's head draws,
                     * read when kern_draft_in runs), or KERN_NONE */
    uint32_t embed; /* row of the embeddings area instead of a token (pictures), or KERN_NONE */
    uint32_t zero;
};

/* Rows of a sequence are consecutive, positions pos0, pos0+1, …, and the sequences tile the rows in order. The
 * slot holds the committed state of positions below pos0 - keep plus pending factors; `keep` of those rows are
 * committed first, in order; pending rows beyond `keep` are forgotten. A sequence without rows (keep > 0 and
 * KERN_SEQ_COMMIT) only commits. PREFILL implies COMMIT. Every slot occurs once in a plan; a page that a sequence
 * writes (those of its rows' positions) occurs nowhere else in the plan. Rows with `next` are the first ones of
 * their sequence. */
struct kern_seq {
    uint32_t slot;
    uint32_t row0, n_rows;
    uint32_t pos0;
    uint32_t keep; /* pending rows to commit before the first row, 0 .. KERN_MAX_WINDOW */
    uint32_t page0, n_pages; /* slice of the page table; page i holds positions 256 i … */
    uint32_t flags;
};

enum kern_sample_mode {
    KERN_SAMPLE_DRAW = 1,  /* choose a token */
    KERN_SAMPLE_SCORE = 2, /* top1, logsumexp, target's logit; nothing is drawn */
};
enum kern_source { KERN_SOURCE_TRUNK = 0, KERN_SOURCE_DRAFT = 1 };

/* The sampler, in this order, on the raw logits z of one row:
 *   logprobs are taken from log_softmax(z) over real tokens, before anything below;
 *   banned ids, masked-out ids and padding rows become -inf; bias is added;
 *   repetition r: z>0 ? z/r : z*r for tokens seen in prompt or output;
 *   presence/frequency: z -= presence + frequency*count for tokens of the output (count > 0);
 *   temperature 0: the largest z, ties to the smaller id;
 *   else the top_k largest by (z desc, id asc) remain; p = softmax(z / temperature) over what remains; then the
 *   smallest prefix in the same order whose sum reaches top_p; then p >= min_p * max p; the survivor with the
 *   largest log p + G(seed, position, id) wins (ties to the smaller id), G = -log(-log(u)), u from a
 *   counter-based 64-bit mix, in double; position is the one the drawn token will have (the row's + 1, a draft
 *   row's + 2): the draw depends on nothing but seed, position and the row's logits.
 * Steps up to the penalties are done in float32. */
struct kern_sample {
    uint32_t row;
    uint16_t mode;   /* enum kern_sample_mode */
    uint16_t source; /* enum kern_source */
    uint32_t target; /* SCORE: id whose logit is wanted, or KERN_NONE */
    uint32_t forced; /* DRAW: this token is taken whatever the logits (logprob still reported), or KERN_NONE */
    float temperature, top_p, min_p;   /* top_p 1 and min_p 0 switch off */
    float repetition, presence, frequency; /* 1, 0, 0 switch off */
    uint32_t top_k;                    /* 0 = off */
    uint32_t n_alts;                   /* 0 .. KERN_MAX_ALTS most likely tokens reported */
    uint64_t seed;
    uint32_t bias0, n_bias;   /* slice of struct kern_bias */
    uint32_t seen0, n_seen;   /* slice of struct kern_seen: distinct tokens of prompt and output */
    uint32_t ban0, n_ban;     /* slice of uint32_t ids */
    uint32_t mask0;           /* first word of a bit mask of allowed ids, vocab_rows bits, or KERN_NONE */
    uint32_t zero;
};

struct kern_bias {
    uint32_t token;
    float bias;
};

struct kern_seen {
    uint32_t token;
    uint32_t count; /* times in the output; 0 = prompt only */
};

/* Header; the areas follow at the given byte offsets from its start, each 8-aligned, inside `bytes`. */
struct kern_plan {
    uint32_t magic, version; /* KERN_PLAN_MAGIC, 1 */
    uint64_t bytes;
    uint64_t digest; /* kern_plan_digest() over the whole plan with this field 0 */
    uint64_t step;
    uint32_t lane;
    uint32_t n_rows, n_seqs, n_samples, n_pages, n_bias, n_seen, n_ban, n_mask_words, n_embeds;
    uint32_t rows, seqs, samples, pages, bias, seen, ban, mask, embeds; /* byte offsets */
    uint32_t zero;
};

/* From the counts in the header: magic, version, offsets and bytes, areas in canonical order, nothing else
 * touched. Returns the plan's bytes, 0 when they exceed cap (nothing written then). */
uint64_t kern_plan_layout(const struct kern_config *cfg, struct kern_plan *p, uint64_t cap);
uint64_t kern_plan_digest(const struct kern_plan *p);
/* Every index, slice, flag and number against the configuration; -EINVAL, -EBADMSG (digest), -EOVERFLOW. */
int kern_plan_check(const struct kern_config *cfg, const struct kern_plan *p, uint64_t bytes);

/* ---- stages --------------------------------------------------------------------------------------------- */

/* Records the stages called in between as one program of a lane; programs live in KERN_MEM_CTL until
 * kern_close. Only before the first kern_launch. -ENOSPC: more programs or stages than reserved. */
int kern_capture_begin(struct kern *k, uint32_t lane);
int kern_capture_end(struct kern *k, struct kern_prog **ret);
/* Programs are numbered in the order of their captures, so that ranks can be told which to launch. NULL: there is no
 * such program. */
uint32_t kern_prog_no(const struct kern *k, const struct kern_prog *prog);
const struct kern_prog *kern_prog_at(const struct kern *k, uint32_t no);

enum kern_site { KERN_SITE_ATTN = 0, KERN_SITE_FFN = 1 };

int kern_embed(struct kern *k);                               /* streams = copies of the embedding */
int kern_site_in(struct kern *k, uint32_t layer, enum kern_site s);  /* streams -> normalised sub-layer input */
int kern_mix(struct kern *k, uint32_t layer);                 /* KDA, or MLA with indexer, per the description */
int kern_mlp(struct kern *k, uint32_t layer);                 /* dense, or router + experts + shared */
int kern_site_out(struct kern *k, uint32_t layer, enum kern_site s); /* merge the sub-layer's output */
int kern_final(struct kern *k);                               /* mean of streams, final norm -> hidden */
int kern_draft_in(struct kern *k, uint32_t layer);  /* hidden, next token -> one plain stream (rows with next) */
int kern_draft_out(struct kern *k, uint32_t layer); /* draft norm -> draft hidden */
int kern_head(struct kern *k, enum kern_source source); /* logits and sampling for the plan's entries of source */

/* ---- running -------------------------------------------------------------------------------------------- */

/* Checks and copies the plan to where the stages read it; resets the lane's counters and results. The lane
 * must be idle (-EBUSY). A plan also has to continue what its slots hold: -ESTALE when pos0 or keep does not
 * follow from the slot's position and pending rows, or KERN_TOKEN_LAST has nothing to refer to. From then on the
 * slot counts as moved, so a loaded plan must be launched. */
int kern_plan_load(struct kern *k, const struct kern_plan *plan, uint64_t bytes);
/* Enqueues a program over its lane's loaded plan; returns at once, order within the device is launch order. */
int kern_launch(struct kern *k, const struct kern_prog *prog);
/* True when the caller is one of the threads that compute, at work inside kern_wait only: then nothing is gained
 * by launching before other business is done. */
bool kern_caller_computes(const struct kern *k);
/* Waits for everything launched on the lane. Host backends do the caller's share of the work here. */
int kern_wait(struct kern *k, uint32_t lane);

struct kern_alt {
    uint32_t token;
    float logprob;
};

enum kern_result_flags {
    KERN_RESULT_NONFINITE = 1u << 0, /* a real token's logit was NaN or infinite: token, top1 are KERN_NONE */
    KERN_RESULT_EMPTY = 1u << 1,     /* bans and masks left no token to choose: token is KERN_NONE */
};

struct kern_result {
    uint32_t sample; /* index of the plan's entry */
    uint32_t token;  /* drawn token; SCORE: equal to top1 */
    uint32_t top1;
    uint32_t flags;
    float logprob;   /* of token */
    float logsumexp; /* over real tokens */
    float target;    /* logit of the entry's target, NaN when none */
    uint32_t n_alts;
    struct kern_alt alts[KERN_MAX_ALTS];
};

/* Result block of the lane's last step, one entry per plan sample in plan order; valid after kern_wait until
 * the lane's next kern_plan_load. */
const struct kern_result *kern_results(const struct kern *k, uint32_t lane, uint32_t *ret_n);

/* What a lane's step touched since its plan was loaded. */
struct kern_counters {
    uint64_t weight_bytes;  /* packed bytes read, each expert and row counted once a stage */
    uint64_t expert_bytes;  /* of those, the routed experts' */
    uint64_t state_bytes;   /* recurrent state read + written */
    uint64_t latent_rows;   /* latent rows gathered by attention, summed over rows and layers */
    uint64_t pooled_keys;   /* pooled keys scored */
    uint64_t cache_bytes;   /* of those rows and keys, as they are stored */
    uint64_t experts;       /* distinct experts touched, summed over layers */
    uint64_t flops;         /* 2 x weights x rows of the dense products */
};
int kern_counters(const struct kern *k, uint32_t lane, struct kern_counters *ret);

/* ---- state ---------------------------------------------------------------------------------------------- */

/* Committed tokens of a slot, and rows still pending beyond them. */
int kern_slot_state(const struct kern *k, uint32_t slot, uint32_t *ret_pos, uint32_t *ret_pending);
/* A slot's committed content as bytes in this backend's own layout (checkpoints, spill, tests); the lanes
 * must be idle. Pending factors must have been resolved: -EBUSY otherwise. kern_slot_write refuses bytes of
 * another model, backend or layout with -EBADMSG. */
uint64_t kern_slot_bytes(const struct kern *k);
int kern_slot_read(struct kern *k, uint32_t slot, void *dst, uint64_t bytes);
int kern_slot_write(struct kern *k, uint32_t slot, const void *src, uint64_t bytes);
int kern_slot_copy(struct kern *k, uint32_t dst, uint32_t src);
int kern_page_copy(struct kern *k, uint32_t dst, uint32_t src); /* all layers of one page */
/* A page's bytes, all layers, in this backend's own layout; the rules of the slots' bytes. What lies behind the last
 * position that was written is left over from somebody else, or nothing. All ranks' pages have the same bytes: those
 * of one may be written to each. */
uint64_t kern_page_bytes(const struct kern *k);
int kern_page_read(struct kern *k, uint32_t page, void *dst, uint64_t bytes);
int kern_page_write(struct kern *k, uint32_t page, const void *src, uint64_t bytes);

/* Rows of an activation as float32, for evaluation and tests; after kern_wait, before the next plan. */
enum kern_peek {
    KERN_PEEK_STREAMS = 1, /* [rows][hc][E] as they stand */
    KERN_PEEK_HIDDEN,      /* [rows][E] after kern_final */
    KERN_PEEK_DRAFT,       /* [rows][E] after kern_draft_out */
    KERN_PEEK_LOGITS,      /* [samples][vocab_rows]: row0 counts plan samples */
};
int kern_peek(struct kern *k, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst,
              uint64_t dst_floats);

#endif
