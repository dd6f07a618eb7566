/* SPDX-License-Identifier: MIT */
/* The block of numbers in region D. Its counts are the daemon's word and bounded here before they are used. */
#include <errno.h>
#include <string.h>

#include "clconn.h"
#include "wire_num.h"

_Static_assert((int)GLMD_TIER_ON == (int)GLMW_TIER_ON && (int)GLMD_TIER_OFF == (int)GLMW_TIER_OFF &&
                   (int)GLMD_TIER_READS == (int)GLMW_TIER_READS,
               "states are handed on as they are");
_Static_assert((int)GLMD_WHY_NEW == (int)GLMW_WHY_NEW && (int)GLMD_WHY_REFUSED == (int)GLMW_WHY_REFUSED,
               "reasons are handed on as they are");

static void take_users(const struct glmw_numbers *w, struct glmd_numbers *n) {
    for (uint32_t i = 0; i < w->n_users && i < GLMW_NUMBER_USERS; i++) {
        struct glmw_number_user u;
        memcpy(&u, w->users + i * sizeof u, sizeof u);
        n->users[n->n_users++] = (struct glmd_user_numbers){.uid = u.uid,
                                                            .weight = u.weight,
                                                            .running = u.running,
                                                            .queued = u.queued,
                                                            .served_tokens = u.served_tokens,
                                                            .lookups = u.lookups,
                                                            .hits = u.hits,
                                                            .prompt_tokens = u.prompt_tokens,
                                                            .cached_tokens = u.cached_tokens,
                                                            .tier_tokens = u.tier_tokens};
    }
}

static void take_misses(const struct glmw_numbers *w, struct glmd_numbers *n) {
    uint64_t now = cl_now_ns();
    for (uint32_t i = 0; i < w->n_misses && i < GLMW_NUMBER_MISSES; i++) {
        struct glmw_number_miss m;
        memcpy(&m, w->miss_list + i * sizeof m, sizeof m);
        n->miss[n->n_misses++] = (struct glmd_miss_numbers){.age_ns = m.t_ns < now ? now - m.t_ns : 0,
                                                            .uid = m.uid,
                                                            .why = m.why,
                                                            .prompt_tokens = m.prompt_tokens,
                                                            .found_tokens = m.found_tokens,
                                                            .same_tokens = m.same_tokens};
    }
}

int glmd_get_numbers(glmd_conn *c, struct glmd_numbers *ret) {
    struct glmw_numbers w;
    int r = cl_check(c);
    if (r < 0)
        return r;
    if (!(c->hello.features & GLMW_FEAT_NUMBERS))
        return -EOPNOTSUPP;
    r = glmw_block_read((const uint8_t GLMW_FOREIGN *)c->d + GLMW_NUMBERS_OFF, &w, sizeof w);
    if (r < 0 || !w.scope)
        return -EAGAIN;
    struct glmd_numbers n = {
        .all_users = w.scope == 2,
        .page_tokens = w.page_tokens,
        .pages_total = w.pages_total,
        .pages_free = w.pages_free,
        .pages_cached = w.pages_cached,
        .pages_high = w.pages_high,
        .slots_total = w.slots_total,
        .slots_free = w.slots_free,
        .slots_cached = w.slots_cached,
        .slots_high = w.slots_high,
        .seats = w.seats,
        .running = w.running,
        .paused = w.paused,
        .queued = w.queued,
        .cache_bytes = w.cache_bytes,
        .kept = w.kept,
        .evicted = w.evicted,
        .lookups = w.lookups,
        .hits = w.hits,
        .prompt_tokens = w.prompt_tokens,
        .cached_tokens = w.cached_tokens,
        .tier_tokens = w.tier_tokens,
        .misses = w.misses,
    };
    n.tier_state = w.tier_state;
    n.tier_error = w.tier_error;
    n.tier_blocks = w.tier_blocks;
    n.tier_checkpoints = w.tier_checkpoints;
    n.tier_foreign = w.tier_foreign;
    n.tier_bytes = w.tier_bytes;
    n.tier_max_bytes = w.tier_max_bytes;
    n.tier_written = w.tier_written;
    n.tier_read = w.tier_read;
    n.tier_refused = w.tier_refused;
    n.tier_damaged = w.tier_damaged;
    n.tier_thrown_out = w.tier_thrown_out;
    memcpy(n.tier_text, w.tier_text, sizeof n.tier_text - 1);
    take_users(&w, &n);
    take_misses(&w, &n);
    return cl_give(ret, &n, sizeof n);
}
