/* SPDX-License-Identifier: MIT */
/* Checks, walks and rewrites JSON text without building anything. Nesting is kept in a bit string of fixed
 * size, never on the call stack. Any thread; memory only in the caller's tbuf. */
#include "jsonlite.h"

#include "utf8.h"

#include <errno.h>

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static size_t skip_space(const char *s, size_t at, size_t n) {
    while (at < n && is_space(s[at]))
        at++;
    return at;
}

static int fault(struct jl_fault *f, int code, size_t at, const char *why) {
    if (f)
        *f = (struct jl_fault){at, why};
    return code;
}

static bool hex4(const char *s, size_t n, uint32_t *ret) {
    uint32_t v = 0;

    if (n < 4)
        return false;
    for (unsigned i = 0; i < 4; i++) {
        char c = s[i];

        if (is_digit(c))
            v = v << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return false;
    }
    *ret = v;
    return true;
}

/* s[at] is the opening quote; returns the offset behind the closing one or a negative code. */
static int64_t check_string(const char *s, size_t at, size_t n, struct jl_fault *f) {
    uint32_t cp;

    for (at++; at < n; at++) {
        if (s[at] == '"')
            return (int64_t)at + 1;
        if ((unsigned char)s[at] < 0x20)
            return fault(f, -EINVAL, at, "control character in a string");
        if (s[at] != '\\')
            continue;
        if (++at == n)
            break;
        if (s[at] == 'u') {
            if (!hex4(s + at + 1, n - at - 1, &cp))
                return fault(f, -EINVAL, at, "\\u without four hexadecimal digits");
            at += 4;
        } else if (!memchr("\"\\/bfnrt", s[at], 8)) {
            return fault(f, -EINVAL, at, "unknown escape in a string");
        }
    }
    return fault(f, -EINVAL, n, "string without its end");
}

static int64_t check_number(const char *s, size_t at, size_t n, struct jl_fault *f) {
    if (s[at] == '-')
        at++;
    if (at == n || !is_digit(s[at]))
        return fault(f, -EINVAL, at, "number without digits");
    if (s[at] == '0' && at + 1 < n && is_digit(s[at + 1]))
        return fault(f, -EINVAL, at, "number with a leading zero");
    while (at < n && is_digit(s[at]))
        at++;
    if (at < n && s[at] == '.') {
        if (++at == n || !is_digit(s[at]))
            return fault(f, -EINVAL, at, "number without digits behind the point");
        while (at < n && is_digit(s[at]))
            at++;
    }
    if (at < n && (s[at] | 0x20) == 'e') {
        at++;
        if (at < n && (s[at] == '+' || s[at] == '-'))
            at++;
        if (at == n || !is_digit(s[at]))
            return fault(f, -EINVAL, at, "number without digits in its exponent");
        while (at < n && is_digit(s[at]))
            at++;
    }
    return (int64_t)at;
}

static int64_t check_scalar(const char *s, size_t at, size_t n, struct jl_fault *f) {
    static const char *const words[] = {"true", "false", "null"};

    if (s[at] == '"')
        return check_string(s, at, n, f);
    if (s[at] == '-' || is_digit(s[at]))
        return check_number(s, at, n, f);
    for (size_t i = 0; i < 3; i++) {
        size_t len = strlen(words[i]);

        if (n - at >= len && memcmp(s + at, words[i], len) == 0)
            return (int64_t)(at + len);
    }
    return fault(f, -EINVAL, at, "no JSON value");
}

/* Which containers are open, innermost last: a bit each, set for objects. */
struct nest {
    uint64_t bits[JL_MAX_DEPTH / 64];
    unsigned depth;
};

static void nest_push(struct nest *k, bool object) {
    uint64_t bit = UINT64_C(1) << k->depth % 64;

    if (object)
        k->bits[k->depth / 64] |= bit;
    else
        k->bits[k->depth / 64] &= ~bit;
    k->depth++;
}

static bool nest_in_object(const struct nest *k) {
    return k->depth > 0 && (k->bits[(k->depth - 1) / 64] >> (k->depth - 1) % 64 & 1);
}

/* A member's key and colon; s[at] should be the quote. */
static int64_t check_key(const char *s, size_t at, size_t n, struct jl_fault *f) {
    int64_t end;

    if (at == n || s[at] != '"')
        return fault(f, -EINVAL, at, "no key where one is expected");
    end = check_string(s, at, n, f);
    if (end < 0)
        return end;
    at = skip_space(s, (size_t)end, n);
    if (at == n || s[at] != ':')
        return fault(f, -EINVAL, at, "no colon behind a key");
    return (int64_t)skip_space(s, at + 1, n);
}

/* Closes what ends at `at` and goes on to the next value. Returns its offset with *ret_done false, or the
 * offset behind the outermost value with *ret_done true. */
static int64_t check_after(struct nest *k, const char *s, size_t at, size_t n, bool *ret_done,
                           struct jl_fault *f) {
    while (k->depth > 0) {
        bool object = nest_in_object(k);

        at = skip_space(s, at, n);
        if (at == n)
            return fault(f, -EINVAL, at, object ? "object without its end" : "array without its end");
        if (s[at] == ',') {
            at = skip_space(s, at + 1, n);
            *ret_done = false;
            return object ? check_key(s, at, n, f) : (int64_t)at;
        }
        if (s[at] != (object ? '}' : ']'))
            return fault(f, -EINVAL, at, object ? "no comma behind a member" : "no comma behind an element");
        k->depth--;
        at++;
    }
    *ret_done = true;
    return (int64_t)at;
}

static int64_t check_value(const char *s, size_t at, size_t n, unsigned max_depth, struct jl_fault *f) {
    struct nest k = {0};
    bool done = false;
    int64_t r;

    while (!done) {
        if (at == n)
            return fault(f, -EINVAL, at, "no JSON value");
        if (s[at] == '{' || s[at] == '[') {
            bool object = s[at] == '{';

            if (k.depth == max_depth)
                return fault(f, -E2BIG, at, "nested too deep");
            nest_push(&k, object);
            at = skip_space(s, at + 1, n);
            if (at < n && s[at] == (object ? '}' : ']')) {
                k.depth--;
                at++;
            } else {
                if (object) {
                    r = check_key(s, at, n, f);
                    if (r < 0)
                        return r;
                    at = (size_t)r;
                }
                continue;
            }
        } else {
            r = check_scalar(s, at, n, f);
            if (r < 0)
                return r;
            at = (size_t)r;
        }
        r = check_after(&k, s, at, n, &done, f);
        if (r < 0)
            return r;
        at = (size_t)r;
    }
    return (int64_t)at;
}

int jl_check(const char *s, size_t n, unsigned max_depth, struct tstr *ret_value,
             struct jl_fault *ret_fault) {
    size_t good = utf8_valid_prefix(s, n), at;
    struct tstr v;
    int64_t end;

    if (good != n)
        return fault(ret_fault, -EILSEQ, good, "invalid UTF-8");
    at = skip_space(s, 0, n);
    end = check_value(s, at, n, max_depth < JL_MAX_DEPTH ? max_depth : JL_MAX_DEPTH, ret_fault);
    if (end < 0)
        return (int)end;
    v = (struct tstr){s + at, (size_t)end - at};
    if (skip_space(s, (size_t)end, n) != n)
        return fault(ret_fault, -EINVAL, skip_space(s, (size_t)end, n), "something behind the JSON value");
    if (ret_value)
        *ret_value = v;
    return jl_type(v);
}

enum jl_type jl_type(struct tstr v) {
    switch (v.p[0]) {
    case '{':
        return JL_OBJECT;
    case '[':
        return JL_ARRAY;
    case '"':
        return JL_STRING;
    case 't':
    case 'f':
        return JL_BOOL;
    case 'n':
        return JL_NULL;
    default:
        return JL_NUMBER;
    }
}

bool jl_is_integer(struct tstr v) {
    size_t at = 0;

    while (at < v.n && (v.p[at] == '-' || is_digit(v.p[at])))
        at++;
    if (at == v.n)
        return true;
    if (v.p[at] != '.')
        return false;
    for (at++; at < v.n; at++) {
        if (v.p[at] != '0')
            return false;
    }
    return true;
}

static const char *string_end(const char *p) {
    for (p++; *p != '"'; p++) {
        if (*p == '\\')
            p++;
    }
    return p + 1;
}

/* Behind the value at p; the text is known to be well formed. */
static const char *value_end(const char *p, const char *end) {
    unsigned depth = 0;

    if (*p != '{' && *p != '[') {
        if (*p == '"')
            return string_end(p);
        while (p < end && !is_space(*p) && *p != ',' && *p != '}' && *p != ']')
            p++;
        return p;
    }
    do {
        if (*p == '"') {
            p = string_end(p);
            continue;
        }
        if (*p == '{' || *p == '[')
            depth++;
        else if (*p == '}' || *p == ']')
            depth--;
        p++;
    } while (depth > 0);
    return p;
}

static bool take_member(struct jl_iter *it, const char *p) {
    it->key = (struct tstr){0};
    if (it->object) {
        it->key = (struct tstr){p, (size_t)(string_end(p) - p)};
        p += it->key.n;
        while (is_space(*p))
            p++;
        p++; /* colon */
        while (is_space(*p))
            p++;
    }
    it->value = (struct tstr){p, (size_t)(value_end(p, it->end) - p)};
    it->p = p + it->value.n;
    return true;
}

bool jl_first(struct jl_iter *it, struct tstr container) {
    const char *p = container.p + 1;

    *it = (struct jl_iter){.end = container.p + container.n, .object = container.p[0] == '{'};
    while (is_space(*p))
        p++;
    if (*p == '}' || *p == ']') {
        it->p = it->end;
        return false;
    }
    return take_member(it, p);
}

bool jl_next(struct jl_iter *it) {
    const char *p = it->p;

    if (p == it->end)
        return false;
    while (is_space(*p))
        p++;
    if (*p != ',') {
        it->p = it->end;
        return false;
    }
    for (p++; is_space(*p);)
        p++;
    return take_member(it, p);
}

struct tstr jl_get(struct tstr object, const char *key) {
    struct tstr found = {0};
    struct jl_iter it;

    for (bool more = jl_first(&it, object); more; more = jl_next(&it)) {
        if (jl_str_is(it.key, key, strlen(key)))
            found = it.value;
    }
    return found;
}

/* Decodes what stands at p (inside a checked string): one character in UTF-8. Returns its length in out
 * and moves *p. */
static size_t decode_one(const char **p, char out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *s = *p;
    uint32_t cp = 0, low = 0;

    if (*s != '\\') {
        out[0] = *s;
        *p = s + 1;
        return 1;
    }
    if (s[1] != 'u') {
        out[0] = to[(const char *)memchr(from, s[1], 8) - from];
        *p = s + 2;
        return 1;
    }
    hex4(s + 2, 4, &cp);
    s += 6;
    /* the string goes on at least to its quote, so s[0] exists, and s[1] if s[0] is a backslash */
    if (cp >= 0xd800 && cp < 0xdc00 && s[0] == '\\' && s[1] == 'u' && hex4(s + 2, 4, &low) && low >= 0xdc00 &&
        low < 0xe000) {
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        s += 6;
    }
    *p = s;
    return utf8_put(cp, out); /* a lone surrogate becomes U+FFFD */
}

void jl_unquote(struct tstr q, struct tbuf *out) {
    const char *p = q.p + 1, *end = q.p + q.n - 1;
    char one[4];

    while (p < end) {
        const char *plain = p;

        while (p < end && *p != '\\')
            p++;
        tbuf_put(out, plain, (size_t)(p - plain));
        if (p < end)
            tbuf_put(out, one, decode_one(&p, one));
    }
}

bool jl_str_is(struct tstr q, const char *text, size_t n) {
    const char *p = q.p + 1, *end = q.p + q.n - 1;
    char one[4];

    while (p < end) {
        size_t len = decode_one(&p, one);

        if (len > n || memcmp(one, text, len) != 0)
            return false;
        text += len;
        n -= len;
    }
    return n == 0;
}

void jl_escape(const char *s, size_t n, struct tbuf *out) {
    static const char hex[] = "0123456789abcdef";
    size_t from = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char esc[6] = {'\\', 'u', '0', '0', 0, 0};
        size_t len = 2;

        if (c >= 0x20 && (c != '"' || FAULT(json_quote_bare)) && c != '\\')
            continue;
        switch (c) {
        case '\n':
            esc[1] = 'n';
            break;
        case '\r':
            esc[1] = 'r';
            break;
        case '\t':
            esc[1] = 't';
            break;
        case '\b':
            esc[1] = 'b';
            break;
        case '\f':
            esc[1] = 'f';
            break;
        case '"':
        case '\\':
            esc[1] = (char)c;
            break;
        default:
            esc[4] = hex[c >> 4];
            esc[5] = hex[c & 15];
            len = 6;
        }
        tbuf_put(out, s + from, i - from);
        tbuf_put(out, esc, len);
        from = i + 1;
    }
    tbuf_put(out, s + from, n - from);
}

static void rewrite_string(struct tstr q, struct tbuf *out) {
    const char *p = q.p + 1, *end = q.p + q.n - 1;
    char one[4];

    tbuf_putc(out, '"');
    while (p < end) {
        const char *plain = p;

        while (p < end && *p != '\\')
            p++;
        tbuf_put(out, plain, (size_t)(p - plain)); /* checked: holds nothing that needs an escape */
        if (p < end)
            jl_escape(one, decode_one(&p, one), out);
    }
    tbuf_putc(out, '"');
}

void jl_rewrite(struct tstr v, struct tbuf *out) {
    const char *p = v.p, *end = v.p + v.n;

    while (p < end) {
        const char *q;

        if (*p == '"') {
            q = string_end(p);
            rewrite_string((struct tstr){p, (size_t)(q - p)}, out);
            p = q;
        } else if (*p == ',' || *p == ':') {
            tbuf_putc(out, *p++);
            tbuf_putc(out, ' ');
        } else {
            if (!is_space(*p))
                tbuf_putc(out, *p);
            p++;
        }
    }
}
