/* SPDX-License-Identifier: MIT */
#include "ckptset.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t element_bits(const char *dtype) {
    if (strcmp(dtype, "I64") == 0)
        return 64;
    if (strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0)
        return 32;
    if (strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 || strcmp(dtype, "I16") == 0)
        return 16;
    ck_assert_msg(strncmp(dtype, "F8_", 3) == 0 || strcmp(dtype, "U8") == 0 || strcmp(dtype, "I8") == 0, "%s",
                  dtype);
    return 8;
}

static struct ckpt_tensor *add(struct ckpt_set *s, const char *name) {
    struct ckpt_tensor *t = ckpt_set_find(s, name);

    if (t) {
        free(t->bytes);
    } else {
        if (s->n == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 256;
            s->t = realloc(s->t, s->cap * sizeof *s->t);
            ck_assert_ptr_nonnull(s->t);
        }
        t = &s->t[s->n++];
    }
    memset(t, 0, sizeof *t);
    ck_assert_int_lt(snprintf(t->name, sizeof t->name, "%s", name), (int)sizeof t->name);
    return t;
}

struct ckpt_tensor *ckpt_set_find(struct ckpt_set *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->t[i].name, name) == 0)
            return &s->t[i];
    return NULL;
}

struct ckpt_tensor *ckpt_set_get(struct ckpt_set *s, const char *name) {
    struct ckpt_tensor *t = ckpt_set_find(s, name);

    ck_assert_msg(t != NULL, "%s: no such tensor", name);
    return t;
}

struct ckpt_tensor *ckpt_set_put(struct ckpt_set *s, const char *name, const char *dtype, const void *bytes,
                                 uint32_t n_dims, ...) {
    struct ckpt_tensor *t = add(s, name);
    va_list ap;

    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->n_dims = n_dims;
    t->n = element_bits(dtype) / 8;
    va_start(ap, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        t->n *= t->dim[i] = va_arg(ap, uint64_t);
    va_end(ap);
    t->bytes = calloc(1, t->n ? t->n : 1);
    ck_assert_ptr_nonnull(t->bytes);
    if (bytes)
        memcpy(t->bytes, bytes, t->n);
    return t;
}

void ckpt_set_drop(struct ckpt_set *s, const char *name) {
    struct ckpt_tensor *t = ckpt_set_get(s, name);

    free(t->bytes);
    *t = s->t[--s->n];
}

void ckpt_set_done(struct ckpt_set *s) {
    for (size_t i = 0; i < s->n; i++)
        free(s->t[i].bytes);
    free(s->t);
    memset(s, 0, sizeof *s);
}

static void load_file(struct ckpt_set *s, const struct ckpt *c, const char *file) {
    size_t n, len = 0;
    unsigned char *all = ckpt_read(c, file, &n);
    const char *name;
    json_t *h, *v;

    for (int i = 7; i >= 0; i--)
        len = len << 8 | all[i];
    h = json_loadb((char *)all + 8, len, 0, NULL);
    ck_assert_ptr_nonnull(h);
    json_object_foreach(h, name, v) {
        struct ckpt_tensor *t;
        json_t *shape = json_object_get(v, "shape"), *off = json_object_get(v, "data_offsets");
        size_t at = (size_t)json_integer_value(json_array_get(off, 0));

        if (strcmp(name, "__metadata__") == 0)
            continue;
        t = add(s, name);
        snprintf(t->dtype, sizeof t->dtype, "%s", json_string_value(json_object_get(v, "dtype")));
        t->n_dims = (uint32_t)json_array_size(shape);
        for (uint32_t i = 0; i < t->n_dims; i++)
            t->dim[i] = (uint64_t)json_integer_value(json_array_get(shape, i));
        t->n = (size_t)json_integer_value(json_array_get(off, 1)) - at;
        t->bytes = malloc(t->n ? t->n : 1);
        memcpy(t->bytes, all + 8 + len + at, t->n);
    }
    json_decref(h);
    free(all);
}

void ckpt_set_load(struct ckpt_set *s, const char *model) {
    ckpt_set_load_dir(s, ckpt_model(model));
}

void ckpt_set_load_dir(struct ckpt_set *s, const char *dir) {
    struct ckpt c;
    json_t *index, *map, *seen = json_object(), *v;
    const char *name;

    memset(s, 0, sizeof *s);
    ck_assert_int_lt(snprintf(c.dir, sizeof c.dir, "%s", dir), (int)sizeof c.dir);
    if (access(ckpt_path(&c, "model.safetensors.index.json"), R_OK) != 0) {
        load_file(s, &c, "model.safetensors");
        json_decref(seen);
        return;
    }
    index = ckpt_json(&c, "model.safetensors.index.json");
    map = json_object_get(index, "weight_map");
    json_object_foreach(map, name, v) {
        if (json_object_get(seen, json_string_value(v)))
            continue;
        json_object_set_new(seen, json_string_value(v), json_true());
        load_file(s, &c, json_string_value(v));
    }
    json_decref(seen);
    json_decref(index);
}

void ckpt_set_save(const struct ckpt_set *s, const char *path) {
    json_t *h = json_object();
    size_t at = 0, len;
    char *text;
    FILE *f;

    for (size_t i = 0; i < s->n; i++) {
        json_t *shape = json_array();

        for (uint32_t d = 0; d < s->t[i].n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)s->t[i].dim[d]));
        json_object_set_new(h, s->t[i].name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", s->t[i].dtype, "shape", shape,
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + s->t[i].n)));
        at += s->t[i].n;
    }
    text = json_dumps(h, JSON_COMPACT);
    len = strlen(text);
    f = fopen(path, "wx");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < 8; i++)
        fputc((int)((uint64_t)len >> (8 * i) & 255), f);
    fwrite(text, 1, len, f);
    for (size_t i = 0; i < s->n; i++)
        fwrite(s->t[i].bytes, 1, s->t[i].n, f);
    ck_assert_int_eq(fclose(f), 0);
    free(text);
    json_decref(h);
}

void ckpt_set_write(const struct ckpt_set *s, const struct ckpt *c) {
    for (int i = 1; i < 8; i++) {
        char shard[64];

        for (int k = 1; k < 8; k++) {
            snprintf(shard, sizeof shard, "model-%05d-of-%05d.safetensors", i, k);
            unlink(ckpt_path(c, shard));
        }
    }
    unlink(ckpt_path(c, "model.safetensors.index.json"));
    unlink(ckpt_path(c, "model.safetensors"));
    ckpt_set_save(s, ckpt_path(c, "model.safetensors"));
}
