/* SPDX-License-Identifier: MIT */
/* prefix_evict.c: which checkpoint goes when something must. Each has a value: the tokens that would have to be
 * read again without it, times how likely that is, by the bytes it holds of both currencies. States that a later
 * one of their conversation has overtaken count little, ends of conversations more, places where prompts part
 * most; what was not used for long counts less, and what belongs to somebody who holds most of the cache as well.
 * Engine thread. */
#include <string.h>

#include "prefix.h"
#include "prefix_priv.h"

enum { FRESH_TICKS = 64, MOST_HITS = 16 };

/* ---- removing ---- */

static void node_drop(struct prefix *t, uint32_t node) {
    struct node *nd = &t->nodes[node];

    if (nd->prev != PREFIX_NONE)
        t->nodes[nd->prev].next = nd->next;
    else
        *first_child(t, nd->root, nd->parent) = nd->next;
    if (nd->next != PREFIX_NONE)
        t->nodes[nd->next].prev = nd->prev;
    if (!FAULT(prefix_leaks_pages))
        mem_page_unkeep(t->pages, nd->page);
    t->roots[nd->root].n_pages--;
    t->n_nodes--;
    *nd = (struct node){ .root = PREFIX_NONE, .next = t->free_node };
    t->free_node = node;
}

void point_drop(struct prefix *t, uint32_t point) {
    struct point *p = &t->points[point];
    uint32_t node = p->node, root = t->nodes[node].root, *link = &t->nodes[node].points;

    while (*link != point)
        link = &t->points[*link].next;
    *link = p->next;
    mem_slot_give(t->slots, p->slot);
    *p = (struct point){ .node = PREFIX_NONE, .next = t->free_point };
    t->free_point = point;
    t->n_points--;
    while (node != PREFIX_NONE) {
        uint32_t up = t->nodes[node].parent;

        if (!--t->nodes[node].n_below)
            node_drop(t, node);
        node = up;
    }
    if (!--t->roots[root].n_points)
        t->n_roots--;
}

/* ---- value ---- */

/* What giving a checkpoint up would mean. */
struct worth {
    uint32_t gain;  /* tokens that only this one saves */
    uint32_t pages; /* that only this one needs */
    uint32_t freed; /* of them, those nobody else holds */
    bool overtaken; /* a later state lies behind it on its only way on */
};

static void worth_of(const struct prefix *t, const struct point *p, struct worth *w) {
    uint32_t before = 0, alone = 1;

    *w = (struct worth){ 0 };
    for (uint32_t i = t->nodes[p->node].points; i != PREFIX_NONE; i = t->points[i].next)
        if (t->points[i].pos < p->pos) {
            before = t->points[i].pos > before ? t->points[i].pos : before;
            alone++;
        }
    w->overtaken = t->nodes[p->node].n_below > alone;
    for (uint32_t i = p->node; i != PREFIX_NONE; i = t->nodes[i].parent) {
        const struct node *nd = &t->nodes[i];

        if (nd->n_below == 1) {
            w->pages++;
            w->freed += mem_page_idle(t->pages, nd->page);
        } else if (i != p->node) {
            for (uint32_t k = nd->points; k != PREFIX_NONE; k = t->points[k].next)
                before = t->points[k].pos > before ? t->points[k].pos : before;
            if (before)
                break;
        }
    }
    w->gain = p->pos - before;
}

static bool is_shared(const struct point *p) {
    return p->kind == PREFIX_SYSTEM || p->kind == PREFIX_FORK || p->hits > 1;
}

static double value_of(const struct prefix *t, const struct point *p, const struct worth *w) {
    const struct root *r = &t->roots[t->nodes[p->node].root];
    double bytes = (double)bytes_of(t, 1, w->pages) + 1, all = (double)bytes_of(t, t->n_points, t->n_nodes) + 1;
    double share = ((double)bytes_of(t, r->n_points, r->n_pages) + 1) / all;
    double weight = is_shared(p) ? 4 : w->overtaken ? 1.0 / 16 : 1;

    if (FAULT(prefix_plain_lru))
        return 1.0 / (double)(t->tick - p->used + 1);
    weight *= 1 + (p->hits < MOST_HITS ? p->hits : MOST_HITS);
    weight /= (double)(t->tick - p->used + FRESH_TICKS);
    return (double)w->gain * weight / bytes / share;
}

bool prefix_evict(struct prefix *t, enum prefix_want want) {
    uint32_t victim = PREFIX_NONE;
    bool victim_frees = false;
    double least = 0;

    for (uint32_t i = 0; i < t->cfg.max_checkpoints; i++) {
        const struct point *p = &t->points[i];
        struct worth w;
        bool frees;
        double v;

        if (p->node == PREFIX_NONE || p->pins)
            continue;
        worth_of(t, p, &w);
        v = value_of(t, p, &w);
        frees = want != PREFIX_WANT_PAGE || w.freed;
        if (victim == PREFIX_NONE || (frees && !victim_frees) || (frees == victim_frees && v < least)) {
            victim = i;
            victim_frees = frees;
            least = v;
        }
    }
    if (victim == PREFIX_NONE)
        return false;
    ghost_add(t, &t->points[victim]);
    point_drop(t, victim);
    t->counts.evicted++;
    return true;
}

bool prefix_drop(struct prefix *t, uint32_t checkpoint, uint64_t serial) {
    const struct point *p = checkpoint < t->cfg.max_checkpoints ? &t->points[checkpoint] : NULL;

    if (!p || p->node == PREFIX_NONE || p->born != serial || p->pins)
        return false;
    if (t->newest == checkpoint)
        t->newest = PREFIX_NONE;
    point_drop(t, checkpoint);
    return true;
}

void prefix_clear(struct prefix *t) {
    for (uint32_t i = 0; i < t->cfg.max_checkpoints; i++)
        if (t->points[i].node != PREFIX_NONE && !t->points[i].pins)
            point_drop(t, i);
}
