/* SPDX-License-Identifier: MIT */
/* simcache.c: see simcache.h. What differs from ecache.c is left out of it on purpose: copies, twins, the tier. */
#include "simcache.h"

#include <errno.h>
#include <stdlib.h>

enum { END_MARGIN = 8, FORK_LEAST = 64 };

int simcache_init(struct simcache *c, uint32_t n_pages, uint32_t n_slots, uint32_t n_seats, uint64_t slot_bytes,
                  uint64_t page_bytes, struct simcache_seq **seqs, uint32_t n_seqs) {
    const struct prefix_config cfg = { .max_checkpoints = n_slots, .max_pages = n_pages, .slot_bytes = slot_bytes,
                                       .page_bytes = page_bytes };
    uint64_t bytes = 0;
    int r;

    *c = (struct simcache){ .n_spare = n_slots - n_seats, .seqs = seqs, .n_seqs = n_seqs };
    mem_account_init(&c->account);
    if ((r = mem_page_pool_init(&c->pages, &c->account, n_pages)) < 0 ||
        (r = mem_slot_pool_init(&c->slots, &c->account, n_slots)) < 0 || (r = prefix_bytes(&cfg, &bytes)) < 0)
        return r;
    c->memory = calloc(1, bytes);
    return c->memory ? prefix_init(&cfg, c->memory, bytes, &c->pages, &c->slots, &c->prefix) : -ENOMEM;
}

void simcache_done(struct simcache *c) {
    free(c->memory);
    mem_page_pool_done(&c->pages);
    mem_slot_pool_done(&c->slots);
}

/* ---- admission ---- */

static struct prefix_counts counts(const struct simcache *c) {
    struct prefix_counts n;

    prefix_get_counts(c->prefix, &n);
    return n;
}

void simcache_available(const struct simcache *c, uint32_t *ret_pages, uint32_t *ret_slots) {
    struct mem_pool_usage p = mem_page_pool_read(&c->pages), s = mem_slot_pool_read(&c->slots);
    struct prefix_counts n = counts(c);

    *ret_pages = p.n - p.used + p.idle;
    *ret_slots = s.n - s.used + n.checkpoints - n.pinned + c->n_rolling;
}

static void find(const struct simcache *c, const struct simcache_seq *q, struct prefix_hit *h) {
    const struct prefix_text x = { .ids = q->ids, .n_ids = q->read };

    prefix_find(c->prefix, q->domain, &x, h);
}

bool simcache_look(struct simcache *c, struct simcache_seq *q, uint32_t *ret_pages, uint32_t *ret_left) {
    struct prefix_hit h;
    uint32_t pages, slots, need;

    if (q->looked && q->looked_at == c->moves)
        return false;
    q->looked = true;
    q->looked_at = c->moves;
    simcache_available(c, &pages, &slots);
    find(c, q, &h);
    if (h.pos && slots <= 1) /* the only slot that can be had is that of the hit */
        h = (struct prefix_hit){ .checkpoint = PREFIX_NONE };
    need = q->n_pages - h.full_pages + h.idle_pages;
    *ret_pages = need < q->n_pages ? need : q->n_pages;
    *ret_left = q->read - h.pos;
    return true;
}

static bool drop_rolling(struct simcache *c) {
    for (uint32_t i = 0; i < c->n_seqs; i++)
        if (c->seqs[i]->roll_pos) {
            mem_slot_give(&c->slots, c->seqs[i]->roll);
            c->seqs[i]->roll_pos = 0;
            c->n_rolling--;
            return true;
        }
    return false;
}

static int take_all(struct simcache *c, struct simcache_seq *q, const struct prefix_hit *h) {
    struct mem_page part = { 0 };
    uint32_t n_held = 0, own = q->n_pages - h->full_pages;
    int r = 0;

    if (h->pos) {
        n_held = prefix_hold(c->prefix, h->checkpoint, q->pages);
        part = q->pages[n_held - 1];
    }
    while (r == 0 && mem_slot_take(&c->slots, &q->slot) < 0)
        if (!prefix_evict(c->prefix, PREFIX_WANT_SLOT) && !drop_rolling(c))
            r = -ENOBUFS;
    if (r == 0) {
        while (r == 0 && mem_pages_take(&c->pages, own, q->pages + h->full_pages) < 0)
            if (!prefix_evict(c->prefix, PREFIX_WANT_PAGE))
                r = -ENOBUFS;
        if (r < 0)
            mem_slot_give(&c->slots, q->slot);
    }
    if (r < 0)
        mem_pages_give(&c->pages, h->full_pages, q->pages);
    if (n_held > h->full_pages)
        mem_pages_give(&c->pages, 1, &part);
    if (h->pos)
        prefix_release(c->prefix, h->checkpoint);
    return r < 0 ? r : (int)own;
}

static void mark(struct simcache_seq *q, uint32_t pos) {
    pos -= pos % KERN_GRID;
    if (pos <= q->pos || pos >= q->prompt || q->n_marks == SIMCACHE_MARKS)
        return;
    for (uint32_t i = 0; i < q->n_marks; i++)
        if (q->marks[i] == pos)
            return;
    q->marks[q->n_marks++] = pos;
}

int simcache_take(struct simcache *c, struct simcache_seq *q) {
    struct prefix_hit h;
    int r;

    find(c, q, &h);
    r = take_all(c, q, &h);
    if (r == -ENOBUFS && h.pos) { /* what it could share is what would have to go */
        h = (struct prefix_hit){ .checkpoint = PREFIX_NONE, .shared = h.shared };
        r = take_all(c, q, &h);
    }
    c->moves++;
    if (r < 0)
        return r;
    q->holds = true;
    q->pos = h.pos;
    q->exact = !h.pos || h.exact ? UINT32_MAX : h.exact_rows;
    q->n_marks = 0;
    mark(q, q->system);
    if (q->prompt > END_MARGIN)
        mark(q, q->prompt - END_MARGIN);
    if (h.shared >= h.pos + FORK_LEAST)
        mark(q, h.shared);
    return r;
}

/* ---- checkpoints ---- */

static bool spare_slot(struct simcache *c, struct mem_slot *ret) {
    if (counts(c).checkpoints + c->n_rolling < c->n_spare && mem_slot_take(&c->slots, ret) == 0)
        return true;
    c->moves++;
    return prefix_evict(c->prefix, PREFIX_WANT_SLOT) && mem_slot_take(&c->slots, ret) == 0;
}

static void keep(struct simcache *c, const struct simcache_seq *q, struct mem_slot slot, uint32_t pos,
                 enum prefix_kind kind) {
    const struct prefix_new n = { .domain = q->domain, .text = { .ids = q->ids, .n_ids = pos }, .pos = pos,
                                  .exact = q->exact, .kind = kind, .slot = slot, .pages = q->pages };

    if (prefix_insert(c->prefix, &n) < 0)
        mem_slot_give(&c->slots, slot);
    c->moves++;
}

uint32_t simcache_next_mark(const struct simcache_seq *q) {
    uint32_t next = UINT32_MAX;

    for (uint32_t i = 0; i < q->n_marks; i++)
        if (q->marks[i] > q->pos && q->marks[i] < next)
            next = q->marks[i];
    return next;
}

void simcache_filled(struct simcache *c, struct simcache_seq *q) {
    struct mem_slot slot;

    for (uint32_t i = 0; i < q->n_marks; i++)
        if (q->marks[i] == q->pos) {
            if (spare_slot(c, &slot))
                keep(c, q, slot, q->pos, i ? PREFIX_END : PREFIX_SYSTEM);
            return;
        }
}

void simcache_roll(struct simcache *c, struct simcache_seq *q) {
    if (q->pos % KERN_GRID || q->pos <= q->prompt || q->pos <= q->roll_pos)
        return;
    if (!q->roll_pos) {
        if (!spare_slot(c, &q->roll))
            return;
        c->n_rolling++;
    }
    q->roll_pos = q->pos;
}

static void end_roll(struct simcache *c, struct simcache_seq *q, bool finished) {
    if (q->exact > q->prompt && q->pos > q->prompt)
        q->exact = q->prompt; /* from the first fed token on nothing is as a cold run would have it */
    if (!q->roll_pos)
        return;
    c->n_rolling--;
    if (finished)
        keep(c, q, q->roll, q->roll_pos, PREFIX_REPLY);
    else
        mem_slot_give(&c->slots, q->roll);
    q->roll_pos = 0;
}

static void give_pages(struct simcache *c, struct simcache_seq *q) {
    mem_pages_give(&c->pages, q->n_pages, q->pages);
    q->holds = false;
    c->moves++;
}

void simcache_leave(struct simcache *c, struct simcache_seq *q) {
    end_roll(c, q, true);
    if (q->pos && q->pos % KERN_GRID == 0)
        keep(c, q, q->slot, q->pos, PREFIX_REPLY);
    else
        mem_slot_give(&c->slots, q->slot);
    give_pages(c, q);
}

void simcache_end(struct simcache *c, struct simcache_seq *q, bool finished) {
    end_roll(c, q, finished);
    mem_slot_give(&c->slots, q->slot);
    give_pages(c, q);
}

/* ---- whether it adds up ---- */

const char *simcache_check(struct simcache *c, bool deep, bool over) {
    struct mem_pool_usage p = mem_page_pool_read(&c->pages), s = mem_slot_pool_read(&c->slots);
    struct prefix_counts n = counts(c);
    uint64_t held = n.pages, refs = 0;
    uint32_t slots = n.checkpoints + c->n_rolling, rolling = 0;
    const char *what = NULL;

    for (uint32_t i = 0; i < c->n_seqs; i++) {
        held += c->seqs[i]->holds ? c->seqs[i]->n_pages : 0;
        slots += c->seqs[i]->holds;
        rolling += c->seqs[i]->roll_pos != 0;
    }
    if (slots != s.used || rolling != c->n_rolling)
        return "a slot is lost, or two have it";
    if (n.pinned)
        return "a checkpoint stays pinned";
    if (deep || over) {
        for (uint32_t i = 0; i < p.n; i++)
            refs += mem_page_refs(&c->pages, (struct mem_page){ i });
        if (refs != held)
            return "a page is lost, or one holder too many has it";
        if (prefix_check(c->prefix, &what) < 0)
            return what;
    }
    if (!over)
        return NULL;
    if (p.used != p.idle)
        return "pages that nobody holds are not the cache's";
    prefix_clear(c->prefix);
    if (mem_page_pool_read(&c->pages).used || mem_slot_pool_read(&c->slots).used)
        return "the cache does not give all back";
    return NULL;
}
