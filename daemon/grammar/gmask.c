/* SPDX-License-Identifier: MIT */
/* The face of the room for one sequence: masks, advancing, copies. Any thread, no allocation but
 * grammar_work_new. */
#include "grampriv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gcomp.h"

int grammar_new_schema(const struct grammar_vocab *v, struct grammar_text schema, size_t max_bytes,
                       struct grammar **ret, struct xerr *err) {
    struct gcomp c = {.what = "response schema"};
    struct jl_fault fault;
    struct gplace *any;
    int64_t root;
    uint32_t at;
    int r = gcomp_begin(&c, v, max_bytes, err);

    if (r == 0 && schema.p) {
        if (schema.n > GRAMMAR_MAX_SCHEMA_BYTES)
            r = xerr_set(c.err, -E2BIG, "%s: it has %zu bytes, at most %d are possible", c.what, schema.n,
                         GRAMMAR_MAX_SCHEMA_BYTES);
        else if ((r = jl_check(schema.p, schema.n, GCOMP_JSON_DEPTH, &c.root, &fault)) < 0)
            r = xerr_set(c.err, r, "%s: at its byte %zu: %s", c.what, fault.at, fault.why);
        else
            r = gcomp_root(&c, c.root, &at);
    } else if (r == 0) {
        /* any object: of the leaves of any value the first */
        root = gcomp_place(&c, (struct tstr){0}, false);
        r = root < 0 ? (int)root : 0;
        at = (uint32_t)root;
        if (r == 0) {
            any = &c.place[c.any];
            c.place[at].leaf0 = any->leaf0;
            c.place[at].n_leaves = 1;
        }
    }
    if (r == 0)
        r = gcomp_schemas(&c);
    if (r == 0)
        r = gcomp_close(&c, &at, 1);
    if (r == 0 && c.g->schema[at].height == GRAM_ENDLESS)
        r = gcomp_fail(&c, -EDOM, c.root, "no finite text satisfies it");
    if (r == 0 && c.g->schema[at].height > c.g->depth)
        r = gcomp_fail(&c, -E2BIG, c.root, "it nests %u levels at least, %u are possible",
                       c.g->schema[at].height, c.g->depth);
    if (r == 0) {
        c.g->root = at;
        r = gcomp_keep(&c, ret);
    }
    gcomp_done(&c);
    return r;
}

int grammar_work_new(struct grammar_work **ret) {
    struct grammar_work *w = calloc(1, sizeof *w);

    if (!w)
        return -ENOMEM;
    w->steps = GRAM_STEPS;
    *ret = w;
    return 0;
}

struct grammar_work *grammar_work_free(struct grammar_work *w) {
    free(w);
    return NULL;
}

size_t grammar_state_bytes(void) {
    return sizeof(struct grammar_state);
}

void grammar_begin(const struct grammar *g, struct grammar_state *s) {
    memset(s, 0, offsetof(struct grammar_state, scalar));
    gram_value(s, g->root);
    if (g->calls)
        gram_calls_begin(g, s);
}

void grammar_copy(struct grammar_state *to, const struct grammar_state *from) {
    const struct glevel *top = &from->level[from->depth];

    memcpy(to, from, offsetof(struct grammar_state, scalar));
    memcpy(to->scalar, from->scalar, from->n_scalars * sizeof *from->scalar);
    memcpy(to->level, from->level, (from->depth + 1u) * sizeof *from->level);
    memcpy(to->thread, from->thread, (size_t)(top->first + top->n) * sizeof *from->thread);
}

bool grammar_complete(const struct grammar *g, const struct grammar_state *s) {
    if (s->ended)
        return false;
    return g->calls ? gram_calls_complete(g, s) : gram_value_complete(g, s);
}

static void text_mask(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                      uint32_t *words) {
    const struct grammar_vocab *v = g->vocab;

    switch (s->mode) {
    case MODE_STRING:
    case MODE_IN_KEY:
        if (s->sub == SUB_PLAIN && !FAULT(grammar_steps_free)) {
            gram_walk_clean(g, w, s, words);
            gram_walk_quote(g, w, s, words);
            return;
        }
        break;
    case MODE_SAY:
    case MODE_ARG_TEXT:
        if (s->sub == SUB_PLAIN) {
            for (uint32_t i = 0; i < v->n_words; i++)
                words[i] |= v->utf8_all[i];
            return;
        }
        break;
    case MODE_ARGS:
    case MODE_ARG:
        return;
    case MODE_AFTER:
        if (s->depth == 0)
            return;
        break;
    default:
        break;
    }
    gram_walk(g, w, s, &v->all, 0, v->all.n, words);
}

static const uint32_t tries[GRAM_TRIES] = {GRAMMAR_MAX_TOKEN_BYTES, 4, 1}; /* bytes of a token */

bool grammar_mask(const struct grammar *g, struct grammar_work *w, struct grammar_state *s, uint32_t *words,
                  uint32_t n_words) {
    const struct grammar_vocab *v = g->vocab;
    uint32_t any = 0;

    w->cut = false;
    memset(words, 0, n_words * sizeof *words);
    if (s->ended || n_words < v->n_words)
        return false;
    for (size_t i = 0; i < GRAM_TRIES; i++) {
        w->most_bytes = tries[i];
        w->left = i + 1 < GRAM_TRIES ? w->steps >> 2 * i : INT64_MAX;
        text_mask(g, w, s, words);
        if (w->left >= 0)
            break;
        w->cut = true; /* what was found is thrown away: it favours tokens that come first in the trie */
        if (!FAULT(grammar_cut_kept))
            memset(words, 0, n_words * sizeof *words);
    }
    if (g->calls)
        gram_calls_mask(g, s, words);
    if (grammar_complete(g, s) || FAULT(grammar_stops_early))
        for (uint32_t i = 0; i < v->view->n_stop_ids; i++)
            if (v->view->stop_ids[i] / 32 < n_words)
                gram_set(words, v->view->stop_ids[i]);
    for (uint32_t i = 0; i < n_words; i++)
        any |= words[i];
    return any != 0;
}

bool grammar_mask_was_cut(const struct grammar_work *w) {
    return w->cut;
}

static bool is_stop(const struct vocab_view *v, uint32_t token) {
    for (uint32_t i = 0; i < v->n_stop_ids; i++)
        if (v->stop_ids[i] == token)
            return true;
    return false;
}

int grammar_advance(const struct grammar *g, struct grammar_work *w, struct grammar_state *s,
                    uint32_t token) {
    const struct grammar_vocab *v = g->vocab;
    const struct vocab_view *view = v->view;

    if (s->ended)
        return -EINVAL;
    if (is_stop(view, token)) {
        if (!grammar_complete(g, s))
            return -EINVAL;
        s->ended = true;
        return 1;
    }
    if (token >= v->n_tokens)
        return -EINVAL;
    if (!gram_has(v->is_text, token))
        return g->calls && gram_calls_mark(g, s, token) ? 0 : -EINVAL;
    grammar_copy(&w->copy, s);
    for (uint32_t i = view->offsets[token]; i < view->offsets[token + 1]; i++)
        if (!gram_byte(g, s, view->bytes[i])) {
            grammar_copy(s, &w->copy);
            return -EINVAL;
        }
    return 0;
}
