/* SPDX-License-Identifier: MIT */
/* packconf.c: config.json of the output with what the programs that read such checkpoints want to be told,
 * and the files some of them read beside it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack.h"

/* Modules that are matrices and stay as they are; with `words`, also what becomes of the others. */
static json_t *kept(const struct pack_plan *p) {
    json_t *list = json_array();
    char module[300];

    for (size_t i = 0; i < model_index_count(p->x); i++) {
        const struct st_tensor *t = model_index_at(p->x, i)->t;

        if (!p->to[i] && t->n_dims >= 2 && pack_module_name(t->name, module, sizeof module))
            json_array_append_new(list, json_string(module));
    }
    return list;
}

static json_t *modules_in(const struct pack_plan *p, const struct pack_format *f) {
    json_t *list = json_array();
    char module[300];

    for (size_t i = 0; i < model_index_count(p->x); i++)
        if (p->to[i] == f && pack_module_name(model_index_at(p->x, i)->t->name, module, sizeof module))
            json_array_append_new(list, json_string(module));
    return list;
}

/* The formats in use, the most frequent first: it is the one that a configuration names for "all others". */
static uint32_t formats_in(const struct pack_plan *p, const struct pack_format **ret, uint32_t cap) {
    uint64_t count[32] = { 0 };
    uint32_t n = 0, k;

    for (size_t i = 0; i < model_index_count(p->x); i++) {
        if (!p->to[i])
            continue;
        for (k = 0; k < n && ret[k] != p->to[i]; k++)
            ;
        if (k == n && n < cap)
            ret[n++] = p->to[i];
        count[k]++;
    }
    for (k = 1; k < n; k++)
        if (count[k] > count[0]) {
            const struct pack_format *t = ret[0];
            uint64_t c = count[0];

            ret[0] = ret[k];
            ret[k] = t;
            count[0] = count[k];
            count[k] = c;
        }
    return n;
}

/* ---- compressed-tensors ---- */

static const char *ct_format(const struct kern_store *s) {
    switch (s->format) {
    case KERN_NVFP4:
        return "nvfp4-pack-quantized";
    case KERN_MXFP4:
        return "mxfp4-pack-quantized";
    case KERN_MXFP8:
        return "mxfp8-quantized";
    case KERN_INT8:
    case KERN_INT4:
        return "pack-quantized";
    default:
        return "float-quantized";
    }
}

static json_t *ct_weights(const struct kern_store *s) {
    bool ints = s->format == KERN_INT8 || s->format == KERN_INT4;
    bool four = s->format == KERN_INT4 || s->format == KERN_NVFP4 || s->format == KERN_MXFP4;
    json_t *w = json_pack("{s:i, s:s, s:b, s:b}", "num_bits", four ? 4 : 8, "type", ints ? "int" : "float",
                          "symmetric", 1, "dynamic", 0);
    const char *strategy = "group";

    if (s->format == KERN_NVFP4)
        strategy = "tensor_group";
    else if (s->format == KERN_FP8)
        strategy = !s->block_rows ? "tensor" : s->block_cols ? "block" : "channel";
    json_object_set_new(w, "strategy", json_string(strategy));
    if (s->format == KERN_FP8 && s->block_rows && s->block_cols)
        json_object_set_new(w, "block_structure", json_pack("[i, i]", s->block_rows, s->block_cols));
    else if (s->format != KERN_FP8)
        json_object_set_new(w, "group_size", json_integer(s->block_cols));
    return w;
}

static json_t *compressed(const struct pack_plan *p, const struct pack_format *const *f, uint32_t n) {
    json_t *groups = json_object();
    char name[24];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "group_%u", i);
        json_object_set_new(groups, name,
                            json_pack("{s:o, s:s, s:o, s:n, s:n}", "targets",
                                      i ? modules_in(p, f[i]) : json_pack("[s]", "Linear"), "format",
                                      ct_format(&f[i]->store), "weights", ct_weights(&f[i]->store),
                                      "input_activations", "output_activations"));
    }
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:n}", "quant_method", "compressed-tensors", "format",
                     n > 1 ? "mixed-precision" : ct_format(&f[0]->store), "quantization_status", "compressed",
                     "config_groups", groups, "ignore", kept(p), "kv_cache_scheme");
}

/* ---- ModelOpt ---- */

static const char *modelopt_word(const struct kern_store *s) {
    switch (s->format) {
    case KERN_NVFP4:
        return "NVFP4";
    case KERN_MXFP4:
        return "MXFP4";
    case KERN_MXFP8:
        return "MXFP8";
    default:
        return s->block_rows == 128 ? "FP8_PB_WO" : "FP8";
    }
}

/* Both files say the same: readers differ in which one they look at. */
static json_t *modelopt(const struct pack_plan *p, const struct pack_format *const *f, uint32_t n,
                        json_t **ret_file) {
    const char *algo = n > 1 ? "MIXED_PRECISION" : modelopt_word(&f[0]->store);
    json_t *ignore = kept(p), *layers = n > 1 ? json_object() : NULL, *q, *c;

    for (uint32_t i = 0; i < n && layers; i++) {
        json_t *names = modules_in(p, f[i]), *name;
        size_t at;

        json_array_foreach(names, at, name)
            json_object_set_new(layers, json_string_value(name),
                                f[i]->store.format == KERN_FP8
                                    ? json_pack("{s:s}", "quant_algo", modelopt_word(&f[i]->store))
                                    : json_pack("{s:s, s:i}", "quant_algo", modelopt_word(&f[i]->store),
                                                "group_size", f[i]->store.block_cols));
        json_decref(names);
    }
    q = json_pack("{s:s, s:n, s:O}", "quant_algo", algo, "kv_cache_quant_algo", "exclude_modules", ignore);
    c = json_pack("{s:s, s:s, s:o}", "quant_method", "modelopt", "quant_algo", algo, "ignore", ignore);
    if (n == 1 && f[0]->store.format != KERN_FP8) {
        json_object_set_new(q, "group_size", json_integer(f[0]->store.block_cols));
        json_object_set_new(c, "group_size", json_integer(f[0]->store.block_cols));
    }
    if (layers) {
        json_object_set(q, "quantized_layers", layers);
        json_object_set(c, "quantized_layers", layers);
        json_decref(layers);
    }
    *ret_file = json_pack("{s:{s:s, s:s}, s:o}", "producer", "name", "modelopt", "version", "0.45.0+glm-pack",
                          "quantization", q);
    return c;
}

/* ---- EXL3 ---- */

static json_t *exl3(const struct pack_plan *p, const struct pack_format *const *f, uint32_t n,
                    json_t **ret_file) {
    json_t *storage = json_object(), *c, *all;
    double bits = 0, weights = 0;
    char module[300];

    for (size_t i = 0; i < model_index_count(p->x); i++) {
        const struct st_tensor *t = model_index_at(p->x, i)->t;
        struct pack_tensor part[PACK_MAX_TENSORS];
        json_t *stored;
        uint32_t k = 0;

        if (!p->to[i])
            continue;
        pack_module_name(t->name, module, sizeof module);
        if (pack_tensors(p->to[i], p->family, module, t->shape[0], t->shape[1], part, &k) < 0)
            continue;
        stored = json_object();
        for (uint32_t j = 0; j < k; j++) {
            json_t *shape = json_array();

            for (uint32_t d = 0; d < part[j].n_dims; d++)
                json_array_append_new(shape, json_integer((json_int_t)part[j].shape[d]));
            json_object_set_new(stored, part[j].name,
                                json_pack("{s:o, s:I, s:s}", "shape", shape, "n_bytes",
                                          (json_int_t)part[j].bytes, "dtype", st_dtype_name(part[j].dtype)));
        }
        json_object_set_new(storage, module,
                            json_pack("{s:o, s:s, s:i, s:I}", "stored_tensors", stored, "quant_format",
                                      "exl3", "bits_per_weight", p->to[i]->store.bits, "mcg_multiplier",
                                      (json_int_t)0xCBAC1FED));
        bits += p->to[i]->store.bits * (double)(t->shape[0] * t->shape[1]);
        weights += (double)(t->shape[0] * t->shape[1]);
    }
    (void)n;
    c = json_pack("{s:s, s:s, s:f, s:i, s:s, s:s, s:{s:i, s:i}}", "quant_method", "exl3", "version", "0.0.43",
                  "bits", weights > 0 ? bits / weights : f[0]->store.bits, "head_bits", 16, "codebook", "mcg",
                  "out_scales", "always", "calibration", "rows", 0, "cols", 0);
    all = json_deep_copy(c);
    json_object_set_new(all, "tensor_storage", storage);
    *ret_file = all;
    return c;
}

int pack_config(const struct pack_dir *d, const struct pack_options *o, const struct pack_plan *p,
                struct xerr *e) {
    const struct pack_format *f[32];
    uint32_t n = formats_in(p, f, 32);
    json_t *q = NULL, *beside = NULL, *config;
    const char *name = NULL;
    char path[4200];
    int r;

    snprintf(path, sizeof path, "%s/config.json", o->in);
    r = modeljson_load(path, PACK_MAX_JSON, &config, e);
    if (r < 0)
        return r;
    switch (p->family) {
    case PACK_PLAIN: /* plain numbers have none */
        r = pack_put_json(d->path, "config.json", config, e);
        json_decref(config);
        return r;
    case PACK_FP8:
        q = json_pack("{s:s, s:s, s:s, s:[i, i], s:o}", "quant_method", "fp8", "fmt", "e4m3",
                      "activation_scheme", "dynamic", "weight_block_size", 128, 128, "modules_to_not_convert",
                      kept(p));
        break;
    case PACK_COMPRESSED:
        q = compressed(p, f, n);
        break;
    case PACK_MODELOPT:
        q = modelopt(p, f, n, &beside);
        name = "hf_quant_config.json";
        break;
    default:
        q = exl3(p, f, n, &beside);
        name = "quantization_config.json";
    }
    r = q && json_object_set_new(config, "quantization_config", q) == 0 ? 0
                                                                        : xerr_set(e, -ENOMEM, "no memory");
    if (r >= 0)
        r = pack_put_json(d->path, "config.json", config, e);
    if (r >= 0 && name)
        r = beside ? pack_put_json(d->path, name, beside, e) : xerr_set(e, -ENOMEM, "no memory");
    json_decref(config);
    json_decref(beside);
    return r;
}
