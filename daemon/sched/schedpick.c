/* SPDX-License-Identifier: MIT */
/* schedpick.c: what runs now: the next chunk of a prompt, the decode batch, deadlines. Owned by the engine thread;
 * looks at no clock, allocates nothing. */
#include <errno.h>

#include "sched_priv.h"

static bool can_fill(const struct entry *e) {
    return e->state == SCHED_FILL && !e->skipped && !e->paused && e->part < e->left;
}

/* How far a user may be ahead of the others and still have its short prompts read first, in tokens. */
enum { SHORT_LEAD = 2 * SCHED_SHORT_TOKENS };

static bool is_old(const struct sched *s, struct entry *e, uint64_t now_ns) {
    return waited(&e->waiting_ns, now_ns) >= s->cfg.aging_ns && !FAULT(sched_no_aging);
}

/* Of one user's prompts: the one that waited too long, else the shortest. */
static struct entry *fill_of_user(struct sched *s, uint32_t account, bool low, uint64_t now_ns) {
    struct entry *best = NULL;
    bool best_old = false;

    for (uint32_t i = 0; i < s->n_admitted; i++) {
        struct entry *e = &s->entries[s->admitted[i]];
        bool old;

        if (e->account != account || !can_fill(e) || is_low(e) != low)
            continue;
        old = is_old(s, e, now_ns);
        if (!best || (old && (!best_old || e->waiting_ns < best->waiting_ns)) ||
            (!old && !best_old && e->left - e->part < best->left - best->part)) {
            best = e;
            best_old = old;
        }
    }
    return best;
}

/* Between users: short ones of those who want nothing else and are not ahead, the shortest first; else the least
 * served. */
static struct entry *fill_of_class(struct sched *s, bool low, uint64_t now_ns) {
    struct entry *best = NULL;
    uint64_t least = UINT64_MAX, best_served = 0;
    bool best_short = false;

    for (uint32_t i = 0; i < s->n_admitted; i++) {
        const struct entry *e = &s->entries[s->admitted[i]];

        if (can_fill(e) && is_low(e) == low && account_of(s, e)->trial < least)
            least = account_of(s, e)->trial;
    }
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        struct entry *e = &s->entries[s->admitted[i]];
        const struct account *a = account_of(s, e);
        bool is_short;

        if (!can_fill(e) || is_low(e) != low || fill_of_user(s, e->account, low, now_ns) != e)
            continue;
        is_short = a->backlog == 1 && e->left < SCHED_SHORT_TOKENS && a->trial - least <= shares(a, SHORT_LEAD) &&
                   !FAULT(sched_short_waits);
        if (!best || (is_short && (!best_short || e->left - e->part < best->left - best->part)) ||
            (!is_short && !best_short && a->trial < best_served)) {
            best = e;
            best_short = is_short;
            best_served = a->trial;
        }
    }
    return best;
}

/* The one whose next piece it is. low_first: background prompts are due. */
static struct entry *next_piece(struct sched *s, bool low_first, uint64_t now_ns) {
    struct entry *e = fill_of_class(s, low_first, now_ns);

    return e ? e : fill_of_class(s, !low_first, now_ns);
}

/* Background prompts go on, at one chunk in a while: their memory is not held for nothing. */
static bool background_due(struct sched *s, uint64_t now_ns) {
    struct entry *low = fill_of_class(s, true, now_ns);

    return low && waited(&low->waiting_ns, now_ns) >= s->cfg.aging_ns &&
           waited(&s->background_ns, now_ns) >= s->cfg.aging_ns;
}

static struct sched_part *part_of(struct sched_part *parts, uint32_t *n, uint32_t max, uint32_t job) {
    for (uint32_t i = 0; i < *n; i++)
        if (parts[i].job == job)
            return &parts[i];
    if (*n == max)
        return NULL;
    parts[*n] = (struct sched_part){ .job = job };
    return &parts[(*n)++];
}

uint32_t sched_plan_chunk(struct sched *s, uint64_t now_ns, uint32_t rows, uint32_t grid, struct sched_part *ret,
                          uint32_t max) {
    struct entry *e;
    uint32_t n = 0;
    bool low_first;

    accounts_refresh(s);
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        e = &s->entries[s->admitted[i]];
        account_of(s, e)->trial = account_of(s, e)->served;
        e->part = 0;
    }
    low_first = background_due(s, now_ns);
    while (rows && (e = next_piece(s, low_first, now_ns))) {
        uint32_t piece = e->left - e->part < grid ? e->left - e->part : grid;
        struct sched_part *p = piece <= rows ? part_of(ret, &n, max, (uint32_t)(e - s->entries)) : NULL;

        if (!p)
            break;
        p->tokens += piece;
        e->part += piece;
        rows -= piece;
        account_of(s, e)->trial += shares(account_of(s, e), piece);
        if (is_low(e))
            s->background_ns = now_ns;
    }
    for (uint32_t i = 0; i < n; i++)
        s->entries[ret[i].job].part = 0;
    return n;
}

void sched_filled(struct sched *s, uint32_t job, uint32_t tokens, uint64_t now_ns) {
    struct entry *e = entry_of(s, job);

    if (!e || e->state != SCHED_FILL)
        return;
    if (tokens > e->left)
        tokens = e->left;
    e->left -= tokens;
    e->waiting_ns = now_ns;
    account_of(s, e)->owed -= tokens;
    account_charge(s, account_of(s, e), tokens);
    if (!e->left)
        e->state = SCHED_DECODE;
}

uint32_t sched_pick_decode(const struct sched *s, uint32_t *ret_jobs, uint32_t max) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_admitted && n < max; i++) {
        const struct entry *e = &s->entries[s->admitted[i]];

        if (e->state == SCHED_DECODE && !e->skipped && !e->paused)
            ret_jobs[n++] = s->admitted[i];
    }
    return n;
}

void sched_served(struct sched *s, uint32_t job, uint32_t tokens) {
    struct entry *e = entry_of(s, job);

    if (!e)
        return;
    e->out += tokens;
    account_charge(s, account_of(s, e), tokens);
}

static bool anybody_waits(const struct sched *s) {
    for (uint32_t i = 0; i < s->n_queue; i++)
        if (!is_passed_over(&s->entries[s->queue[i]]))
            return true;
    for (uint32_t i = 0; i < s->n_admitted; i++)
        if (s->entries[s->admitted[i]].paused && !s->entries[s->admitted[i]].skipped)
            return true;
    return false;
}

uint64_t sched_next_event(const struct sched *s) {
    bool park = s->cfg.park_ns && anybody_waits(s);
    uint64_t t = SCHED_NEVER;

    for (uint32_t i = 0; i < s->n_queue; i++)
        if (s->entries[s->queue[i]].job.deadline_ns < t)
            t = s->entries[s->queue[i]].job.deadline_ns;
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        const struct entry *e = &s->entries[s->admitted[i]];
        uint64_t parked_ns = e->skipped_ns + s->cfg.park_ns - e->still_ns;

        if (e->job.deadline_ns < t)
            t = e->job.deadline_ns;
        /* one that was looked at after its time yields nothing by being looked at again */
        if (park && e->skipped && (!e->paused || e->job.movable) && parked_ns > s->looked_ns && parked_ns < t)
            t = parked_ns;
    }
    return t;
}

int sched_pick_expired(const struct sched *s, uint64_t now_ns, uint32_t *ret_job) {
    for (uint32_t i = 0; i < s->n_queue; i++) {
        if (s->entries[s->queue[i]].job.deadline_ns <= now_ns) {
            *ret_job = s->queue[i];
            return 0;
        }
    }
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        if (s->entries[s->admitted[i]].job.deadline_ns <= now_ns) {
            *ret_job = s->admitted[i];
            return 0;
        }
    }
    return -EAGAIN;
}
