/* SPDX-License-Identifier: MIT */
/* prefix_insert.c: a checkpoint and the pages it needs become part of the tree. What is there already wins over
 * the newcomer's, unless the newcomer's is exact and the old one is not. Engine thread. */
#include <errno.h>
#include <string.h>

#include "prefix.h"
#include "prefix_priv.h"

/* Where a text's first `pos` tokens leave what is kept. */
struct walk {
    uint32_t root, parent; /* the last node that agrees with a whole page, or NONE */
    uint32_t base;         /* the first id below it */
    uint32_t node;         /* its child that holds everything up to pos, or is a beginning of it; or NONE */
    bool grow;             /* the latter */
};

static void walk_down(const struct prefix *t, const struct prefix_new *n, struct walk *w) {
    uint32_t buf[PAGE_IDS];

    *w = (struct walk){ .root = root_find(t, n->domain), .parent = PREFIX_NONE, .node = PREFIX_NONE };
    if (w->root == PREFIX_NONE)
        return;
    for (;;) {
        uint32_t left = n->pos - w->base, m = left < PAGE_IDS ? left : PAGE_IDS, down = PREFIX_NONE;
        const uint32_t *ids = text_at(&n->text, w->base, m, buf);
        uint32_t at = w->parent == PREFIX_NONE ? t->roots[w->root].child : t->nodes[w->parent].child;

        for (uint32_t i = at; i != PREFIX_NONE && w->node == PREFIX_NONE; i = t->nodes[i].next) {
            uint32_t have = t->nodes[i].n_ids;
            uint32_t same = same_ids(node_ids(t, i), ids, have < m ? have : m);

            if (same == PAGE_IDS && left > PAGE_IDS)
                down = i;
            else if (same == m || same == have) {
                w->node = i;
                w->grow = same < m;
            }
        }
        if (down == PREFIX_NONE || w->node != PREFIX_NONE)
            return;
        w->parent = down;
        w->base += PAGE_IDS;
    }
}

static struct point *point_at(struct prefix *t, uint32_t node, uint32_t pos) {
    for (uint32_t i = t->nodes[node].points; i != PREFIX_NONE; i = t->points[i].next)
        if (t->points[i].pos == pos)
            return &t->points[i];
    return NULL;
}

/* ---- pages ---- */

static uint32_t rows_exact(const struct prefix_new *n, uint32_t base, uint32_t rows) {
    if (n->exact <= base)
        return 0;
    return n->exact - base < rows ? n->exact - base : rows;
}

static void page_swap(struct prefix *t, struct node *nd, struct mem_page page) {
    if (nd->page.id == page.id)
        return;
    mem_page_keep(t->pages, page);
    mem_page_unkeep(t->pages, nd->page);
    nd->page = page;
}

/* The newcomer holds `rows` rows of the node's page. */
static void node_take_over(struct prefix *t, uint32_t node, const struct prefix_new *n, uint32_t base, uint32_t rows) {
    struct node *nd = &t->nodes[node];
    uint32_t exact = rows_exact(n, base, rows), buf[PAGE_IDS];

    if (rows < nd->n_ids || (rows == nd->n_ids && exact <= nd->n_exact))
        return;
    if (rows > nd->n_ids) {
        memcpy(node_ids(t, node), text_at(&n->text, base, rows, buf), rows * sizeof *buf);
        nd->n_ids = (uint16_t)rows;
    }
    page_swap(t, nd, n->pages[nd->depth]);
    nd->n_exact = (uint16_t)exact;
}

static uint32_t node_add(struct prefix *t, uint32_t root, uint32_t parent, const struct prefix_new *n, uint32_t base) {
    uint32_t i = t->free_node, rows = n->pos - base < PAGE_IDS ? n->pos - base : PAGE_IDS, buf[PAGE_IDS];
    uint32_t *head = first_child(t, root, parent);
    struct node *nd = &t->nodes[i];
    uint64_t hash = 0;

    if (parent != PREFIX_NONE)
        hash = ids_hash(t->nodes[parent].hash, node_ids(t, parent), PAGE_IDS);
    t->free_node = nd->next;
    *nd = (struct node){ .page = n->pages[base / PAGE_IDS], .root = root, .parent = parent, .child = PREFIX_NONE,
                         .next = *head, .prev = PREFIX_NONE, .depth = base / PAGE_IDS, .n_ids = (uint16_t)rows,
                         .n_exact = (uint16_t)rows_exact(n, base, rows), .points = PREFIX_NONE, .hash = hash };
    if (*head != PREFIX_NONE)
        t->nodes[*head].prev = i;
    *head = i;
    memcpy(node_ids(t, i), text_at(&n->text, base, rows, buf), rows * sizeof *buf);
    mem_page_keep(t->pages, nd->page);
    t->n_nodes++;
    t->roots[root].n_pages++;
    return i;
}

/* Every page on the way may be a better one now. */
static void take_over_path(struct prefix *t, uint32_t node, const struct prefix_new *n) {
    for (; node != PREFIX_NONE; node = t->nodes[node].parent) {
        uint32_t base = t->nodes[node].depth * PAGE_IDS, left = n->pos - base;

        node_take_over(t, node, n, base, left < PAGE_IDS ? left : PAGE_IDS);
    }
}

/* ---- budgets ---- */

/* Room for one more checkpoint and the pages it adds. What is given up may be part of the path. */
static bool make_room(struct prefix *t, const struct prefix_new *n, struct walk *w) {
    for (;;) {
        uint32_t fresh;

        walk_down(t, n, w);
        fresh = mem_pages_for(n->pos - w->base) - (w->node != PREFIX_NONE);
        if (t->n_points < t->cfg.max_checkpoints && fresh <= t->cfg.max_pages - t->n_nodes &&
            (!t->cfg.max_bytes || bytes_of(t, t->n_points + 1, (uint64_t)t->n_nodes + fresh) <= t->cfg.max_bytes))
            return true;
        if (w->node != PREFIX_NONE && point_at(t, w->node, n->pos))
            return true; /* nothing is added */
        if (!prefix_evict(t, PREFIX_WANT_SLOT))
            return false;
    }
}

static uint32_t root_add(struct prefix *t, uint64_t domain) {
    uint32_t i = 0;

    while (t->roots[i].n_points)
        i++;
    t->roots[i] = (struct root){ .domain = domain, .child = PREFIX_NONE };
    t->n_roots++;
    return i;
}

static void point_add(struct prefix *t, uint32_t node, const struct prefix_new *n) {
    uint32_t i = t->free_point;
    struct point *p = &t->points[i];

    t->tick++;
    t->free_point = p->next;
    *p = (struct point){ .node = node, .next = t->nodes[node].points, .pos = n->pos, .slot = n->slot, .kind = n->kind,
                         .exact = n->exact >= n->pos || FAULT(prefix_decoded_exact),
                         .used = t->tick, .born = t->tick };
    t->nodes[node].points = t->newest = i;
    for (uint32_t up = node; up != PREFIX_NONE; up = t->nodes[up].parent)
        t->nodes[up].n_below++;
    t->roots[t->nodes[node].root].n_points++;
    t->n_points++;
    t->counts.kept++;
}

/* There is a state after these tokens. An exact one takes the place of one that is not. */
static int point_again(struct prefix *t, struct point *p, const struct prefix_new *n) {
    p->used = ++t->tick;
    if (n->kind == PREFIX_SYSTEM || n->kind == PREFIX_FORK)
        p->kind = n->kind;
    if (p->exact || n->exact < n->pos || p->pins)
        return -EEXIST;
    mem_slot_give(t->slots, p->slot);
    p->slot = n->slot;
    p->exact = true;
    p->born = t->tick;
    t->counts.replaced++;
    return 0;
}

int prefix_insert(struct prefix *t, const struct prefix_new *n) {
    struct point *old;
    struct walk w;

    t->newest = PREFIX_NONE;
    if (!n->pos || n->pos % KERN_GRID || n->pos > text_len(&n->text))
        return -EINVAL;
    if (!make_room(t, n, &w)) {
        t->counts.refused++;
        return -ENOSPC;
    }
    if (w.node != PREFIX_NONE && !w.grow) {
        take_over_path(t, w.node, n);
        old = point_at(t, w.node, n->pos);
        if (old)
            return point_again(t, old, n);
        point_add(t, w.node, n);
        return 0;
    }
    if (w.root == PREFIX_NONE)
        w.root = root_add(t, n->domain);
    if (w.node != PREFIX_NONE) {
        uint32_t left = n->pos - w.base;

        node_take_over(t, w.node, n, w.base, left < PAGE_IDS ? left : PAGE_IDS);
        w.parent = w.node;
        w.base += PAGE_IDS;
    }
    for (; w.base < n->pos; w.base += PAGE_IDS)
        w.parent = node_add(t, w.root, w.parent, n, w.base);
    take_over_path(t, w.parent, n);
    point_add(t, w.parent, n);
    return 0;
}

uint32_t prefix_newest(const struct prefix *t) {
    return t->newest;
}
