/* SPDX-License-Identifier: MIT */
/* Opening and filling a backend: every value of the configuration is bounded, weights are accepted in windows
 * of any size from several threads and only once, programs and steps in the wrong order are refused. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernmodel.h"

static int query(const struct kern_config *c) {
    uint64_t bytes[KERN_MEM_N];
    return kern_query("ref", c, bytes);
}

START_TEST(unknown_backend) {
    struct kern_config c;
    struct kern_block b;
    uint64_t bytes[KERN_MEM_N];
    km_config_small(&c);
    ck_assert_int_eq(kern_query("gpu", &c, bytes), -ENOENT);
    ck_assert_ptr_nonnull(strstr(kern_open_error(), "gpu"));
    ck_assert_int_eq(kern_query(NULL, &c, bytes), -ENOENT);
    ck_assert_int_eq(kern_mem_alloc("gpu", KERN_MEM_WORK, 1, &b), -ENOENT);
}
END_TEST

/* field, a value that must be refused, a word of the message */
#define REFUSE(field, value, word)                                                                           \
    do {                                                                                                     \
        struct kern_config c_;                                                                               \
        km_config_small(&c_);                                                                                \
        ck_assert_int_eq(query(&c_), 0);                                                                     \
        c_.field = (value);                                                                                  \
        ck_assert_msg(query(&c_) == -EINVAL, "%s was accepted", #field);                                     \
        ck_assert_msg(strstr(kern_open_error(), word) != NULL, "%s: %s", #field, kern_open_error());         \
    } while (0)

START_TEST(every_value_is_bounded) {
    REFUSE(n_ranks, 0, "n_ranks");
    REFUSE(n_ranks, 65, "n_ranks");
    REFUSE(n_ranks, 4, "kda_heads");
    REFUSE(rank, 1, "rank");
    REFUSE(threads, 5000, "threads");
    REFUSE(cache, 4, "cache");
    REFUSE(n_pages, 0, "n_pages");
    REFUSE(n_slots, 1u << 20, "n_slots");
    REFUSE(max_seqs, 0, "max_seqs");
    REFUSE(max_rows[0], 0, "decode");
    REFUSE(max_rows[1], 65, "grid");
    REFUSE(max_rows[1], 0, "prefill");
    REFUSE(max_samples, UINT32_MAX, "max_samples");
    REFUSE(max_context, 1u << 25, "max_context");
    REFUSE(max_plan_bytes, 8, "max_plan_bytes");
    REFUSE(max_plan_bytes, 100001, "max_plan_bytes");
    REFUSE(model.vocab_rows, 0, "vocab_rows");
    REFUSE(model.vocab_tokens, 222, "vocab_tokens");
    REFUSE(model.hidden, 0, "hidden");
    REFUSE(model.n_layers, KERN_MAX_LAYERS, "n_layers");
    REFUSE(model.n_draft, 2, "n_draft");
    REFUSE(model.hc_mult, 9, "hc_mult");
    REFUSE(model.hc_iters, 0, "hc_iters");
    REFUSE(model.kda_heads, 0, "kda_heads");
    REFUSE(model.kda_dim, 513, "kda_dim");
    REFUSE(model.conv_width, 9, "conv_width");
    REFUSE(model.mla_heads, 0, "mla_heads");
    REFUSE(model.kv_rank, 1u << 20, "kv_rank");
    REFUSE(model.rope_dim, 2048, "rope_dim");
    REFUSE(model.rope_dim, 63, "pairs");
    REFUSE(model.rope_dim, 8, "rope_theta");
    REFUSE(model.index_kpool, 3, "pools");
    REFUSE(model.index_kpool, 32, "index_kpool");
    REFUSE(model.index_topk, 18, "index_topk");
    REFUSE(model.index_topk, 2, "index_topk");
    REFUSE(model.n_experts, 1u << 20, "n_experts");
    REFUSE(model.n_top, 8, "n_top");
    REFUSE(model.n_shared, 17, "n_shared");
    REFUSE(model.dense_width, 0, "dense_width");
    REFUSE(model.rms_eps, NAN, "rms_eps");
    REFUSE(model.swiglu_limit, -1.0f, "swiglu_limit");
    REFUSE(model.gate_bound, 0.5f, "gate_bound");
    REFUSE(model.hc_eps, INFINITY, "hc_eps");
    REFUSE(model.layer[0].mix, 0, "layer 0");
    REFUSE(model.layer[0].index, KERN_INDEX_FULL, "layer 0");
    REFUSE(model.layer[1].index, 7, "layer 1");
    REFUSE(model.layer[1].index, KERN_INDEX_SHARED, "layer 1");
    REFUSE(model.layer[2].resid, KERN_RESID_PLAIN, "layer 2");
    REFUSE(model.layer[3].mlp, 3, "layer 3");
    REFUSE(model.layer[5].resid, KERN_RESID_MHC, "draft");
    REFUSE(model.layer[5].index, KERN_INDEX_SHARED, "draft");
}
END_TEST

/* The real sizes fit into 64 bits and come out as the specification counts them. */
START_TEST(real_sizes) {
    struct kern_config c;
    uint64_t bytes[KERN_MEM_N];
    char layers[45 * 3 + 1] = "";
    km_config_small(&c);
    for (int i = 0; i < 45; i++) {
        strcat(layers, i % 4 == 3 ? "F" : "K");
        strcat(layers, i < 3 ? "d " : "m ");
    }
    c.model = (struct kern_model_desc){.vocab_rows = 154880,
                                       .vocab_tokens = 154856,
                                       .hidden = 4096,
                                       .rms_eps = 1e-5f,
                                       .dense_width = 12288,
                                       .expert_width = 2048,
                                       .n_experts = 288,
                                       .n_top = 8,
                                       .n_shared = 1,
                                       .routed_scale = 2.5f,
                                       .swiglu_limit = 10,
                                       .mla_heads = 64,
                                       .q_rank = 1536,
                                       .kv_rank = 512,
                                       .nope_dim = 256,
                                       .v_dim = 256,
                                       .index_heads = 32,
                                       .index_dim = 128,
                                       .index_topk = 2048,
                                       .index_kpool = 4,
                                       .kda_heads = 64,
                                       .kda_dim = 128,
                                       .conv_width = 4,
                                       .gate_bound = -5,
                                       .hc_mult = 4,
                                       .hc_iters = 20,
                                       .hc_eps = 1e-6f};
    km_layers(&c.model, layers, "Fm");
    c.cache = KERN_CACHE_BF16;
    c.n_pages = 4096;
    c.max_context = 1 << 20;
    int r = kern_query("ref", &c, bytes);
    ck_assert_msg(r == 0, "%s", kern_open_error());
    /* elements of the text model with its draft layer: 313,326,811,966 + 7,432,592,416, two bytes each for
     * nearly all */
    ck_assert_uint_gt(bytes[KERN_MEM_WEIGHTS], 2 * 320759404382ull);
    ck_assert_uint_lt(bytes[KERN_MEM_WEIGHTS], 2 * 320759404382ull + (200ull << 20));
    /* 12 layers of 1 KiB latents and 128 pooled keys for every 4 tokens */
    ck_assert_uint_eq(bytes[KERN_MEM_PAGES], 4096ull * 256 * 12 * (1024 + 64));
    c.cache = KERN_CACHE_FP8;
    ck_assert_int_eq(kern_query("ref", &c, bytes), 0);
    ck_assert_uint_eq(bytes[KERN_MEM_PAGES], 4096ull * 256 * 12 * (528 + 33));
    ck_assert_int_eq(kern_query("cpu", &c, bytes), 0);
    ck_assert_uint_eq(bytes[KERN_MEM_PAGES], 4096ull * 256 * 12 * (528 + 33));
    uint64_t elements = 0;
    for (uint32_t l = 0; l < 46; l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (kern_part_info(&c.model, part, l, &info))
                elements += info.rows * info.cols * info.experts;
        }
    ck_assert_uint_eq(elements, 313326811966ull + 7432592416ull);
}
END_TEST

/* GLM-5.3 likewise: 79 layers, 22 of them with an index of their own. */
START_TEST(real_sizes_of_glm53) {
    struct kern_config c;
    uint64_t bytes[KERN_MEM_N], elements = 0;
    char layers[78 * 3 + 1] = "";
    km_config_glm53(&c);
    for (int i = 0; i < 78; i++) {
        strcat(layers, i < 3 || i % 4 == 2 ? "F" : "S");
        strcat(layers, i < 3 ? "d " : "m ");
    }
    c.model = (struct kern_model_desc){.vocab_rows = 154880,
                                       .vocab_tokens = 154856,
                                       .hidden = 6144,
                                       .rms_eps = 1e-5f,
                                       .dense_width = 12288,
                                       .expert_width = 2048,
                                       .n_experts = 256,
                                       .n_top = 8,
                                       .n_shared = 1,
                                       .routed_scale = 2.5f,
                                       .mla_heads = 64,
                                       .q_rank = 2048,
                                       .kv_rank = 512,
                                       .nope_dim = 192,
                                       .rope_dim = 64,
                                       .rope_theta = 8e6f,
                                       .v_dim = 256,
                                       .index_heads = 32,
                                       .index_dim = 128,
                                       .index_topk = 2048,
                                       .index_kpool = 1,
                                       .hc_mult = 1};
    km_layers(&c.model, layers, "Fm");
    for (int i = 0; i < 78; i++)
        c.model.layer[i].resid = KERN_RESID_PLAIN;
    c.n_pages = 4096;
    c.max_context = 1 << 20;
    for (uint32_t l = 0; l < 79; l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (kern_part_info(&c.model, part, l, &info))
                elements += info.rows * info.cols * info.experts;
        }
    ck_assert_uint_eq(elements, 743377019904ull + 9952920576ull);
    for (int b = 0; b < 2; b++) {
        c.cache = KERN_CACHE_BF16;
        ck_assert_msg(!kern_query(b ? "cpu" : "ref", &c, bytes), "%s", kern_open_error());
        ck_assert_uint_gt(bytes[KERN_MEM_WEIGHTS], 2 * 753329940480ull);
        ck_assert_uint_lt(bytes[KERN_MEM_WEIGHTS], 2 * 753329940480ull + (200ull << 20));
        ck_assert_uint_eq(bytes[KERN_MEM_PAGES], 4096ull * 256 * (79 * 1152 + 22 * 256));
        ck_assert_uint_le(bytes[KERN_MEM_SLOTS], 64 * c.n_slots); /* a token is a pool: nothing is half done */
        c.cache = KERN_CACHE_FP8;
        ck_assert_int_eq(kern_query(b ? "cpu" : "ref", &c, bytes), 0);
        ck_assert_uint_eq(bytes[KERN_MEM_PAGES], 4096ull * 256 * (79 * 656 + 22 * 132));
    }
}
END_TEST

/* ---- packing ---- */

struct open {
    struct kern_config cfg;
    struct kern_block mem[KERN_MEM_N];
    struct kern *k;
};

static void open_small(struct open *o) {
    uint64_t bytes[KERN_MEM_N];
    km_config_small(&o->cfg);
    ck_assert_int_eq(kern_query("ref", &o->cfg, bytes), 0);
    for (int i = 0; i < KERN_MEM_N; i++) {
        ck_assert_int_eq(kern_mem_alloc("ref", (enum kern_mem)i, bytes[i], &o->mem[i]), 0);
        ck_assert_uint_eq((uintptr_t)o->mem[i].base % 4096, 0);
    }
    struct kern_block save = o->mem[KERN_MEM_WORK];
    o->mem[KERN_MEM_WORK].bytes = 4096;
    ck_assert_int_eq(kern_open("ref", &o->cfg, o->mem, &o->k), -EINVAL);
    o->mem[KERN_MEM_WORK] = save;
    ck_assert_int_eq(kern_open("ref", &o->cfg, o->mem, &o->k), 0);
    ck_assert_str_eq(kern_name(o->k), "ref");
}
static void close_small(struct open *o) {
    ck_assert_ptr_null(kern_close(o->k));
    ck_assert_ptr_null(kern_close(NULL));
    for (int i = 0; i < KERN_MEM_N; i++)
        kern_mem_free("ref", (enum kern_mem)i, &o->mem[i]);
}

START_TEST(packing_is_checked) {
    struct open o;
    static const char zeros[221 * 60 * 4];
    open_small(&o);
    struct kern_tensor_id embed = {.part = KERN_EMBED}, norm = {.part = KERN_FINAL_NORM}, id;
    struct kern_tensor t = {.store = kern_store_plain(KERN_BF16), .rows = 221, .cols = 60};
    struct kern_tensor v = {kern_store_plain(KERN_BF16), 60, 1};
    const uint64_t all = 221 * 60 * 2;
    ck_assert_int_eq(kern_pack_done(o.k), -ENODATA);
    ck_assert_ptr_nonnull(strstr(kern_last_error(o.k), "embed_tokens"));
    id = (struct kern_tensor_id){.part = KERN_KDA_Q, .layer = 1};
    ck_assert_int_eq(kern_pack(o.k, &id, &t, 0, zeros, 2), -ENOENT);
    id = (struct kern_tensor_id){.part = 999};
    ck_assert_int_eq(kern_pack(o.k, &id, &t, 0, zeros, 2), -ENOENT);
    id = (struct kern_tensor_id){.part = KERN_EXP_UP, .layer = 1, .expert = 7};
    ck_assert_int_eq(kern_pack(o.k, &id, &t, 0, zeros, 2), -ENOENT);
    id = (struct kern_tensor_id){.part = KERN_EMBED, .layer = 200};
    ck_assert_int_eq(kern_pack(o.k, &id, &t, 0, zeros, 2), -ENOENT);
    t.rows = 220;
    ck_assert_int_eq(kern_pack(o.k, &embed, &t, 0, zeros, 2), -EINVAL);
    t.rows = 221;
    t.store = kern_store_plain(KERN_F32);
    ck_assert_int_eq(kern_pack(o.k, &embed, &t, 0, zeros, 2), -EINVAL);
    t.store = kern_store_plain(KERN_BF16);
    ck_assert_int_eq(kern_pack(o.k, &embed, &t, all - 1, zeros, 2), -EINVAL);
    ck_assert_int_eq(kern_pack(o.k, &embed, &t, UINT64_MAX, zeros, 2), -EINVAL);
    ck_assert_int_eq(kern_pack(o.k, &embed, &t, 1, zeros, all - 1), 0);
    ck_assert_int_eq(kern_pack(o.k, &embed, &t, 0, zeros, 2), -EINVAL); /* one byte too many in sum */
    ck_assert_int_eq(kern_pack(o.k, &embed, &t, 0, zeros, 1), 0);
    /* a vector comes in either format, but not in both */
    ck_assert_int_eq(kern_pack(o.k, &norm, &v, 0, zeros, 8), 0);
    v.store = kern_store_plain(KERN_F32);
    ck_assert_int_eq(kern_pack(o.k, &norm, &v, 16, zeros, 8), -EINVAL);
    ck_assert_int_eq(kern_pack_done(o.k), -ENODATA);
    ck_assert_ptr_nonnull(strstr(kern_last_error(o.k), "lm_head"));
    close_small(&o);
}
END_TEST

/* What a matrix is stored as is checked by name, before anything is taken. */
START_TEST(stores_are_checked) {
    struct open o;
    uint64_t bytes[KERN_MEM_N];
    open_small(&o);
    const struct kern_model_desc *m = &o.cfg.model;
    struct kern_store *stores = calloc(kern_part_count(m), sizeof(*stores));
    ck_assert_ptr_nonnull(stores);
    for (uint64_t i = 0; i < kern_part_count(m); i++)
        stores[i] = kern_store_plain(KERN_BF16);
    struct kern_config c = o.cfg;
    c.stores = stores;
    const struct {
        struct kern_tensor_id id;
        struct kern_store s;
        const char *says;
    } wrong[] = {
        {{.part = KERN_ROUTER, .layer = 1}, kern_store_plain(KERN_Q8_0), "layer 1 mlp.gate, expert 0, is stored as Q8"},
        {{.part = KERN_HC_FFN_FN}, kern_store_plain(KERN_MXFP4), "must be F32, BF16 or F16"},
        {{.part = KERN_EMBED}, {.format = KERN_EXL3, .bits = 4, .codebook = 1}, "row by row"},
        {{.part = KERN_EXP_DOWN, .layer = 1, .expert = 6}, kern_store_plain(KERN_Q4_K), "hold its shape: [60, 37]"},
        {{.part = KERN_MLP_UP}, {0}, "format 0"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint64_t slot = kern_part_slot(m, &wrong[i].id);
        ck_assert_int_eq(kern_query("ref", &c, bytes), 0);
        stores[slot] = wrong[i].s;
        ck_assert_int_eq(kern_query("ref", &c, bytes), -EINVAL);
        ck_assert_msg(strstr(kern_open_error(), wrong[i].says) != NULL, "%s", kern_open_error());
        stores[slot] = kern_store_plain(KERN_BF16);
    }
    /* a vector's entry is not looked at, and a script has no weights at all */
    stores[kern_part_slot(m, &(struct kern_tensor_id){.part = KERN_FINAL_NORM})].format = 99;
    ck_assert_int_eq(kern_query("ref", &c, bytes), 0);
    /* only the pieces a store has are taken */
    static const char zeros[16];
    struct kern_tensor t = {.store = kern_store_plain(KERN_BF16), .rows = 221, .cols = 60};
    struct kern_tensor_id id = {.part = KERN_EMBED, .piece = KERN_PIECE_SCALE};
    ck_assert_int_eq(kern_pack(o.k, &id, &t, 0, zeros, 2), -EINVAL);
    id.piece = KERN_PIECES;
    ck_assert_int_eq(kern_pack(o.k, &id, &t, 0, zeros, 2), -EINVAL);
    free(stores);
    close_small(&o);
}
END_TEST

/* Four threads hand over interleaved windows of the same tensors; the windows cut numbers in half. The packed
 * bytes must be those of one thread that hands over F32 where it may. */
struct packer {
    struct kern *k;
    const struct kernmodel *m;
    uint32_t index;
    int err;
};

static int pack_part(struct packer *p, const struct kern_tensor_id *id, const struct kern_part_info *info) {
    const float *w = km_weight(p->m, id->part, id->layer, id->expert);
    uint64_t n = info->rows * info->cols, bytes = 2 * n;
    uint16_t *half = malloc(bytes);
    struct kern_tensor t = {.store = kern_store_plain(KERN_BF16), .rows = info->rows, .cols = info->cols};
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &w[i], 4);
        half[i] = (uint16_t)(u >> 16);
    }
    int r = 0;
    for (uint64_t at = 0, i = 0; at < bytes && !r; i++) {
        uint64_t step = bytes - at < 33 ? bytes - at : 33;
        if (i % 4 == p->index)
            r = kern_pack(p->k, id, &t, at, (char *)half + at, step);
        at += step;
    }
    free(half);
    return r;
}

static void *packer(void *arg) {
    struct packer *p = arg;
    const struct kern_model_desc *d = &p->m->cfg.model;
    for (uint32_t l = 0; l < kern_total_layers(d); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(d, part, l, &info))
                continue;
            for (uint32_t e = 0; e < info.experts && !p->err; e++) {
                struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                p->err = pack_part(p, &id, &info);
            }
        }
    return NULL;
}

/* Every weight cut to what BF16 can hold, so that both formats carry the same numbers. */
static void cut_weights(struct kernmodel *m) {
    const struct kern_model_desc *d = &m->cfg.model;
    for (uint32_t l = 0; l < kern_total_layers(d); l++)
        for (uint32_t part = 1; part < KERN_PART_END; part++) {
            struct kern_part_info info;
            if (!kern_part_info(d, part, l, &info))
                continue;
            for (uint32_t e = 0; e < info.experts; e++) {
                struct kern_tensor_id id = {.part = part, .layer = l, .expert = e};
                float *w = m->weight[kern_part_slot(d, &id)];
                for (uint64_t i = 0; i < info.rows * info.cols; i++) {
                    uint32_t u;
                    memcpy(&u, &w[i], 4);
                    u &= 0xffff0000u;
                    memcpy(&w[i], &u, 4);
                }
            }
        }
}

START_TEST(threads_pack_together) {
    struct open o;
    uint64_t bytes[KERN_MEM_N];
    open_small(&o);
    struct kernmodel *m = km_new(&o.cfg, 3);
    cut_weights(m);
    pthread_t t[4];
    struct packer p[4];
    for (uint32_t i = 0; i < 4; i++) {
        p[i] = (struct packer){.k = o.k, .m = m, .index = i};
        ck_assert_int_eq(pthread_create(&t[i], NULL, packer, &p[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        ck_assert_int_eq(p[i].err, 0);
    }
    ck_assert_msg(kern_pack_done(o.k) == 0, "%s", kern_last_error(o.k));
    struct kern_tensor_id id = {.part = KERN_EMBED};
    struct kern_tensor shape = {.store = kern_store_plain(KERN_BF16), .rows = 221, .cols = 60};
    ck_assert_int_eq(kern_pack(o.k, &id, &shape, 0, "", 0), -EPERM);
    struct km_inst *one = km_open(m, "ref", NULL);
    ck_assert_int_eq(kern_query("ref", &o.cfg, bytes), 0);
    ck_assert_int_eq(
        memcmp(one->mem[KERN_MEM_WEIGHTS].base, o.mem[KERN_MEM_WEIGHTS].base, bytes[KERN_MEM_WEIGHTS]), 0);
    km_close(one);
    km_free(m);
    close_small(&o);
}
END_TEST

/* The table of parts names exactly the tensors a model has. */
START_TEST(shapes_are_told) {
    struct kern_config c;
    uint64_t rows, cols;
    bool matrix;
    km_config_small(&c);
    struct kernmodel *m = km_new(&c, 4);
    for (uint32_t l = 0; l < kern_total_layers(&c.model) + 2; l++)
        for (uint32_t part = 0; part < KERN_PART_END + 2; part++) {
            struct kern_tensor_id id = {.part = part, .layer = l};
            bool has = kern_part_shape(&c.model, &id, &rows, &cols, &matrix) == 0;
            ck_assert(has == (km_weight(m, part, l, 0) != NULL));
        }
    struct kern_tensor_id fn = {.part = KERN_HC_FFN_FN, .layer = 2},
                          conv = {.part = KERN_KDA_KCONV, .layer = 3};
    ck_assert_int_eq(kern_part_shape(&c.model, &fn, &rows, &cols, &matrix), 0);
    ck_assert(rows == 24 && cols == 240 && matrix);
    ck_assert_int_eq(kern_part_shape(&c.model, &conv, &rows, &cols, &matrix), 0);
    ck_assert(rows == 39 && cols == 4 && !matrix);
    ck_assert_str_eq(kern_part_name(KERN_KDA_A_LOG), "kda.A_log");
    ck_assert_str_eq(kern_part_name(KERN_PART_END), "?");
    km_free(m);
}
END_TEST

/* ---- order of calls ---- */

START_TEST(calls_out_of_order) {
    struct kern_config c;
    struct kern_prog *prog = NULL;
    struct kern_counters counters;
    float f[60];
    uint32_t n = 9, token = 1;
    km_config_small(&c);
    struct kernmodel *m = km_new(&c, 5);
    struct km_inst *i = km_open(m, "ref", NULL);
    struct km_plan *p = km_plan_new(i);
    struct kern *k = i->k;
    ck_assert_int_eq(kern_embed(k), -EINVAL);
    ck_assert_int_eq(kern_capture_end(k, &prog), -EINVAL);
    ck_assert_int_eq(kern_capture_begin(k, 2), -EINVAL);
    ck_assert_int_eq(kern_capture_begin(k, 0), 0);
    ck_assert_int_eq(kern_capture_begin(k, 0), -EINVAL);
    ck_assert_int_eq(kern_mix(k, 6), -EINVAL);
    ck_assert_int_eq(kern_draft_in(k, 4), -EINVAL);
    ck_assert_int_eq(kern_draft_out(k, 6), -EINVAL);
    ck_assert_int_eq(kern_site_in(k, 0, (enum kern_site)2), -EINVAL);
    ck_assert_int_eq(kern_head(k, (enum kern_source)2), -EINVAL);
    ck_assert_int_eq(kern_launch(k, i->trunk[0]), -EINVAL); /* while capturing */
    ck_assert_int_eq(kern_capture_end(k, &prog), 0);
    ck_assert_int_eq(kern_launch(k, i->trunk[0]), -EINVAL); /* no plan */
    ck_assert_int_eq(kern_launch(k, (struct kern_prog *)(void *)f), -EINVAL);
    ck_assert_int_eq(kern_peek(k, 0, KERN_PEEK_HIDDEN, 0, 1, f, 60), -EINVAL);
    ck_assert_ptr_null(kern_results(k, 0, &n));
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(kern_wait(k, 0), 0);
    ck_assert_int_eq(kern_wait(k, 2), -EINVAL);
    ck_assert_int_eq(kern_counters(k, 2, &counters), -EINVAL);

    km_plan_clear(p, 0);
    km_plan_seq(p, 0, 0, 0, KERN_SEQ_COMMIT | KERN_SEQ_RESET, &token, 1, NULL);
    struct kern_plan *b = km_plan_build(p);
    ck_assert_int_eq(kern_plan_load(k, b, b->bytes), 0);
    ck_assert_int_eq(kern_launch(k, i->trunk[0]), 0);
    ck_assert_int_eq(kern_plan_load(k, b, b->bytes), -EBUSY);
    ck_assert_int_eq(kern_peek(k, 0, KERN_PEEK_HIDDEN, 0, 1, f, 60), -EBUSY);
    ck_assert_int_eq(kern_slot_copy(k, 1, 0), -EBUSY);
    ck_assert_int_eq(kern_page_copy(k, 1, 0), -EBUSY);
    ck_assert_int_eq(kern_wait(k, 0), 0);
    ck_assert_int_eq(kern_peek(k, 0, KERN_PEEK_HIDDEN, 0, 1, f, 59), -EINVAL);
    ck_assert_int_eq(kern_peek(k, 0, KERN_PEEK_HIDDEN, 1, 1, f, 60), -EINVAL);
    ck_assert_int_eq(kern_peek(k, 0, (enum kern_peek)9, 0, 1, f, 60), -EINVAL);
    ck_assert_int_eq(kern_peek(k, 0, KERN_PEEK_HIDDEN, 0, 1, f, 60), 0);
    ck_assert_int_eq(kern_capture_begin(k, 0), -EPERM);
    b->digest ^= 1;
    ck_assert_int_eq(kern_plan_load(k, b, b->bytes), -EBADMSG);
    km_plan_free(p);
    km_close(i);
    km_free(m);
}
END_TEST

START_TEST(programs_run_out) {
    struct open o;
    struct kern_prog *prog;
    open_small(&o);
    int r = 0, n = 0;
    ck_assert_int_eq(kern_capture_begin(o.k, 0), 0);
    while ((r = kern_embed(o.k)) == 0)
        n++;
    ck_assert_int_eq(r, -ENOSPC);
    ck_assert_int_eq(n, KERN_MAX_STAGES);
    ck_assert_int_eq(kern_capture_end(o.k, &prog), 0);
    for (n = 1; (r = kern_capture_begin(o.k, 0)) == 0; n++)
        ck_assert_int_eq(kern_capture_end(o.k, &prog), 0);
    ck_assert_int_eq(r, -ENOSPC);
    ck_assert_int_eq(n, KERN_MAX_PROGS);
    close_small(&o);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kern_open");
    TCase *t = tcase_create("ref");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, unknown_backend);
    tcase_add_test(t, every_value_is_bounded);
    tcase_add_test(t, real_sizes);
    tcase_add_test(t, real_sizes_of_glm53);
    tcase_add_test(t, packing_is_checked);
    tcase_add_test(t, stores_are_checked);
    tcase_add_test(t, threads_pack_together);
    tcase_add_test(t, shapes_are_told);
    tcase_add_test(t, calls_out_of_order);
    tcase_add_test(t, programs_run_out);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
