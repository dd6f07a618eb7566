/* SPDX-License-Identifier: MIT */
/* Fuzz target of the grammar room: a schema (or the parameters of a tool) and bytes to write under it.
 * Whatever is compiled never leads into a dead end, its masks are what advancing says, and a copied state
 * comes back. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "gramtest.h"

static struct {
    bool ready;
    struct gt_vocab vocab;
    struct grammar_work *work;
    struct grammar_state *state, *kept;
    uint32_t *mask;
} once;

static void prepare(void) {
    if (once.ready)
        return;
    gt_vocab_new(&once.vocab, 1000, 16, 3);
    once.state = malloc(grammar_state_bytes());
    once.kept = malloc(grammar_state_bytes());
    once.mask = calloc(once.vocab.n_words, sizeof *once.mask);
    FUZZ_NEED(once.state && once.kept && once.mask && grammar_work_new(&once.work) == 0);
    once.ready = true;
}

void fuzz_grammar_cleanup(void) {
    if (!once.ready)
        return;
    gt_vocab_done(&once.vocab);
    grammar_work_free(once.work);
    free(once.state);
    free(once.kept);
    free(once.mask);
    memset(&once, 0, sizeof once);
}

static bool allowed(uint32_t id) {
    return once.mask[id / 32] >> id % 32 & 1;
}

/* Every seventh token, from b on: the mask says what advancing does, and the state comes back. */
static void compare(const struct grammar *g, uint8_t b) {
    grammar_copy(once.kept, once.state);
    for (uint32_t id = b % 7; id < once.vocab.view.n_tokens; id += 7) {
        int r = grammar_advance(g, once.work, once.state, id);

        FUZZ_NEED(allowed(id) == (r >= 0));
        grammar_copy(once.state, once.kept);
    }
}

static void play(const struct grammar *g, struct fuzz_in *in) {
    grammar_begin(g, once.state);
    for (int steps = 0; in->n > 0 && steps < 300; steps++) {
        uint8_t b = fuzz_u8(in);
        uint32_t n = once.vocab.view.n_tokens, id = b;

        FUZZ_NEED(grammar_mask(g, once.work, once.state, once.mask, once.vocab.n_words));
        FUZZ_NEED(grammar_complete(g, once.state) == allowed(once.vocab.stops[0]));
        if (steps % 8 == 0)
            compare(g, b);
        /* the byte itself, or the next token that may follow */
        for (uint32_t k = 0; k < n && !allowed(id); k++)
            id = (b * 3u + k) % n;
        FUZZ_NEED(allowed(id));
        if (grammar_advance(g, once.work, once.state, id) != 0)
            return;
    }
}

int fuzz_grammar(const uint8_t *data, size_t size) {
    struct fuzz_in in = {data, size};
    struct grammar_text text;
    struct grammar *g = NULL;
    struct xerr err = {0};
    uint8_t kind;
    size_t n;
    int r;

    prepare();
    kind = fuzz_u8(&in);
    n = fuzz_u16(&in);
    text.p = (const char *)fuzz_bytes(&in, &n);
    text.n = n;
    if (kind & 1)
        r = grammar_new_calls(once.vocab.tables, &text, 1,
                              kind & 2 ? GRAMMAR_CALLS_AUTO : GRAMMAR_CALLS_REQUIRED, -1, kind & 4, 1 << 20,
                              &g, &err);
    else
        r = grammar_new_schema(once.vocab.tables, text, 1 << 20, &g, &err);
    FUZZ_NEED(r == 0 ? g != NULL : r < 0 && err.msg[0]);
    if (r == 0)
        play(g, &in);
    grammar_free(g);
    return 0;
}
