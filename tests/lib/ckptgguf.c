/* SPDX-License-Identifier: MIT */
#include "ckptgguf.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ckpt_buf_put(struct ckpt_buf *b, const void *bytes, size_t n) {
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->p = realloc(b->p, b->cap);
        ck_assert_ptr_nonnull(b->p);
    }
    if (bytes)
        memcpy(b->p + b->n, bytes, n);
    else
        memset(b->p + b->n, 0, n);
    b->n += n;
}

static void put32(struct ckpt_buf *b, uint32_t v) {
    ckpt_buf_put(b, &v, 4);
}
static void put64(struct ckpt_buf *b, uint64_t v) {
    ckpt_buf_put(b, &v, 8);
}
static void put_text(struct ckpt_buf *b, const char *s) {
    put64(b, strlen(s));
    ckpt_buf_put(b, s, strlen(s));
}

void ckpt_gguf_init(struct ckpt_gguf *g) {
    memset(g, 0, sizeof *g);
    g->version = 3;
    g->alignment = 32;
}

void ckpt_gguf_done(struct ckpt_gguf *g) {
    for (size_t i = 0; i < g->n_t; i++)
        free(g->t[i].bytes);
    free(g->t);
    free(g->kv.p);
    memset(g, 0, sizeof *g);
}

static void key(struct ckpt_gguf *g, const char *name, uint32_t type) {
    put_text(&g->kv, name);
    put32(&g->kv, type);
    g->n_keys++;
}

void ckpt_gguf_uint(struct ckpt_gguf *g, const char *name, uint32_t v) {
    key(g, name, 4);
    put32(&g->kv, v);
}
void ckpt_gguf_u16(struct ckpt_gguf *g, const char *name, unsigned v) {
    uint16_t w = (uint16_t)v;

    key(g, name, 2);
    ckpt_buf_put(&g->kv, &w, 2);
}
void ckpt_gguf_i32(struct ckpt_gguf *g, const char *name, int32_t v) {
    key(g, name, 5);
    put32(&g->kv, (uint32_t)v);
}
void ckpt_gguf_real(struct ckpt_gguf *g, const char *name, float v) {
    key(g, name, 6);
    ckpt_buf_put(&g->kv, &v, 4);
}
void ckpt_gguf_bool(struct ckpt_gguf *g, const char *name, int v) {
    unsigned char b = (unsigned char)v;

    key(g, name, 7);
    ckpt_buf_put(&g->kv, &b, 1);
}
void ckpt_gguf_text(struct ckpt_gguf *g, const char *name, const char *v) {
    key(g, name, 8);
    put_text(&g->kv, v);
}
void ckpt_gguf_uints(struct ckpt_gguf *g, const char *name, const uint32_t *v, uint64_t n) {
    key(g, name, 9);
    put32(&g->kv, 4);
    put64(&g->kv, n);
    ckpt_buf_put(&g->kv, v, 4 * n);
}
void ckpt_gguf_i32s(struct ckpt_gguf *g, const char *name, const int32_t *v, uint64_t n) {
    key(g, name, 9);
    put32(&g->kv, 5);
    put64(&g->kv, n);
    ckpt_buf_put(&g->kv, v, 4 * n);
}
void ckpt_gguf_reals(struct ckpt_gguf *g, const char *name, const float *v, uint64_t n) {
    key(g, name, 9);
    put32(&g->kv, 6);
    put64(&g->kv, n);
    ckpt_buf_put(&g->kv, v, 4 * n);
}
void ckpt_gguf_texts(struct ckpt_gguf *g, const char *name, const char *const *v, uint64_t n) {
    key(g, name, 9);
    put32(&g->kv, 8);
    put64(&g->kv, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(&g->kv, v[i]);
}

struct ckpt_gguf_tensor *ckpt_gguf_find(struct ckpt_gguf *g, const char *name) {
    for (size_t i = 0; i < g->n_t; i++)
        if (strcmp(g->t[i].name, name) == 0)
            return &g->t[i];
    return NULL;
}

struct ckpt_gguf_tensor *ckpt_gguf_put(struct ckpt_gguf *g, const char *name, uint32_t type,
                                       const void *bytes, size_t n, uint32_t n_dims, ...) {
    struct ckpt_gguf_tensor *t = ckpt_gguf_find(g, name);
    va_list ap;

    if (t) {
        free(t->bytes);
    } else {
        if (g->n_t == g->cap_t) {
            g->cap_t = g->cap_t ? 2 * g->cap_t : 64;
            g->t = realloc(g->t, g->cap_t * sizeof *g->t);
            ck_assert_ptr_nonnull(g->t);
        }
        t = &g->t[g->n_t++];
    }
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->n_dims = n_dims;
    t->n = n;
    va_start(ap, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 4; i++)
        t->ne[i] = va_arg(ap, uint64_t);
    va_end(ap);
    t->bytes = calloc(1, n ? n : 1);
    if (bytes)
        memcpy(t->bytes, bytes, n);
    return t;
}

void ckpt_gguf_drop(struct ckpt_gguf *g, const char *name) {
    struct ckpt_gguf_tensor *t = ckpt_gguf_find(g, name);

    ck_assert_msg(t != NULL, "%s: no such tensor", name);
    free(t->bytes);
    memmove(t, t + 1, (size_t)(g->t + g->n_t - t - 1) * sizeof *t);
    g->n_t--;
}

unsigned char *ckpt_gguf_bytes(const struct ckpt_gguf *g, size_t from, size_t to, size_t *ret_n) {
    struct ckpt_buf b = {0};
    uint64_t at = 0;

    to = to > g->n_t ? g->n_t : to;
    ckpt_buf_put(&b, "GGUF", 4);
    put32(&b, g->version);
    put64(&b, to - from);
    put64(&b, g->n_keys);
    ckpt_buf_put(&b, g->kv.p, g->kv.n);
    for (size_t i = from; i < to; i++) {
        put_text(&b, g->t[i].name);
        put32(&b, g->t[i].n_dims);
        for (uint32_t d = 0; d < g->t[i].n_dims && d < 4; d++)
            put64(&b, g->t[i].ne[d]);
        put32(&b, g->t[i].type);
        put64(&b, at);
        at += (g->t[i].n + g->alignment - 1) / g->alignment * g->alignment;
    }
    ckpt_buf_put(&b, NULL, (g->alignment - b.n % g->alignment) % g->alignment);
    for (size_t i = from; i < to; i++) {
        ckpt_buf_put(&b, g->t[i].bytes, g->t[i].n);
        ckpt_buf_put(&b, NULL, (g->alignment - g->t[i].n % g->alignment) % g->alignment);
    }
    *ret_n = b.n;
    return b.p;
}

void ckpt_gguf_write(const struct ckpt_gguf *g, const struct ckpt *c, const char *file) {
    size_t n;
    unsigned char *all = ckpt_gguf_bytes(g, 0, SIZE_MAX, &n);

    ckpt_write(c, file, all, n);
    free(all);
}
