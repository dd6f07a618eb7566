/* SPDX-License-Identifier: MIT */
/* Texts of JSON values as grammars let them through, and back. */
#include "gramtest.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct out {
    char *p;
    size_t n, cap;
};

static void put(struct out *o, const char *s, size_t n) {
    if (o->n + n + 1 > o->cap) {
        o->cap = 2 * (o->n + n) + 256;
        o->p = realloc(o->p, o->cap);
        must(o->p);
    }
    memcpy(o->p + o->n, s, n);
    o->n += n;
    o->p[o->n] = 0;
}

static void blanks(struct texttest_rng *r, struct out *o) {
    uint32_t n = texttest_below(r, 40) == 0 ? 32 : texttest_below(r, 3) == 0 ? texttest_below(r, 4) : 0;

    while (n-- > 0)
        put(o, &" \n\t\r"[texttest_below(r, 4)], 1);
}

static void write_string(struct texttest_rng *r, struct out *o, const char *s, size_t n, unsigned escapes) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    char text[16];

    put(o, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        const char *at = c ? strchr(from, c) : NULL;

        if (at || (c == '/' && texttest_below(r, 100) < escapes)) {
            snprintf(text, sizeof text, "\\%c", at ? to[at - from] : '/');
            put(o, text, 2);
        } else if (c < 0x20 || (c < 0x80 && texttest_below(r, 100) < escapes)) {
            snprintf(text, sizeof text, texttest_below(r, 2) ? "\\u%04x" : "\\u%04X", c);
            put(o, text, 6);
        } else {
            put(o, s + i, 1);
        }
    }
    put(o, "\"", 1);
}

static void write_value(struct texttest_rng *r, struct out *o, const json_t *v, unsigned escapes) {
    const json_t *item;
    const char *key;
    size_t i;
    char *text;

    blanks(r, o);
    if (json_is_object(v)) {
        put(o, "{", 1);
        i = 0;
        json_object_foreach((json_t *)v, key, item) {
            if (i++)
                put(o, ",", 1);
            blanks(r, o);
            write_string(r, o, key, strlen(key), escapes);
            blanks(r, o);
            put(o, ":", 1);
            write_value(r, o, item, escapes);
            if (i == json_object_size(v))
                blanks(r, o);
        }
        put(o, "}", 1);
    } else if (json_is_array(v)) {
        put(o, "[", 1);
        json_array_foreach(v, i, item) {
            if (i)
                put(o, ",", 1);
            write_value(r, o, item, escapes);
        }
        put(o, "]", 1);
    } else if (json_is_string(v)) {
        write_string(r, o, json_string_value(v), json_string_length(v), escapes);
    } else {
        text = json_dumps(v, JSON_ENCODE_ANY);
        put(o, text, strlen(text));
        free(text);
    }
}

char *gt_write(struct texttest_rng *r, const json_t *value, unsigned escapes, size_t *ret_n) {
    struct out o = {0};

    write_value(r, &o, value, escapes);
    *ret_n = o.n;
    return o.p;
}

json_t *gt_read(const char *text, size_t n) {
    struct out o = {0};
    bool string = false;
    size_t digits = 0;
    json_t *v;

    for (size_t i = 0; i < n; i++) {
        bool exponent = !string && o.n > 0 && (text[i] | 0x20) == 'e' && digits > 0;

        if (string && text[i] == '\\') {
            put(&o, text + i++, 1);
        } else if (text[i] == '"') {
            string = !string;
        }
        digits = text[i] >= '0' && text[i] <= '9'   ? digits + 1
                 : exponent                         ? 16
                 : text[i] == '+' || text[i] == '-' ? digits
                                                    : 0;
        if (string || digits <= 18 || text[i] < '0' || text[i] > '9')
            put(&o, text + i, 1);
    }
    v = json_loadb(o.p ? o.p : "", o.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    free(o.p);
    return v;
}
