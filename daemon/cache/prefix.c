/* SPDX-License-Identifier: MIT */
/* prefix.c: the tables, looking up, holding. Engine thread. */
#include "prefix.h"

#include <errno.h>
#include <string.h>

#include "prefix_priv.h"
#include "size.h"

/* ---- tables ---- */

struct parts {
    uint64_t nodes, ids, points, roots, end; /* offsets */
};

static bool place(uint64_t *at, uint64_t n, uint64_t size, uint64_t *ret) {
    uint64_t bytes;

    *ret = *at;
    return size_mul(n, size, &bytes) && size_add(bytes, 63, &bytes) && size_add(*at, bytes & ~(uint64_t)63, at);
}

static int parts_of(const struct prefix_config *cfg, struct parts *p) {
    uint64_t at = (sizeof(struct prefix) + 63) & ~(uint64_t)63;

    if (!cfg->max_checkpoints || !cfg->max_pages || cfg->max_pages == PREFIX_NONE ||
        cfg->max_checkpoints == PREFIX_NONE)
        return -EINVAL;
    if (!place(&at, cfg->max_pages, sizeof(struct node), &p->nodes) ||
        !place(&at, cfg->max_pages, PAGE_IDS * sizeof(uint32_t), &p->ids) ||
        !place(&at, cfg->max_checkpoints, sizeof(struct point), &p->points) ||
        !place(&at, cfg->max_checkpoints, sizeof(struct root), &p->roots))
        return -EOVERFLOW;
    p->end = at;
    return 0;
}

int prefix_bytes(const struct prefix_config *cfg, uint64_t *ret_bytes) {
    struct parts p;
    int r = parts_of(cfg, &p);

    if (r == 0)
        *ret_bytes = p.end;
    return r;
}

int prefix_init(const struct prefix_config *cfg, void *mem, uint64_t bytes, struct mem_page_pool *pages,
                struct mem_slot_pool *slots, struct prefix **ret) {
    struct prefix *t = mem;
    struct parts p;
    int r = parts_of(cfg, &p);

    if (r < 0)
        return r;
    if (bytes < p.end)
        return -EINVAL;
    t->cfg = *cfg;
    t->pages = pages;
    t->slots = slots;
    t->nodes = (struct node *)(void *)((char *)mem + p.nodes);
    t->ids = (uint32_t *)(void *)((char *)mem + p.ids);
    t->points = (struct point *)(void *)((char *)mem + p.points);
    t->roots = (struct root *)(void *)((char *)mem + p.roots);
    for (uint32_t i = 0; i < cfg->max_pages; i++)
        t->nodes[i] = (struct node){ .root = PREFIX_NONE, .next = i + 1 < cfg->max_pages ? i + 1 : PREFIX_NONE };
    for (uint32_t i = 0; i < cfg->max_checkpoints; i++)
        t->points[i] =
            (struct point){ .node = PREFIX_NONE, .next = i + 1 < cfg->max_checkpoints ? i + 1 : PREFIX_NONE };
    *ret = t;
    return 0;
}

uint64_t bytes_of(const struct prefix *t, uint64_t points, uint64_t pages) {
    uint64_t a, b, sum;

    if (!size_mul(points, t->cfg.slot_bytes, &a) || !size_mul(pages, t->cfg.page_bytes, &b) || !size_add(a, b, &sum))
        return UINT64_MAX;
    return sum;
}

/* ---- texts ---- */

uint32_t text_len(const struct prefix_text *x) {
    return x->n_more > UINT32_MAX - x->n_ids ? UINT32_MAX : x->n_ids + x->n_more;
}

const uint32_t *text_at(const struct prefix_text *x, uint32_t base, uint32_t n, uint32_t buf[PAGE_IDS]) {
    uint32_t first;

    if (base >= x->n_ids)
        return x->more + (base - x->n_ids);
    if (n <= x->n_ids - base)
        return x->ids + base;
    first = x->n_ids - base;
    memcpy(buf, x->ids + base, first * sizeof *buf);
    memcpy(buf + first, x->more, (n - first) * sizeof *buf);
    return buf;
}

uint32_t same_ids(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t i = 0;

    /* most pages differ early or not at all */
    if (n == PAGE_IDS && memcmp(a, b, PAGE_IDS * sizeof *a) == 0)
        return n;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

uint32_t root_find(const struct prefix *t, uint64_t domain) {
    for (uint32_t i = 0; i < t->cfg.max_checkpoints; i++)
        if (t->roots[i].n_points && (t->roots[i].domain == domain || FAULT(prefix_one_domain)))
            return i;
    return PREFIX_NONE;
}

/* ---- looking up ---- */

/* The deepest checkpoint of the node within its first n ids that is better than what was found. exact: rows on
 * the way here, this node's included. */
static void best_point(const struct prefix *t, const struct node *nd, uint32_t n, uint32_t most, uint32_t exact,
                       struct prefix_hit *ret) {
    for (uint32_t i = nd->points; i != PREFIX_NONE; i = t->points[i].next) {
        const struct point *p = &t->points[i];

        if (point_offset(t, p) > n || p->pos > most || p->pos <= ret->pos)
            continue;
        ret->checkpoint = i;
        ret->pos = p->pos;
        ret->slot = p->slot;
        ret->exact_rows = exact < p->pos ? exact : p->pos;
        ret->exact = p->exact && ret->exact_rows == p->pos;
    }
}

static void count_pages(const struct prefix *t, struct prefix_hit *ret) {
    ret->full_pages = ret->pos / PAGE_IDS;
    if (ret->checkpoint == PREFIX_NONE)
        return;
    for (uint32_t i = t->points[ret->checkpoint].node; i != PREFIX_NONE; i = t->nodes[i].parent)
        ret->idle_pages += mem_page_idle(t->pages, t->nodes[i].page);
}

void prefix_find(const struct prefix *t, uint64_t domain, const struct prefix_text *x, struct prefix_hit *ret) {
    uint32_t len = text_len(x), most = len ? len - 1 : 0, exact = 0, buf[PAGE_IDS];
    uint32_t root = root_find(t, domain), at = root == PREFIX_NONE ? PREFIX_NONE : t->roots[root].child;

    *ret = (struct prefix_hit){ .checkpoint = PREFIX_NONE };
    for (uint32_t base = 0; at != PREFIX_NONE && base < len; base += PAGE_IDS) {
        uint32_t n = len - base < PAGE_IDS ? len - base : PAGE_IDS, down = PREFIX_NONE, down_exact = exact;
        const uint32_t *ids = text_at(x, base, n, buf);

        for (uint32_t i = at; i != PREFIX_NONE; i = t->nodes[i].next) {
            const struct node *nd = &t->nodes[i];
            uint32_t same = same_ids(node_ids(t, i), ids, nd->n_ids < n ? nd->n_ids : n);
            uint32_t rows = exact == base ? base + nd->n_exact : exact;

            if (FAULT(prefix_trusts_length) && nd->n_ids <= n)
                same = nd->n_ids;
            if (!same)
                continue;
            if (base + same > ret->shared)
                ret->shared = base + same;
            best_point(t, nd, same, most, rows, ret);
            if (same == PAGE_IDS) {
                down = nd->child;
                down_exact = rows;
            }
        }
        at = down;
        exact = down_exact;
    }
    count_pages(t, ret);
}

/* ---- holding ---- */

uint32_t prefix_hold(struct prefix *t, uint32_t checkpoint, struct mem_page *ret_pages) {
    struct point *p = &t->points[checkpoint];
    uint32_t n = mem_pages_for(p->pos);

    for (uint32_t i = p->node; i != PREFIX_NONE; i = t->nodes[i].parent) {
        ret_pages[t->nodes[i].depth] = t->nodes[i].page;
        mem_pages_ref(t->pages, 1, &t->nodes[i].page);
    }
    if (!p->pins++)
        t->n_pinned++;
    p->hits++;
    p->used = ++t->tick;
    return n;
}

void prefix_release(struct prefix *t, uint32_t checkpoint) {
    struct point *p = &t->points[checkpoint];

    if (p->node != PREFIX_NONE && p->pins && !--p->pins)
        t->n_pinned--;
}

/* ---- what is there ---- */

bool prefix_get(const struct prefix *t, uint32_t checkpoint, struct prefix_info *ret) {
    const struct point *p;
    bool exact;

    if (checkpoint >= t->cfg.max_checkpoints || t->points[checkpoint].node == PREFIX_NONE)
        return false;
    p = &t->points[checkpoint];
    exact = p->exact && t->nodes[p->node].n_exact >= point_offset(t, p);
    for (uint32_t i = t->nodes[p->node].parent; i != PREFIX_NONE; i = t->nodes[i].parent)
        exact = exact && t->nodes[i].n_exact == PAGE_IDS;
    *ret = (struct prefix_info){ .domain = t->roots[t->nodes[p->node].root].domain, .pos = p->pos, .hits = p->hits,
                                 .pins = p->pins, .kind = p->kind, .exact = exact, .serial = p->born,
                                 .slot = p->slot };
    return true;
}

void prefix_get_ids(const struct prefix *t, uint32_t checkpoint, uint32_t *ret_ids) {
    const struct point *p = &t->points[checkpoint];
    uint32_t n = point_offset(t, p);

    for (uint32_t i = p->node; i != PREFIX_NONE; i = t->nodes[i].parent, n = PAGE_IDS)
        memcpy(ret_ids + (uint64_t)t->nodes[i].depth * PAGE_IDS, node_ids(t, i), n * sizeof *ret_ids);
}

void prefix_get_counts(const struct prefix *t, struct prefix_counts *ret) {
    *ret = t->counts;
    ret->checkpoints = t->n_points;
    ret->pinned = t->n_pinned;
    ret->pages = t->n_nodes;
    ret->domains = t->n_roots;
    ret->bytes = bytes_of(t, t->n_points, t->n_nodes);
}
