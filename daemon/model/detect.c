/* SPDX-License-Identifier: MIT */
/* One module of a safetensors checkpoint, by the suffixes of its tensors. Start-up only; never logs.
 *
 * A set is known by its first tensor (weight, weight_packed, trellis), that one's dtype and the scale's.
 * Everything else of the module must belong to this set, or two sets would stand side by side and which of
 * them counts would be a guess. */
#include "detect.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "show.h"
#include "size.h"

enum suffix {
    S_WEIGHT,
    S_PACKED,
    S_TRELLIS,
    S_QWEIGHT,
    S_SCALE,
    S_SCALE_INV,
    S_SCALE_2,
    S_GLOBAL,
    S_SHAPE,
    S_SUH,
    S_SVH,
    S_SU,
    S_SV,
    S_MCG,
    S_MUL1,
    S_INPUT_SCALE,
    S_INPUT_GLOBAL,
    S_PRE_QUANT,
    S_ZERO_POINT,
    S_G_IDX,
    S_TILE_ORDER,
    S_QZEROS,
    S_SCALES,
    S_PLAIN_G_IDX,
    N_SUFFIXES
};

static const char *const SUFFIX[N_SUFFIXES] = {
    [S_WEIGHT] = "weight",
    [S_PACKED] = "weight_packed",
    [S_TRELLIS] = "trellis",
    [S_QWEIGHT] = "qweight",
    [S_SCALE] = "weight_scale",
    [S_SCALE_INV] = "weight_scale_inv",
    [S_SCALE_2] = "weight_scale_2",
    [S_GLOBAL] = "weight_global_scale",
    [S_SHAPE] = "weight_shape",
    [S_SUH] = "suh",
    [S_SVH] = "svh",
    [S_SU] = "su",
    [S_SV] = "sv",
    [S_MCG] = "mcg",
    [S_MUL1] = "mul1",
    [S_INPUT_SCALE] = "input_scale",
    [S_INPUT_GLOBAL] = "input_global_scale",
    [S_PRE_QUANT] = "pre_quant_scale",
    [S_ZERO_POINT] = "weight_zero_point",
    [S_G_IDX] = "weight_g_idx",
    [S_TILE_ORDER] = "tile_order",
    [S_QZEROS] = "qzeros",
    [S_SCALES] = "scales",
    [S_PLAIN_G_IDX] = "g_idx",
};

#define BIT(s) (1u << (s))

struct module {
    const struct model_index *x;
    const char *base; /* the module's name, not terminated */
    int base_len;
    uint64_t rows, cols;
    const struct model_entry *en[N_SUFFIXES];
    uint32_t found; /* bits of enum suffix */
    struct model_module *m;
    struct xerr *e;
};

/* ---- words ---- */

static const char *file_of(const struct module *o, const struct model_entry *en, struct show *s) {
    return show_path(s, st_path(model_index_file(o->x, en->file)));
}

static const struct model_entry *first_of(const struct module *o) {
    for (int i = 0; i < N_SUFFIXES; i++)
        if (o->en[i])
            return o->en[i];
    return NULL;
}

static int refuse(const struct module *o, int code, const char *found, const char *expected) {
    struct show f, s;

    return xerr_set(o->e, code, "%s: module %s: found %s, expected %s", file_of(o, first_of(o), &f),
                    show_name(&s, o->base, (size_t)o->base_len), found, expected);
}

/* "weight F8_E4M3 [4,4]" */
static const char *text_of(const struct module *o, enum suffix s, char *buf, size_t n) {
    char shape[48];

    if (!o->en[s])
        snprintf(buf, n, "no %s", SUFFIX[s]);
    else
        snprintf(buf, n, "%s %s %s", SUFFIX[s], st_dtype_name(o->en[s]->t->dtype),
                 st_shape_text(o->en[s]->t, shape, sizeof shape));
    return buf;
}

static int wrong(const struct module *o, enum suffix s, const char *expected) {
    char found[96];

    return refuse(o, o->en[s] ? -EINVAL : -ENODATA, text_of(o, s, found, sizeof found), expected);
}

/* ---- tensors ---- */

static enum st_dtype dtype_of(const struct module *o, enum suffix s) {
    return o->en[s] ? o->en[s]->t->dtype : 0;
}

static bool shape_is(const struct st_tensor *t, uint64_t a, uint64_t b) {
    return t->n_dims == 2 && t->shape[0] == a && t->shape[1] == b;
}

static uint64_t count_of(const struct st_tensor *t) {
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims; i++) /* bounded by the bytes, when the file was opened */
        n *= t->shape[i];
    return n;
}

static uint8_t number_of(enum st_dtype d) {
    switch (d) {
    case ST_F32:
        return MODEL_NUM_F32;
    case ST_BF16:
        return MODEL_NUM_BF16;
    case ST_F16:
        return MODEL_NUM_F16;
    case ST_F8_E4M3:
        return MODEL_NUM_E4M3;
    case ST_F8_E8M0:
        return MODEL_NUM_E8M0;
    default:
        return MODEL_NUM_BYTES;
    }
}

static uint8_t scale_of(enum st_dtype d) {
    return d == ST_F32 ? KERN_SCALE_F32 : d == ST_BF16 ? KERN_SCALE_BF16 : d == ST_F16 ? KERN_SCALE_F16 : 0;
}

static void put(struct module *o, enum suffix s, uint8_t piece, uint8_t conv, uint8_t number, uint8_t rule) {
    o->m->piece[o->m->n++] = (struct model_piece){o->en[s], piece, conv, number, rule};
}

static int want_tensor(struct module *o, enum suffix s, enum st_dtype d, uint64_t a, uint64_t b,
                       const char *of) {
    char want[120];

    snprintf(want, sizeof want, "%s %s [%llu,%llu]%s%s", SUFFIX[s], st_dtype_name(d), (unsigned long long)a,
             (unsigned long long)b, *of ? " of " : "", of);
    if (!o->en[s] || o->en[s]->t->dtype != d || !shape_is(o->en[s]->t, a, b))
        return wrong(o, s, want);
    return 0;
}

/* One F32, however many dimensions of 1 it has. */
static int want_scalar(struct module *o, enum suffix s, enum st_dtype d, const char *of) {
    char want[96];

    snprintf(want, sizeof want, "%s %s with one number, of %s", SUFFIX[s], st_dtype_name(d), of);
    if (!o->en[s] || o->en[s]->t->dtype != d || count_of(o->en[s]->t) != 1)
        return wrong(o, s, want);
    return 0;
}

/* Nothing of the module but these. */
static int only(struct module *o, uint32_t allowed, const char *of) {
    char found[96], want[96];

    for (int s = 0; s < N_SUFFIXES; s++)
        if (o->found & ~allowed & BIT(s)) {
            snprintf(want, sizeof want, "only the tensors of %s, which are there too", of);
            return refuse(o, -EINVAL, text_of(o, (enum suffix)s, found, sizeof found), want);
        }
    return 0;
}

static int want_multiple(struct module *o, uint64_t of, const char *what) {
    char found[64], want[96];

    if (o->cols % of == 0)
        return 0;
    snprintf(found, sizeof found, "%llu columns", (unsigned long long)o->cols);
    snprintf(want, sizeof want, "a multiple of %llu for %s", (unsigned long long)of, what);
    return refuse(o, -EINVAL, found, want);
}

/* ---- the formats ---- */

static int plain(struct module *o) {
    const struct st_tensor *t = o->en[S_WEIGHT]->t;
    struct show f, s;
    char is[48];
    int r;

    if (!shape_is(t, o->rows, o->cols) && !FAULT(directory_transposed))
        return xerr_set(o->e, -EINVAL, "%s: tensor %s: found %s %s, expected %s [%llu,%llu]",
                        file_of(o, o->en[S_WEIGHT], &f), show_str(&s, t->name), st_dtype_name(t->dtype),
                        st_shape_text(t, is, sizeof is), st_dtype_name(t->dtype), (unsigned long long)o->rows,
                        (unsigned long long)o->cols);
    r = only(o, BIT(S_WEIGHT), "an unquantised weight");
    if (r == 0)
        r = model_detect_plain(o->en[S_WEIGHT], &o->m->store, &o->m->piece[o->m->n++]);
    return r;
}

/* One scale for the matrix, for each row, or for each block of 128 x 128. Files put dimensions of 1 in
 * between. */
static int fp8_scale(struct module *o, enum suffix s) {
    const struct st_tensor *t = o->en[s]->t;
    uint64_t gr = (o->rows + 127) / 128, gc = (o->cols + 127) / 128;
    struct kern_store *st = &o->m->store;
    char want[160];

    st->format = KERN_FP8;
    st->scale = scale_of(t->dtype);
    if (st->scale && s == S_SCALE && count_of(t) == 1) {
        put(o, s, KERN_PIECE_SCALE, MODEL_CONV_NONE, number_of(t->dtype), MODEL_RULE_FACTOR);
        return 0;
    }
    if (st->scale && s == S_SCALE && (shape_is(t, o->rows, 1) || (t->n_dims == 1 && t->shape[0] == o->rows)))
        st->block_rows = 1;
    else if (st->scale && (shape_is(t, gr, gc) || (t->n_dims == 4 && t->shape[0] == gr && t->shape[1] == 1 &&
                                                   t->shape[2] == gc && t->shape[3] == 1)))
        st->block_rows = st->block_cols = 128;
    else {
        snprintf(want, sizeof want,
                 "F32, BF16 or F16 [%llu,%llu] (blocks of 128x128)%s of weight F8_E4M3 [%llu,%llu]",
                 (unsigned long long)gr, (unsigned long long)gc,
                 s == S_SCALE ? ", one number or one for each row" : "", (unsigned long long)o->rows,
                 (unsigned long long)o->cols);
        return wrong(o, s, want);
    }
    put(o, s, KERN_PIECE_SCALE, MODEL_CONV_NONE, number_of(t->dtype), MODEL_RULE_SCALE);
    return 0;
}

static int fp8(struct module *o) {
    enum suffix s = o->en[S_SCALE_INV] ? S_SCALE_INV : S_SCALE;
    int r = want_tensor(o, S_WEIGHT, ST_F8_E4M3, o->rows, o->cols, "FP8");

    if (r == 0 && !o->en[s])
        r = refuse(o, -ENODATA, "weight F8_E4M3 without a scale",
                   "weight_scale_inv or weight_scale beside it; is a shard missing?");
    if (r == 0)
        r = only(o, BIT(S_WEIGHT) | BIT(s) | BIT(S_INPUT_SCALE), "FP8");
    if (r < 0)
        return r;
    put(o, S_WEIGHT, KERN_PIECE_CODES, MODEL_CONV_NONE, MODEL_NUM_E4M3, MODEL_RULE_ANY);
    if (s == S_SCALE && (dtype_of(o, s) == ST_U8 || dtype_of(o, s) == ST_F8_E8M0)) {
        o->m->store = (struct kern_store){
            .format = KERN_MXFP8, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32};
        r = want_multiple(o, 32, "MXFP8");
        if (r == 0)
            r = want_tensor(o, s, dtype_of(o, s), o->rows, o->cols / 32, "MXFP8");
        if (r == 0)
            put(o, s, KERN_PIECE_SCALE, MODEL_CONV_NONE, MODEL_NUM_E8M0, MODEL_RULE_ANY);
        return r;
    }
    return fp8_scale(o, s);
}

static int mxfp4(struct module *o, enum suffix codes) {
    int r = want_multiple(o, 32, "MXFP4");

    if (r == 0)
        r = want_tensor(o, codes, ST_U8, o->rows, o->cols / 2, "MXFP4");
    if (r == 0)
        r = want_tensor(o, S_SCALE, dtype_of(o, S_SCALE), o->rows, o->cols / 32, "MXFP4");
    if (r == 0)
        r = only(o, BIT(codes) | BIT(S_SCALE) | BIT(S_INPUT_SCALE), "MXFP4");
    if (r < 0)
        return r;
    o->m->store = (struct kern_store){
        .format = KERN_MXFP4, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32};
    put(o, codes, KERN_PIECE_CODES, MODEL_CONV_NONE, MODEL_NUM_BYTES, MODEL_RULE_ANY);
    put(o, S_SCALE, KERN_PIECE_SCALE, MODEL_CONV_NONE, MODEL_NUM_E8M0, MODEL_RULE_ANY);
    return 0;
}

/* ModelOpt multiplies by weight_scale_2, compressed-tensors divides by weight_global_scale. */
static int nvfp4(struct module *o, bool modelopt) {
    enum suffix codes = modelopt ? S_WEIGHT : S_PACKED, global = modelopt ? S_SCALE_2 : S_GLOBAL;
    const char *of = modelopt ? "NVFP4 (ModelOpt)" : "NVFP4 (compressed-tensors)";
    int r;

    if (o->en[S_PRE_QUANT])
        return refuse(o, -ENOTSUP, "pre_quant_scale",
                      "none: NVFP4_AWQ, which scales the inputs too, is not read");
    r = want_multiple(o, 16, of);
    if (r == 0)
        r = want_tensor(o, codes, ST_U8, o->rows, o->cols / 2, of);
    if (r == 0)
        r = want_tensor(o, S_SCALE, ST_F8_E4M3, o->rows, o->cols / 16, of);
    if (r == 0)
        r = want_scalar(o, global, ST_F32, of);
    if (r == 0)
        r = only(o, BIT(codes) | BIT(S_SCALE) | BIT(global) | BIT(modelopt ? S_INPUT_SCALE : S_INPUT_GLOBAL),
                 of);
    if (r < 0)
        return r;
    o->m->store = (struct kern_store){
        .format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1, .block_cols = 16};
    put(o, codes, KERN_PIECE_CODES, MODEL_CONV_NONE, MODEL_NUM_BYTES, MODEL_RULE_ANY);
    put(o, S_SCALE, KERN_PIECE_SCALE, MODEL_CONV_NONE, MODEL_NUM_E4M3, MODEL_RULE_SCALE);
    if (modelopt || FAULT(detect_no_reciprocal))
        put(o, global, KERN_PIECE_GLOBAL, MODEL_CONV_NONE, MODEL_NUM_F32, MODEL_RULE_SMALL);
    else
        put(o, global, KERN_PIECE_GLOBAL, MODEL_CONV_RECIPROCAL, MODEL_NUM_F32, MODEL_RULE_LARGE);
    return 0;
}

/* Fields q + 2^(bits-1) in 32-bit words, the lowest first: as bytes that is what INT8 and INT4 are made of,
 * as long as a row fills its words. */
static int pack_quantized(struct module *o) {
    const struct st_tensor *t = o->en[S_PACKED]->t, *s = o->en[S_SCALE] ? o->en[S_SCALE]->t : NULL;
    bool is4 = o->cols % 8 == 0 && shape_is(t, o->rows, o->cols / 8);
    char found[96], want[160];
    uint64_t groups;
    int r;

    if (o->en[S_ZERO_POINT])
        return refuse(o, -ENOTSUP, "weight_zero_point", "none: only symmetric INT8 and INT4 are read");
    if (o->en[S_G_IDX])
        return refuse(o, -ENOTSUP, "weight_g_idx", "none: groups in the order of activations are not read");
    if (!is4 && !(o->cols % 4 == 0 && shape_is(t, o->rows, o->cols / 4))) {
        snprintf(want, sizeof want,
                 "weight_packed I32 [%llu,%llu] (INT4) or [%llu,%llu] (INT8), whole words a row",
                 (unsigned long long)o->rows, (unsigned long long)o->cols / 8, (unsigned long long)o->rows,
                 (unsigned long long)o->cols / 4);
        return wrong(o, S_PACKED, want);
    }
    if (!s || !scale_of(s->dtype) || s->n_dims != 2 || s->shape[0] != o->rows || s->shape[1] == 0 ||
        (o->cols % s->shape[1] != 0 && !FAULT(detect_groups_unchecked)) ||
        (s->shape[1] > 1 && (o->cols / s->shape[1] > UINT16_MAX || (is4 && o->cols / s->shape[1] % 2)))) {
        snprintf(
            want, sizeof want,
            "weight_scale BF16, F16 or F32 [%llu,groups], groups of whole bytes that divide %llu columns",
            (unsigned long long)o->rows, (unsigned long long)o->cols);
        return wrong(o, S_SCALE, want);
    }
    groups = s->shape[1];
    if (!o->en[S_SHAPE] || o->en[S_SHAPE]->t->dtype != ST_I64 || count_of(o->en[S_SHAPE]->t) != 2)
        return refuse(o, o->en[S_SHAPE] ? -EINVAL : -ENODATA, text_of(o, S_SHAPE, found, sizeof found),
                      "weight_shape I64 [2] of INT8 or INT4");
    r = only(o, BIT(S_PACKED) | BIT(S_SCALE) | BIT(S_SHAPE) | BIT(S_INPUT_SCALE), "INT8 or INT4");
    if (r < 0)
        return r;
    o->m->store = (struct kern_store){.format = is4 ? KERN_INT4 : KERN_INT8,
                                      .scale = scale_of(s->dtype),
                                      .block_rows = 1,
                                      .block_cols = (uint16_t)(groups == 1 ? 0 : o->cols / groups)};
    put(o, S_PACKED, KERN_PIECE_CODES, MODEL_CONV_NONE, MODEL_NUM_BYTES, MODEL_RULE_ANY);
    put(o, S_SCALE, KERN_PIECE_SCALE, MODEL_CONV_NONE, number_of(s->dtype), MODEL_RULE_SCALE);
    put(o, S_SHAPE, MODEL_PIECE_NONE, MODEL_CONV_NONE, MODEL_NUM_I64, MODEL_RULE_SHAPE);
    return 0;
}

/* Signs and scale of one side: F16 for each element, or, in older packs, a bit for each. */
static int exl3_side(struct module *o, enum suffix full, enum suffix bits, uint64_t n, uint8_t piece) {
    enum suffix s = o->en[full] ? full : bits;
    enum st_dtype d = s == full ? ST_F16 : ST_I16;
    uint64_t want_n = s == full ? n : n / 16;
    char want[120];

    if (o->en[s] && o->en[s]->t->dtype == d && o->en[s]->t->n_dims == 1 && o->en[s]->t->shape[0] == want_n &&
        !(o->en[full] && o->en[bits])) {
        put(o, s, piece, s == full ? MODEL_CONV_NONE : MODEL_CONV_SIGNS,
            s == full ? MODEL_NUM_F16 : MODEL_NUM_BYTES, MODEL_RULE_ANY);
        return 0;
    }
    snprintf(want, sizeof want, "either %s F16 [%llu] or %s I16 [%llu] of EXL3", SUFFIX[full],
             (unsigned long long)n, SUFFIX[bits], (unsigned long long)n / 16);
    return wrong(o, s, want);
}

static int exl3(struct module *o) {
    const struct st_tensor *t = o->en[S_TRELLIS]->t;
    uint64_t k = o->cols / 16, n = o->rows / 16;
    bool grid = o->cols % 128 == 0 && o->rows % 128 == 0;
    char want[160];
    int r;

    if (o->en[S_TILE_ORDER])
        return refuse(o, -ENOTSUP, "tile_order", "none: only the tile order of exllamav3 is read");
    if (!grid || t->dtype != ST_I16 || t->n_dims != 3 || t->shape[0] != k || t->shape[1] != n ||
        t->shape[2] == 0 || t->shape[2] % 16 != 0 || t->shape[2] > 128) {
        snprintf(want, sizeof want,
                 "trellis I16 [%llu,%llu,16*bits], 1 to 8 bits, for %llu columns and %llu rows%s",
                 (unsigned long long)k, (unsigned long long)n, (unsigned long long)o->cols,
                 (unsigned long long)o->rows, grid ? "" : ", both multiples of 128");
        return wrong(o, S_TRELLIS, want);
    }
    if (o->en[S_MCG] && o->en[S_MUL1])
        return refuse(o, -EINVAL, "the markers mcg and mul1", "at most one: they name the codebook");
    r = only(o, BIT(S_TRELLIS) | BIT(S_SUH) | BIT(S_SVH) | BIT(S_SU) | BIT(S_SV) | BIT(S_MCG) | BIT(S_MUL1),
             "EXL3");
    if (r < 0)
        return r;
    o->m->store = (struct kern_store){.format = KERN_EXL3,
                                      .bits = (uint8_t)(t->shape[2] / 16),
                                      .codebook = o->en[S_MCG]    ? KERN_CODEBOOK_MCG
                                                  : o->en[S_MUL1] ? KERN_CODEBOOK_MUL1
                                                                  : KERN_CODEBOOK_3INST};
    put(o, S_TRELLIS, KERN_PIECE_CODES, MODEL_CONV_NONE, MODEL_NUM_BYTES, MODEL_RULE_ANY);
    r = exl3_side(o, S_SUH, S_SU, o->cols, KERN_PIECE_SUH);
    if (r == 0)
        r = exl3_side(o, S_SVH, S_SV, o->rows, KERN_PIECE_SVH);
    for (enum suffix s = S_MCG; r == 0 && s <= S_MUL1; s++)
        if (o->en[s] && (r = want_scalar(o, s, ST_I32, "EXL3")) == 0)
            put(o, s, MODEL_PIECE_NONE, MODEL_CONV_NONE, MODEL_NUM_I32,
                s == S_MCG ? MODEL_RULE_MCG : MODEL_RULE_MUL1);
    return r;
}

/* ---- which of them ---- */

static int packed(struct module *o) {
    enum st_dtype d = dtype_of(o, S_PACKED), s = dtype_of(o, S_SCALE);

    if (d == ST_I32)
        return pack_quantized(o);
    if (d == ST_U8 && (s == ST_U8 || s == ST_F8_E8M0))
        return mxfp4(o, S_PACKED);
    if (d == ST_U8)
        return nvfp4(o, false);
    return wrong(o, S_PACKED, "weight_packed U8 (NVFP4, MXFP4) or I32 (INT8, INT4)");
}

static int weight(struct module *o) {
    enum st_dtype d = dtype_of(o, S_WEIGHT), s = dtype_of(o, S_SCALE);

    if (d == ST_F8_E4M3)
        return fp8(o);
    if (d == ST_U8 && (s == ST_U8 || s == ST_F8_E8M0))
        return mxfp4(o, S_WEIGHT);
    if (d == ST_U8)
        return nvfp4(o, true);
    if (d == ST_BF16 || d == ST_F16 || d == ST_F32)
        return plain(o);
    return wrong(o, S_WEIGHT, "BF16, F16, F32, F8_E4M3 (FP8, MXFP8) or U8 (NVFP4, MXFP4)");
}

/* The names of one module stand together in the index. */
static void gather(struct module *o, const char *prefix) {
    size_t len = strlen(prefix);

    for (size_t i = model_index_from(o->x, prefix); i < model_index_count(o->x); i++) {
        const struct model_entry *en = model_index_at(o->x, i);

        if (strncmp(en->t->name, prefix, len) != 0)
            return;
        for (int s = 0; s < N_SUFFIXES; s++)
            if (strcmp(en->t->name + len, SUFFIX[s]) == 0 && o->m->n_seen < MODEL_MAX_SEEN) {
                o->en[s] = en;
                o->found |= BIT(s);
                o->m->seen[o->m->n_seen++] = en;
            }
    }
}

int model_detect(const struct model_index *x, const char *name, uint64_t rows, uint64_t cols,
                 struct model_module *ret, struct xerr *e) {
    static const uint32_t firsts = BIT(S_WEIGHT) | BIT(S_PACKED) | BIT(S_TRELLIS) | BIT(S_QWEIGHT);
    struct model_module m = {0};
    struct module o = {.x = x, .base = name, .rows = rows, .cols = cols, .m = &m, .e = e};
    char prefix[192], found[96];
    size_t len = strlen(name);
    int r;

    if (len < 8 || len >= sizeof prefix || strcmp(name + len - 7, ".weight") != 0)
        return -ENODATA;
    o.base_len = (int)len - 7;
    snprintf(prefix, sizeof prefix, "%.*s.", o.base_len, name);
    gather(&o, prefix);
    if (!o.found)
        return -ENODATA;
    if (o.found & BIT(S_QWEIGHT))
        return refuse(&o, -ENOTSUP, "qweight (GPTQ or AWQ)",
                      "weight_packed: write it as compressed-tensors pack-quantized, which is read");
    if (!(o.found & firsts)) {
        enum suffix s = (enum suffix)__builtin_ctz(o.found);

        return refuse(&o, -ENODATA, text_of(&o, s, found, sizeof found),
                      "weight, weight_packed or trellis beside it; is a shard missing?");
    }
    if ((o.found & firsts) & ((o.found & firsts) - 1))
        return refuse(&o, -EINVAL, "two sets of tensors (weight, weight_packed, trellis)", "exactly one");
    r = o.en[S_TRELLIS] ? exl3(&o) : o.en[S_PACKED] ? packed(&o) : weight(&o);
    if (r == 0)
        *ret = m;
    return r;
}

/* ---- what stands alone ---- */

uint32_t model_gguf_format(enum st_dtype d) {
    static const uint8_t FORMAT[] = {
        [ST_GGUF_Q8_0 - ST_GGUF_Q8_0] = KERN_Q8_0,        [ST_GGUF_Q2_K - ST_GGUF_Q8_0] = KERN_Q2_K,
        [ST_GGUF_Q3_K - ST_GGUF_Q8_0] = KERN_Q3_K,        [ST_GGUF_Q4_K - ST_GGUF_Q8_0] = KERN_Q4_K,
        [ST_GGUF_Q5_K - ST_GGUF_Q8_0] = KERN_Q5_K,        [ST_GGUF_Q6_K - ST_GGUF_Q8_0] = KERN_Q6_K,
        [ST_GGUF_IQ1_S - ST_GGUF_Q8_0] = KERN_IQ1_S,      [ST_GGUF_IQ1_M - ST_GGUF_Q8_0] = KERN_IQ1_M,
        [ST_GGUF_IQ2_XXS - ST_GGUF_Q8_0] = KERN_IQ2_XXS,  [ST_GGUF_IQ2_XS - ST_GGUF_Q8_0] = KERN_IQ2_XS,
        [ST_GGUF_IQ2_S - ST_GGUF_Q8_0] = KERN_IQ2_S,      [ST_GGUF_IQ3_XXS - ST_GGUF_Q8_0] = KERN_IQ3_XXS,
        [ST_GGUF_IQ3_S - ST_GGUF_Q8_0] = KERN_IQ3_S,      [ST_GGUF_IQ4_NL - ST_GGUF_Q8_0] = KERN_IQ4_NL,
        [ST_GGUF_IQ4_XS - ST_GGUF_Q8_0] = KERN_IQ4_XS,    [ST_GGUF_MXFP4 - ST_GGUF_Q8_0] = KERN_GGUF_MXFP4,
        [ST_GGUF_NVFP4 - ST_GGUF_Q8_0] = KERN_GGUF_NVFP4,
    };

    return d >= ST_GGUF_Q8_0 && d - ST_GGUF_Q8_0 < sizeof FORMAT ? FORMAT[d - ST_GGUF_Q8_0] : 0;
}

int model_detect_plain(const struct model_entry *en, struct kern_store *ret_store, struct model_piece *ret) {
    uint8_t number = number_of(en->t->dtype);
    uint32_t format = number == MODEL_NUM_F32    ? KERN_F32
                      : number == MODEL_NUM_BF16 ? KERN_BF16
                      : number == MODEL_NUM_F16  ? KERN_F16
                                                 : model_gguf_format(en->t->dtype);

    if (!format)
        return -EINVAL;
    *ret_store = (struct kern_store){.format = (uint8_t)format};
    *ret = (struct model_piece){en, KERN_PIECE_CODES, MODEL_CONV_NONE, number, MODEL_RULE_ANY};
    return 0;
}
