/* SPDX-License-Identifier: MIT */
/* grammar-mask: the time of one mask before sampling, on a generated vocabulary as large as the release's
 * (154,856 tokens), for long documents of several schemas in several ways to piece them into tokens, and for schemas
 * that were made to be slow (tests/lib/gramhard.c) on ways that their own masks lead. Bar: the slowest token of all
 * takes less than 1 ms of processor time (each place is measured three times and the fastest counts: a busy machine
 * is not the grammar's). "cut" counts masks that the bound in steps made smaller. BENCH_HANDICAP=1 runs the mutation
 * build, where every byte is tried one by one and nothing bounds that.
 *
 * The release's 321,649 merges have no part in it. A grammar sees a vocabulary as the bytes of each id (struct
 * vocab_view); of daemon/text the room includes jsonlite.h and outtools.h and never the tokenizer. Merges decide into
 * which ids a text is cut, and those are drawn here, so that places are met which merges would not leave. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchlib.h"
#include "gramtest.h"

enum { TOKENS = 154856, MARKS = 36, MAX_IDS = 1 << 17, DOCUMENTS = 40, WALKS = 6, STEPS = 60 };

static struct gt_vocab vocab;

static struct {
    const char *name, *schema;
} cases[] = {
    {"any JSON", "{}"},
    {"agent", "{\"type\": \"object\", \"properties\": {\"thought\": {\"type\": \"string\"}, \"steps\": "
              "{\"type\": \"array\", \"items\": "
              "{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"run\"}, "
              "\"command\": {\"type\": \"string\"}, "
              "\"seconds\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 3600}}, \"required\": "
              "[\"kind\", \"command\"], "
              "\"additionalProperties\": false}, {\"type\": \"object\", \"properties\": {\"kind\": "
              "{\"const\": \"edit\"}, \"path\": "
              "{\"type\": \"string\", \"maxLength\": 200}, \"lines\": {\"type\": \"array\", \"items\": "
              "{\"type\": \"string\"}}}, "
              "\"required\": [\"kind\", \"path\", \"lines\"], \"additionalProperties\": false}]}}, \"done\": "
              "{\"type\": \"boolean\"}}, "
              "\"required\": [\"thought\", \"steps\"], \"additionalProperties\": false}"},
    {"lengths and patterns", "{\"type\": \"array\", \"items\": {\"type\": \"object\", \"properties\": "
                             "{\"name\": {\"type\": \"string\", \"minLength\": 1, "
                             "\"maxLength\": 40}, \"word\": {\"type\": \"string\", \"pattern\": \"^[a-z "
                             "]+$\"}, \"line\": {\"type\": \"string\", "
                             "\"pattern\": \"^[^@]*$\"}, \"day\": {\"type\": \"string\", \"pattern\": "
                             "\"^\\\\d{4}-\\\\d{2}-\\\\d{2}$\"}}}}"},
    {"side by side", "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"properties\": {\"a\": {\"maxLength\": "
                     "5}}}, {\"properties\": {\"a\": "
                     "{\"pattern\": \"^[a-f]\"}}}, {\"properties\": {\"b\": {\"maxLength\": 50}}}, "
                     "{\"properties\": {\"a\": {\"minLength\": 3}}}, "
                     "{\"required\": [\"c\"]}, {\"properties\": {\"d\": {\"pattern\": \"x$\"}}}, "
                     "{\"properties\": {\"e\": {\"pattern\": \"[^y]$\"}}}]}}"},
    {"a list of 4,000 strings", NULL},
    {"32 objects side by side", NULL},
};
enum { AGENT = 1, CASES = sizeof cases / sizeof *cases };

/* What is generated: a list of many strings, and 32 alternatives that begin alike. */
static char *many_strings(void) {
    struct texttest_rng r = {5};
    char *text = malloc(1 << 18);
    size_t n = 0;

    if (!text)
        exit(2);
    n = (size_t)sprintf(text, "{\"type\": \"array\", \"items\": {\"enum\": [");
    for (int i = 0; i < 4000; i++) {
        uint32_t id;

        n += (size_t)sprintf(text + n, "%s\"", i ? "," : "");
        for (int k = 0; k < 3;) { /* words of the vocabulary */
            id = 256 + texttest_below(&r, TOKENS - 300);
            if (vocab.bytes[vocab.offsets[id]] != ' ' || vocab.offsets[id + 1] - vocab.offsets[id] > 12)
                continue;
            for (uint32_t b = vocab.offsets[id] + (k == 0); b < vocab.offsets[id + 1]; b++)
                if (vocab.bytes[b] >= 'a' && vocab.bytes[b] <= 'z')
                    text[n++] = (char)vocab.bytes[b];
            k++;
        }
        text[n++] = '"';
    }
    strcpy(text + n, "]}}");
    return text;
}

static char *alternatives(void) {
    char *text = malloc(1 << 16);
    size_t n;

    if (!text)
        exit(2);
    n = (size_t)sprintf(text, "{\"type\": \"array\", \"items\": {\"anyOf\": [");
    for (int i = 0; i < 32; i++)
        n += (size_t)sprintf(
            text + n,
            "%s{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"kind%d\"}, \"a%d\": "
            "{\"type\": "
            "\"string\"}, \"b\": {\"type\": \"integer\", \"minimum\": %d}}, \"required\": [\"kind\"]}",
            i ? "," : "", i, i, i);
    strcpy(text + n, "]}}");
    return text;
}

struct figures {
    double worst, sum;
    unsigned n, cut; /* cut: masks that the bound made smaller */
    char where[128], text[32];
};

static struct grammar_work *work;
static struct grammar_state *state;
static uint32_t *mask, ids[MAX_IDS];

static uint64_t own_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void one_mask(const struct grammar *g, const char *name, struct figures *f) {
    double best = 1e9;

    for (int i = 0; i < 3; i++) {
        uint64_t t0 = own_ns();
        double us;

        grammar_mask(g, work, state, mask, vocab.n_words);
        us = (double)(own_ns() - t0) / 1e3;
        best = us < best ? us : best;
    }
    f->sum += best;
    f->n++;
    f->cut += grammar_mask_was_cut(work);
    if (best > f->worst) {
        f->worst = best;
        snprintf(f->where, sizeof f->where, "%s, behind %s", name, f->text);
    }
}

/* Behind what the worst mask came: the last bytes of the text so far. */
static void note(struct figures *f, const void *bytes, size_t n) {
    size_t had = strlen(f->text), room = sizeof f->text - 1, drop;

    if (n > room) {
        bytes = (const char *)bytes + n - room;
        n = room;
    }
    drop = had + n > room ? had + n - room : 0;
    memmove(f->text, f->text + drop, had - drop);
    for (size_t i = 0; i < n; i++) {
        uint8_t b = ((const uint8_t *)bytes)[i];

        f->text[had - drop + i] = (char)(b < 0x20 ? ' ' : b);
    }
    f->text[had - drop + n] = 0;
}

static void follow(const struct grammar *g, const char *name, const char *text, size_t n, struct texttest_rng *r,
                   struct figures *f) {
    size_t count = gt_pieces(&vocab, r, text, n, ids);

    grammar_begin(g, state);
    f->text[0] = 0;
    for (size_t i = 0; i <= count; i++) {
        one_mask(g, name, f);
        if (i == count)
            break;
        if (grammar_advance(g, work, state, ids[i]) < 0) {
            fprintf(stderr, "grammar-mask: %s does not take %s\n", name, text);
            exit(2);
        }
        note(f, vocab.bytes + vocab.offsets[ids[i]], vocab.offsets[ids[i] + 1] - vocab.offsets[ids[i]]);
    }
}

/* A way through the grammar that its own masks lead. */
static void wander(const struct grammar *g, const char *name, struct texttest_rng *r, struct figures *f) {
    grammar_begin(g, state);
    f->text[0] = 0;
    for (int i = 0; i < STEPS; i++) {
        uint32_t id;

        one_mask(g, name, f);
        id = gt_pick(&vocab, r, mask);
        if (id == UINT32_MAX || grammar_advance(g, work, state, id) != 0)
            return;
        note(f, vocab.bytes + vocab.offsets[id], vocab.offsets[id + 1] - vocab.offsets[id]);
    }
}

/* documents: of random valid values. */
static void one_schema(const char *name, const char *text, int documents, struct texttest_rng *r,
                       struct figures *all) {
    struct figures f = {0};
    struct grammar *g;
    json_t *schema = json_loads(text, 0, NULL);
    uint64_t t0 = bench_now_ns();
    double compile;
    struct xerr err;

    if (!schema ||
        grammar_new_schema(vocab.tables, (struct grammar_text){text, strlen(text)}, 0, &g, &err) < 0) {
        fprintf(stderr, "grammar-mask: %s: %s\n", name, schema ? err.msg : "no JSON");
        exit(2);
    }
    compile = (double)(bench_now_ns() - t0) / 1e6;
    for (int k = 0; k < documents; k++) {
        json_t *v = gt_random_value(r, schema);
        size_t n;
        char *doc = v ? gt_write(r, v, 0, &n) : NULL;

        if (doc)
            follow(g, name, doc, n, r, &f);
        free(doc);
        json_decref(v);
    }
    for (int k = 0; k < WALKS && !bench_handicap(); k++)
        wander(g, name, r, &f);
    printf("# %-38s %5u masks, mean %5.1f us, worst %6.1f us, %u cut, compiled in %.1f ms, %.0f kB\n", name, f.n,
           f.sum / f.n, f.worst, f.cut, compile, (double)grammar_bytes(g) / 1e3);
    all->cut += f.cut;
    all->n += f.n;
    if (f.worst > all->worst) {
        all->worst = f.worst;
        memcpy(all->where, f.where, sizeof all->where);
    }
    grammar_free(g);
    json_decref(schema);
}

static int bench(void) {
    struct texttest_rng r = {77};
    struct figures all = {0};

    gt_vocab_new(&vocab, TOKENS, MARKS, 1);
    state = malloc(grammar_state_bytes());
    mask = calloc(vocab.n_words, sizeof *mask);
    if (!state || !mask || grammar_work_new(&work) < 0)
        return 2;
    cases[CASES - 2].schema = many_strings();
    cases[CASES - 1].schema = alternatives();
    printf("# tables of %u tokens: %.1f MB\n", TOKENS, (double)grammar_vocab_bytes(vocab.tables) / 1e6);
    if (bench_handicap()) /* a mask takes milliseconds then, and with many alternatives a second */
        one_schema(cases[AGENT].name, cases[AGENT].schema, 3, &r, &all);
    for (size_t i = 0; i < CASES && !bench_handicap(); i++)
        one_schema(cases[i].name, cases[i].schema, DOCUMENTS, &r, &all);
    for (size_t i = 0; gt_hard_name(i) && !bench_handicap(); i++) {
        char *text = gt_hard_schema(&vocab, i);

        one_schema(gt_hard_name(i), text, 0, &r, &all);
        free(text);
    }
    printf("# worst of %u masks: %s; %u were cut\n", all.n, all.where, all.cut);
    free((char *)cases[CASES - 2].schema);
    free((char *)cases[CASES - 1].schema);
    grammar_work_free(work);
    free(state);
    free(mask);
    gt_vocab_done(&vocab);
    return bench_verdict("grammar-mask", all.worst / 1e3, "ms", 1.0, BENCH_AT_MOST);
}

int main(void) {
    static const struct bench_handicap h[] = {{"grammar_steps_free", "grammar-mask"}};

    return bench_main(bench, h, sizeof h / sizeof *h);
}
