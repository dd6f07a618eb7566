/* SPDX-License-Identifier: MIT */
/* The tables of what the tier holds. See spill_index.h. */
#include "spill_index.h"

#include <string.h>

static uint32_t bucket_count(uint32_t max_entries) {
    uint32_t n = 64;

    while (n < max_entries && n < 1u << 30)
        n *= 2;
    return n;
}

uint64_t spill_index_bytes(uint32_t max_entries) {
    return (uint64_t)max_entries * sizeof(struct spill_entry) + (uint64_t)bucket_count(max_entries) * sizeof(uint32_t);
}

void spill_index_init(struct spill_index *ix, void *mem, uint32_t max_entries) {
    memset(ix, 0, sizeof *ix);
    ix->e = mem;
    ix->n = max_entries;
    ix->mask = bucket_count(max_entries) - 1;
    ix->buckets = (uint32_t *)(void *)(ix->e + max_entries);
    memset(ix->buckets, 0xff, ((size_t)ix->mask + 1) * sizeof *ix->buckets);
    for (uint32_t i = 0; i < max_entries; i++)
        ix->e[i].next = i + 1 < max_entries ? i + 1 : SPILL_NONE;
    ix->free = max_entries ? 0 : SPILL_NONE;
    ix->doomed = ix->first = SPILL_NONE;
}

static uint32_t *bucket(const struct spill_index *ix, uint8_t kind, uint32_t pos, uint64_t hash) {
    uint64_t h = spill_hash_step(spill_hash_step(hash, pos), kind);

    return &ix->buckets[(h ^ h >> 32) & ix->mask];
}

static void unhash(struct spill_index *ix, uint32_t i) {
    struct spill_entry *e = &ix->e[i];
    uint32_t *at = bucket(ix, e->kind, e->pos, e->hash);

    while (*at != i)
        at = &ix->e[*at].next;
    *at = e->next;
    e->next = SPILL_NONE;
}

static bool can_be_thrown_out(const struct spill_entry *e) {
    return e->kind == SPILL_STATE || e->kind == SPILL_FOREIGN;
}

/* Tokens saved per byte. A foreign block saves nobody anything. */
static uint64_t worth(const struct spill_index *ix, const struct spill_entry *e) {
    return e->kind == SPILL_FOREIGN ? 0 : ix->floor + ((uint64_t)e->pos << 20) / (e->bytes / SPILL_ALIGN + 1) + 1;
}

uint32_t spill_index_add(struct spill_index *ix, const struct spill_entry *e) {
    uint32_t i = ix->free, *at;
    struct spill_entry *n;

    if (i == SPILL_NONE)
        return SPILL_NONE;
    n = &ix->e[i];
    ix->free = n->next;
    *n = *e;
    n->refs = n->bad = 0;
    n->before = n->after = SPILL_NONE;
    at = bucket(ix, n->kind, n->pos, n->hash);
    n->next = *at;
    *at = i;
    if (n->parent != SPILL_NONE)
        ix->e[n->parent].refs++;
    if (can_be_thrown_out(n)) {
        n->value = worth(ix, n);
        n->after = ix->first;
        if (ix->first != SPILL_NONE)
            ix->e[ix->first].before = i;
        ix->first = i;
    }
    ix->n_used++;
    ix->n_states += n->kind == SPILL_STATE;
    ix->n_foreign += n->kind == SPILL_FOREIGN;
    ix->bytes += n->bytes;
    return i;
}

uint32_t spill_index_find(const struct spill_index *ix, uint8_t kind, uint64_t domain, uint32_t pos, uint64_t hash,
                          uint32_t parent, uint8_t worst_quality) {
    uint32_t best = SPILL_NONE;

    for (uint32_t i = *bucket(ix, kind, pos, hash); i != SPILL_NONE; i = ix->e[i].next) {
        const struct spill_entry *e = &ix->e[i];

        if (e->kind != kind || (e->domain != domain && !FAULT(spill_domain_unchecked)) || e->pos != pos ||
            e->hash != hash || e->bad || e->quality > worst_quality)
            continue;
        if (e->parent != parent && (kind == SPILL_PAGE || parent != SPILL_NONE))
            continue;
        if (best == SPILL_NONE || e->quality < ix->e[best].quality)
            best = i;
    }
    return best;
}

void spill_index_hold(struct spill_index *ix, uint32_t i) {
    ix->e[i].refs++;
}

void spill_index_drop(struct spill_index *ix, uint32_t i) {
    while (i != SPILL_NONE && ix->e[i].refs == 0 && ix->e[i].state != SPILL_E_DOOMED) {
        struct spill_entry *e = &ix->e[i];
        uint32_t parent = e->parent;

        unhash(ix, i);
        if (can_be_thrown_out(e)) {
            if (e->before != SPILL_NONE)
                ix->e[e->before].after = e->after;
            else
                ix->first = e->after;
            if (e->after != SPILL_NONE)
                ix->e[e->after].before = e->before;
        }
        ix->n_states -= e->kind == SPILL_STATE;
        ix->n_foreign -= e->kind == SPILL_FOREIGN;
        ix->bytes -= e->bytes;
        e->state = SPILL_E_DOOMED;
        e->parent = SPILL_NONE;
        e->next = ix->doomed;
        ix->doomed = i;
        i = parent;
        if (i != SPILL_NONE)
            ix->e[i].refs--;
    }
}

void spill_index_release(struct spill_index *ix, uint32_t i) {
    if (--ix->e[i].refs == 0 && (ix->e[i].kind == SPILL_PAGE || ix->e[i].bad))
        spill_index_drop(ix, i);
}

void spill_index_used(struct spill_index *ix, uint32_t i) {
    ix->e[i].value = worth(ix, &ix->e[i]);
}

static bool stands_on(const struct spill_index *ix, uint32_t state, uint32_t page) {
    uint32_t i = state;

    while (i != SPILL_NONE && i != page)
        i = ix->e[i].parent;
    return i == page;
}

void spill_index_condemn(struct spill_index *ix, uint32_t i) {
    uint32_t s = ix->first;

    ix->e[i].bad = 1;
    while (s != SPILL_NONE) {
        uint32_t after = ix->e[s].after; /* dropping a state drops pages beside it, never another state */

        if (stands_on(ix, s, i)) {
            ix->e[s].bad = 1;
            spill_index_drop(ix, s);
        }
        s = after;
    }
    spill_index_drop(ix, i);
}

uint32_t spill_index_victim(const struct spill_index *ix) {
    uint32_t best = SPILL_NONE;

    for (uint32_t i = ix->first; i != SPILL_NONE; i = ix->e[i].after)
        if ((!ix->e[i].refs || FAULT(spill_evicts_held)) && ix->e[i].state == SPILL_E_READY &&
            (best == SPILL_NONE || ix->e[i].value < ix->e[best].value))
            best = i;
    return best;
}

bool spill_index_reap(struct spill_index *ix, struct spill_entry *ret) {
    uint32_t i = ix->doomed;

    if (i == SPILL_NONE)
        return false;
    *ret = ix->e[i];
    ix->doomed = ix->e[i].next;
    ix->e[i] = (struct spill_entry){ .next = ix->free };
    ix->free = i;
    ix->n_used--;
    return true;
}

int spill_index_audit(const struct spill_index *ix) {
    uint32_t used = 0, states = 0, foreign = 0, listed = 0, hashed = 0, live = 0;
    uint64_t bytes = 0;

    for (uint32_t b = 0; b <= ix->mask; b++)
        for (uint32_t i = ix->buckets[b]; i != SPILL_NONE; i = ix->e[i].next, hashed++)
            if (ix->e[i].state == SPILL_E_FREE || ix->e[i].state == SPILL_E_DOOMED)
                return 1;
    for (uint32_t i = ix->first; i != SPILL_NONE; i = ix->e[i].after)
        listed++;
    for (uint32_t i = 0; i < ix->n; i++) {
        const struct spill_entry *e = &ix->e[i];
        uint32_t children = 0;

        used += e->state != SPILL_E_FREE;
        if (e->state == SPILL_E_FREE || e->state == SPILL_E_DOOMED)
            continue;
        live++;
        states += e->kind == SPILL_STATE;
        foreign += e->kind == SPILL_FOREIGN;
        bytes += e->bytes;
        for (uint32_t k = 0; k < ix->n; k++)
            children += ix->e[k].state != SPILL_E_FREE && ix->e[k].state != SPILL_E_DOOMED && ix->e[k].parent == i;
        if (e->refs < children)
            return 2;
        if (e->parent != SPILL_NONE && ix->e[e->parent].kind != SPILL_PAGE)
            return 3;
    }
    if (used != ix->n_used || states != ix->n_states || foreign != ix->n_foreign || bytes != ix->bytes)
        return 4;
    return hashed != live || listed != states + foreign ? 5 : 0;
}
