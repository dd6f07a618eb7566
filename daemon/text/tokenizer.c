/* SPDX-License-Identifier: MIT */
/* Encoder and look-ups of the tokenizer; the file is read in tokload.c. Reads struct tok, writes only the
 * caller's scratch and arrays, so any thread may run it. */
#include "tokpriv.h"

#include "size.h"
#include "split.h"
#include "utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Up to this length the plain loop over all pairs beats the heap. */
#define SHORT_RUN 40
/* A scratch that grew beyond this for one long run gives the memory back at the end of the call. */
#define SCRATCH_KEEP_BYTES ((size_t)8 << 20)

uint32_t tok_size(const struct tok *t) {
    return t->size;
}

uint32_t tok_count(const struct tok *t) {
    return t->count;
}

size_t tok_max_bytes(const struct tok *t) {
    return t->max_bytes;
}

bool tok_ignores_merges(const struct tok *t) {
    return t->ignore_merges;
}

int tok_bytes(const struct tok *t, uint32_t id, const uint8_t **ret_bytes, size_t *ret_len) {
    if (id >= t->size || !t->entries[id].used)
        return -ENOENT;
    *ret_bytes = t->blob + t->entries[id].off;
    *ret_len = t->entries[id].len;
    return t->entries[id].flags;
}

int64_t tok_id(const struct tok *t, const char *added_text) {
    size_t n = strlen(added_text);

    if (n == 0)
        return -ENOENT;
    for (uint32_t i = t->added_start[(uint8_t)added_text[0]]; i < t->added_start[(uint8_t)added_text[0] + 1];
         i++) {
        const struct tok_entry *e = &t->entries[t->added[i]];

        if (e->len == n && memcmp(t->blob + e->off, added_text, n) == 0)
            return t->added[i];
    }
    return -ENOENT;
}

int64_t tok_marker_at(const struct tok *t, const char *text, size_t len, size_t *ret_len) {
    uint8_t first;

    if (len == 0)
        return -ENOENT;
    first = (uint8_t)text[0];
    for (uint32_t i = t->added_start[first]; i < t->added_start[first + 1]; i++) {
        const struct tok_entry *e = &t->entries[t->added[i]];

        if (e->len <= len && memcmp(t->blob + e->off, text, e->len) == 0) {
            if (ret_len)
                *ret_len = e->len;
            return t->added[i];
        }
    }
    return -ENOENT;
}

uint32_t tok_hash_bytes(const uint8_t *bytes, size_t n) {
    uint64_t h = n * UINT64_C(0x9e3779b97f4a7c15), w;

    while (n >= 8) {
        memcpy(&w, bytes, 8);
        h = (h ^ w) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
        bytes += 8;
        n -= 8;
    }
    w = 0;
    memcpy(&w, bytes, n);
    h = (h ^ w) * UINT64_C(0xff51afd7ed558ccd);
    return (uint32_t)(h ^ h >> 32);
}

uint32_t tok_vocab_find(const struct tok *t, const uint8_t *bytes, size_t n) {
    for (uint32_t i = tok_hash_bytes(bytes, n) & t->vocab_mask;; i = (i + 1) & t->vocab_mask) {
        uint32_t id = t->vocab[i];

        if (id == TOK_NONE)
            return TOK_NONE;
        if (t->entries[id].len == n && memcmp(t->blob + t->entries[id].off, bytes, n) == 0)
            return id;
    }
}

const struct tok_pair *tok_pair_find(const struct tok *t, uint32_t left, uint32_t right) {
    for (uint32_t i = tok_hash_pair(left, right) & t->pairs_mask;; i = (i + 1) & t->pairs_mask) {
        const struct tok_pair *p = &t->pairs[i];

        if (p->left == TOK_NONE)
            return NULL;
        if (p->left == left && p->right == right)
            return p;
    }
}

struct id_sink {
    uint32_t *ids; /* NULL: count only */
    size_t n, cap;
};

static int put_id(struct id_sink *o, uint32_t id) {
    if (o->ids) {
        if (o->n == o->cap)
            return -ENOSPC;
        o->ids[o->n] = id;
    }
    o->n++;
    return 0;
}

/* Symbols in an array, the rank of each one's pair beside it; the lowest rank, leftmost first, merges. */
static int merge_short(const struct tok *t, const uint8_t *s, size_t n, struct id_sink *o) {
    uint32_t sym[SHORT_RUN], rank[SHORT_RUN], into[SHORT_RUN];
    int r = 0;

    for (size_t i = 0; i < n; i++)
        sym[i] = t->byte_id[s[i]];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tok_pair *p = tok_pair_find(t, sym[i], sym[i + 1]);

        rank[i] = p ? p->rank : TOK_NONE;
        into[i] = p ? p->id : 0;
    }
    for (;;) {
        size_t best = 0;
        uint32_t lowest = TOK_NONE;

        for (size_t i = 0; i + 1 < n; i++) {
            if (rank[i] < lowest || (FAULT(bpe_rightmost) && rank[i] == lowest)) {
                lowest = rank[i];
                best = i;
            }
        }
        if (lowest == TOK_NONE)
            break;
        sym[best] = into[best];
        n--;
        memmove(sym + best + 1, sym + best + 2, (n - best - 1) * sizeof *sym);
        memmove(rank + best + 1, rank + best + 2, (n - best - 1) * sizeof *rank);
        memmove(into + best + 1, into + best + 2, (n - best - 1) * sizeof *into);
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct tok_pair *p = tok_pair_find(t, sym[i], sym[i + 1]);

            rank[i] = p ? p->rank : TOK_NONE;
            into[i] = p ? p->id : 0;
        }
    }
    for (size_t i = 0; i < n && r == 0; i++)
        r = put_id(o, sym[i]);
    return r;
}

/* Long runs: a doubly linked list of symbols and a heap of (rank, position). Entries whose pair has
 * changed since are recognised when they come up: the pair there now has another rank. */
struct long_run {
    uint32_t *sym, *prev, *next; /* sym TOK_NONE: merged away */
    uint64_t *heap;              /* rank << 32 | position, smallest first, which is also leftmost first */
    size_t n_heap;
};

static void heap_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t v = heap[i];

    for (;;) {
        size_t c = 2 * i + 1;

        if (c >= n)
            break;
        if (c + 1 < n && heap[c + 1] < heap[c])
            c++;
        if (v <= heap[c])
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = v;
}

static void heap_push(struct long_run *w, uint64_t v) {
    size_t i = w->n_heap++;

    while (i > 0 && w->heap[(i - 1) / 2] > v) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = v;
}

static void push_pair(const struct tok *t, struct long_run *w, uint32_t at) {
    const struct tok_pair *p;

    if (w->next[at] == TOK_NONE)
        return;
    p = tok_pair_find(t, w->sym[at], w->sym[w->next[at]]);
    if (p)
        heap_push(w, (uint64_t)p->rank << 32 | at);
}

/* Memory for a run of n bytes: three words a byte for the list; the heap holds at most the n - 1 first
 * pairs plus one more for every merge (each takes one entry out and puts at most two in). */
static int long_run_init(struct tok_scratch *s, size_t n, struct long_run *ret) {
    uint64_t need;

    if (n >= TOK_NONE || !size_mul(n, 3 * sizeof(uint32_t) + 2 * sizeof(uint64_t), &need) || need > SIZE_MAX)
        return -E2BIG;
    if (s->max_bytes && need > s->max_bytes)
        return -E2BIG;
    if (need > s->mem_bytes) {
        free(s->mem);
        s->mem_bytes = 0;
        s->mem = malloc((size_t)need);
        if (!s->mem)
            return -ENOMEM;
        s->mem_bytes = (size_t)need;
    }
    ret->heap = s->mem;
    ret->n_heap = 0;
    ret->sym = (uint32_t *)(void *)(ret->heap + 2 * n);
    ret->prev = ret->sym + n;
    ret->next = ret->prev + n;
    return 0;
}

static int merge_long(const struct tok *t, struct tok_scratch *scratch, const uint8_t *s, size_t n,
                      struct id_sink *o) {
    struct long_run w;
    int r = long_run_init(scratch, n, &w);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < n; i++) {
        w.sym[i] = t->byte_id[s[i]];
        w.prev[i] = i > 0 ? i - 1 : TOK_NONE;
        w.next[i] = i + 1 < n ? i + 1 : TOK_NONE;
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct tok_pair *p = tok_pair_find(t, w.sym[i], w.sym[i + 1]);

        if (p)
            w.heap[w.n_heap++] = (uint64_t)p->rank << 32 | i;
    }
    for (size_t i = w.n_heap / 2; i-- > 0;)
        heap_down(w.heap, w.n_heap, i);
    while (w.n_heap > 0) {
        uint32_t at = (uint32_t)w.heap[0], rank = (uint32_t)(w.heap[0] >> 32), right;
        const struct tok_pair *p;

        w.heap[0] = w.heap[--w.n_heap];
        if (w.n_heap > 0)
            heap_down(w.heap, w.n_heap, 0);
        if (w.sym[at] == TOK_NONE || w.next[at] == TOK_NONE)
            continue;
        right = w.next[at];
        p = tok_pair_find(t, w.sym[at], w.sym[right]);
        if (!p || (p->rank != rank && !FAULT(bpe_stale_pair)))
            continue;
        w.sym[at] = p->id;
        w.sym[right] = TOK_NONE;
        w.next[at] = w.next[right];
        if (w.next[at] != TOK_NONE)
            w.prev[w.next[at]] = at;
        if (w.prev[at] != TOK_NONE)
            push_pair(t, &w, w.prev[at]);
        push_pair(t, &w, at);
    }
    for (uint32_t i = 0; i != TOK_NONE && r == 0; i = w.next[i])
        r = put_id(o, w.sym[i]);
    return r;
}

static int encode_text(const struct tok *t, struct tok_scratch *s, const uint8_t *text, size_t len,
                       struct id_sink *o) {
    for (size_t at = 0; at < len;) {
        const uint8_t *piece = text + at;
        size_t n = split_next(piece, len - at);
        uint32_t id;
        int r;

        at += n;
        if (n == 1) {
            r = put_id(o, t->byte_id[piece[0]]);
        } else if (t->ignore_merges && (id = tok_vocab_find(t, piece, n)) != TOK_NONE) {
            r = put_id(o, id);
        } else if (n <= SHORT_RUN) {
            r = merge_short(t, piece, n, o);
        } else {
            r = merge_long(t, s, piece, n, o);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

int tok_encode(const struct tok *t, struct tok_scratch *s, const char *text, size_t len, unsigned flags,
               uint32_t *ids, size_t cap, size_t *ret_n) {
    struct id_sink o = {.ids = ids, .cap = cap};
    size_t start = 0;
    int r = 0;

    if (!utf8_is_valid(text, len))
        return -EILSEQ;
    for (size_t at = 0; flags & TOK_MARKERS && at < len && r == 0;) {
        size_t n;
        int64_t id = tok_marker_at(t, text + at, len - at, &n);

        if (id < 0) {
            at++;
            continue;
        }
        r = encode_text(t, s, (const uint8_t *)text + start, at - start, &o);
        if (r == 0)
            r = put_id(&o, (uint32_t)id);
        at += n;
        start = at;
    }
    if (r == 0)
        r = encode_text(t, s, (const uint8_t *)text + start, len - start, &o);
    if (s->mem_bytes > SCRATCH_KEEP_BYTES) {
        free(s->mem);
        s->mem = NULL;
        s->mem_bytes = 0;
    }
    if (r == 0)
        *ret_n = o.n;
    return r;
}

int tok_scratch_new(size_t max_bytes, struct tok_scratch **ret) {
    struct tok_scratch *s = calloc(1, sizeof *s);

    if (!s)
        return -ENOMEM;
    s->max_bytes = max_bytes;
    *ret = s;
    return 0;
}

struct tok_scratch *tok_scratch_free(struct tok_scratch *s) {
    if (s)
        free(s->mem);
    free(s);
    return NULL;
}
