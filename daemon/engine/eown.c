/* SPDX-License-Identifier: MIT */
/* eown.c: which checkpoints a sequence has left, so that it never leaves more than ECACHE_MARKS: neither on the way
 * through a long prompt nor by giving its memory away and coming back. The one of least use goes. Engine thread. */
#include "engine_priv.h"

/* Those that are still there. */
static void refresh(const struct engine *e, struct ecache_seq *c) {
    struct prefix_info in;
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_own; i++)
        if (prefix_get(e->prefix, c->own[i].checkpoint, &in) && in.serial == c->own[i].serial)
            c->own[n++] = c->own[i];
    c->n_own = n;
}

/* Tokens between it and the one before, times those to the one behind: what prompts that part there would lose. */
static double between(const struct ecache_seq *c, const struct ecache_own *o) {
    uint32_t before = 0, behind = UINT32_MAX;

    for (uint32_t i = 0; i < c->n_own; i++) {
        uint32_t pos = c->own[i].pos;

        if (pos < o->pos && pos > before)
            before = pos;
        if (pos > o->pos && pos < behind)
            behind = pos;
    }
    return behind == UINT32_MAX ? 1e20 : (double)(o->pos - before) * (behind - o->pos);
}

/* What is lost with it: states of an answer that has a later one nothing; then those on the way; then places where
 * messages begin, the later the more; then the end of the answer, that of the prompt, and where prompts part. */
static double loss(const struct ecache_seq *c, const struct ecache_own *o) {
    switch (o->kind) {
    case PREFIX_REPLY:
        for (uint32_t i = 0; i < c->n_own; i++)
            if (c->own[i].kind == PREFIX_REPLY && c->own[i].pos > o->pos)
                return 0;
        return 1e24;
    case PREFIX_LONG:
        return between(c, o);
    case PREFIX_TURN:
        return 1e22 + o->pos;
    case PREFIX_END:
        return 1e26;
    default:
        return 1e28;
    }
}

void ecache_own_first(struct ecache_seq *c, const struct ecache_own *fetched) {
    c->n_own = 0;
    if (fetched->serial && !FAULT(ecache_fetched_free))
        c->own[c->n_own++] = *fetched;
}

void ecache_own(struct engine *e, struct ecache_seq *c, uint32_t pos, enum prefix_kind kind) {
    struct prefix_info in;
    uint32_t at = prefix_newest(e->prefix);

    if (at == PREFIX_NONE || !prefix_get(e->prefix, at, &in))
        return; /* there was one: it is not this sequence's */
    refresh(e, c);
    c->own[c->n_own++] = (struct ecache_own){ in.serial, at, pos, kind };
    while (c->n_own > ECACHE_MARKS && !FAULT(ecache_leaves_all) && !FAULT(ecache_keeps_all)) {
        uint32_t worst = c->n_own;

        for (uint32_t i = 0; i < c->n_own; i++)
            if (prefix_get(e->prefix, c->own[i].checkpoint, &in) && !in.pins &&
                (worst == c->n_own || loss(c, &c->own[i]) < loss(c, &c->own[worst])))
                worst = i;
        if (worst == c->n_own)
            break; /* cannot be: the newest is not pinned */
        prefix_drop(e->prefix, c->own[worst].checkpoint, c->own[worst].serial);
        c->own[worst] = c->own[--c->n_own];
    }
    if (c->n_own > ECACHE_MARKS)
        c->n_own = ECACHE_MARKS;
}

bool ecache_own_long(struct engine *e, struct ecache_seq *c) {
    refresh(e, c);
    if (c->n_own < ECACHE_MARKS || FAULT(ecache_leaves_all))
        return true;
    for (uint32_t i = 0; i < c->n_own; i++)
        if (c->own[i].kind == PREFIX_LONG)
            return true;
    return false;
}
