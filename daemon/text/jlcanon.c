/* SPDX-License-Identifier: MIT */
/* Canonical JSON. Recursion is as deep as the text, which jl_check() has bounded. Text workers (allocates). */
#include "jlcanon.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Exponents with more digits than this are left as they are written: no two spellings are taken for equal. */
#define EXP_DIGITS 15

/* The power of ten behind `e`. False: more digits than anybody counts with. */
static bool read_exp(const char *q, const char *end, int64_t *ret) {
    bool down = q < end && *q == '-';
    int64_t exp = 0;

    q += q < end && (*q == '-' || *q == '+');
    while (q < end && *q == '0')
        q++;
    if (end - q > EXP_DIGITS)
        return false;
    for (; q < end; q++)
        exp = exp * 10 + (*q - '0');
    *ret = down ? -exp : exp;
    return true;
}

/* Digits without the zeros around them, and the power of ten of the last one: no rounding, no limit. */
static void put_number(struct tstr v, struct tbuf *out) {
    const char *end = v.p + v.n, *mant = v.p + (*v.p == '-'), *mant_end = mant;
    const char *first = NULL, *last = NULL; /* that are not 0 */
    int64_t exp = 0, n = 0, at = 0, point = -1;
    char buf[32];

    while (mant_end < end && (*mant_end | 0x20) != 'e')
        mant_end++;
    if (mant_end < end && !read_exp(mant_end + 1, end, &exp)) {
        tbuf_put(out, v.p, v.n);
        return;
    }
    for (const char *q = mant; q < mant_end; q++) {
        if (*q == '.') {
            point = n;
            continue;
        }
        if (*q != '0') {
            first = first ? first : q;
            last = q;
            at = n;
        }
        n++;
    }
    if (!first) {
        tbuf_putc(out, '0');
        return;
    }
    if (*v.p == '-')
        tbuf_putc(out, '-');
    for (const char *q = first; q <= last; q++)
        if (*q != '.')
            tbuf_putc(out, *q);
    exp += (point < 0 ? n : point) - 1 - at;
    tbuf_put(out, buf, (size_t)snprintf(buf, sizeof buf, "e%lld", (long long)exp));
}

static void put_string(struct tstr v, struct tbuf *out) {
    struct tbuf plain;

    tbuf_init(&plain, v.n + 1);
    jl_unquote(v, &plain);
    if (plain.err)
        out->err = plain.err;
    tbuf_putc(out, '"');
    if (plain.n)
        jl_escape(plain.p, plain.n, out);
    tbuf_putc(out, '"');
    tbuf_done(&plain);
}

struct member {
    size_t off, n; /* its key in the buffer */
    size_t order;
    struct tstr value;
};

static int by_key(const void *pa, const void *pb, void *keys) {
    const struct member *a = pa, *b = pb;
    size_t n = a->n < b->n ? a->n : b->n;
    int r = memcmp((const char *)keys + a->off, (const char *)keys + b->off, n);

    if (r == 0 && a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return r ? r : a->order < b->order ? -1 : 1;
}

static bool same_key(const struct member *a, const struct member *b, const char *keys) {
    return a->n == b->n && memcmp(keys + a->off, keys + b->off, a->n) == 0;
}

static void put_object(struct tstr v, struct tbuf *out) {
    struct member *m;
    struct tbuf keys;
    struct jl_iter it;
    size_t n = 0, i = 0;
    bool first = true;

    for (bool more = jl_first(&it, v); more; more = jl_next(&it))
        n++;
    m = calloc(n + 1, sizeof *m);
    tbuf_init(&keys, SIZE_MAX / 2);
    for (bool more = m && jl_first(&it, v); more; more = jl_next(&it), i++) {
        m[i] = (struct member){.off = keys.n, .order = i, .value = it.value};
        put_string(it.key, &keys);
        m[i].n = keys.n - m[i].off;
    }
    if (!m || keys.err) {
        out->err = keys.err ? keys.err : -ENOMEM;
        n = 0;
    }
    if (n > 1)
        qsort_r(m, n, sizeof *m, by_key, keys.p);
    tbuf_putc(out, '{');
    for (i = 0; i < n; i++) {
        if (i + 1 < n && same_key(&m[i], &m[i + 1], keys.p) && !FAULT(canon_first_key))
            continue; /* the last of equal keys holds */
        if (!first)
            tbuf_putc(out, ',');
        first = false;
        tbuf_put(out, keys.p + m[i].off, m[i].n);
        tbuf_putc(out, ':');
        jl_canon(m[i].value, out);
    }
    tbuf_putc(out, '}');
    tbuf_done(&keys);
    free(m);
}

static void put_array(struct tstr v, struct tbuf *out) {
    struct jl_iter it;
    bool first = true;

    tbuf_putc(out, '[');
    for (bool more = jl_first(&it, v); more; more = jl_next(&it)) {
        if (!first)
            tbuf_putc(out, ',');
        first = false;
        jl_canon(it.value, out);
    }
    tbuf_putc(out, ']');
}

void jl_canon(struct tstr v, struct tbuf *out) {
    if (out->err)
        return;
    switch (jl_type(v)) {
    case JL_OBJECT:
        put_object(v, out);
        break;
    case JL_ARRAY:
        put_array(v, out);
        break;
    case JL_STRING:
        put_string(v, out);
        break;
    case JL_NUMBER:
        put_number(v, out);
        break;
    default:
        tbuf_put(out, v.p, v.n);
    }
}
