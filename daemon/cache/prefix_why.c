/* SPDX-License-Identifier: MIT */
/* prefix_why.c: why prompts were not found, for the operator. Hashes may be wrong here: they only choose a word.
 * Somebody else's prompts are looked at by their first ids' hash alone and all of them always, so that how long it
 * takes tells nothing. Engine thread. */
#include "prefix.h"
#include "prefix_priv.h"

uint64_t ids_hash(uint64_t before, const uint32_t *ids, uint32_t n) {
    uint64_t h = before ^ 0x9e3779b97f4a7c15u;

    for (uint32_t i = 0; i < n; i++)
        h = (h ^ ids[i]) * 0x100000001b3u + (h >> 29);
    return h;
}

void ghost_add(struct prefix *t, const struct point *p) {
    const struct node *nd = &t->nodes[p->node];
    struct ghost *g = &t->ghosts[t->next_ghost++ % PREFIX_GHOSTS];

    *g = (struct ghost){ .domain = t->roots[nd->root].domain, .pos = p->pos,
                         .hash = ids_hash(nd->hash, node_ids(t, p->node), point_offset(t, p)) };
}

/* A checkpoint that was given up lies further on in this very text. */
static bool was_evicted(const struct prefix *t, uint64_t domain, const struct prefix_text *x, uint32_t hit) {
    uint32_t len = text_len(x), deepest = 0, buf[PAGE_IDS];
    uint64_t before = 0;

    for (uint32_t i = 0; i < PREFIX_GHOSTS; i++)
        if (t->ghosts[i].domain == domain && t->ghosts[i].pos > deepest && t->ghosts[i].pos < len)
            deepest = t->ghosts[i].pos;
    if (deepest <= hit)
        return false;
    for (uint32_t base = 0; base < deepest; base += PAGE_IDS) {
        uint32_t n = deepest - base < PAGE_IDS ? deepest - base : PAGE_IDS;
        const uint32_t *ids = text_at(x, base, n, buf);

        for (uint32_t i = 0; i < PREFIX_GHOSTS; i++) {
            const struct ghost *g = &t->ghosts[i];

            if (g->domain == domain && g->pos > hit && g->pos > base && g->pos <= base + n &&
                g->hash == ids_hash(before, ids, g->pos - base))
                return true;
        }
        before = ids_hash(before, ids, n);
    }
    return false;
}

static bool is_elsewhere(const struct prefix *t, uint64_t domain, const struct prefix_text *x) {
    uint32_t buf[PAGE_IDS];
    uint64_t head = ids_hash(0, text_at(x, 0, KERN_GRID, buf), KERN_GRID);
    bool found = false;

    /* the first pages of all others, whatever lies behind them */
    for (uint32_t i = 0; i < t->cfg.max_checkpoints; i++) {
        if (!t->roots[i].n_points || t->roots[i].domain == domain)
            continue;
        for (uint32_t node = t->roots[i].child; node != PREFIX_NONE; node = t->nodes[node].next)
            found |= t->nodes[node].n_ids >= KERN_GRID && ids_hash(0, node_ids(t, node), KERN_GRID) == head;
    }
    return found;
}

static enum prefix_why why_of(const struct prefix *t, uint64_t domain, const struct prefix_text *x,
                              const struct prefix_hit *hit) {
    uint32_t len = text_len(x);

    if (len <= KERN_GRID)
        return PREFIX_WHY_SHORT;
    if (was_evicted(t, domain, x, hit->pos))
        return PREFIX_WHY_EVICTED;
    if (hit->shared)
        return PREFIX_WHY_DIVERGED;
    return is_elsewhere(t, domain, x) ? PREFIX_WHY_DOMAIN : PREFIX_WHY_NEW;
}

enum prefix_why prefix_count(struct prefix *t, uint64_t domain, const struct prefix_text *x,
                             const struct prefix_hit *hit, bool refused, uint64_t when) {
    uint32_t len = text_len(x);
    enum prefix_why why = PREFIX_WHY_HIT;

    t->counts.lookups++;
    t->counts.prompt_tokens += len;
    t->counts.hit_tokens += hit->pos;
    t->counts.hits += hit->pos != 0;
    if (refused)
        why = PREFIX_WHY_REFUSED;
    else if (hit->pos < len / 2 || !hit->pos)
        why = why_of(t, domain, x, hit);
    t->counts.why[why]++;
    if (why == PREFIX_WHY_HIT)
        return why;
    t->misses[t->n_misses++ % PREFIX_MISSES] = (struct prefix_miss){
        .when = when, .domain = domain, .prompt = len, .hit = hit->pos, .shared = hit->shared, .why = why };
    return why;
}

uint32_t prefix_get_misses(const struct prefix *t, struct prefix_miss ret[PREFIX_MISSES]) {
    uint32_t n = t->n_misses < PREFIX_MISSES ? t->n_misses : PREFIX_MISSES;

    for (uint32_t i = 0; i < n; i++)
        ret[i] = t->misses[(t->n_misses - 1 - i) % PREFIX_MISSES];
    return n;
}

const char *prefix_why_name(enum prefix_why why) {
    static const char *const names[PREFIX_WHY_N] = { "hit",      "new",   "evicted", "other-user",
                                                     "diverged", "short", "refused" };

    return (unsigned)why < PREFIX_WHY_N ? names[why] : "?";
}
