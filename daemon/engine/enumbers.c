/* SPDX-License-Identifier: MIT */
/* See enumbers.h. Engine thread, except engine_get_numbers(). */
#include "enumbers.h"

#include <errno.h>

#include "clock.h"
#include "engine_priv.h"

#define SHOW_NS (200 * CLOCK_NS_PER_MS)

_Static_assert((int)NUMBERS_WHY_NEW == (int)PREFIX_WHY_NEW && (int)NUMBERS_WHY_EVICTED == (int)PREFIX_WHY_EVICTED &&
                   (int)NUMBERS_WHY_OTHER_USER == (int)PREFIX_WHY_DOMAIN &&
                   (int)NUMBERS_WHY_DIVERGED == (int)PREFIX_WHY_DIVERGED &&
                   (int)NUMBERS_WHY_SHORT == (int)PREFIX_WHY_SHORT &&
                   (int)NUMBERS_WHY_REFUSED == (int)PREFIX_WHY_REFUSED,
               "reasons are handed on as they are");

/* The row of a user; the one unused for longest gives way. NULL: all have something here now. */
static struct numbers_user *user_row(struct engine *e, const struct sched_req *req) {
    struct numbers *n = &e->numbers.now;
    struct numbers_user *oldest = NULL;

    for (uint32_t i = 0; i < n->n_users; i++) {
        struct numbers_user *u = &n->user[i];

        if (u->uid == req->uid) {
            u->used_ns = e->now_ns;
            u->weight = req->weight ? req->weight : SCHED_WEIGHT;
            return u;
        }
        if (!u->running && !u->queued && (!oldest || u->used_ns < oldest->used_ns))
            oldest = u;
    }
    if (n->n_users < NUMBERS_USERS)
        oldest = &n->user[n->n_users++];
    if (oldest)
        *oldest = (struct numbers_user){
            .uid = req->uid, .weight = req->weight ? req->weight : SCHED_WEIGHT, .used_ns = e->now_ns };
    return oldest;
}

void enumbers_open(struct engine *e, const struct sched_req *req) {
    struct numbers_user *u = user_row(e, req);

    if (u)
        u->queued++;
}

/* A row may have been made after its request came. */
static void less(uint32_t *n) {
    *n -= *n > 0;
}

void enumbers_admit(struct engine *e, const struct sched_req *req) {
    struct numbers_user *u = user_row(e, req);

    if (!u)
        return;
    less(&u->queued);
    u->running++;
}

void enumbers_end(struct engine *e, const struct sched_req *req, bool admitted, uint32_t tier) {
    struct numbers_user *u = user_row(e, req);

    e->numbers.now.found.tier_tokens += tier;
    if (!u)
        return;
    less(admitted && !FAULT(numbers_end_of_queued) ? &u->running : &u->queued);
    u->found.tier_tokens += tier;
}

static void count(struct numbers_found *f, uint32_t prompt, uint32_t cached) {
    f->lookups++;
    f->hits += cached != 0;
    f->prompt_tokens += prompt;
    f->cached_tokens += cached;
}

void enumbers_found(struct engine *e, const struct sched_req *req, uint32_t cached, uint32_t same,
                    enum prefix_why why) {
    struct numbers *n = &e->numbers.now;
    struct numbers_user *u = user_row(e, req);
    const struct numbers_miss m = { .t_ns = e->now_ns, .uid = req->uid, .why = (uint32_t)why, .prompt = req->n_ids,
                                    .found = cached, .same = same };

    count(&n->found, req->n_ids, cached);
    if (u)
        count(&u->found, req->n_ids, cached);
    if (why == PREFIX_WHY_HIT)
        return;
    n->miss[n->misses++ % NUMBERS_MISSES] = m;
    if (u)
        u->miss[u->misses++ % NUMBERS_MISSES] = m;
}

static void fill(struct engine *e, struct numbers *n) {
    struct mem_pool_usage pages = mem_page_pool_read(&e->pages), slots = mem_slot_pool_read(&e->slots);
    struct prefix_counts p = { 0 };
    struct sched_counts c;

    if (e->prefix)
        prefix_get_counts(e->prefix, &p);
    sched_get_counts(e->sched, &c);
    n->pages = (struct numbers_pool){ pages.n, pages.n - pages.used, pages.idle, pages.high };
    n->slots = (struct numbers_pool){ slots.n, slots.n - slots.used, p.checkpoints, slots.high };
    n->seats = e->opt.max_seqs;
    n->running = c.running;
    n->paused = c.paused;
    n->queued = c.queued;
    n->cache_bytes = p.bytes;
    n->kept = p.kept;
    n->evicted = p.evicted;
    for (uint32_t i = 0; i < n->n_users; i++)
        n->user[i].served_tokens = sched_user_tokens(e->sched, n->user[i].uid);
}

void enumbers_round(struct engine *e, bool sleeps) {
    struct enumbers *s = &e->numbers;

    if (!sleeps && e->now_ns - s->shown_ns < SHOW_NS) {
        s->stale = true;
        return;
    }
    if ((sleeps && !s->stale) || pthread_mutex_trylock(&s->lock))
        return; /* being read: the next round will do, and after a sleep somebody has posted */
    fill(e, &s->now);
    s->shown = s->now;
    pthread_mutex_unlock(&s->lock);
    s->shown_ns = e->now_ns;
    s->stale = false;
}

int engine_get_numbers(struct engine *e, struct numbers *ret) {
    if (pthread_mutex_trylock(&e->numbers.lock))
        return -EAGAIN;
    *ret = e->numbers.shown;
    pthread_mutex_unlock(&e->numbers.lock);
    return 0;
}
