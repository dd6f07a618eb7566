/* SPDX-License-Identifier: MIT */
/* Tables over the vocabulary: two tries over the bytes of tokens, and bit sets of the tokens that stay inside
 * a JSON string. Made once on the starting thread, constant afterwards; allocates only there. */
#include "grampriv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

static const uint8_t *token_bytes(const struct vocab_view *v, uint32_t id, uint32_t *ret_n) {
    *ret_n = v->offsets[id + 1] - v->offsets[id];
    return v->bytes + v->offsets[id];
}

/* clean[i]: the bytes from i on stay inside a string. Returns how many characters begin in all of them. */
static uint32_t measure(const uint8_t *b, uint32_t n, bool *clean) {
    uint32_t chars = 0;

    clean[n] = true;
    for (uint32_t i = n; i-- > 0;) {
        int len = utf8_next(b + i, n - i, NULL);

        clean[i] =
            len == 0 || (len > 0 && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' && clean[i + (uint32_t)len]);
        chars += (b[i] & 0xc0) != 0x80;
    }
    return chars;
}

struct by_bytes {
    const uint8_t *p;
    uint32_t n, id;
};

static int compare(const void *a, const void *b) {
    const struct by_bytes *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);

    if (c)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void *take(struct grammar_vocab *v, uint64_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);

    if (p)
        v->bytes += n * size;
    return p;
}

/* list is sorted. */
static int make_trie(struct grammar_vocab *v, const struct by_bytes *list, uint32_t n, struct gtrie *t) {
    uint32_t path[GRAMMAR_MAX_TOKEN_BYTES + 1], depth = 0;
    bool clean[GRAMMAR_MAX_TOKEN_BYTES + 1];
    uint64_t nodes = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;

        while (i > 0 && same < list[i].n && same < list[i - 1].n && list[i].p[same] == list[i - 1].p[same])
            same++;
        nodes += list[i].n - same;
    }
    if (nodes >= UINT32_MAX)
        return -E2BIG;
    t->node = take(v, nodes + 1, sizeof *t->node);
    t->order = take(v, n, sizeof *t->order);
    if (!t->node || !t->order)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const struct by_bytes *k = &list[i];
        uint32_t same = 0;

        while (i > 0 && same < k->n && same < list[i - 1].n && k->p[same] == list[i - 1].p[same])
            same++;
        for (; depth > same; depth--)
            t->node[path[depth]].skip = t->n;
        for (; depth < k->n; t->n++) {
            struct gnode *x = &t->node[t->n];

            *x =
                (struct gnode){.first = i, .byte = k->p[depth], .depth = (uint8_t)(depth + 1), .clean = true};
            path[++depth] = t->n;
        }
        t->node[path[depth]].n_here++;
        t->order[i] = k->id;
        measure(k->p, k->n, clean);
        for (uint32_t d = 1; d <= depth; d++) {
            struct gnode *x = &t->node[path[d]];

            x->clean = x->clean && clean[d];
            if (x->rest < k->n - d)
                x->rest = (uint8_t)(k->n - d);
        }
    }
    for (; depth > 0; depth--)
        t->node[path[depth]].skip = t->n;
    t->node[t->n] = (struct gnode){.skip = t->n, .first = n};
    t->n_order = n;
    return 0;
}

/* The clean beginning is followed by a quote or backslash. */
static bool reaches_quote(const uint8_t *b, uint32_t n) {
    for (uint32_t i = 0; i < n;) {
        int len = utf8_next(b + i, n - i, NULL);

        if (b[i] == '"' || b[i] == '\\')
            return true;
        if (len <= 0 || b[i] < 0x20)
            return false;
        i += (uint32_t)len;
    }
    return false;
}

static int make_sets(struct grammar_vocab *v, const struct by_bytes *list, uint32_t n) {
    bool clean[GRAMMAR_MAX_TOKEN_BYTES + 1];

    v->longer = take(v, n, sizeof *v->longer);
    v->clean_all = take(v, v->n_words, sizeof *v->clean_all);
    v->utf8_all = take(v, v->n_words, sizeof *v->utf8_all);
    if (!v->longer || !v->clean_all || !v->utf8_all)
        return -ENOMEM;
    for (uint32_t k = 0; k <= GRAM_CLEAN_STEPS; k++) {
        v->clean[k] = take(v, v->n_words, sizeof *v->clean[k]);
        if (!v->clean[k])
            return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t chars = measure(list[i].p, list[i].n, clean),
                 good = (uint32_t)utf8_valid_prefix(list[i].p, list[i].n);

        if (good == list[i].n || utf8_next(list[i].p + good, list[i].n - good, NULL) == 0)
            gram_set(v->utf8_all, list[i].id);
        if (!clean[0])
            continue;
        gram_set(v->clean_all, list[i].id);
        if (chars > v->most_chars)
            v->most_chars = chars;
        if (chars > GRAM_CLEAN_STEPS)
            v->longer[v->n_longer++] = (struct glong){list[i].id, chars};
        for (uint32_t k = chars; k <= GRAM_CLEAN_STEPS; k++)
            gram_set(v->clean[k], list[i].id);
    }
    return 0;
}

/* Characters that such a token begins inside a string, an escape that it leaves open included. */
static uint16_t count_chars(const uint8_t *b, uint32_t n) {
    uint32_t chars = 0;

    for (uint32_t i = 0; i < n;) {
        if (b[i] == '"')
            return (uint16_t)(chars | GRAM_CLOSES);
        chars += (b[i] & 0xc0) != 0x80;
        if (b[i] != '\\') {
            i++;
        } else if (i + 1 < n && b[i + 1] == 'u') {
            /* both halves of a pair of surrogates are one character: \uD8.. to \uDB.. */
            bool high = i + 3 < n && (b[i + 2] | 0x20) == 'd' && memchr("89aAbB", b[i + 3], 6);

            i += high ? 12 : 6;
        } else {
            i += 2;
        }
    }
    return (uint16_t)chars;
}

/* Rests of the tokens of the quote trie, which are sorted otherwise than the tokens. list: those tokens. */
static int make_rests(struct grammar_vocab *v, struct by_bytes *list, uint32_t n) {
    uint32_t m = 0, rest = 0;
    int r;

    v->rest_of = take(v, n, sizeof *v->rest_of);
    v->quote_chars = take(v, n, sizeof *v->quote_chars);
    if (!v->rest_of || !v->quote_chars)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        v->quote_chars[i] = count_chars(list[i].p, list[i].n);
        while (*list[i].p != '"' && *list[i].p != '\\') {
            list[i].p++;
            list[i].n--;
        }
        list[i].id = i;
    }
    qsort(list, n, sizeof *list, compare);
    for (uint32_t i = 0; i < n; i++) {
        bool same = i > 0 && list[i].n == list[i - 1].n && memcmp(list[i].p, list[i - 1].p, list[i].n) == 0;

        rest += i > 0 && !same;
        v->rest_of[list[i].id] = rest;
    }
    for (uint32_t i = 0; i < n; i++)
        if (i + 1 == n || v->rest_of[list[i].id] != v->rest_of[list[i + 1].id]) {
            list[m] = list[i];
            list[m].id = v->rest_of[list[i].id];
            m++;
        }
    r = make_trie(v, list, m, &v->rest);
    if (r == 0 && m > GRAM_MAX_RESTS) {
        free(v->rest_of);
        v->rest_of = NULL;
    }
    return r;
}

static int make_tables(struct grammar_vocab *v) {
    struct by_bytes *list = calloc(v->n_tokens ? v->n_tokens : 1, sizeof *list);
    uint32_t n = 0, m = 0;
    int r;

    if (!list)
        return -ENOMEM;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        list[n].p = token_bytes(v->view, i, &list[n].n);
        list[n].id = i;
        if (gram_has(v->is_text, i))
            n++;
    }
    qsort(list, n, sizeof *list, compare);
    r = make_trie(v, list, n, &v->all);
    if (r == 0)
        r = make_sets(v, list, n);
    for (uint32_t i = 0; i < n; i++)
        if (reaches_quote(list[i].p, list[i].n))
            list[m++] = list[i];
    if (r == 0)
        r = make_trie(v, list, m, &v->quote);
    if (r == 0)
        r = make_rests(v, list, m);
    free(list);
    return r;
}

int grammar_vocab_new(const struct vocab_view *view, struct grammar_vocab **ret, struct xerr *err) {
    struct grammar_vocab *v = calloc(1, sizeof *v);
    int r = -ENOMEM;

    if (v) {
        v->view = view;
        v->n_tokens = view->n_tokens;
        v->n_words = view->n_tokens / 32 + (view->n_tokens % 32 != 0);
        v->bytes = sizeof *v;
        v->is_text = take(v, v->n_words, sizeof *v->is_text);
        v->live = take(v, 1, sizeof *v->live);
    }
    if (v && v->is_text && v->live) {
        for (uint32_t i = 0; i < v->n_tokens; i++) {
            uint32_t n;

            token_bytes(view, i, &n);
            if (n > 0 && n <= GRAMMAR_MAX_TOKEN_BYTES)
                gram_set(v->is_text, i);
        }
        for (uint32_t i = 0; i < view->n_mark_ids + view->n_stop_ids; i++) {
            uint32_t id = i < view->n_mark_ids ? view->mark_ids[i] : view->stop_ids[i - view->n_mark_ids];

            if (id < v->n_tokens)
                v->is_text[id / 32] &= ~(UINT32_C(1) << id % 32);
        }
        r = make_tables(v);
    }
    if (r < 0) {
        grammar_vocab_free(v);
        return xerr_set(err, r, "no memory for the tables of %u tokens that grammars need", view->n_tokens);
    }
    *ret = v;
    return 0;
}

struct grammar_vocab *grammar_vocab_free(struct grammar_vocab *v) {
    if (!v)
        return NULL;
    free(v->all.node);
    free(v->all.order);
    free(v->quote.node);
    free(v->quote.order);
    free(v->rest.node);
    free(v->rest.order);
    free(v->rest_of);
    free(v->quote_chars);
    free(v->is_text);
    for (uint32_t k = 0; k <= GRAM_CLEAN_STEPS; k++)
        free(v->clean[k]);
    free(v->clean_all);
    free(v->utf8_all);
    free(v->longer);
    free(v->live);
    free(v);
    return NULL;
}

size_t grammar_vocab_bytes(const struct grammar_vocab *v) {
    return v->bytes;
}
