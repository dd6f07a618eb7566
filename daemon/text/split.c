/* SPDX-License-Identifier: MIT */
/* The seven alternatives of the pattern, tried in order at each position, each greedy inside itself. */
#include "split.h"

#include "unicode_table.h"
#include "utf8.h"

#include <stdbool.h>

const char split_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                             " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct ch {
    unsigned len; /* 0 at the end of the text */
    enum uctab_class_id class;
    bool eol; /* CR or LF */
};

static struct ch look(const uint8_t *s, size_t at, size_t n) {
    struct ch c = {0};
    uint32_t cp;
    int len;

    if (at >= n)
        return c;
    if (s[at] < 0x80) {
        c.len = 1;
        c.class = uctab_of(s[at]);
        c.eol = s[at] == '\r' || s[at] == '\n';
        return c;
    }
    len = utf8_next(s + at, n - at, &cp);
    if (len <= 0) /* callers pass valid text; never loop without progress on anything else */
        return (struct ch){.len = 1};
    c.len = (unsigned)len;
    c.class = uctab_of(cp);
    return c;
}

/* 's 't 're 've 'm 'll 'd in any case. Case-insensitive matching folds U+017F (long s) onto s as well. */
static size_t contraction(const uint8_t *s, size_t n) {
    static const char two[][2] = {{'r', 'e'}, {'v', 'e'}, {'l', 'l'}};
    uint8_t a, b;

    if (n < 2 || s[0] != '\'')
        return 0;
    a = (uint8_t)(s[1] | 0x20);
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (n < 3)
        return 0;
    if (s[1] == 0xc5 && s[2] == 0xbf)
        return 3;
    b = (uint8_t)(s[2] | 0x20);
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        if (a == (uint8_t)two[i][0] && b == (uint8_t)two[i][1])
            return 3;
    }
    return 0;
}

static size_t run_of(const uint8_t *s, size_t at, size_t n, enum uctab_class_id class) {
    for (;;) {
        struct ch c = look(s, at, n);

        if (c.len == 0 || c.class != class)
            return at;
        at += c.len;
    }
}

/* Alternatives 5 to 7; s starts with white space. */
static size_t spaces(const uint8_t *s, size_t n) {
    size_t at = 0, last = 0, after_eol = 0;

    for (;;) {
        struct ch c = look(s, at, n);

        if (c.len == 0 || c.class != UC_SPACE)
            break;
        last = at;
        at += c.len;
        if (c.eol)
            after_eol = at;
    }
    if (after_eol > 0)
        return after_eol;
    /* A run with something behind it gives its last character back, so that a word takes its space along. */
    if (at < n && last > 0 && !FAULT(split_keep_space))
        return last;
    return at;
}

size_t split_next(const uint8_t *s, size_t n) {
    struct ch first = look(s, 0, n), second;
    size_t at = contraction(s, n);

    if (at > 0)
        return at;
    if (first.class == UC_LETTER)
        return run_of(s, 0, n, UC_LETTER);
    second = look(s, first.len, n);
    if (first.class != UC_NUMBER && !first.eol && second.len > 0 && second.class == UC_LETTER)
        return run_of(s, first.len, n, UC_LETTER);
    if (first.class == UC_NUMBER) {
        at = first.len;
        for (unsigned i = 1; i < 3; i++) {
            struct ch c = look(s, at, n);

            if (c.len == 0 || c.class != UC_NUMBER)
                break;
            at += c.len;
        }
        return at;
    }
    at = s[0] == ' ' && second.len > 0 ? first.len : 0;
    second = look(s, at, n);
    if (second.class == UC_OTHER) {
        at = run_of(s, at, n, UC_OTHER);
        while (at < n && (s[at] == '\r' || s[at] == '\n'))
            at++;
        return at;
    }
    return spaces(s, n);
}
