/* SPDX-License-Identifier: MIT */
/* Schemas made to be slow for whoever computes masks, and walks through them: shared by the bench of masks and the
 * tests of their bound. One thread. */
#include "gramtest.h"

#include <check.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tbuf.h"

/* A word of the vocabulary in small letters, so that its tokens go on along the text. */
static void word(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    for (;;) {
        uint32_t id = 256 + texttest_below(r, v->view.n_tokens - 300), n = v->offsets[id + 1] - v->offsets[id];
        const uint8_t *p = v->bytes + v->offsets[id];
        bool good = n > 3 && n <= 12 && *p == ' ';

        for (uint32_t i = 1; i < n && good; i++)
            good = p[i] >= 'a' && p[i] <= 'z';
        if (!good)
            continue;
        for (uint32_t i = 1; i < n; i++)
            tbuf_putc(b, (char)p[i]);
        return;
    }
}

static void number(struct tbuf *b, uint64_t n) {
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    tbuf_puts(b, text);
}

static uint64_t large(struct texttest_rng *r) {
    return (uint64_t)texttest_below(r, 4000000000u) * texttest_below(r, 1000000000u);
}

/* n quoted strings; what stands behind each is `after`. */
static void strings(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r, unsigned n, unsigned words,
                    const char *before, const char *after) {
    for (unsigned i = 0; i < n; i++) {
        tbuf_puts(b, i ? ",\"" : "\"");
        tbuf_puts(b, before);
        for (unsigned k = 0; k < words; k++)
            word(b, v, r);
        tbuf_puts(b, "\"");
        tbuf_puts(b, after);
    }
}

static void patterns(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    (void)v;
    tbuf_puts(b, "{\"type\":\"array\",\"items\":{\"anyOf\":[");
    for (unsigned i = 0; i < 32; i++) {
        tbuf_puts(b, i ? ",{\"pattern\":\"^[ a-" : "{\"pattern\":\"^[ a-");
        tbuf_putc(b, (char)('d' + texttest_below(r, 4)));
        tbuf_puts(b, "n-");
        tbuf_putc(b, (char)('q' + texttest_below(r, 4)));
        tbuf_puts(b, "]*[A-Z");
        number(b, i % 10);
        tbuf_putc(b, (char)('a' + i % 26));
        tbuf_puts(b, "]{1,3}$\"}");
    }
    tbuf_puts(b, "]}}");
}

/* Objects that begin alike, each with names of its own; the words allow what is not declared, or nothing. */
static void many_names(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r, unsigned objects,
                       unsigned names, const char *others) {
    tbuf_puts(b, "{\"type\":\"array\",\"items\":{\"anyOf\":[");
    for (unsigned i = 0; i < objects; i++) {
        tbuf_puts(b, i ? ",{\"type\":\"object\",\"properties\":{" : "{\"type\":\"object\",\"properties\":{");
        strings(b, v, r, names, 1, "", ":{\"type\":\"null\"}");
        tbuf_puts(b, "},\"additionalProperties\":");
        tbuf_puts(b, others);
        tbuf_puts(b, "}");
    }
    tbuf_puts(b, "]}}");
}

static void closed_names(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    many_names(b, v, r, 30, 128, "false");
}

static void open_names(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    many_names(b, v, r, 30, 128, "{}");
}

static void long_object(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    many_names(b, v, r, 1, 128, "false");
}

static void alike_names(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    tbuf_puts(b, "{\"type\":\"array\",\"items\":{\"anyOf\":[");
    for (unsigned i = 0; i < 32; i++) {
        tbuf_puts(b, i ? ",{\"properties\":{" : "{\"properties\":{");
        strings(b, v, r, 100, 1, "interaction", ":{\"type\":\"null\"}");
        tbuf_puts(b, "}}");
    }
    tbuf_puts(b, "]}}");
}

static void enums(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    tbuf_puts(b, "{\"type\":\"array\",\"items\":{\"anyOf\":[");
    for (unsigned i = 0; i < 30; i++) {
        tbuf_puts(b, i ? ",{\"type\":\"object\",\"properties\":{\"in\":{\"enum\":[" :
                         "{\"type\":\"object\",\"properties\":{\"in\":{\"enum\":[");
        strings(b, v, r, 200, 2, "the interaction of ", "");
        tbuf_puts(b, "]}}}");
    }
    tbuf_puts(b, "]}}");
}

static void bounds(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    (void)v;
    tbuf_puts(b, "{\"type\":\"array\",\"items\":{\"anyOf\":[");
    for (unsigned i = 0; i < 32; i++) {
        tbuf_puts(b, i ? ",{\"type\":\"number\",\"minimum\":-" : "{\"type\":\"number\",\"minimum\":-");
        number(b, 1 + large(r));
        tbuf_puts(b, ",\"exclusiveMaximum\":");
        number(b, 1 + large(r));
        tbuf_puts(b, "}");
    }
    tbuf_puts(b, "]}}");
}

/* Every value may be an array or object of several kinds, and so on inside. */
static void tangle(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    (void)v;
    (void)r;
    tbuf_puts(b, "{\"$ref\":\"#/$defs/v\",\"$defs\":{\"v\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"number\"}");
    for (unsigned i = 0; i < 16; i++) {
        tbuf_puts(b, ",{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/v\"},\"maxItems\":");
        number(b, 40 + i);
        tbuf_puts(b, "},{\"type\":\"object\",\"properties\":{\"the");
        number(b, i);
        tbuf_puts(b, "\":{\"$ref\":\"#/$defs/v\"}}}");
    }
    tbuf_puts(b, "]}}}");
}

/* Deep, and few alternatives: what closes and opens in one token meets every level. */
static void deep(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    (void)v;
    (void)r;
    tbuf_puts(b, "{\"$ref\":\"#/$defs/v\",\"$defs\":{\"v\":{\"anyOf\":["
                 "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/v\"},\"minItems\":1},"
                 "{\"type\":\"object\",\"additionalProperties\":{\"$ref\":\"#/$defs/v\"}},"
                 "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/v\"},\"maxItems\":3},"
                 "{\"type\":\"object\",\"additionalProperties\":{\"$ref\":\"#/$defs/v\"},\"required\":[\"in\"]},"
                 "{\"type\":\"boolean\"}]}}}");
}

/* Strings of every kind at once: lists, patterns, lengths. */
static void mixed(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r) {
    tbuf_puts(b, "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"enum\":[");
    strings(b, v, r, 3000, 2, "", "");
    tbuf_puts(b, "]}");
    for (unsigned i = 0; i < 15; i++) {
        tbuf_puts(b, ",{\"type\":\"string\",\"maxLength\":");
        number(b, 3 + 5 * i);
        tbuf_puts(b, "},{\"pattern\":\"^[a-z ]{0,");
        number(b, 1 + i);
        tbuf_puts(b, "}\\\\\\\\?$\"}");
    }
    tbuf_puts(b, "]}}");
}

static const struct {
    const char *name;
    void (*make)(struct tbuf *b, const struct gt_vocab *v, struct texttest_rng *r);
} hard[] = {
    {"32 patterns side by side", patterns},
    {"30 objects of 128 names", closed_names},
    {"30 objects of 128 names and any other", open_names},
    {"an object of 128 names", long_object},
    {"32 objects of names that begin alike", alike_names},
    {"enums that begin alike in 30 objects", enums},
    {"32 numbers with bounds", bounds},
    {"32 containers of themselves", tangle},
    {"deep containers", deep},
    {"strings of every kind", mixed},
};

const char *gt_hard_name(size_t i) {
    return i < sizeof hard / sizeof *hard ? hard[i].name : NULL;
}

char *gt_hard_schema(const struct gt_vocab *v, size_t i) {
    struct texttest_rng r = {1 + i};
    struct tbuf b;

    tbuf_init(&b, GRAMMAR_MAX_SCHEMA_BYTES);
    hard[i].make(&b, v, &r);
    must(b.err == 0);
    tbuf_putc(&b, 0);
    must(b.err == 0);
    return b.p; /* the buffer's memory is malloc's */
}

uint32_t gt_pick(const struct gt_vocab *v, struct texttest_rng *r, const uint32_t *mask) {
    static const char signs[] = "\"{}[],:0123456789";
    uint32_t from = texttest_below(r, v->n_words * 32);

    if (texttest_below(r, 3) == 0) {
        uint32_t at = texttest_below(r, sizeof signs - 1);

        for (uint32_t i = 0; i < sizeof signs - 1; i++) {
            uint32_t id = gt_token(v, &signs[(at + i) % (sizeof signs - 1)], 1);

            if (mask[id / 32] >> id % 32 & 1)
                return id;
        }
    }
    for (uint32_t i = 0; i < v->n_words * 32; i++) {
        uint32_t id = (from + i) % (v->n_words * 32);

        if (mask[id / 32] >> id % 32 & 1)
            return id;
    }
    return UINT32_MAX;
}
