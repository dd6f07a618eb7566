/* SPDX-License-Identifier: MIT */
/* The tree, seen inside the cache room only. Links are indices into the tables made at init. */
#ifndef GLMD_CACHE_PREFIX_PRIV_H
#define GLMD_CACHE_PREFIX_PRIV_H

#include "prefix.h"

enum { PAGE_IDS = KERN_PAGE_TOKENS };

struct node {
    struct mem_page page;
    uint32_t root;   /* PREFIX_NONE: the node is free, `next` links free ones */
    uint32_t parent; /* PREFIX_NONE: at the root */
    uint32_t child, next, prev;
    uint32_t depth;  /* index of the page in its sequence */
    uint16_t n_ids, n_exact;
    uint32_t points;  /* checkpoints here, linked by their next */
    uint32_t n_below; /* checkpoints here and underneath */
    uint64_t hash;    /* of the ids before this node: for the statistics of misses only */
};

struct point {
    uint32_t node; /* PREFIX_NONE: free, `next` links free ones */
    uint32_t next, pos;
    struct mem_slot slot;
    enum prefix_kind kind;
    bool exact;
    uint32_t hits, pins;
    uint64_t used, born; /* ticks */
};

struct root {
    uint64_t domain;
    uint32_t child;
    uint32_t n_points; /* 0: free */
    uint32_t n_pages;
};

/* A checkpoint that was given up. */
struct ghost {
    uint64_t domain, hash;
    uint32_t pos; /* 0: none */
};

struct prefix {
    struct prefix_config cfg;
    struct mem_page_pool *pages;
    struct mem_slot_pool *slots;
    struct node *nodes;   /* [cfg.max_pages] */
    uint32_t *ids;        /* [cfg.max_pages][PAGE_IDS] */
    struct point *points; /* [cfg.max_checkpoints] */
    struct root *roots;   /* [cfg.max_checkpoints] */
    uint32_t free_node, free_point;
    uint32_t n_nodes, n_points, n_pinned, n_roots;
    uint64_t tick;
    uint32_t newest; /* added by the last insertion, or PREFIX_NONE */
    struct prefix_counts counts;
    struct ghost ghosts[PREFIX_GHOSTS];
    uint32_t next_ghost;
    struct prefix_miss misses[PREFIX_MISSES];
    uint32_t n_misses; /* ever */
};

static inline uint32_t *node_ids(const struct prefix *t, uint32_t node) {
    return t->ids + (uint64_t)node * PAGE_IDS;
}

static inline uint32_t *first_child(struct prefix *t, uint32_t root, uint32_t node) {
    return node == PREFIX_NONE ? &t->roots[root].child : &t->nodes[node].child;
}

static inline uint32_t point_offset(const struct prefix *t, const struct point *p) {
    return p->pos - t->nodes[p->node].depth * PAGE_IDS;
}

/* prefix.c */
uint32_t root_find(const struct prefix *t, uint64_t domain);
/* Ids [base, base + n) of the text, where they lie or copied into buf. */
const uint32_t *text_at(const struct prefix_text *x, uint32_t base, uint32_t n, uint32_t buf[PAGE_IDS]);
uint32_t text_len(const struct prefix_text *x);
uint32_t same_ids(const uint32_t *a, const uint32_t *b, uint32_t n); /* how many agree from the start */
uint64_t bytes_of(const struct prefix *t, uint64_t points, uint64_t pages);

/* prefix_evict.c */
void point_drop(struct prefix *t, uint32_t point); /* with the nodes only it needed */

/* prefix_why.c */
uint64_t ids_hash(uint64_t before, const uint32_t *ids, uint32_t n);
void ghost_add(struct prefix *t, const struct point *p);

#endif
