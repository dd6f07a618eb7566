/* SPDX-License-Identifier: MIT */
/* The parser of a GGUF header: hostile bytes, often 10 MB of them. No recursion: arrays of arrays are
 * refused. Owns a copy of the header, in which names are terminated where they stand. Start-up only; never
 * logs. */
#include "gguf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "show.h"
#include "size.h"
#include "utf8.h"

enum {
    FIRST_READ = 64 << 10,
    MAX_ALIGNMENT = 1 << 20,
};

struct gguf {
    uint8_t *header;
    struct gguf_value *kv;
    size_t n_kv, cap_kv;
    struct gguf_tensor *t;
    size_t n_t, cap_t;
};

static const struct {
    uint8_t type;
    uint16_t weights, bytes;
    const char *name;
} BLOCKS[] = {
    {0, 1, 4, "F32"},         {1, 1, 2, "F16"},         {30, 1, 2, "BF16"},      {8, 32, 34, "Q8_0"},
    {10, 256, 84, "Q2_K"},    {11, 256, 110, "Q3_K"},   {12, 256, 144, "Q4_K"},  {13, 256, 176, "Q5_K"},
    {14, 256, 210, "Q6_K"},   {16, 256, 66, "IQ2_XXS"}, {17, 256, 74, "IQ2_XS"}, {18, 256, 98, "IQ3_XXS"},
    {19, 256, 50, "IQ1_S"},   {20, 32, 18, "IQ4_NL"},   {21, 256, 110, "IQ3_S"}, {22, 256, 82, "IQ2_S"},
    {23, 256, 136, "IQ4_XS"}, {29, 256, 56, "IQ1_M"},   {39, 32, 17, "MXFP4"},   {40, 64, 36, "NVFP4"},
};
#define N_BLOCKS (sizeof BLOCKS / sizeof *BLOCKS)

bool gguf_block(uint32_t type, uint32_t *ret_weights, uint32_t *ret_bytes) {
    for (size_t i = 0; i < N_BLOCKS; i++)
        if (BLOCKS[i].type == type) {
            *ret_weights = BLOCKS[i].weights;
            *ret_bytes = BLOCKS[i].bytes;
            return true;
        }
    return false;
}

const char *gguf_type_name(uint32_t type) {
    for (size_t i = 0; i < N_BLOCKS; i++)
        if (BLOCKS[i].type == type)
            return BLOCKS[i].name;
    return "?";
}

static const uint8_t TYPE_BYTES[GGUF_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

struct parser {
    const char *shown;
    struct xerr *e;
    struct gguf *g;
    uint64_t n, at; /* bytes of the header there are, and read of them */
    uint64_t file_bytes;
    uint64_t n_tensors, n_keys;
    uint64_t alignment;
    const char *what; /* for messages: the key or tensor being read, "" */
};

/* More of the file is needed: no error until the file has no more. */
enum { MORE = 1 };

static int bad(const struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int bad(const struct parser *p, const char *fmt, ...) {
    char text[200];
    struct show s;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return xerr_set(p->e, -EBADMSG, "%s: %s%s%s", p->shown, show_str(&s, p->what), *p->what ? ": " : "",
                    text);
}

/* 0, MORE, or the error of a header that ends before the file's end is reached. */
static int need(const struct parser *p, uint64_t n) {
    if (n <= p->n - p->at)
        return 0;
    if (n > p->file_bytes - p->at)
        return bad(p,
                   "found %llu bytes left in the file at byte %llu, expected %llu: it is truncated or its "
                   "counts are "
                   "wrong",
                   (unsigned long long)(p->file_bytes - p->at), (unsigned long long)p->at,
                   (unsigned long long)n);
    if (n > GGUF_MAX_HEADER_BYTES - p->at)
        return bad(p, "found a header of more than %d bytes, expected at most that", GGUF_MAX_HEADER_BYTES);
    return MORE;
}

static uint64_t le(const uint8_t *b, unsigned n) {
    uint64_t v = 0;

    while (n--)
        v = v << 8 | b[n];
    return v;
}

static int number(struct parser *p, unsigned bytes, uint64_t *ret) {
    int r = need(p, bytes);

    if (r == 0) {
        *ret = le(p->g->header + p->at, bytes);
        p->at += bytes;
    }
    return r;
}

/* A name: text without zero bytes, moved one to the left over its own length, so that a zero fits behind it.
 */
static int name(struct parser *p, uint64_t max, const char **ret) {
    uint64_t n;
    char *s;
    int r = number(p, 8, &n);

    if (r)
        return r;
    if (n == 0 || n > max)
        return bad(p, "found a name of %llu bytes at byte %llu, expected 1 to %llu", (unsigned long long)n,
                   (unsigned long long)p->at, (unsigned long long)max);
    r = need(p, n);
    if (r)
        return r;
    s = (char *)p->g->header + p->at;
    if (memchr(s, 0, (size_t)n) || !utf8_is_valid(s, (size_t)n))
        return bad(p, "found other bytes in a name at byte %llu, expected UTF-8 without zeros",
                   (unsigned long long)p->at);
    memmove(s - 1, s, (size_t)n);
    s[n - 1] = 0;
    *ret = s - 1;
    p->at += n;
    return 0;
}

static int skip_string(struct parser *p) {
    uint64_t n;
    int r = number(p, 8, &n);

    if (r == 0)
        r = need(p, n);
    if (r == 0)
        p->at += n;
    return r;
}

static int elements(struct parser *p, struct gguf_value *v) {
    uint64_t bytes, from = p->at;
    int r = 0;

    v->p = p->g->header + p->at;
    if (v->type == GGUF_STRING) {
        /* each has a length at least, so that a count that cannot be true is seen at once */
        if (v->n > (p->file_bytes - p->at) / 8)
            return bad(p, "found %llu strings, expected no more than the file has room for",
                       (unsigned long long)v->n);
        for (uint64_t i = 0; i < v->n && r == 0; i++)
            r = skip_string(p);
        v->bytes = p->at - from;
        return r;
    }
    if (!size_mul(v->n, TYPE_BYTES[v->type], &bytes))
        return bad(p, "found %llu elements, expected no more than the file has room for",
                   (unsigned long long)v->n);
    r = need(p, bytes);
    if (r)
        return r;
    for (uint64_t i = 0; v->type == GGUF_BOOL && i < v->n; i++)
        if (v->p[i] > 1)
            return bad(p, "found the byte %u as a truth value, expected 0 or 1", v->p[i]);
    v->bytes = bytes;
    p->at += bytes;
    return 0;
}

static int key(struct parser *p) {
    struct gguf *g = p->g;
    struct gguf_value v = {.n = 1};
    uint64_t type;
    int r;

    p->what = "";
    r = name(p, UINT16_MAX, &v.key);
    if (r)
        return r;
    p->what = v.key;
    r = number(p, 4, &type);
    if (r == 0 && type == GGUF_ARRAY) {
        v.is_array = true;
        r = number(p, 4, &type);
        if (r == 0 && type == GGUF_ARRAY)
            return bad(p, "found an array of arrays, expected one of numbers or strings");
        if (r == 0)
            r = number(p, 8, &v.n);
    }
    if (r)
        return r;
    if (type >= GGUF_TYPES)
        return bad(p, "found the value type %llu, expected 0 to %d", (unsigned long long)type,
                   GGUF_TYPES - 1);
    v.type = (uint32_t)type;
    r = elements(p, &v);
    if (r)
        return r;
    if (g->n_kv == g->cap_kv) {
        size_t cap = g->cap_kv ? 2 * g->cap_kv : 64;
        struct gguf_value *grown = reallocarray(g->kv, cap, sizeof *grown);

        if (!grown)
            return xerr_set(p->e, -ENOMEM, "%s: no memory for %zu keys", p->shown, cap);
        g->kv = grown;
        g->cap_kv = cap;
    }
    g->kv[g->n_kv++] = v;
    return 0;
}

/* Bytes of a tensor by its shape; the product of all dimensions stays in 64 bits. */
static int extent(const struct parser *p, struct gguf_tensor *t) {
    uint32_t weights, bytes;
    uint64_t n = 1;

    if (!gguf_block(t->type, &weights, &bytes))
        return xerr_set(
            p->e, -ENOTSUP,
            "%s: tensor %s: found ggml type %u, expected one that is read: F32, F16, BF16, Q8_0, Q2_K to "
            "Q6_K, IQ1 to IQ4, MXFP4, NVFP4",
            p->shown, p->what, t->type);
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (t->ne[i] == 0 || t->ne[i] > INT64_MAX || !size_mul(n, t->ne[i], &n) || n > INT64_MAX)
            return bad(p, "found a dimension of %llu, expected 1 or more and a product below 2^63",
                       (unsigned long long)t->ne[i]);
    if (t->ne[0] % weights != 0)
        return bad(p, "found rows of %llu, expected a multiple of %u, the block of %s",
                   (unsigned long long)t->ne[0], weights, gguf_type_name(t->type));
    if (!size_mul(n / weights, bytes, &t->bytes) || t->bytes > p->file_bytes)
        return bad(p, "found %llu weights of %s, expected no more than the file has room for",
                   (unsigned long long)n, gguf_type_name(t->type));
    return 0;
}

static int tensor(struct parser *p) {
    struct gguf *g = p->g;
    struct gguf_tensor t = {0};
    uint64_t v;
    int r;

    p->what = "";
    r = name(p, GGUF_MAX_NAME, &t.name);
    if (r)
        return r;
    p->what = t.name;
    r = number(p, 4, &v);
    if (r)
        return r;
    if (v < 1 || v > GGUF_MAX_DIMS)
        return bad(p, "found %llu dimensions, expected 1 to %d", (unsigned long long)v, GGUF_MAX_DIMS);
    t.n_dims = (uint32_t)v;
    for (uint32_t i = 0; i < t.n_dims && r == 0; i++)
        r = number(p, 8, &t.ne[i]);
    if (r == 0)
        r = number(p, 4, &v);
    t.type = (uint32_t)v;
    if (r == 0)
        r = number(p, 8, &t.offset);
    if (r == 0)
        r = extent(p, &t);
    if (r)
        return r;
    if (g->n_t == g->cap_t) {
        size_t cap = g->cap_t ? 2 * g->cap_t : 256;
        struct gguf_tensor *grown = reallocarray(g->t, cap, sizeof *grown);

        if (!grown)
            return xerr_set(p->e, -ENOMEM, "%s: no memory for %zu tensors", p->shown, cap);
        g->t = grown;
        g->cap_t = cap;
    }
    g->t[g->n_t++] = t;
    return 0;
}

static int counts(struct parser *p) {
    uint64_t version = 0;
    int r = need(p, 24);

    if (r)
        return r;
    if (memcmp(p->g->header, "GGUF", 4) != 0)
        return bad(p, "found no GGUF at its beginning, expected it");
    version = le(p->g->header + 4, 4);
    p->n_tensors = le(p->g->header + 8, 8);
    p->n_keys = le(p->g->header + 16, 8);
    p->at = 24;
    if (version != 2 && version != 3)
        return xerr_set(p->e, -ENOTSUP, "%s: found GGUF version %llu%s, expected 2 or 3", p->shown,
                        (unsigned long long)version, version >= 1 << 24 ? " (of a big-endian machine)" : "");
    if (p->n_tensors > GGUF_MAX_TENSORS || p->n_keys > GGUF_MAX_KEYS)
        return bad(p, "found %llu tensors and %llu keys, expected at most %d and %d",
                   (unsigned long long)p->n_tensors, (unsigned long long)p->n_keys, GGUF_MAX_TENSORS,
                   GGUF_MAX_KEYS);
    return 0;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int sort_keys(struct parser *p) {
    struct gguf *g = p->g;
    const struct gguf_value *v;
    uint64_t a;

    p->what = "";
    if (g->n_kv)
        qsort(g->kv, g->n_kv, sizeof *g->kv, by_key);
    for (size_t i = 1; i < g->n_kv; i++)
        if (strcmp(g->kv[i - 1].key, g->kv[i].key) == 0) {
            p->what = g->kv[i].key;
            return bad(p, "found it twice, expected each key once");
        }
    p->alignment = 32;
    v = gguf_find(g, "general.alignment");
    if (!v)
        return 0;
    if (v->is_array || v->type != GGUF_U32 || !gguf_uint(v, 0, &a) || a == 0 || (a & (a - 1)) ||
        a > MAX_ALIGNMENT) {
        p->what = v->key;
        return bad(p, "found no power of two of at most %d as u32, expected one", MAX_ALIGNMENT);
    }
    p->alignment = a;
    return 0;
}

/* One behind the other, from the first aligned byte behind the header to the end of the file. */
static int place(struct parser *p) {
    struct gguf *g = p->g;
    uint64_t data0, at = 0, end;

    p->what = "";
    if (!size_align(p->at, p->alignment, &data0))
        return bad(p, "found a header too long to be aligned");
    if (g->n_t == 0)
        data0 = data0 < p->file_bytes ? data0 : p->file_bytes;
    end = data0;
    for (size_t i = 0; i < g->n_t; i++) {
        struct gguf_tensor *t = &g->t[i];

        p->what = t->name;
        if (t->offset != at && !FAULT(gguf_overlap))
            return bad(p, "found it at data offset %llu, expected %llu, behind the tensor before it",
                       (unsigned long long)t->offset, (unsigned long long)at);
        if (!size_add(data0, t->offset, &t->offset) || !size_within(t->offset, t->bytes, p->file_bytes))
            return bad(p,
                       "found %llu bytes of data that end behind the file's end (%llu bytes): it is "
                       "truncated, fetch "
                       "it again",
                       (unsigned long long)t->bytes, (unsigned long long)p->file_bytes);
        end = t->offset + t->bytes;
        if (!size_add(at, t->bytes, &at) || !size_align(at, p->alignment, &at))
            return bad(p, "found sizes of more than 2^64 bytes");
    }
    p->what = "";
    if (p->file_bytes > end && p->file_bytes - end >= p->alignment)
        return bad(p, "found %llu bytes behind the last tensor, expected none",
                   (unsigned long long)(p->file_bytes - end));
    if (g->n_t)
        qsort(g->t, g->n_t, sizeof *g->t, by_name);
    for (size_t i = 1; i < g->n_t; i++)
        if (strcmp(g->t[i - 1].name, g->t[i].name) == 0) {
            p->what = g->t[i].name;
            return bad(p, "found this tensor twice, expected each name once");
        }
    return 0;
}

static int parse(struct parser *p) {
    int r = counts(p);

    for (uint64_t i = 0; i < p->n_keys && r == 0; i++)
        r = key(p);
    for (uint64_t i = 0; i < p->n_tensors && r == 0; i++)
        r = tensor(p);
    if (r == 0)
        r = sort_keys(p);
    return r == 0 ? place(p) : r;
}

int gguf_read(gguf_read_fn *read, void *ctx, uint64_t file_bytes, const char *shown, struct gguf **ret,
              struct xerr *e) {
    struct gguf *g = calloc(1, sizeof *g);
    struct parser p = {.shown = shown, .e = e, .g = g, .file_bytes = file_bytes, .what = ""};
    uint64_t n = FIRST_READ;
    int r = MORE;

    if (!g)
        return xerr_set(e, -ENOMEM, "%s: no memory", shown);
    /* Nothing says how long a header is. It is read anew, twice as long, until it is whole: names are moved
     * while it is parsed. */
    for (; r == MORE; n *= 4) {
        if (n > file_bytes)
            n = file_bytes;
        if (n > GGUF_MAX_HEADER_BYTES)
            n = GGUF_MAX_HEADER_BYTES;
        free(g->header);
        g->n_kv = g->n_t = 0;
        p.at = 0;
        p.n = n;
        p.what = "";
        g->header = malloc((size_t)n + 1);
        r = g->header ? 0
                      : xerr_set(e, -ENOMEM, "%s: no memory for a header of %llu bytes", shown,
                                 (unsigned long long)n);
        if (r == 0 && (r = read(ctx, 0, g->header, n)) < 0)
            xerr_set(e, r, "%s: reading the header failed: %s", shown, strerror(-r));
        if (r == 0)
            r = parse(&p);
    }
    if (r < 0) {
        gguf_free(g);
        return r;
    }
    *ret = g;
    return 0;
}

struct gguf *gguf_free(struct gguf *g) {
    if (!g)
        return NULL;
    free(g->header);
    free(g->kv);
    free(g->t);
    free(g);
    return NULL;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *k) {
    const struct gguf_value want = {.key = k};

    return g->n_kv ? bsearch(&want, g->kv, g->n_kv, sizeof *g->kv, by_key) : NULL;
}

size_t gguf_keys(const struct gguf *g) {
    return g->n_kv;
}

const struct gguf_value *gguf_key_at(const struct gguf *g, size_t i) {
    return i < g->n_kv ? &g->kv[i] : NULL;
}

size_t gguf_tensors(const struct gguf *g) {
    return g->n_t;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i) {
    return i < g->n_t ? &g->t[i] : NULL;
}

bool gguf_uint(const struct gguf_value *v, uint64_t i, uint64_t *ret) {
    uint64_t x;
    unsigned bytes;

    if (!v || i >= v->n || v->type == GGUF_STRING || v->type == GGUF_BOOL || v->type == GGUF_F32 ||
        v->type == GGUF_F64)
        return false;
    bytes = TYPE_BYTES[v->type];
    x = le(v->p + i * bytes, bytes);
    if ((v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 || v->type == GGUF_I64) &&
        x >> (8 * bytes - 1))
        return false;
    *ret = x;
    return true;
}

bool gguf_real(const struct gguf_value *v, uint64_t i, double *ret) {
    uint64_t x;
    float f;

    if (!v || i >= v->n)
        return false;
    if (v->type == GGUF_F32) {
        uint32_t bits = (uint32_t)le(v->p + 4 * i, 4);

        memcpy(&f, &bits, 4);
        *ret = (double)f;
        return true;
    }
    if (v->type == GGUF_F64) {
        x = le(v->p + 8 * i, 8);
        memcpy(ret, &x, 8);
        return true;
    }
    if (!gguf_uint(v, i, &x))
        return false;
    *ret = (double)x;
    return true;
}

bool gguf_bool(const struct gguf_value *v, bool *ret) {
    if (!v || v->is_array || v->type != GGUF_BOOL)
        return false;
    *ret = v->p[0] != 0;
    return true;
}

bool gguf_string(const struct gguf_value *v, const char **ret, size_t *ret_n) {
    uint64_t at = 0;

    return v && !v->is_array && gguf_next_string(v, &at, ret, ret_n);
}

bool gguf_next_string(const struct gguf_value *v, uint64_t *at, const char **ret, size_t *ret_n) {
    uint64_t n;

    if (!v || v->type != GGUF_STRING || *at >= v->bytes)
        return false;
    n = le(v->p + *at, 8); /* inside: it was, when it was read */
    *ret = (const char *)v->p + *at + 8;
    *ret_n = (size_t)n;
    *at += 8 + n;
    return true;
}
