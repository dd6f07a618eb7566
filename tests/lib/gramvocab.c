/* SPDX-License-Identifier: MIT */
/* Generated vocabularies for the tests of the grammar room. */
#include "gramtest.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const syllables[] = {
    "th", "e",  "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed",
    "is", "it", "al", "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le", "ve", "co",
    "me", "de", "hi", "ri", "ro", "ic", "ne", "ea", "ra", "ce", "li", "ch", "ll", "be", "ma", "si",
    "om", "ur", "ca", "el", "ta", "la", "ns", "di", "fo", "ho", "pe", "ec", "pr", "no", "ct", "us",
    "ac", "ot", "il", "tr", "ly", "nc", "et", "ut", "ss", "so", "rs", "un",
};
static const char *const scripts[] = {
    "\xe4\xb8\xad", "\xe6\x96\x87",     "\xe7\x9a\x84",     "\xe6\x98\xaf", "\xe4\xb8\x8d", "\xe4\xba\x86",
    "\xd0\xbf",     "\xd1\x80",         "\xd0\xb8",         "\xd0\xb2",     "\xd0\xb5",     "\xd1\x82",
    "\xc3\xa9",     "\xc3\xbc",         "\xc3\xb1",         "\xce\xb1",     "\xe3\x81\x82", "\xe3\x81\x84",
    "\xe3\x81\x86", "\xf0\x9f\x98\x80", "\xf0\x9f\x8e\x89", "\xea\xb0\x80",
};
static const char *const signs[] = {
    "\"",  "\"",  "\\",  "{",   "}",   "[", "]",  ":",    ",",    "(",   ")",   "'",      "/",
    ".",   "=",   "-",   "_",   "<",   ">", "\n", "\\n",  "\\\"", "\":", "\",", "\": \"", "\", \"",
    "{\"", "\"}", "\"]", "[\"", "\\u", " ", "  ", "    ", "\t",   "#",   "*",   "+",      "&",
    "|",   "!",   "?",   ";",   "@",   "$", "%",  "^",    "~",    "`",
};
#define PICK(r, a) ((a)[texttest_below(r, sizeof(a) / sizeof *(a))])

static uint32_t hash_of(const char *p, size_t n) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)p[i]) * UINT64_C(0x100000001b3);
    return (uint32_t)(h >> 20);
}

uint32_t gt_token(const struct gt_vocab *v, const char *text, size_t n) {
    for (uint32_t i = hash_of(text, n) & v->hash_mask; v->by_text[i]; i = (i + 1) & v->hash_mask) {
        uint32_t id = v->by_text[i] - 1;

        if (v->offsets[id + 1] - v->offsets[id] == n && memcmp(v->bytes + v->offsets[id], text, n) == 0)
            return id;
    }
    return UINT32_MAX;
}

static bool add(struct gt_vocab *v, uint32_t *n, const char *text, size_t len) {
    uint32_t i = hash_of(text, len) & v->hash_mask;

    if (gt_token(v, text, len) != UINT32_MAX)
        return false;
    memcpy(v->bytes + v->offsets[*n], text, len);
    v->offsets[*n + 1] = v->offsets[*n] + (uint32_t)len;
    while (v->by_text[i])
        i = (i + 1) & v->hash_mask;
    v->by_text[i] = ++*n;
    return true;
}

static size_t piece(struct texttest_rng *r, char *out) {
    uint32_t kind = texttest_below(r, 100), n = 1 + texttest_below(r, 4);
    size_t len = 0;

    out[0] = 0;
    if (kind < 70) { /* a word */
        if (texttest_below(r, 100) < 55)
            strcpy(out, texttest_below(r, 20) ? " " : "\"");
        for (uint32_t i = 0; i < n; i++)
            strcat(out, PICK(r, syllables));
        len = strlen(out);
        if (texttest_below(r, 6) == 0)
            out[out[0] == ' ' || out[0] == '"'] &= (char)~0x20;
        if (texttest_below(r, 40) == 0)
            len = (size_t)(stpcpy(out + len, PICK(r, signs)) - out);
    } else if (kind < 85) { /* other scripts, one in five cut in the middle of a character */
        for (uint32_t i = 0; i < n; i++)
            strcat(out, PICK(r, scripts));
        len = strlen(out);
        if (texttest_below(r, 5) == 0)
            len -= 1;
        if (texttest_below(r, 10) == 0 && len > 1)
            memmove(out, out + 1, --len);
    } else if (kind < 95) { /* punctuation */
        for (uint32_t i = 0; i < n; i++)
            strcat(out, PICK(r, signs));
        if (texttest_below(r, 3) == 0)
            strcat(out, PICK(r, syllables));
        len = strlen(out);
    } else if (kind < 97) { /* blanks */
        len = 1 + texttest_below(r, 80);
        memset(out, texttest_below(r, 2) ? ' ' : '\n', len);
        out[0] = texttest_below(r, 2) ? '\n' : out[0];
    } else {
        for (uint32_t i = 0; i < 3 && i < n; i++)
            out[len++] = (char)('0' + texttest_below(r, 10));
    }
    return len;
}

void gt_vocab_new(struct gt_vocab *v, uint32_t n, uint32_t marks, uint64_t seed) {
    static const char *const names[GT_MARKS] = {"<|end|>",      "<|user|>",  "<think>",    "<tool_call>",
                                                "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                                                "</arg_value>", "[MARK]"};
    struct texttest_rng r = {seed};
    uint32_t at = 0;
    char text[256];

    memset(v, 0, sizeof *v);
    must(marks >= GT_MARKS && marks <= 64 && n >= 256 + marks);
    for (v->hash_mask = 1; v->hash_mask < 2 * n;)
        v->hash_mask *= 2;
    v->by_text = calloc(v->hash_mask, sizeof *v->by_text);
    v->hash_mask--;
    v->bytes = malloc((size_t)n * 128);
    v->offsets = calloc(n + 1, sizeof *v->offsets);
    must(v->by_text && v->bytes && v->offsets);
    for (unsigned b = 0; b < 256; b++) {
        text[0] = (char)b;
        add(v, &at, text, 1);
    }
    for (unsigned tries = 0; at < n - marks; tries++) {
        size_t len = piece(&r, text);

        if (tries > 20 * n) /* few are left that are short */
            len += (size_t)snprintf(text + len, sizeof text - len, "%x", texttest_below(&r, 1 << 20));
        if (len > 0)
            add(v, &at, text, len);
    }
    v->mark0 = at;
    for (uint32_t i = 0; i < marks; i++) {
        int len = i < GT_MARKS ? snprintf(text, sizeof text, "%s", names[i])
                               : snprintf(text, sizeof text, "<|m%u|>", i);

        add(v, &at, text, (size_t)len);
        v->marks[i] = v->mark0 + i;
    }
    v->stops[0] = v->mark0 + GT_STOP;
    v->stops[1] = v->mark0 + GT_STOP2;
    v->n_words = n / 32 + 2; /* padding rows behind the vocabulary */
    v->view = (struct vocab_view){.bytes = v->bytes,
                                  .offsets = v->offsets,
                                  .n_tokens = n,
                                  .stop_ids = v->stops,
                                  .n_stop_ids = 2,
                                  .mark_ids = v->marks,
                                  .n_mark_ids = marks,
                                  .think_open = v->mark0 + GT_THINK,
                                  .think_close = UINT32_MAX,
                                  .tool_open = v->mark0 + GT_CALL,
                                  .tool_close = v->mark0 + GT_CALL_END,
                                  .key_open = v->mark0 + GT_KEY,
                                  .key_close = v->mark0 + GT_KEY_END,
                                  .value_open = v->mark0 + GT_VALUE,
                                  .value_close = v->mark0 + GT_VALUE_END,
                                  .text_end = v->stops[0]};
    must(grammar_vocab_new(&v->view, &v->tables, NULL) == 0);
}

void gt_vocab_done(struct gt_vocab *v) {
    grammar_vocab_free(v->tables);
    free(v->by_text);
    free(v->bytes);
    free(v->offsets);
}

size_t gt_pieces(const struct gt_vocab *v, struct texttest_rng *r, const char *text, size_t n,
                 uint32_t *ret) {
    size_t count = 0;

    for (size_t at = 0; at < n;) {
        size_t most = n - at < 24 ? n - at : 24, len;
        uint32_t id = UINT32_MAX;

        if (texttest_below(r, 4) == 0)
            most = 1 + texttest_below(r, (uint32_t)most);
        for (len = most; len > 0 && (id == UINT32_MAX || id >= v->mark0); len--)
            id = gt_token(v, text + at, len);
        must(id != UINT32_MAX);
        at += v->offsets[id + 1] - v->offsets[id];
        ret[count++] = id;
    }
    return count;
}
