/* SPDX-License-Identifier: MIT */
/* A whole model in a GGUF file, from its metadata to the last expert: the same configuration, tokenizer and
 * weights as the checkpoint it was made from; and what contradicts itself, or the config.json beside it, is
 * refused. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptgguf.h"
#include "leakcheck.h"
#include "loader.h"
#include "quantconf.h"
#include "tokenizer.h"

static struct ckpt dir;
static struct ckpt_set set;
static struct ckpt_gguf g;
static struct xerr err;
static struct model_config cfg;
static struct model_index *x;
static struct model_directory d;
static unsigned char **got; /* per tensor */

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    memset(&d, 0, sizeof d);
    ckpt_gguf_init(&g);
    ckpt_empty(&dir);
    x = NULL;
    got = NULL;
}

static void close_model(void) {
    for (size_t i = 0; got && i < d.n_tensors; i++)
        free(got[i]);
    free(got);
    got = NULL;
    model_directory_done(&d);
    x = model_index_close(x);
}

static void teardown(void) {
    close_model();
    ckpt_gguf_done(&g);
    ckpt_set_done(&set);
    ckpt_remove(&dir);
    leakcheck_teardown();
}

static json_t *config_of(const char *model) {
    struct ckpt c;

    snprintf(c.dir, sizeof c.dir, "%s", ckpt_model(model));
    return ckpt_json(&c, "config.json");
}

static void make(const char *model) {
    json_t *c = config_of(model), *t;
    struct ckpt from;

    snprintf(from.dir, sizeof from.dir, "%s", ckpt_model(model));
    t = ckpt_json(&from, "tokenizer.json");
    ckpt_set_load(&set, model);
    ckpt_gguf_model(&g, &set, c);
    ckpt_gguf_tokenizer(&g, t, c);
    json_decref(t);
    json_decref(c);
}

static const struct model_tensor *tensor_of(uint32_t part, uint32_t layer, uint32_t expert) {
    for (size_t i = 0; i < d.n_tensors; i++)
        if (d.tensor[i].id.part == part && d.tensor[i].id.layer == layer && d.tensor[i].id.expert == expert)
            return &d.tensor[i];
    ck_abort_msg("part %u of layer %u is not in the directory", part, layer);
}

static int sink(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                const void *bytes, uint64_t n) {
    size_t i = (size_t)(tensor_of(id->part, id->layer, id->expert) - d.tensor);

    (void)ctx;
    if (id->piece != KERN_PIECE_CODES)
        return 0;
    if (!got[i])
        got[i] = malloc(t->rows * t->cols * 4);
    memcpy(got[i] + offset, bytes, n);
    return 0;
}

static int load(uint64_t staging_bytes) {
    struct model_load l = {.staging_bytes = staging_bytes, .sink = sink};
    int r;

    got = calloc(d.n_tensors, sizeof *got);
    ck_assert_int_eq(posix_memalign(&l.staging, 64, staging_bytes), 0);
    r = model_load(x, &d, &l, &err);
    free(l.staging);
    return r;
}

static int open_all(void) {
    int r = model_config_read(dir.dir, &cfg, &err);

    if (r == 0)
        r = model_index_open(&x, dir.dir, NULL, &err);
    if (r == 0)
        r = model_directory_build(&d, &cfg, x, &err);
    return r < 0 ? r : model_quant_check(dir.dir, &d, &err);
}

static const unsigned char *bytes_of(uint32_t part, uint32_t layer, uint32_t expert) {
    return got[tensor_of(part, layer, expert) - d.tensor];
}

static void same_bytes(uint32_t part, uint32_t layer, uint32_t expert, const char *name) {
    const struct ckpt_tensor *t = ckpt_set_get(&set, name);

    ck_assert_msg(memcmp(bytes_of(part, layer, expert), t->bytes, t->n) == 0, "%s differs", name);
}

#define T "model.language_model."

static const char *const MODELS[] = {"nano", "twin-a"};

START_TEST(same_as_the_checkpoint) {
    struct model_config want;
    struct model_generation gen;
    const float *f;
    const unsigned char *kb, *kvb;
    struct kern_model_desc desc;

    make(MODELS[_i]);
    ckpt_gguf_write(&g, &dir, "model-BF16.gguf");
    ck_assert_msg(open_all() == 0, "%s", err.msg);
    ck_assert_int_eq(model_config_read(ckpt_model(MODELS[_i]), &want, &err), 0);
    /* what only the other file has, or only this one */
    want.from_gguf = true;
    want.has_vision = false;
    want.image_token_id = want.video_token_id = want.image_start_token_id = want.image_end_token_id =
        MODEL_NO_ID;
    want.video_start_token_id = want.video_end_token_id = MODEL_NO_ID;
    for (uint32_t l = 0; l <= want.num_hidden_layers; l++)
        want.layer[l].kvb_split = l == want.num_hidden_layers || want.layer[l].mix == MODEL_MIX_DSA;
    cfg.rms_norm_eps = (float)cfg.rms_norm_eps == (float)want.rms_norm_eps ? want.rms_norm_eps : 0;
    cfg.hc_eps = (float)cfg.hc_eps == (float)want.hc_eps ? want.hc_eps : 0;
    ck_assert_mem_eq(&cfg, &want, sizeof cfg);
    ck_assert_int_eq(model_config_describe(&cfg, cfg.vocab_size, true, &desc, &err), 0);
    ck_assert_uint_eq(desc.layer[want.num_hidden_layers].kvb_split, 1);
    ck_assert_int_eq(model_generation_read(dir.dir, &cfg, &gen, &err), 0);
    ck_assert(!gen.has_temperature);

    ck_assert_msg(load(_i ? 4096 : 1 << 20) == 0, "%s", err.msg);
    same_bytes(KERN_EMBED, 0, 0, T "embed_tokens.weight");
    same_bytes(KERN_MLP_DOWN, 0, 0, T "layers.0.mlp.down_proj.weight");
    for (uint32_t e = 0; e < cfg.n_routed_experts; e++) {
        char name[128];

        snprintf(name, sizeof name, T "layers.3.mlp.experts.%u.up_proj.weight", e);
        same_bytes(KERN_EXP_UP, 3, e, name);
    }
    f = (const float *)bytes_of(KERN_KDA_A_LOG, 0, 0);
    for (uint32_t h = 0; h < cfg.linear_num_heads; h++) {
        float a;

        memcpy(&a, ckpt_set_get(&set, T "layers.0.self_attn.A_log")->bytes + 4 * h, 4);
        ck_assert_msg(fabsf(f[h] - a) <= 2e-7f * fmaxf(1, fabsf(a)), "A_log %g, expected %g", (double)f[h],
                      (double)a);
    }
    kb = bytes_of(KERN_MLA_KB, _i ? 1 : 3, 0);
    kvb = ckpt_set_get(&set,
                       _i ? T "layers.1.self_attn.kv_b_proj.weight" : T "layers.3.self_attn.kv_b_proj.weight")
              ->bytes;
    for (uint32_t h = 0; h < cfg.num_attention_heads; h++)
        for (uint32_t r = 0; r < cfg.kv_lora_rank; r += 37)
            for (uint32_t n = 0; n < cfg.qk_nope_head_dim; n += 11)
                ck_assert_int_eq(
                    memcmp(kb + 2 * ((h * cfg.kv_lora_rank + r) * cfg.qk_nope_head_dim + n),
                           kvb +
                               2 * ((h * (cfg.qk_nope_head_dim + cfg.v_head_dim) + n) * cfg.kv_lora_rank + r),
                           2),
                    0);
}
END_TEST

START_TEST(in_two_files) {
    unsigned char *all;
    struct ckpt_gguf rest;
    size_t n, half;

    make("twin-a");
    half = g.n_t / 2;
    ckpt_gguf_u16(&g, "split.no", 0);
    ckpt_gguf_u16(&g, "split.count", 2);
    ckpt_gguf_i32(&g, "split.tensors.count", (int32_t)g.n_t);
    all = ckpt_gguf_bytes(&g, 0, half, &n);
    ckpt_write(&dir, "m-00001-of-00002.gguf", all, n);
    free(all);
    rest = g;
    memset(&rest.kv, 0, sizeof rest.kv);
    rest.n_keys = 0;
    ckpt_gguf_u16(&rest, "split.no", 1);
    ckpt_gguf_u16(&rest, "split.count", 2);
    ckpt_gguf_i32(&rest, "split.tensors.count", (int32_t)g.n_t);
    all = ckpt_gguf_bytes(&rest, half, SIZE_MAX, &n);
    ckpt_write(&dir, "m-00002-of-00002.gguf", all, n);
    free(all);
    free(rest.kv.p);
    ck_assert_msg(open_all() == 0, "%s", err.msg);
    ck_assert_msg(load(65536) == 0, "%s", err.msg);
    same_bytes(KERN_EXP_DOWN, 3, 5, T "layers.3.mlp.experts.5.down_proj.weight");
    same_bytes(KERN_HEAD, 0, 0, "lm_head.weight");
}
END_TEST

/* Every type that has blocks, as experts: what is in the file arrives. */
START_TEST(blocks_arrive) {
    static const struct {
        uint32_t type, weights, bytes, format, d;
    } TYPES[] = {
        {8, 32, 34, KERN_Q8_0, 0},        {20, 32, 18, KERN_IQ4_NL, 0}, {39, 32, 17, KERN_GGUF_MXFP4, 0},
        {40, 64, 36, KERN_GGUF_NVFP4, 0}, {0, 1, 4, KERN_F32, 2},       {1, 1, 2, KERN_F16, 0},
    };
    const struct model_tensor *t;
    struct ckpt_gguf_tensor *e;
    uint64_t one = (uint64_t)128 * 128 / TYPES[_i].weights * TYPES[_i].bytes;

    make("twin-a");
    e = ckpt_gguf_put(&g, "blk.2.ffn_up_exps.weight", TYPES[_i].type, NULL, 6 * one, 3, (uint64_t)128,
                      (uint64_t)128, (uint64_t)6);
    for (size_t i = 0; i < e->n; i++)
        e->bytes[i] = (unsigned char)(i / 7 % 60); /* no factor of it is infinite */
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ck_assert_msg(open_all() == 0, "%s", err.msg);
    t = tensor_of(KERN_EXP_UP, 2, 5);
    ck_assert_uint_eq(t->k.store.format, TYPES[_i].format);
    ck_assert_uint_eq(t->bytes, one);
    ck_assert_msg(load(4096) == 0, "%s", err.msg);
    for (uint32_t x2 = 0; x2 < 6; x2++)
        ck_assert_mem_eq(bytes_of(KERN_EXP_UP, 2, x2),
                         ckpt_gguf_find(&g, "blk.2.ffn_up_exps.weight")->bytes + x2 * one, one);
}
END_TEST

START_TEST(factors_of_nvfp4) {
    const float six[6] = {1, 2, 3, 4, 5, 6}, bad[6] = {1, 2, 0, 4, 5, 6};
    uint64_t one = 128 * 128 / 64 * 36;

    make("twin-a");
    ckpt_gguf_put(&g, "blk.2.ffn_up_exps.weight", 40, NULL, 6 * one, 3, (uint64_t)128, (uint64_t)128,
                  (uint64_t)6);
    ckpt_gguf_put(&g, "blk.2.ffn_up_exps.scale", 0, six, 24, 1, (uint64_t)6);
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ck_assert_msg(open_all() == 0, "%s", err.msg);
    ck_assert_uint_eq(tensor_of(KERN_EXP_UP, 2, 3)->k.store.scale, KERN_SCALE_F32);
    ck_assert_uint_eq(tensor_of(KERN_EXP_UP, 2, 3)->bytes, one + 4);
    for (size_t i = 0; i < d.n_items; i++)
        if (d.item[i].id.piece == KERN_PIECE_GLOBAL) {
            float v;

            ck_assert_uint_eq(d.item[i].bytes, 4);
            ck_assert_int_eq(
                st_read(model_index_file(x, 0), d.item[i].t, d.item[i].at - d.item[i].t->offset, &v, 4, &err),
                0);
            ck_assert_float_eq(v, six[d.item[i].id.expert]);
        }
    close_model();
    ckpt_gguf_put(&g, "blk.2.ffn_up_exps.scale", 0, bad, 24, 1, (uint64_t)6);
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ck_assert_msg(open_all() == 0, "%s", err.msg);
    ckpt_expect("zero", load(1 << 20), -EBADMSG, &err,
                (const char *const[]){"ffn_up_exps.scale", "number 2", "above 0", NULL});
    close_model();
    ckpt_gguf_put(&g, "blk.2.ffn_up_exps.scale", 0, six, 20, 1, (uint64_t)5);
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ckpt_expect("five", open_all(), -EINVAL, &err,
                (const char *const[]){"ffn_up_exps.scale", "6 numbers", NULL});
}
END_TEST

START_TEST(blocks_without_a_factor) {
    static const struct {
        uint32_t type, weights, bytes, at;
        unsigned char v[2];
    } BAD[] = {
        {8, 32, 34, 0, {0, 0x7c}},
        {8, 32, 34, 0, {1, 0xfe}},
        {20, 32, 18, 0, {0, 0x7c}},
        {39, 32, 17, 0, {255, 0}},
    };
    uint64_t one = (uint64_t)128 * 128 / BAD[_i].weights * BAD[_i].bytes;
    struct ckpt_gguf_tensor *e;

    make("twin-a");
    e = ckpt_gguf_put(&g, "blk.2.ffn_up_exps.weight", BAD[_i].type, NULL, 6 * one, 3, (uint64_t)128,
                      (uint64_t)128, (uint64_t)6);
    memcpy(e->bytes + 4 * one + 301 * BAD[_i].bytes + BAD[_i].at, BAD[_i].v, BAD[_i].bytes == 17 ? 1 : 2);
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ck_assert_msg(open_all() == 0, "%s", err.msg);
    ckpt_expect("factor", load(4096), -EBADMSG, &err,
                (const char *const[]){"ffn_up_exps", "factor is finite", NULL});
}
END_TEST

/* ---- metadata ---- */

/* The value of a key, to be spoilt where it stands. */
static unsigned char *value_at(const char *key) {
    size_t n = strlen(key);

    for (size_t i = 8; i + n <= g.kv.n; i++)
        if (memcmp(g.kv.p + i, key, n) == 0 && g.kv.p[i - 8] == n && g.kv.p[i - 7] == 0)
            return g.kv.p + i + n + 4;
    ck_abort_msg("%s: no such key", key);
}

static const struct {
    const char *key;
    int at; /* bytes behind the type */
    uint32_t v;
    const char *has[2];
    int code;
} LIES[] = {
    {"general.architecture", 8, 0x34616c6c, {"general.architecture", "glm5next"}, -ENOTSUP}, /* "lla4next" */
    {"glm5next.embedding_length", 0, 0, {"hidden_size", "integer from 1"}, -EINVAL},
    {"glm5next.embedding_length", 0, UINT32_MAX, {"embedding_length", "below 2^31"}, -EINVAL},
    {"glm5next.embedding_length", 0, 192, {"token_embd.weight", "192"}, -EINVAL},
    {"glm5next.block_count", 0, 1, {"block_count", "layers"}, -EINVAL},
    {"glm5next.block_count", 0, 200, {"block_count", "128"}, -EINVAL},
    {"glm5next.block_count", 0, 4, {"head_count_kv", "another length"}, -EINVAL},
    {"glm5next.attention.key_length", 0, 576, {"attention.key_length", "512"}, -EINVAL},
    {"glm5next.attention.layer_norm_epsilon", 0, 0x3727c5ac, {"layer_norm_epsilon", "1e-06"}, -EINVAL},
    {"glm5next.rope.dimension_count", 0, 64, {"rope.dimension_count", "expected 0"}, -EINVAL},
    {"glm5next.expert_gating_func", 0, 1, {"expert_gating_func", "expected 2"}, -EINVAL},
    {"glm5next.expert_weights_norm", 0, 0, {"norm_topk_prob", "true"}, -ENOTSUP},
    {"glm5next.vocab_size", 0, 5000, {"vocab_size", "4096"}, -EINVAL},
    {"glm5next.swiglu_clamp_exp", 16, 0x41200000, {"swiglu_clamp_exp", "0.5"}, -EINVAL},
    {"glm5next.attention.head_count_kv", 12, 7, {"head_count_kv", "another number"}, -EINVAL},
    {"glm5next.attention.head_count_kv", 12, 1, {"indexer_types[0]", "selection to share"}, -EINVAL},
    {"glm5next.expert_used_count", 0, 7, {"num_experts_per_tok", "n_routed_experts"}, -EINVAL},
    {"glm5next.hyper_connection.epsilon", 0, 0x7fc00000, {"hyper_connection.epsilon", "finite"}, -EINVAL},
    {"tokenizer.ggml.eos_token_id", 0, 5000, {"pad_token_id", "below vocab_size"}, -EINVAL},
};

START_TEST(metadata_that_lies) {
    make("twin-a");
    /* truth values are one byte */
    memcpy(value_at(LIES[_i].key) + LIES[_i].at, &LIES[_i].v, strstr(LIES[_i].key, "weights_norm") ? 1 : 4);
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ckpt_expect(
        LIES[_i].key, open_all(), LIES[_i].code, &err,
        (const char *const[]){"m.gguf", "found ", "expected ", LIES[_i].has[0], LIES[_i].has[1], NULL});
}
END_TEST

START_TEST(a_key_is_missing) {
    static const char *const KEYS[] = {
        "glm5next.embedding_length", "glm5next.kda.head_dim",       "glm5next.attention.head_count_kv",
        "glm5next.block_count",      "glm5next.swiglu_clamp_shexp", "tokenizer.ggml.eos_token_id",
        "general.architecture",
    };

    make("twin-a");
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        unsigned char *p = value_at(KEYS[i]) - 4 - strlen(KEYS[i]);

        *p ^= 0x20; /* another key now */
        ckpt_gguf_write(&g, &dir, "m.gguf");
        if (i == 5) /* the other stop ids are still there */
            ck_assert_msg(model_config_read(dir.dir, &cfg, &err) == 0, "%s", err.msg);
        else
            ckpt_expect(KEYS[i], model_config_read(dir.dir, &cfg, &err), -EINVAL, &err,
                        (const char *const[]){"m.gguf", KEYS[i], "found nothing", NULL});
        *p ^= 0x20;
    }
}
END_TEST

START_TEST(config_json_beside) {
    json_t *c = config_of("twin-a");

    make("twin-a");
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ckpt_write_json(&dir, "config.json", c);
    ck_assert_msg(open_all() == 0, "%s", err.msg);
    ckpt_set(c, "text_config.index_topk", json_integer(32));
    ckpt_write_json(&dir, "config.json", c);
    ckpt_expect(
        "other", model_config_read(dir.dir, &cfg, &err), -EINVAL, &err,
        (const char *const[]){"config.json", "text_config.index_topk", "found 32", "expected 16", NULL});
    json_decref(c);
}
END_TEST

static const struct {
    const char *label, *drop, *put;
    uint64_t ne[3];
    uint32_t n_dims;
    int code;
    const char *has[2];
} TENSORS[] = {
    {"head missing", "output.weight", NULL, {0}, 0, -ENODATA, {"output.weight", "[4096,128]"}},
    {"stack missing",
     "blk.1.ffn_up_exps.weight",
     NULL,
     {0},
     0,
     -ENODATA,
     {"blk.1.ffn_up_exps.weight", "nothing"}},
    {"stack of five",
     NULL,
     "blk.1.ffn_up_exps.weight",
     {128, 128, 5},
     3,
     -EINVAL,
     {"[5,128,128]", "[6,128,128]"}},
    {"stack lying",
     NULL,
     "blk.1.ffn_up_exps.weight",
     {128, 768, 1},
     2,
     -EINVAL,
     {"[768,128]", "[6,128,128]"}},
    {"value half alone", "blk.1.attn_k_b.weight", NULL, {0}, 0, -ENODATA, {"attn_kv_b", "nothing"}},
    {"key half alone", "blk.1.attn_v_b.weight", NULL, {0}, 0, -ENODATA, {"attn_v_b", "nothing"}},
    {"key half turned",
     NULL,
     "blk.1.attn_k_b.weight",
     {512, 256, 2},
     3,
     -EINVAL,
     {"[2,256,512]", "[2,512,256]"}},
    {"one more", NULL, "blk.1.rope_freqs.weight", {64, 1, 1}, 1, -EINVAL, {"rope_freqs", "has a place for"}},
    {"a factor of no NVFP4",
     NULL,
     "blk.1.ffn_up_exps.scale",
     {6, 1, 1},
     1,
     -EINVAL,
     {"ffn_up_exps.scale", "NVFP4"}},
};

START_TEST(tensors) {
    uint64_t n = 4;

    make("twin-a");
    if (TENSORS[_i].drop)
        ckpt_gguf_drop(&g, TENSORS[_i].drop);
    for (uint32_t i = 0; i < TENSORS[_i].n_dims; i++)
        n *= TENSORS[_i].ne[i];
    if (TENSORS[_i].put)
        ckpt_gguf_put(&g, TENSORS[_i].put, 0, NULL, n, TENSORS[_i].n_dims, TENSORS[_i].ne[0],
                      TENSORS[_i].ne[1], TENSORS[_i].ne[2]);
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ckpt_expect(TENSORS[_i].label, open_all(), TENSORS[_i].code, &err,
                (const char *const[]){"found ", "expected ", TENSORS[_i].has[0], TENSORS[_i].has[1], NULL});
}
END_TEST

/* ---- tokenizer ---- */

START_TEST(same_tokens) {
    static const char *const TEXT[] = {
        "", "Hello world", "  za\xc5\xbc\xc3\xb3\xc5\x82\xc4\x87  g\xc4\x99\xc5\x9bl\xc4\x85\n\n",
        "def f(x):\n    return x**2 + 1234567", "<|user|>\xf0\x9f\x98\x80</think>"};
    struct tok *a = NULL, *b = NULL;
    struct tok_scratch *s;

    make("nano");
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ck_assert_msg(tok_open(dir.dir, &a, &err) == 0, "%s", err.msg);
    ck_assert_msg(tok_open(ckpt_model("nano"), &b, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(tok_size(a), tok_size(b));
    ck_assert_uint_eq(tok_count(a), tok_count(b));
    for (uint32_t id = 0; id < tok_size(b); id++) {
        const uint8_t *p, *q;
        size_t n, m;

        ck_assert_int_eq(tok_bytes(a, id, &p, &n), tok_bytes(b, id, &q, &m));
        ck_assert(n == m && memcmp(p, q, n) == 0);
    }
    ck_assert_int_eq(tok_scratch_new(0, &s), 0);
    for (size_t i = 0; i < sizeof TEXT / sizeof *TEXT; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            uint32_t x1[64], x2[64];
            size_t n, m;

            ck_assert_int_eq(tok_encode(a, s, TEXT[i], strlen(TEXT[i]), flags, x1, 64, &n), 0);
            ck_assert_int_eq(tok_encode(b, s, TEXT[i], strlen(TEXT[i]), flags, x2, 64, &m), 0);
            ck_assert(n == m && memcmp(x1, x2, n * sizeof *x1) == 0);
        }
    tok_scratch_free(s);
    tok_free(a);
    tok_free(b);
}
END_TEST

START_TEST(tokenizers_of_others) {
    static const struct {
        const char *key;
        int at;
        uint32_t v;
        const char *has;
    } BAD[] = {
        {"tokenizer.ggml.model", 8, 0x616d616c, "\"gpt2\""},
        {"tokenizer.ggml.pre", 8, 0x33616c6c, "\"glm4\""},
        {"tokenizer.ggml.token_type", 12, 2, "tokens[0]"},
        {"tokenizer.ggml.token_type", 4, 17, "token_type"},
        {"tokenizer.ggml.merges", 20, 0x20206161, "merges[0]"},
    };
    struct tok *t = NULL;

    make("nano");
    memcpy(value_at(BAD[_i].key) + BAD[_i].at, &BAD[_i].v, 4);
    ckpt_gguf_write(&g, &dir, "m.gguf");
    ck_assert_int_lt(tok_open(dir.dir, &t, &err), 0);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(err.msg, "m.gguf") && (strstr(err.msg, BAD[_i].has) || _i == 3), "%s", err.msg);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void) {
    Suite *s = suite_create("model_ggufmodel");
    TCase *tc = tcase_create("model");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, same_as_the_checkpoint, 0, 2);
    tcase_add_test(tc, in_two_files);
    tcase_add_loop_test(tc, blocks_arrive, 0, 6);
    tcase_add_test(tc, factors_of_nvfp4);
    tcase_add_loop_test(tc, blocks_without_a_factor, 0, 4);
    tcase_add_loop_test(tc, metadata_that_lies, 0, COUNT(LIES));
    tcase_add_test(tc, a_key_is_missing);
    tcase_add_test(tc, config_json_beside);
    tcase_add_loop_test(tc, tensors, 0, COUNT(TENSORS));
    tcase_add_test(tc, same_tokens);
    tcase_add_loop_test(tc, tokenizers_of_others, 0, 5);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
