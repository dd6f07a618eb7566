/* SPDX-License-Identifier: MIT */
/* packgguf.c: the tensors of the model under their GGUF names, experts stacked, kv_b cut into its halves and
 * A_log as what the other programs compute with; each tensor made whole in memory, one file (packggufout.c). */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host_unpack.h"
#include "packgguf.h"
#include "size.h"

/* How a source tensor becomes the other. */
enum kind { AS_IS, STACK, KEY_HALF, VALUE_HALF, NEGATED_EXP };

struct entry {
    char name[64], source[256]; /* of expert 0 where experts are stacked */
    enum kind kind;
    const struct pack_format *f; /* NULL: plain, `type` says which */
    uint32_t type, n_dims, copies;
    uint64_t ne[4], rows, cols, bytes, at; /* rows, cols of one copy */
    uint8_t part;
};

struct file {
    const struct pack_plan *p;
    const struct model_config *cfg;
    struct entry *e;
    size_t n, cap;
    uint32_t left;
};

static const struct pack_format F32 = { "f32", { .format = KERN_F32 }, PACK_GGUF, false };

/* What stands behind "layers.L." here and behind "blk.L." there. F: always F32. */
static const struct rename {
    const char *from, *to;
    char f32;
} LAYER[] = {
    { "input_layernorm.weight", "attn_norm.weight", 'F' },
    { "post_attention_layernorm.weight", "ffn_norm.weight", 'F' },
    { "hc_attn_fn", "hc_attn_fn.weight", 0 },
    { "hc_attn_base", "hc_attn_base.weight", 'F' },
    { "hc_attn_scale", "hc_attn_scale.weight", 'F' },
    { "hc_ffn_fn", "hc_ffn_fn.weight", 0 },
    { "hc_ffn_base", "hc_ffn_base.weight", 'F' },
    { "hc_ffn_scale", "hc_ffn_scale.weight", 'F' },
    { "self_attn.q_proj.weight", "attn_q.weight", 0 },
    { "self_attn.k_proj.weight", "attn_k.weight", 0 },
    { "self_attn.v_proj.weight", "attn_v.weight", 0 },
    { "self_attn.q_conv1d.weight", "ssm_conv1d_q.weight", 'F' },
    { "self_attn.k_conv1d.weight", "ssm_conv1d_k.weight", 'F' },
    { "self_attn.v_conv1d.weight", "ssm_conv1d_v.weight", 'F' },
    { "self_attn.f_a_proj.weight", "ssm_f_a.weight", 0 },
    { "self_attn.f_b_proj.weight", "ssm_f_b.weight", 0 },
    { "self_attn.g_a_proj.weight", "ssm_g_a.weight", 0 },
    { "self_attn.g_b_proj.weight", "ssm_g_b.weight", 0 },
    { "self_attn.b_proj.weight", "ssm_beta.weight", 0 },
    { "self_attn.A_log", "ssm_a", 'F' },
    { "self_attn.dt_bias", "ssm_dt.bias", 'F' },
    { "self_attn.o_norm.weight", "ssm_norm.weight", 'F' },
    { "self_attn.o_proj.weight", "attn_output.weight", 0 },
    { "self_attn.q_a_proj.weight", "attn_q_a.weight", 0 },
    { "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", 'F' },
    { "self_attn.q_b_proj.weight", "attn_q_b.weight", 0 },
    { "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", 0 },
    { "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", 'F' },
    { "self_attn.indexer.k_norm.weight", "indexer.k_norm.weight", 'F' },
    { "self_attn.indexer.k_norm.bias", "indexer.k_norm.bias", 'F' },
    { "self_attn.indexer.weights_proj.weight", "indexer.proj.weight", 0 },
    { "self_attn.indexer.wk.weight", "indexer.attn_k.weight", 0 },
    { "self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight", 0 },
    { "self_attn.indexer.index_kpool_compress_gate", "indexer_compressor_gate.weight", 0 },
    { "self_attn.indexer.index_kpool_compress_ape", "indexer_compressor_ape.weight", 'F' },
    { "mlp.gate_proj.weight", "ffn_gate.weight", 0 },
    { "mlp.up_proj.weight", "ffn_up.weight", 0 },
    { "mlp.down_proj.weight", "ffn_down.weight", 0 },
    { "mlp.gate.weight", "ffn_gate_inp.weight", 'F' },
    { "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", 'F' },
    { "mlp.experts.0.gate_proj.weight", "ffn_gate_exps.weight", 0 },
    { "mlp.experts.0.up_proj.weight", "ffn_up_exps.weight", 0 },
    { "mlp.experts.0.down_proj.weight", "ffn_down_exps.weight", 0 },
    { "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", 0 },
    { "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", 0 },
    { "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", 0 },
    { "eh_proj.weight", "nextn.eh_proj.weight", 0 },
    { "enorm.weight", "nextn.enorm.weight", 'F' },
    { "hnorm.weight", "nextn.hnorm.weight", 'F' },
    { "shared_head.norm.weight", "nextn.shared_head_norm.weight", 'F' },
}, WHOLE[] = {
    { "model.language_model.embed_tokens.weight", "token_embd.weight", 0 },
    { "model.language_model.norm.weight", "output_norm.weight", 'F' },
    { "lm_head.weight", "output.weight", 0 },
};

static const struct rename *find(const struct rename *list, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].from, name) == 0)
            return &list[i];
    return NULL;
}

static uint32_t plain_type(enum st_dtype d) {
    return d == ST_F32 ? GGML_F32 : d == ST_F16 ? GGML_F16 : d == ST_BF16 ? GGML_BF16 : GGML_NONE;
}

/* ggml's number of a format. */
static uint32_t type_of(uint32_t format) {
    static const uint8_t type[KERN_FORMAT_END] = {
        [KERN_Q8_0] = 8,    [KERN_Q2_K] = 10,    [KERN_Q3_K] = 11,   [KERN_Q4_K] = 12,    [KERN_Q5_K] = 13,
        [KERN_Q6_K] = 14,   [KERN_IQ2_XXS] = 16, [KERN_IQ2_XS] = 17, [KERN_IQ3_XXS] = 18, [KERN_IQ1_S] = 19,
        [KERN_IQ4_NL] = 20, [KERN_IQ3_S] = 21,   [KERN_IQ2_S] = 22,  [KERN_IQ4_XS] = 23,  [KERN_IQ1_M] = 29,
    };

    return type[format];
}

static int add(struct file *f, const struct entry *e) {
    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 256;
        struct entry *grown = realloc(f->e, cap * sizeof *grown);

        if (!grown)
            return -ENOMEM;
        f->e = grown;
        f->cap = cap;
    }
    f->e[f->n++] = *e;
    return 0;
}

/* Sizes and type of one copy from what the source has. */
static int describe(struct file *f, struct entry *e, size_t i, bool f32, struct xerr *err) {
    const struct st_tensor *t = model_index_at(f->p->x, i)->t;
    const struct kern_store *s;
    uint64_t one;

    e->part = f->p->part[i];
    e->f = f32 ? (t->dtype == ST_F32 ? NULL : &F32) : f->p->to[i];
    e->type = f32 ? GGML_F32 : e->f ? type_of(e->f->store.format) : plain_type(t->dtype);
    if (e->type == GGML_NONE)
        return xerr_set(err, -EINVAL, "%s: found %s, expected BF16, F16 or F32", t->name,
                        st_dtype_name(t->dtype));
    s = e->f ? &e->f->store : NULL;
    if (kern_store_bytes(s ? s
                           : &(struct kern_store){ .format = e->type == GGML_F32   ? KERN_F32
                                                             : e->type == GGML_F16 ? KERN_F16
                                                                                   : KERN_BF16 },
                         e->rows, e->cols, &one) < 0 ||
        !size_mul(one, e->copies, &e->bytes))
        return xerr_set(err, -EINVAL, "%s: found a matrix of %llu inputs, which %s cannot hold", t->name,
                        (unsigned long long)e->cols, e->f ? e->f->word : "its type");
    return add(f, e);
}

/* Both halves of kv_b, head by head: keys transposed, values as they are. */
static int halves(struct file *f, struct entry *e, size_t i, uint32_t layer, struct xerr *err) {
    const struct model_config *c = f->cfg;
    int r;

    e->copies = c->num_attention_heads;
    e->kind = KEY_HALF;
    e->rows = c->kv_lora_rank;
    e->cols = c->qk_nope_head_dim;
    e->n_dims = 3;
    e->ne[0] = e->cols;
    e->ne[1] = e->rows;
    e->ne[2] = e->copies;
    snprintf(e->name, sizeof e->name, "blk.%u.attn_k_b.weight", layer);
    r = describe(f, e, i, false, err);
    e->kind = VALUE_HALF;
    e->rows = c->v_head_dim;
    e->cols = c->kv_lora_rank;
    e->ne[0] = e->cols;
    e->ne[1] = e->rows;
    snprintf(e->name, sizeof e->name, "blk.%u.attn_v_b.weight", layer);
    return r < 0 ? r : describe(f, e, i, false, err);
}

/* Every expert of a stack is written alike. */
static int same_experts(struct file *f, const struct entry *e, struct xerr *err) {
    const char *dot = strstr(e->source, ".experts.0.");
    size_t n = model_index_count(f->p->x);

    for (uint32_t k = 1; k < f->cfg->n_routed_experts; k++) {
        char name[300];
        const struct model_entry *en;

        snprintf(name, sizeof name, "%.*s.experts.%u.%s", (int)(dot - e->source), e->source, k, dot + 11);
        en = model_index_find(f->p->x, name);
        if (!en)
            return xerr_set(err, -ENODATA, "%s: found nothing, expected one of %u experts", name,
                            f->cfg->n_routed_experts);
        for (size_t i = 0; i < n; i++)
            if (model_index_at(f->p->x, i) == en && f->p->to[i] != e->f)
                return xerr_set(err, -EINVAL,
                                "%s: found %s, expected %s as expert 0: GGUF stacks the experts of a layer",
                                name, f->p->to[i] ? f->p->to[i]->word : "bf16", e->f ? e->f->word : "bf16");
    }
    return 0;
}

static int one(struct file *f, size_t i, struct xerr *err) {
    const struct st_tensor *t = model_index_at(f->p->x, i)->t;
    static const char layers[] = "model.language_model.layers.";
    const struct rename *w = find(WHOLE, sizeof WHOLE / sizeof *WHOLE, t->name);
    struct entry e = { .copies = 1, .n_dims = t->n_dims, .part = f->p->part[i] };
    unsigned layer = 0;
    int used = 0, r;

    if (strncmp(t->name, "model.visual.", 13) == 0) {
        f->left++;
        return 0;
    }
    snprintf(e.source, sizeof e.source, "%s", t->name);
    e.cols = t->n_dims ? t->shape[t->n_dims - 1] : 1;
    e.rows = 1;
    if (t->n_dims > sizeof e.ne / sizeof *e.ne)
        return xerr_set(err, -EINVAL, "%s: found %u dimensions, expected at most 4, which GGUF has", t->name,
                        t->n_dims);
    for (uint32_t d = 0; d < t->n_dims; d++)
        e.ne[d] = t->shape[t->n_dims - 1 - d];
    for (uint32_t d = 0; d + 1 < t->n_dims; d++)
        e.rows *= t->shape[d];
    if (w) {
        snprintf(e.name, sizeof e.name, "%s", w->to);
        return describe(f, &e, i, w->f32, err);
    }
    if (strncmp(t->name, layers, sizeof layers - 1) != 0 ||
        sscanf(t->name + sizeof layers - 1, "%u.%n", &layer, &used) < 1 || !used)
        return xerr_set(err, -EINVAL, "%s: found a tensor without a place in a GGUF file", t->name);
    w = find(LAYER, sizeof LAYER / sizeof *LAYER, t->name + sizeof layers - 1 + used);
    if (strcmp(t->name + sizeof layers - 1 + used, "self_attn.kv_b_proj.weight") == 0)
        return halves(f, &e, i, layer, err);
    if (!w)
        return strstr(t->name, ".mlp.experts.")
                   ? 0
                   : xerr_set(err, -EINVAL, "%s: found a tensor without a place in a GGUF file", t->name);
    snprintf(e.name, sizeof e.name, "blk.%u.%s", layer, w->to);
    if (strcmp(w->to, "ssm_a") == 0)
        e.kind = NEGATED_EXP;
    if (!strstr(w->to, "_exps."))
        return describe(f, &e, i, w->f32, err);
    e.kind = STACK;
    e.copies = f->cfg->n_routed_experts;
    e.n_dims = 3;
    e.ne[2] = e.copies;
    r = describe(f, &e, i, false, err);
    return r < 0 ? r : same_experts(f, &f->e[f->n - 1], err);
}

/* ---- bytes ---- */

static void *read_source(const struct file *f, const char *name, const struct st_tensor **ret,
                         struct xerr *err) {
    const struct model_entry *en = model_index_find(f->p->x, name);
    void *p = en ? malloc(en->t->bytes + 1) : NULL;

    if (!p) {
        xerr_set(err, en ? -ENOMEM : -ENODATA, "%s: cannot be read into memory", name);
        return NULL;
    }
    if (st_read(model_index_file(f->p->x, en->file), en->t, 0, p, en->t->bytes, err) < 0) {
        free(p);
        return NULL;
    }
    *ret = en->t;
    return p;
}

/* Head h of kv_b: [nope][rank] keys, transposed to [rank][nope], or [v][rank] values. */
static void cut(const struct file *f, const struct entry *e, const uint8_t *all, uint32_t h, uint32_t width,
                uint8_t *out) {
    uint64_t nope = f->cfg->qk_nope_head_dim, rank = f->cfg->kv_lora_rank, v = f->cfg->v_head_dim;
    const uint8_t *head = all + h * (nope + v) * rank * width;

    if (e->kind == VALUE_HALF) {
        memcpy(out, head + nope * rank * width, v * rank * width);
        return;
    }
    for (uint64_t k = 0; k < rank; k++)
        for (uint64_t n = 0; n < nope; n++)
            memcpy(out + (k * nope + n) * width,
                   head + (FAULT(gguf_keys_as_they_are) ? k * nope + n : n * rank + k) * width, width);
}

/* One copy's numbers to its bytes. */
static int convert(const struct entry *e, enum st_dtype from, const void *numbers, uint8_t *out,
                   struct pack_totals *t, struct xerr *err) {
    uint64_t n = e->bytes / e->copies;
    struct pack_tensor dst = { .bytes = n };
    uint8_t *bytes = NULL;
    double diff = 0, norm = 0;
    int r = 0;

    t->from[e->part] += e->rows * e->cols * (st_dtype_bits(from) / 8);
    t->to[e->part] += n;
    if (!e->f) {
        memcpy(out, numbers, n);
        return 0;
    }
    r = pack_encode(e->f, PACK_GGUF, from, numbers, e->rows, e->cols, &dst, 1, &bytes, &diff, &norm);
    if (r >= 0)
        memcpy(out, bytes, n);
    free(bytes);
    t->diff[e->part] += diff;
    t->norm[e->part] += norm;
    return r < 0 ? xerr_set(err, r, "%s: %s", e->source,
                            r == -EDOM ? "found a number that is infinite or none, expected finite weights"
                            : r == -ERANGE ? "found numbers larger than the scales of its format hold"
                                           : strerror(-r))
                 : 0;
}

static int fill(const struct file *f, const struct entry *e, uint8_t *out, struct pack_totals *t,
                struct xerr *err) {
    const char *dot = strstr(e->source, ".experts.0.");
    const struct st_tensor *src = NULL;
    uint8_t *all = read_source(f, e->source, &src, err), *head = NULL;
    int r = all ? 0 : err->code;

    if (r == 0 && (e->kind == KEY_HALF || e->kind == VALUE_HALF)) {
        uint32_t width = st_dtype_bits(src->dtype) / 8;
        uint64_t need =
            (uint64_t)e->copies * (f->cfg->qk_nope_head_dim + f->cfg->v_head_dim) * f->cfg->kv_lora_rank;

        head = malloc(e->rows * e->cols * width);
        if (!head || src->bytes != need * width)
            r = xerr_set(err, -EINVAL, "%s: found %llu bytes, expected those of %u heads", e->source,
                         (unsigned long long)src->bytes, e->copies);
        for (uint32_t h = 0; h < e->copies && r >= 0; h++) {
            cut(f, e, all, h, width, head);
            r = convert(e, src->dtype, head, out + h * (e->bytes / e->copies), t, err);
        }
    } else if (r == 0 && e->kind == NEGATED_EXP && src->dtype == ST_F32) {
        for (uint64_t i = 0; i < e->cols; i++) {
            float v = -expf(host_bits_f32(host_le32(all + 4 * i)));

            memcpy(all + 4 * i, &v, sizeof v);
        }
        r = convert(e, src->dtype, all, out, t, err);
    } else if (r == 0) {
        r = convert(e, src->dtype, all, out, t, err);
    }
    for (uint32_t k = 1; k < e->copies && e->kind == STACK && r >= 0; k++) {
        char name[300];

        free(all);
        snprintf(name, sizeof name, "%.*s.experts.%u.%s", (int)(dot - e->source), e->source, k, dot + 11);
        all = read_source(f, name, &src, err);
        r = !all ? err->code
            : src->bytes != e->rows * e->cols * (st_dtype_bits(src->dtype) / 8)
                ? xerr_set(err, -EINVAL, "%s: found another shape than expert 0 has", name)
            : !e->f && plain_type(src->dtype) != e->type && !FAULT(gguf_types_unseen)
                ? xerr_set(err, -EINVAL, "%s: found %s, expected the type of expert 0: GGUF stacks a layer's experts",
                           name, st_dtype_name(src->dtype))
                : convert(e, src->dtype, all, out + k * (e->bytes / e->copies), t, err);
    }
    free(all);
    free(head);
    return r;
}

static int write_tensors(const struct file *f, struct ggout *o, struct pack_totals *t, struct xerr *e) {
    uint64_t done = 0;
    int r = 0;

    for (size_t i = 0; i < f->n && r >= 0; i++) {
        const struct entry *en = &f->e[i];
        struct pack_totals own = { .from = { 0 } };
        uint8_t *bytes;

        r = ggout_has(o, i, en->bytes, en->part, t, e);
        if (r == 0) {
            bytes = malloc(en->bytes + 1);
            r = bytes ? fill(f, en, bytes, &own, e)
                      : xerr_set(e, -ENOMEM, "%s: no memory for %llu bytes", en->name, (unsigned long long)en->bytes);
            if (r >= 0)
                r = ggout_put(o, bytes, en->bytes, en->part, &own, e);
            free(bytes);
            pack_sum_up(t, &own);
        }
        pack_tell("model.gguf", done, done + en->bytes, o->all);
        done += en->bytes;
    }
    if (r >= 0 && o->n_kept)
        fprintf(stderr, "glm-pack: model.gguf: %zu of %zu tensors were finished and are as they were written\n",
                o->n_kept, f->n);
    return r < 0 ? r : ggout_finish(o, e);
}

/* Header, metadata and the list of tensors. */
static int head_of(struct file *f, const struct pack_options *o, struct ggbuf *b, struct xerr *e) {
    struct ggbuf kv = { .p = NULL };
    uint64_t at = 0, n_kv = 0;
    int r = gguf_metadata(&kv, o->in, f->cfg, &n_kv, e);

    ggbuf_put(b, "GGUF", 4);
    ggbuf_u32(b, 3);
    ggbuf_u64(b, f->n);
    ggbuf_u64(b, n_kv);
    ggbuf_put(b, kv.p, kv.n);
    for (size_t i = 0; i < f->n && r >= 0; i++) {
        ggbuf_string(b, f->e[i].name, strlen(f->e[i].name));
        ggbuf_u32(b, f->e[i].n_dims);
        for (uint32_t d = 0; d < f->e[i].n_dims; d++)
            ggbuf_u64(b, f->e[i].ne[d]);
        ggbuf_u32(b, f->e[i].type);
        ggbuf_u64(b, at);
        if (!size_add(at, f->e[i].bytes, &at) || !size_align(at, GGUF_PACK_ALIGN, &at))
            r = xerr_set(e, -EOVERFLOW, "model.gguf: larger than 2^64 bytes");
    }
    while (b->n % GGUF_PACK_ALIGN && !b->failed)
        ggbuf_put(b, "", 1);
    if (r >= 0 && (b->failed || kv.failed))
        r = xerr_set(e, -ENOMEM, "model.gguf: no memory for its head");
    free(kv.p);
    return r;
}

/* What was written, as the daemon's reader finds it, for the record. */
static int record(struct pack_dir *d, const struct pack_totals *t, struct xerr *e) {
    struct model_index *x = NULL;
    char digest[33];
    int r = model_index_open(&x, d->path, NULL, e);

    if (r >= 0)
        r = pack_digest(model_index_file(x, 0), digest, e);
    if (r >= 0 && (json_object_set_new(json_object_get(d->record, "shards"), "model.gguf",
                                       pack_to_record(digest, t)) < 0 ||
                   json_object_del(d->record, PACK_RECORD_TENSORS) < 0))
        r = xerr_set(e, -ENOMEM, "no memory for the record");
    model_index_close(x);
    return r;
}

int pack_gguf_can(const struct pack_options *o, struct xerr *e) {
    struct model_config cfg;
    int r = model_config_read(o->in, &cfg, e);

    if (r >= 0 && cfg.family != MODEL_GLM53_FLASH)
        r = xerr_set(e, -ENOTSUP, "%s: found GLM-5.3, expected GLM-5.3-Flash: names and keys of no other model are "
                                  "known for GGUF files; --format nvfp4, fp8 and the like are written", o->in);
    return r;
}

int pack_gguf(struct pack_dir *d, const struct pack_options *o, const struct pack_plan *p,
              struct pack_totals *t, bool *ret_kept, uint32_t *ret_left, struct xerr *e) {
    struct model_config cfg;
    struct file f = { .p = p, .cfg = &cfg };
    struct ggbuf head = { .p = NULL };
    struct ggout out = { .fd = -1 };
    uint64_t all = 0;
    int r = model_config_read(o->in, &cfg, e);

    for (size_t i = 0; i < model_index_count(p->x) && r >= 0; i++)
        r = one(&f, i, e);
    for (size_t i = 0; i < f.n; i++) /* head_of() sees whether it can be */
        all += f.e[i].bytes;
    if (r >= 0)
        r = head_of(&f, o, &head, e);
    if (r >= 0)
        r = ggout_open(&out, d, &head, all, e);
    if (r >= 0)
        r = write_tensors(&f, &out, t, e);
    ggout_done(&out);
    if (r >= 0)
        r = record(d, t, e);
    *ret_kept = f.n && out.n_kept == f.n;
    *ret_left = f.left;
    free(f.e);
    free(head.p);
    return r < 0 ? r : 0;
}
