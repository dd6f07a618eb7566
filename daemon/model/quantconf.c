/* SPDX-License-Identifier: MIT */
/* Three programs write three forms of the same claim. The tensors decide what is computed; the claim decides
 * whether that is what the publisher meant. Start-up only; never logs. */
#include "quantconf.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "modeljson.h"

enum {
    MAX_BYTES = 64 << 20, /* exllamav3 lists every tensor */
};

/* What the matrices that are not plain may be, and what else is said about them. */
struct claim {
    const char *file, *key; /* for messages: where the word stands */
    const json_t *word;
    uint32_t formats;  /* bits of enum kern_format; 0: nothing is claimed */
    bool all;          /* every one of them must occur */
    uint32_t group;    /* INT8, INT4: weights that share a scale; 0: not said */
    uint32_t block;    /* FP8: rows and columns of a block; 0: not said */
    bool no_block;     /* FP8: a scale for each row or each matrix */
    uint32_t codebook; /* EXL3; 0: not said */
};

#define F(name) (UINT32_C(1) << KERN_##name)

static int refuse(const struct claim *c, int code, const char *key, const json_t *v, const char *expected,
                  struct xerr *e) {
    struct show s;

    return xerr_set(e, code, "%s: %s: found %s, expected %s", c->file, key, modeljson_show(&s, v), expected);
}

static const struct named {
    const char *word;
    uint32_t formats;
} MODELOPT[] =
    {
        {"NVFP4", F(NVFP4)},
        {"W4A16_NVFP4", F(NVFP4)},
        {"W4A8_NVFP4_FP8", F(NVFP4)},
        {"FP8", F(FP8)},
        {"FP8_PB_WO", F(FP8)},
        {"FP8_PB_REAL", F(FP8)},
        {"FP8_PER_CHANNEL_PER_TOKEN", F(FP8)},
        {"MXFP8", F(MXFP8)},
        {"MXFP4", F(MXFP4)},
        {"W4A16_MXFP4", F(MXFP4)},
        {"W8A16", F(INT8) | F(FP8)},
        {NULL, 0},
},
  TENSORS[] = {
      {"nvfp4-pack-quantized", F(NVFP4)},
      {"mxfp4-pack-quantized", F(MXFP4)},
      {"mxfp8-quantized", F(MXFP8)},
      {"float-quantized", F(FP8) | F(MXFP8)},
      {"naive-quantized", F(FP8)},
      {"pack-quantized", F(INT8) | F(INT4)},
      {NULL, 0},
};

static uint32_t named(const struct named *n, const char *word) {
    while (n->word && (!word || strcmp(n->word, word) != 0))
        n++;
    return n->formats;
}

/* ---- ModelOpt ---- */

static int modelopt(struct claim *c, const json_t *o, struct xerr *e) {
    const json_t *algo = json_object_get(o, "quant_algo"), *group = json_object_get(o, "group_size"), *v;
    const json_t *layers = json_object_get(o, "quantized_layers");
    const char *word = json_string_value(algo), *name;

    if (!algo || json_is_null(algo))
        return 0;
    c->word = algo;
    if (word && strcmp(word, "NVFP4_AWQ") == 0)
        return refuse(c, -ENOTSUP, c->key, algo, "one without pre_quant_scale: NVFP4_AWQ is not read", e);
    if (word && strcmp(word, "MIXED_PRECISION") == 0) {
        json_object_foreach((json_t *)layers, name, v) {
            uint32_t f = named(MODELOPT, json_string_value(json_object_get(v, "quant_algo")));

            if (!f)
                return refuse(c, -ENOTSUP, "quantized_layers", v,
                              "a quant_algo that is read (NVFP4, FP8, MXFP8, MXFP4)", e);
            c->formats |= f;
        }
        if (!layers)
            c->formats = F(NVFP4) | F(FP8) | F(MXFP8) | F(MXFP4);
        return 0;
    }
    c->formats = named(MODELOPT, word);
    c->all = (c->formats & (c->formats - 1)) == 0;
    if (!c->formats)
        return refuse(c, -ENOTSUP, c->key, algo,
                      "NVFP4, W4A16_NVFP4, FP8, FP8_PB_WO, MXFP8, MXFP4, W8A16 or MIXED_PRECISION", e);
    if (word && strcmp(word, "FP8_PB_WO") == 0)
        c->block = 128;
    if (c->formats == F(NVFP4) && group && !json_is_null(group) && json_integer_value(group) != 16)
        return refuse(c, -ENOTSUP, "group_size", group, "16, the block of NVFP4", e);
    return 0;
}

/* ---- compressed-tensors ---- */

static int group_claim(struct claim *c, const char *name, const json_t *g, struct xerr *e) {
    const json_t *w = json_object_get(g, "weights"), *size = json_object_get(w, "group_size");
    const json_t *format = json_object_get(g, "format"), *sym = json_object_get(w, "symmetric");
    const char *type = json_string_value(json_object_get(w, "type"));
    const char *strategy = json_string_value(json_object_get(w, "strategy"));
    json_int_t bits = json_integer_value(json_object_get(w, "num_bits"));
    const char *act = json_string_value(json_object_get(w, "actorder"));
    uint32_t f = 0;

    (void)name;
    if (!json_is_object(w))
        return refuse(c, -EINVAL, "config_groups", g, "a group with weights", e);
    if (json_is_false(sym))
        return refuse(c, -ENOTSUP, "config_groups", sym, "symmetric weights: zero points are not read", e);
    if (act && strcmp(act, "static") != 0 && strcmp(act, "weight") != 0)
        return refuse(c, -ENOTSUP, "config_groups", json_object_get(w, "actorder"), "no order of activations",
                      e);
    if (json_is_string(format))
        f = named(TENSORS, json_string_value(format));
    if (type && strcmp(type, "int") == 0)
        f = bits == 4 ? F(INT4) : bits == 8 ? F(INT8) : 0;
    else if (type && strcmp(type, "float") == 0 && bits == 4 && !f)
        f = json_integer_value(size) == 32 ? F(MXFP4) : F(NVFP4);
    else if (type && strcmp(type, "float") == 0 && bits == 8 && !f)
        f = F(FP8) | F(MXFP8);
    if (!f)
        return refuse(c, -ENOTSUP, "config_groups", w, "weights of 4 or 8 bits, float or int", e);
    c->formats |= f;
    if (f & (F(INT4) | F(INT8)) && strategy && strcmp(strategy, "group") == 0)
        c->group = (uint32_t)json_integer_value(size);
    if (f == F(FP8) && strategy)
        c->no_block = strcmp(strategy, "block") != 0;
    return 0;
}

static int compressed(struct claim *c, const json_t *o, struct xerr *e) {
    const json_t *format = json_object_get(o, "format"), *groups = json_object_get(o, "config_groups");
    const json_t *status = json_object_get(o, "quantization_status"), *g;
    const char *name, *word = json_string_value(format);
    int r = 0;

    c->word = format;
    c->key = "quantization_config.format";
    if (status && !json_is_null(status) &&
        (!json_is_string(status) || (strcmp(json_string_value(status), "compressed") != 0 &&
                                     strcmp(json_string_value(status), "frozen") != 0)))
        return refuse(c, -ENOTSUP, "quantization_config.quantization_status", status, "\"compressed\"", e);
    json_object_foreach((json_t *)groups, name, g) {
        r = group_claim(c, name, g, e);
        if (r < 0)
            return r;
    }
    if (!word || strcmp(word, "mixed-precision") == 0)
        return 0;
    if (strcmp(word, "dense") == 0)
        return 0;
    if (!named(TENSORS, word))
        return refuse(
            c, -ENOTSUP, c->key, format,
            "nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized, float-quantized, pack-quantized or "
            "mixed-precision",
            e);
    if (c->formats && !(c->formats & named(TENSORS, word)))
        return refuse(c, -EINVAL, c->key, format, "the format of its config_groups", e);
    if (!c->formats)
        c->formats = named(TENSORS, word);
    return 0;
}

/* ---- the others ---- */

static int fp8(struct claim *c, const json_t *o, struct xerr *e) {
    const json_t *fmt = json_object_get(o, "fmt"), *size = json_object_get(o, "weight_block_size");

    c->formats = F(FP8);
    c->all = true;
    if (fmt && !json_is_null(fmt) && (!json_is_string(fmt) || strcmp(json_string_value(fmt), "e4m3") != 0))
        return refuse(c, -ENOTSUP, "quantization_config.fmt", fmt, "\"e4m3\"", e);
    if (!size || json_is_null(size))
        return 0;
    if (json_array_size(size) != 2 || json_integer_value(json_array_get(size, 0)) != 128 ||
        json_integer_value(json_array_get(size, 1)) != 128)
        return refuse(c, -ENOTSUP, "quantization_config.weight_block_size", size, "[128, 128]", e);
    c->block = 128;
    return 0;
}

static int exl3(struct claim *c, const json_t *o, struct xerr *e) {
    static const char *const LAYOUT[] = {"tile_order", "layout", "tile_layout", "trellis_layout"};
    const json_t *book = json_object_get(o, "codebook");
    const char *word = json_string_value(book);

    c->formats = F(EXL3);
    c->all = true;
    for (size_t i = 0; i < sizeof LAYOUT / sizeof *LAYOUT; i++)
        if (json_object_get(o, LAYOUT[i]))
            return refuse(c, -ENOTSUP, LAYOUT[i], json_object_get(o, LAYOUT[i]),
                          "no such key: only the order of exllamav3 is read", e);
    if (!book || json_is_null(book))
        return 0;
    c->codebook = !word                        ? 0
                  : strcmp(word, "mcg") == 0   ? KERN_CODEBOOK_MCG
                  : strcmp(word, "mul1") == 0  ? KERN_CODEBOOK_MUL1
                  : strcmp(word, "3inst") == 0 ? KERN_CODEBOOK_3INST
                                               : 0;
    return c->codebook ? 0
                       : refuse(c, -ENOTSUP, "quantization_config.codebook", book, "mcg, mul1 or 3inst", e);
}

static int from_config(struct claim *c, const json_t *o, struct xerr *e) {
    const json_t *method = json_object_get(o, "quant_method");
    const char *word = json_string_value(method);

    c->key = "quantization_config.quant_method";
    c->word = method;
    if (!word)
        return refuse(c, -EINVAL, c->key, method, "fp8, modelopt, compressed-tensors, exl3 or quark", e);
    if (strcmp(word, "fp8") == 0)
        return fp8(c, o, e);
    if (strncmp(word, "modelopt", 8) == 0) {
        c->key = "quantization_config.quant_algo";
        return modelopt(c, o, e);
    }
    if (strcmp(word, "compressed-tensors") == 0)
        return compressed(c, o, e);
    if (strcmp(word, "exl3") == 0)
        return exl3(c, o, e);
    if (strcmp(word, "quark") == 0 || strcmp(word, "mxfp4") == 0) {
        c->formats = F(MXFP4);
        return 0;
    }
    return refuse(c, -ENOTSUP, c->key, method, "fp8, modelopt, compressed-tensors, exl3 or quark", e);
}

/* ---- against the tensors ---- */

static bool is_plain(const struct kern_store *s) {
    return s->format == KERN_F32 || s->format == KERN_BF16 || s->format == KERN_F16;
}

/* Word for the first thing about a store that the claim rules out, NULL: none. */
static const char *breaks(const struct claim *c, const struct model_tensor *t) {
    const struct kern_store *s = &t->k.store;
    bool is_int = s->format == KERN_INT8 || s->format == KERN_INT4;
    uint64_t group = s->block_cols ? s->block_cols : t->k.cols;

    if (!(c->formats & UINT32_C(1) << s->format))
        return "another format";
    if (is_int && c->group && group != c->group)
        return "another group size";
    if (s->format == KERN_FP8 && c->block && s->block_rows != c->block)
        return "other blocks";
    if (s->format == KERN_FP8 && c->no_block && s->block_rows > 1)
        return "blocks";
    if (s->format == KERN_EXL3 && c->codebook && s->codebook != c->codebook)
        return "another codebook";
    return NULL;
}

static int compare(const struct claim *c, const struct model_directory *d, struct xerr *e) {
    struct show s;
    uint64_t seen = 0;
    char name[64];

    if (!c->formats)
        return 0;
    for (size_t i = 0; i < d->n_tensors; i++) {
        const struct model_tensor *t = &d->tensor[i];
        const char *why;

        if (!t->is_matrix || is_plain(&t->k.store))
            continue;
        seen |= UINT64_C(1) << t->k.store.format;
        why = breaks(c, t);
        if (why && !FAULT(quantconf_unchecked))
            return xerr_set(e, -EINVAL,
                            "%s: %s: found %s, expected what the tensors are: %s of layer %u is stored as %s "
                            "(%s)",
                            c->file, c->key, modeljson_show(&s, c->word), kern_part_name(t->id.part),
                            t->id.layer, kern_store_name(&t->k.store, name, sizeof name), why);
    }
    if (!seen || (c->all && (seen & c->formats) != c->formats))
        return xerr_set(e, -EINVAL,
                        "%s: %s: found %s, expected what the tensors are: none of them is quantised so",
                        c->file, c->key, modeljson_show(&s, c->word));
    return 0;
}

static int check_file(const char *dir, const char *name, const char *key,
                      int (*read)(struct claim *, const json_t *, struct xerr *),
                      const struct model_directory *d, struct xerr *e) {
    struct claim c = {0};
    char path[PATH_MAX];
    const json_t *o;
    struct show p;
    json_t *root;
    int r = snprintf(path, sizeof path, "%s/%s", dir, name);

    if (r < 0 || r >= PATH_MAX)
        return xerr_set(e, -ENAMETOOLONG, "model directory: the path is too long");
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    r = modeljson_load(path, MAX_BYTES, &root, e);
    if (r < 0)
        return r;
    c.file = show_path(&p, path);
    c.key = key;
    o = json_object_get(root, key);
    if (!o || json_is_null(o))
        o = json_object_get(json_object_get(root, "text_config"), key);
    if (o && !json_is_null(o)) {
        r = read(&c, o, e);
        if (r == 0)
            r = compare(&c, d, e);
    }
    json_decref(root);
    return r;
}

int model_quant_check(const char *dir, const struct model_directory *d, struct xerr *e) {
    int r = check_file(dir, "config.json", "quantization_config", from_config, d, e);

    if (r == 0)
        r = check_file(dir, "hf_quant_config.json", "quantization", modelopt, d, e);
    return r;
}
