/* SPDX-License-Identifier: MIT */
/* prefix_check.c: whether the tree adds up. Tests and the simulation call it, no step does. */
#include <errno.h>

#include "prefix.h"
#include "prefix_priv.h"

struct sums {
    uint32_t nodes, points, pinned;
    const char *what;
};

static bool wrong(struct sums *s, bool is, const char *what) {
    if (is && !s->what)
        s->what = what;
    return s->what != NULL;
}

static void check_points(const struct prefix *t, uint32_t node, struct sums *s) {
    const struct node *nd = &t->nodes[node];
    uint32_t n = 0;

    for (uint32_t i = nd->points; i != PREFIX_NONE; i = t->points[i].next) {
        const struct point *p = &t->points[i];

        if (wrong(s, i >= t->cfg.max_checkpoints || ++n > t->cfg.max_checkpoints, "a checkpoint's link"))
            return;
        wrong(s, p->node != node, "a checkpoint under another node");
        wrong(s, p->pos % KERN_GRID || p->pos <= nd->depth * PAGE_IDS, "a checkpoint's position");
        if (s->what)
            return;
        wrong(s, point_offset(t, p) > nd->n_ids, "a checkpoint behind its node's ids");
        wrong(s, !p->slot.id && t->slots->ids.n == 0, "a slot");
        wrong(s, p->slot.id >= t->slots->ids.n || !t->slots->ids.refs[p->slot.id], "a checkpoint's slot is not taken");
        for (uint32_t k = p->next; k != PREFIX_NONE; k = t->points[k].next)
            wrong(s, t->points[k].pos == p->pos, "two checkpoints at one place");
        s->pinned += p->pins != 0;
    }
    s->points += n;
}

/* No recursion: a tree may be thousands of pages deep. Nodes come in any order, each checks its own surroundings. */
static void check_node(const struct prefix *t, uint32_t node, struct sums *s) {
    const struct node *nd = &t->nodes[node];
    uint32_t below = 0, last = PREFIX_NONE;

    s->nodes++;
    wrong(s, !nd->n_ids || nd->n_ids > PAGE_IDS || nd->n_exact > nd->n_ids, "a node's ids");
    wrong(s, nd->page.id >= t->pages->ids.n || !t->pages->ids.kept[nd->page.id], "a node's page is not kept");
    wrong(s, nd->root >= t->cfg.max_checkpoints || !t->roots[nd->root].n_points, "a node without a root");
    wrong(s, nd->parent == PREFIX_NONE ? nd->depth != 0 : t->nodes[nd->parent].depth + 1 != nd->depth, "a depth");
    wrong(s, nd->child != PREFIX_NONE && nd->n_ids != PAGE_IDS, "a page follows one that is not full");
    wrong(s, nd->prev != PREFIX_NONE && t->nodes[nd->prev].next != node, "a sibling's link");
    if (s->what)
        return;
    check_points(t, node, s);
    for (uint32_t i = nd->points; i != PREFIX_NONE; i = t->points[i].next)
        below++;
    for (uint32_t i = nd->child; i != PREFIX_NONE && !s->what; i = t->nodes[i].next) {
        wrong(s, t->nodes[i].parent != node || t->nodes[i].prev != last, "a child's link");
        below += t->nodes[i].n_below;
        last = i;
    }
    wrong(s, !below || below != nd->n_below, "a count of checkpoints underneath");
    for (uint32_t i = nd->next; i != PREFIX_NONE && !s->what; i = t->nodes[i].next) {
        uint32_t n = t->nodes[i].n_ids < nd->n_ids ? t->nodes[i].n_ids : nd->n_ids;

        wrong(s, same_ids(node_ids(t, node), node_ids(t, i), n) == n, "a sibling that is another's beginning");
        wrong(s, t->nodes[i].page.id == nd->page.id, "a page in two places");
    }
}

static void check_roots(const struct prefix *t, struct sums *s) {
    uint32_t n = 0, pages = 0, points = 0;

    for (uint32_t i = 0; i < t->cfg.max_checkpoints && !s->what; i++) {
        const struct root *r = &t->roots[i];
        uint32_t below = 0;

        if (!r->n_points)
            continue;
        n++;
        pages += r->n_pages;
        points += r->n_points;
        for (uint32_t k = r->child; k != PREFIX_NONE; k = t->nodes[k].next)
            below += t->nodes[k].n_below;
        wrong(s, below != r->n_points, "a root's count");
        for (uint32_t k = i + 1; k < t->cfg.max_checkpoints; k++)
            wrong(s, t->roots[k].n_points && t->roots[k].domain == r->domain, "a domain with two roots");
    }
    wrong(s, n != t->n_roots || pages != t->n_nodes || points != t->n_points, "the roots' sums");
}

int prefix_check(const struct prefix *t, const char **ret_what) {
    struct sums s = { 0 };
    uint32_t kept = 0, slots = 0;

    for (uint32_t i = 0; i < t->cfg.max_pages && !s.what; i++)
        if (t->nodes[i].root != PREFIX_NONE)
            check_node(t, i, &s);
    wrong(&s, s.nodes != t->n_nodes || s.points != t->n_points || s.pinned != t->n_pinned, "a sum");
    check_roots(t, &s);
    for (uint32_t i = 0; i < t->pages->ids.n; i++)
        kept += t->pages->ids.kept[i];
    wrong(&s, kept != t->n_nodes, "pages kept that are in no node");
    for (uint32_t i = 0; i < t->cfg.max_checkpoints; i++)
        slots += t->points[i].node != PREFIX_NONE;
    wrong(&s, slots != t->n_points, "checkpoints in no node");
    wrong(&s, t->cfg.max_bytes && bytes_of(t, t->n_points, t->n_nodes) > t->cfg.max_bytes, "the byte budget");
    if (!s.what)
        return 0;
    *ret_what = s.what;
    return -EBADMSG;
}
