/* SPDX-License-Identifier: MIT */
/* The block of numbers as one reader may see it. What tells one user about another's prompts, even that there are
 * any, is for root and for the daemon's own user. io thread. */
#include <string.h>

#include "conn_impl.h"
#include "ringops.h"

enum { PAGE_TOKENS = 256 };

static void put_found(const struct numbers_found *f, struct glmw_numbers *w) {
    w->lookups = f->lookups;
    w->hits = f->hits;
    w->prompt_tokens = f->prompt_tokens;
    w->cached_tokens = f->cached_tokens;
    w->tier_tokens = f->tier_tokens;
}

static void put_user(const struct numbers_user *u, struct glmw_numbers *w) {
    struct glmw_number_user o = {
        .uid = u->uid,
        .weight = u->weight,
        .running = u->running,
        .queued = u->queued,
        .served_tokens = u->served_tokens,
        .lookups = u->found.lookups,
        .hits = u->found.hits,
        .prompt_tokens = u->found.prompt_tokens,
        .cached_tokens = u->found.cached_tokens,
        .tier_tokens = u->found.tier_tokens,
    };

    memcpy(w->users + w->n_users++ * sizeof o, &o, sizeof o);
}

static void put_misses(const struct numbers_miss *ring, uint64_t misses, bool all, struct glmw_numbers *w) {
    uint32_t n = misses < NUMBERS_MISSES ? (uint32_t)misses : NUMBERS_MISSES;

    w->misses = misses;
    w->n_misses = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct numbers_miss *m = &ring[(misses - 1 - i) % NUMBERS_MISSES];
        bool hide = !all && m->why == NUMBERS_WHY_OTHER_USER && !FAULT(numbers_tell_on_others);
        struct glmw_number_miss o = {
            .t_ns = m->t_ns,
            .uid = m->uid,
            .why = hide ? GLMW_WHY_NEW : m->why,
            .prompt_tokens = m->prompt,
            .found_tokens = m->found,
            .same_tokens = m->same,
        };

        memcpy(w->miss_list + i * sizeof o, &o, sizeof o);
    }
}

/* That there is a tier, and whether it works, is for everybody; the rest tells of others' prompts and of paths. */
static void put_tier(const struct numbers_tier *t, bool all, struct glmw_numbers *w) {
    w->tier_state = t->state;
    if (!all && !FAULT(numbers_tell_on_others))
        return;
    w->tier_error = t->error;
    w->tier_blocks = t->blocks;
    w->tier_checkpoints = t->checkpoints;
    w->tier_foreign = t->foreign;
    w->tier_bytes = t->bytes;
    w->tier_max_bytes = t->max_bytes;
    w->tier_written = t->written;
    w->tier_read = t->read;
    w->tier_refused = t->refused;
    w->tier_damaged = t->damaged;
    w->tier_thrown_out = t->thrown_out;
    memcpy(w->tier_text, t->text, sizeof w->tier_text - 1);
}

void numbers_show(const struct numbers *n, uint32_t uid, bool all, struct glmw_numbers *w) {
    *w = (struct glmw_numbers){
        .scope = all ? 2 : 1,
        .page_tokens = PAGE_TOKENS,
        .pages_total = n->pages.total,
        .pages_free = n->pages.free,
        .pages_cached = n->pages.cached,
        .pages_high = n->pages.high,
        .slots_total = n->slots.total,
        .slots_free = n->slots.free,
        .slots_cached = n->slots.cached,
        .slots_high = n->slots.high,
        .seats = n->seats,
        .running = n->running,
        .paused = n->paused,
        .queued = n->queued,
    };
    put_tier(&n->tier, all, w);
    if (all) {
        w->cache_bytes = n->cache_bytes;
        w->kept = n->kept;
        w->evicted = n->evicted;
        put_found(&n->found, w);
        put_misses(n->miss, n->misses, true, w);
    }
    for (uint32_t i = 0; i < n->n_users && i < GLMW_NUMBER_USERS; i++) {
        if (!all && n->user[i].uid != uid)
            continue;
        put_user(&n->user[i], w);
        if (!all) {
            put_found(&n->user[i].found, w);
            put_misses(n->user[i].miss, n->user[i].misses, false, w);
        }
    }
}

void server_write_conn_numbers(struct server *s, struct conn *c) {
    struct glmw_numbers w;
    uint32_t uid = c->user->uid;

    if (!(c->features & GLMW_FEAT_NUMBERS) || !s->has_numbers)
        return;
    numbers_show(&s->numbers, uid, uid == 0 || uid == s->owner, &w);
    glmw_block_write((uint8_t *)c->shm.d + GLMW_NUMBERS_OFF, &w, sizeof w);
}

void server_write_numbers(struct server *s, const struct numbers *n) {
    s->numbers = *n;
    s->has_numbers = true;
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->state == CONN_OPEN)
            server_write_conn_numbers(s, c);
}
