/* SPDX-License-Identifier: MIT */
/* The header of a safetensors file: hostile text of up to 100 MB, often 10 MB. One pass, no recursion (the
 * grammar has a fixed depth of three), strings decoded where they stand. Start-up only; never logs.
 *
 * Strict JSON, then strict content: every field once and of its type, every name once, and the data area
 * covered from its first to its last byte without hole or overlap. */
#include "stheader.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "show.h"
#include "size.h"
#include "utf8.h"

struct parser {
    const char *file;
    char *text;
    size_t n, at;
    const char *tensor; /* name being read, NULL outside */
    struct xerr *e;

    struct st_tensor *t;
    size_t n_t, cap_t;
    uint64_t data0, data_bytes;
};

static int syntax(const struct parser *p, const char *expected) {
    struct show s, f;
    char found[24];

    if (p->at >= p->n)
        snprintf(found, sizeof found, "the end");
    else
        snprintf(found, sizeof found, "byte 0x%02x", (unsigned char)p->text[p->at]);
    return xerr_set(p->e, -EBADMSG, "%s: header byte %zu%s%s: found %s, expected %s", p->file, p->at,
                    p->tensor ? ", tensor " : "", p->tensor ? show_str(&s, p->tensor) : "", found,
                    show_str(&f, expected));
}

static int fault(const struct parser *p, const char *name, const char *found, const char *expected) {
    struct show s, f;

    return xerr_set(p->e, -EBADMSG, "%s: tensor %s: found %s, expected %s", p->file, show_str(&s, name),
                    show_str(&f, found), expected);
}

static void skip_space(struct parser *p) {
    while (p->at < p->n) {
        char c = p->text[p->at];

        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return;
        p->at++;
    }
}

/* Space, then this character. */
static bool eat(struct parser *p, char c) {
    skip_space(p);
    if (p->at >= p->n || p->text[p->at] != c)
        return false;
    p->at++;
    return true;
}

static int hex4(struct parser *p, uint32_t *ret) {
    uint32_t v = 0;

    for (int i = 0; i < 4; i++, p->at++) {
        char c = p->at < p->n ? p->text[p->at] : 0;

        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v * 16 + (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            v = v * 16 + (uint32_t)(c - 'A' + 10);
        else
            return syntax(p, "four hexadecimal digits after \\u");
    }
    *ret = v;
    return 0;
}

/* After the backslash. The decoded form is never longer than the escape, so it can be written in place. */
static int escape(struct parser *p, char *out, size_t *ret_n) {
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    char c = p->at < p->n ? p->text[p->at] : 0;
    const char *known = c ? strchr(FROM, c) : NULL;
    uint32_t hi, lo;
    char one[4];
    int r;

    if (known) {
        *out = TO[known - FROM];
        *ret_n = 1;
        p->at++;
        return 0;
    }
    if (c != 'u')
        return syntax(p, "a JSON escape");
    p->at++;
    r = hex4(p, &hi);
    if (r < 0)
        return r;
    if (hi >= 0xd800 && hi <= 0xdbff) {
        if (p->n - p->at < 2 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u')
            return syntax(p, "the second half of a surrogate pair");
        p->at += 2;
        r = hex4(p, &lo);
        if (r < 0)
            return r;
        if (lo < 0xdc00 || lo > 0xdfff)
            return syntax(p, "the second half of a surrogate pair");
        hi = 0x10000 + ((hi - 0xd800) << 10) + (lo - 0xdc00);
    } else if (hi >= 0xdc00 && hi <= 0xdfff) {
        return syntax(p, "no lone surrogate");
    } else if (hi == 0) {
        return syntax(p, "no NUL in a string");
    }
    *ret_n = utf8_put(hi, one);
    memcpy(out, one, *ret_n);
    return 0;
}

/* Space, then a string; *ret is NUL-terminated inside the text. */
static int string(struct parser *p, const char *expected, char **ret) {
    char *start, *out;
    size_t len = 0;
    int r;

    if (!eat(p, '"'))
        return syntax(p, expected);
    start = out = p->text + p->at;
    while (p->at < p->n) {
        unsigned char c = (unsigned char)p->text[p->at];

        if (c == '"') {
            p->at++;
            *out = 0;
            *ret = start;
            return 0;
        }
        if (c < 0x20)
            return syntax(p, "no control character in a string");
        if (c == '\\') {
            p->at++;
            r = escape(p, out, &len);
            if (r < 0)
                return r;
            out += len;
            continue;
        }
        r = utf8_next((const uint8_t *)p->text + p->at, p->n - p->at, NULL);
        if (r <= 0)
            return syntax(p, "UTF-8");
        len = (size_t)r;
        memmove(out, p->text + p->at, len);
        out += len;
        p->at += len;
    }
    return syntax(p, "the closing quote of a string");
}

static int number(struct parser *p, const char *expected, uint64_t *ret) {
    uint64_t v = 0;
    size_t from;

    skip_space(p);
    from = p->at;
    while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        if (!size_mul(v, 10, &v) || !size_add(v, (uint64_t)(p->text[p->at] - '0'), &v) ||
            v > UINT64_C(1) << 63) {
            p->at = from;
            return syntax(p, "an integer of at most 2^63");
        }
        p->at++;
    }
    /* No sign, no fraction, no exponent, and JSON has no leading zeros. */
    if (p->at == from || (p->text[from] == '0' && p->at - from > 1) ||
        (p->at < p->n && memchr("+-.eE", p->text[p->at], 5)))
        return syntax(p, expected);
    *ret = v;
    return 0;
}

static const struct {
    const char *name;
    uint32_t bits;
} DTYPES[] = {
    [ST_BOOL] = {"BOOL", 8},
    [ST_U8] = {"U8", 8},
    [ST_I8] = {"I8", 8},
    [ST_F8_E5M2] = {"F8_E5M2", 8},
    [ST_F8_E4M3] = {"F8_E4M3", 8},
    [ST_F8_E8M0] = {"F8_E8M0", 8},
    [ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [ST_F4] = {"F4", 4},
    [ST_F6_E2M3] = {"F6_E2M3", 6},
    [ST_F6_E3M2] = {"F6_E3M2", 6},
    [ST_I16] = {"I16", 16},
    [ST_U16] = {"U16", 16},
    [ST_F16] = {"F16", 16},
    [ST_BF16] = {"BF16", 16},
    [ST_I32] = {"I32", 32},
    [ST_U32] = {"U32", 32},
    [ST_F32] = {"F32", 32},
    [ST_I64] = {"I64", 64},
    [ST_U64] = {"U64", 64},
    [ST_F64] = {"F64", 64},
    [ST_C64] = {"C64", 64},
    [ST_GGUF_Q8_0] = {"Q8_0", 0},
    [ST_GGUF_Q2_K] = {"Q2_K", 0},
    [ST_GGUF_Q3_K] = {"Q3_K", 0},
    [ST_GGUF_Q4_K] = {"Q4_K", 0},
    [ST_GGUF_Q5_K] = {"Q5_K", 0},
    [ST_GGUF_Q6_K] = {"Q6_K", 0},
    [ST_GGUF_IQ1_S] = {"IQ1_S", 0},
    [ST_GGUF_IQ1_M] = {"IQ1_M", 0},
    [ST_GGUF_IQ2_XXS] = {"IQ2_XXS", 0},
    [ST_GGUF_IQ2_XS] = {"IQ2_XS", 0},
    [ST_GGUF_IQ2_S] = {"IQ2_S", 0},
    [ST_GGUF_IQ3_XXS] = {"IQ3_XXS", 0},
    [ST_GGUF_IQ3_S] = {"IQ3_S", 0},
    [ST_GGUF_IQ4_NL] = {"IQ4_NL", 0},
    [ST_GGUF_IQ4_XS] = {"IQ4_XS", 0},
    [ST_GGUF_MXFP4] = {"MXFP4", 0},
    [ST_GGUF_NVFP4] = {"NVFP4", 0},
};
#define N_DTYPES (sizeof DTYPES / sizeof *DTYPES)

const char *st_dtype_name(enum st_dtype d) {
    return d > 0 && (size_t)d < N_DTYPES ? DTYPES[d].name : "?";
}

uint32_t st_dtype_bits(enum st_dtype d) {
    return d > 0 && (size_t)d < N_DTYPES ? DTYPES[d].bits : 0;
}

static int dtype(struct parser *p, struct st_tensor *t) {
    char *s;
    int r = string(p, "a dtype string", &s);

    if (r < 0)
        return r;
    for (size_t i = 1; i <= ST_C64; i++)
        if (strcmp(s, DTYPES[i].name) == 0) {
            t->dtype = (enum st_dtype)i;
            return 0;
        }
    return fault(p, p->tensor, s, "a dtype of the safetensors format (BF16, F32, …)");
}

static int shape(struct parser *p, struct st_tensor *t) {
    int r;

    if (!eat(p, '['))
        return syntax(p, "'[' of the shape");
    t->n_dims = 0;
    if (eat(p, ']'))
        return 0;
    do {
        if (t->n_dims == ST_MAX_DIMS)
            return fault(p, p->tensor, "more dimensions", "a shape of at most 8");
        r = number(p, "a shape entry that is a non-negative integer", &t->shape[t->n_dims]);
        if (r < 0)
            return r;
        t->n_dims++;
    } while (eat(p, ','));
    return eat(p, ']') ? 0 : syntax(p, "',' or ']' in the shape");
}

/* Leaves begin in offset and end in bytes; place() turns them into what their names say. */
static int offsets(struct parser *p, struct st_tensor *t) {
    static const char *const WHAT = "data_offsets of exactly two non-negative integers";
    int r;

    if (!eat(p, '['))
        return syntax(p, WHAT);
    r = number(p, WHAT, &t->offset);
    if (r < 0)
        return r;
    if (!eat(p, ','))
        return syntax(p, WHAT);
    r = number(p, WHAT, &t->bytes);
    if (r < 0)
        return r;
    return eat(p, ']') ? 0 : syntax(p, WHAT);
}

static int tensor(struct parser *p, const char *name) {
    static const char *const FIELDS[] = {"dtype", "shape", "data_offsets"};
    static int (*const READ[])(struct parser *, struct st_tensor *) = {dtype, shape, offsets};
    struct st_tensor t = {.name = name};
    unsigned seen = 0;
    char *key;
    int r;

    if (!eat(p, '{'))
        return syntax(p, "'{' of a tensor's entry");
    if (!eat(p, '}')) {
        do {
            unsigned f;

            r = string(p, "a field name", &key);
            if (r < 0)
                return r;
            for (f = 0; f < 3 && strcmp(key, FIELDS[f]) != 0; f++)
                ;
            if (f == 3)
                return fault(p, name, key, "only the fields dtype, shape and data_offsets");
            if (seen & 1u << f)
                return fault(p, name, key, "each field once, not twice");
            seen |= 1u << f;
            if (!eat(p, ':'))
                return syntax(p, "':' after a field name");
            r = READ[f](p, &t);
            if (r < 0)
                return r;
        } while (eat(p, ','));
        if (!eat(p, '}'))
            return syntax(p, "',' or '}' in a tensor's entry");
    }
    for (unsigned f = 0; f < 3; f++)
        if (!(seen & 1u << f))
            return fault(p, name, "no such field",
                         f == 0   ? "the field dtype"
                         : f == 1 ? "the field shape"
                                  : "the field data_offsets");
    if (p->n_t == p->cap_t) {
        size_t cap = p->cap_t ? p->cap_t * 2 : 256;
        struct st_tensor *grown = reallocarray(p->t, cap, sizeof *grown);

        if (!grown)
            return xerr_set(p->e, -ENOMEM, "%s: no memory for a list of %zu tensors", p->file, cap);
        p->t = grown;
        p->cap_t = cap;
    }
    p->t[p->n_t++] = t;
    return 0;
}

static int metadata(struct parser *p) {
    char *s;
    int r;

    if (!eat(p, '{'))
        return syntax(p, "'{' of __metadata__");
    if (eat(p, '}'))
        return 0;
    do {
        r = string(p, "a key of __metadata__", &s);
        if (r < 0)
            return r;
        if (!eat(p, ':'))
            return syntax(p, "':' in __metadata__");
        r = string(p, "a string: every value of __metadata__ is one", &s);
        if (r < 0)
            return r;
    } while (eat(p, ','));
    return eat(p, '}') ? 0 : syntax(p, "',' or '}' in __metadata__");
}

static int entries(struct parser *p) {
    bool have_metadata = false;
    char *name;
    int r;

    if (p->n == 0 || p->text[0] != '{')
        return syntax(p, "'{' as the first byte");
    p->at = 1;
    if (!eat(p, '}')) {
        do {
            p->tensor = NULL;
            r = string(p, "a tensor name", &name);
            if (r < 0)
                return r;
            if (!eat(p, ':'))
                return syntax(p, "':' after a tensor name");
            if (strcmp(name, "__metadata__") == 0) {
                if (have_metadata)
                    return fault(p, name, "it twice in this header", "it at most once");
                have_metadata = true;
                r = metadata(p);
            } else {
                p->tensor = name;
                r = tensor(p, name);
            }
            if (r < 0)
                return r;
        } while (eat(p, ','));
        p->tensor = NULL;
        if (!eat(p, '}'))
            return syntax(p, "',' or '}' after an entry");
    }
    for (; p->at < p->n; p->at++)
        if (p->text[p->at] != ' ')
            return syntax(p, "only spaces after the header's object");
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b) {
    const struct st_tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Declared extent against dtype and shape. */
static int check_extent(const struct parser *p, const struct st_tensor *t) {
    uint64_t bits = st_dtype_bits(t->dtype), begin = t->offset, end = t->bytes;
    char found[64], want[64];

    if (end < begin) {
        snprintf(found, sizeof found, "data_offsets [%llu,%llu]", (unsigned long long)begin,
                 (unsigned long long)end);
        return fault(p, t->name, found, "an end that is not before the beginning");
    }
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!size_mul(bits, t->shape[i], &bits))
            return fault(p, t->name, "a shape of more than 2^64 bits", "one that fits the file");
    if (bits % 8 != 0) {
        snprintf(found, sizeof found, "%llu bits", (unsigned long long)bits);
        return fault(p, t->name, found, "dtype and shape that fill whole bytes");
    }
    if (bits / 8 != end - begin) {
        snprintf(found, sizeof found, "%llu bytes in data_offsets", (unsigned long long)(end - begin));
        snprintf(want, sizeof want, "%llu from dtype and shape", (unsigned long long)(bits / 8));
        return fault(p, t->name, found, want);
    }
    return 0;
}

/* In order of offset: the data area is covered exactly once. */
static int check_cover(struct parser *p) {
    uint64_t at = 0;
    char found[64], want[80];

    if (p->n_t > 1)
        qsort(p->t, p->n_t, sizeof *p->t, by_offset);
    for (size_t i = 0; i < p->n_t; i++) {
        const struct st_tensor *t = &p->t[i];
        int r = check_extent(p, t);

        if (r < 0)
            return r;
        if (t->offset != at && !(FAULT(st_overlap) && t->offset < at)) {
            snprintf(found, sizeof found, "it at data offset %llu", (unsigned long long)t->offset);
            snprintf(want, sizeof want, "%llu (%s)", (unsigned long long)at,
                     t->offset < at ? "it overlaps the tensor before" : "there is a hole before it");
            return fault(p, t->name, found, want);
        }
        at = t->bytes;
    }
    if (at != p->data_bytes)
        return xerr_set(p->e, -EBADMSG, "%s: found %llu bytes of data, expected %llu: the file %s", p->file,
                        (unsigned long long)p->data_bytes, (unsigned long long)at,
                        p->data_bytes < at ? "is truncated, fetch it again" : "has trailing bytes");
    return 0;
}

int stheader_parse(const char *file, char *text, size_t n, uint64_t data0, uint64_t data_bytes,
                   struct st_tensor **ret_tensors, size_t *ret_n, struct xerr *e) {
    struct parser p = {.file = file, .text = text, .n = n, .e = e, .data0 = data0, .data_bytes = data_bytes};
    int r = entries(&p);

    if (r == 0)
        r = check_cover(&p);
    if (r < 0)
        goto fail;
    for (size_t i = 0; i < p.n_t; i++) {
        p.t[i].bytes -= p.t[i].offset;
        p.t[i].offset += data0;
    }
    if (p.n_t > 1)
        qsort(p.t, p.n_t, sizeof *p.t, by_name);
    for (size_t i = 1; i < p.n_t; i++)
        if (strcmp(p.t[i - 1].name, p.t[i].name) == 0) {
            r = fault(&p, p.t[i].name, "it twice in this header", "each name once");
            goto fail;
        }
    *ret_tensors = p.t;
    *ret_n = p.n_t;
    return 0;
fail:
    free(p.t);
    return r;
}
