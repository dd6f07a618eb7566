/* SPDX-License-Identifier: MIT */
/* schedadmit.c: whose turn it is: order of the queue, admission by both currencies, seats given and taken.
 * Owned by the engine thread; looks at no clock, allocates nothing. */
#include <errno.h>
#include <string.h>

#include "sched_priv.h"

void account_charge(struct sched *s, struct account *a, uint32_t tokens) {
    a->served += shares(a, tokens);
    a->tokens += tokens;
    a->touched = ++s->order;
}

/* A user with nothing to be read is not behind: it asks for nothing. The floor is what the least served one of
 * those who ask has had; it never falls, and who begins to ask is lifted to it. */
void accounts_refresh(struct sched *s) {
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < s->n_accounts; i++)
        s->accounts[i].trial = 0;
    for (uint32_t i = 0; i < s->n_queue; i++)
        if (!is_passed_over(&s->entries[s->queue[i]]))
            account_of(s, &s->entries[s->queue[i]])->trial++;
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        const struct entry *e = &s->entries[s->admitted[i]];

        if (e->state == SCHED_FILL && !e->skipped && !e->paused)
            account_of(s, e)->trial++;
    }
    for (uint32_t i = 0; i < s->n_accounts; i++)
        if (s->accounts[i].trial && s->accounts[i].backlog && s->accounts[i].served < least)
            least = s->accounts[i].served;
    if (least != UINT64_MAX && least > s->floor)
        s->floor = least;
    for (uint32_t i = 0; i < s->n_accounts; i++) {
        struct account *a = &s->accounts[i];

        if (a->trial && !a->backlog && a->served < s->floor && !FAULT(sched_keeps_leads))
            a->served = s->floor;
        a->backlog = (uint32_t)a->trial;
    }
}

/* ---- the queue's order ---- */

static uint64_t account_key(const struct account *a) {
    return a->served + shares(a, a->owed); /* else a burst would be admitted whole before its first token counts */
}

static bool over_quota(const struct account *a, const struct sched_job *j) {
    return j->user_tokens && !FAULT(sched_no_quota) &&
           (a->reserved > j->user_tokens || job_tokens(j) > j->user_tokens - a->reserved);
}

/* One that was begun keeps its place among the caller's sequences. What stands still holds places for as long as
 * its reader likes: the rest is for other users. */
static bool has_place(const struct sched *s, const struct entry *e) {
    uint32_t held = s->n_admitted + s->n_away;

    if (e->away)
        return true;
    if (!s->free_places || held >= s->cfg.n_places)
        return false;
    return !account_of(s, e)->still || account_of(s, e)->places < s->cfg.n_places - held ||
           FAULT(sched_places_unbounded);
}

/* Whether e goes before best, both of the same class. Who gave its memory away comes back before new ones of the
 * background begin: else they would take all places in the end, and nobody could. */
static bool is_sooner(const struct sched *s, const struct entry *e, const struct entry *best) {
    if (is_low(e) && e->away != best->away && !FAULT(sched_new_before_away))
        return e->away;
    return account_key(account_of(s, e)) < account_key(account_of(s, best));
}

/* Place in the queue of the job whose turn it is. -EAGAIN: there is none. now: where no sequence more can be begun,
 * those that were begun go on. */
static int queue_head(struct sched *s, bool now, uint32_t *ret) {
    const struct entry *best = NULL;

    for (uint32_t i = 0; i < s->n_queue; i++) {
        struct account *a = account_of(s, &s->entries[s->queue[i]]);

        a->held = a->held_low = a->still = false;
    }
    for (uint32_t i = 0; i < s->n_queue; i++)
        account_of(s, &s->entries[s->queue[i]])->still |= s->entries[s->queue[i]].skipped;
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        const struct entry *e = &s->entries[s->admitted[i]];

        account_of(s, e)->still |= e->skipped;
    }
    for (uint32_t i = 0; i < s->n_queue; i++) {
        const struct entry *e = &s->entries[s->queue[i]];
        struct account *a = account_of(s, e);
        bool low = is_low(e);

        if (is_passed_over(e) || (now && !has_place(s, e)))
            continue;
        if (over_quota(a, &e->job)) {
            a->held_low = true;
            a->held |= !low;
        }
        if (low ? a->held_low : a->held)
            continue;
        if (best && (low != is_low(best) ? low : !is_sooner(s, e, best)))
            continue;
        best = e;
        *ret = i;
    }
    return best ? 0 : -EAGAIN;
}

static void promote(struct sched *s, uint64_t now_ns) {
    if (!s->cfg.patience_ns || FAULT(sched_no_patience))
        return;
    for (uint32_t i = 0; i < s->n_queue; i++) {
        struct entry *e = &s->entries[s->queue[i]];

        if (is_low(e) && waited(&e->waiting_ns, now_ns) >= s->cfg.patience_ns)
            e->promoted = true;
    }
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        struct entry *e = &s->entries[s->admitted[i]];

        if (!e->job.background || waited(&e->seat_ns, now_ns) < s->cfg.patience_ns)
            continue;
        e->promoted = e->paused;
    }
}

/* ---- seats ---- */

/* Whether a and b, both without a seat, are in the right order. */
static bool goes_before(const struct entry *a, const struct entry *b) {
    return is_low(a) != is_low(b) ? is_low(b) : a->order < b->order;
}

static struct entry *best_paused(struct sched *s) {
    struct entry *best = NULL;

    for (uint32_t i = 0; i < s->n_admitted; i++) {
        struct entry *e = &s->entries[s->admitted[i]];

        if (e->paused && !e->skipped && (!best || goes_before(e, best)))
            best = e;
    }
    return best;
}

/* Who must give up its seat for a job of that class: one that is skipped for long, else the background job
 * that was admitted last. */
static struct entry *seat_victim(struct sched *s, bool for_low, uint64_t now_ns) {
    struct entry *best = NULL;

    for (uint32_t i = 0; i < s->n_admitted; i++) {
        struct entry *e = &s->entries[s->admitted[i]];

        if (e->paused)
            continue;
        if (is_parked(s, e, now_ns))
            return e;
        if (!for_low && is_low(e))
            best = e; /* in order of admission: the last one stays */
    }
    return FAULT(sched_no_preemption) ? NULL : best;
}

/* It has run since it got its seat or its reader began to read, and stops now. */
void entry_ran(struct entry *e, uint64_t now_ns) {
    uint64_t from = e->seat_ns > e->skipped_ns ? e->seat_ns : e->skipped_ns, ran;

    if (e->skipped || e->paused || e->state == SCHED_QUEUED || FAULT(sched_still_for_ever))
        return;
    ran = now_ns > from ? now_ns - from : 0;
    e->still_ns = ran < e->still_ns / PARK_RUN_SHARE ? e->still_ns - ran * PARK_RUN_SHARE : 0;
    e->skipped_ns = now_ns;
}

static void set_paused(struct sched *s, struct entry *e, bool paused, uint64_t now_ns) {
    if (e->paused == paused)
        return;
    if (paused)
        entry_ran(e, now_ns);
    e->paused = paused;
    e->seat_ns = e->waiting_ns = now_ns;
    if (paused) {
        e->promoted = false;
        s->n_paused++;
    } else {
        s->n_paused--;
    }
}

static bool seat_free(const struct sched *s) {
    return s->n_admitted - s->n_paused < s->cfg.max_running;
}

/* A seat for a job of that class, taken from somebody when none is free. */
static bool seat_take(struct sched *s, bool for_low, uint64_t now_ns) {
    struct entry *e;

    if (seat_free(s))
        return true;
    e = seat_victim(s, for_low, now_ns);
    if (!e)
        return false;
    set_paused(s, e, true, now_ns);
    return true;
}

static bool fits(const struct sched *s, const struct entry *e) {
    return s->free_slots && has_place(s, e) && e->need <= s->free_pages;
}

/* How gladly e gives its memory to head, 0 = not at all. An interactive head may also be a background job that
 * waited long: two that do not fit together would take all that the other has read in turn, and neither would ever
 * end. A parked one does not come back before its reader does. */
static int release_rank(const struct sched *s, struct entry *e, const struct entry *head) {
    bool chases = FAULT(sched_background_chases) ? is_low(head) : head->job.background;

    if (!e->job.movable || FAULT(sched_no_release))
        return 0;
    if (e->skipped)
        return is_parked(s, e, s->looked_ns) && !FAULT(sched_parked_keeps_memory) ? 3 : 0;
    if (!is_low(e) || chases)
        return 0;
    return e->paused ? 2 : 1;
}

int sched_pick_release(struct sched *s, uint32_t *ret_job) {
    uint64_t pages = s->free_pages, slots = s->free_slots;
    const struct entry *head, *best = NULL;
    int best_rank = 0;
    uint32_t at;

    accounts_refresh(s);
    if (queue_head(s, true, &at) < 0)
        return -EAGAIN;
    head = &s->entries[s->queue[at]];
    if (head->need <= pages && slots)
        return -EAGAIN;
    for (uint32_t i = 0; i < s->n_admitted; i++) {
        struct entry *e = &s->entries[s->admitted[i]];
        int rank = release_rank(s, e, head);

        if (!rank)
            continue;
        pages += e->need;
        slots++;
        if (rank < best_rank)
            continue;
        best = e; /* of several the last admitted */
        best_rank = rank;
    }
    if (!best || pages < head->need || !slots)
        return -EAGAIN;
    *ret_job = (uint32_t)(best - s->entries);
    return 0;
}

int sched_peek(struct sched *s, uint64_t now_ns, uint32_t *ret_job) {
    uint32_t at;

    promote(s, now_ns);
    accounts_refresh(s);
    if (queue_head(s, true, &at) < 0)
        return -EAGAIN;
    *ret_job = s->queue[at];
    return 0;
}

static void admit(struct sched *s, uint32_t at, uint64_t now_ns) {
    uint32_t job = s->queue[at];
    struct entry *e = &s->entries[job];
    struct account *a = account_of(s, e);

    memmove(s->queue + at, s->queue + at + 1, (s->n_queue - at - 1) * sizeof *s->queue);
    s->n_queue--;
    s->admitted[s->n_admitted++] = job;
    s->free_pages -= e->need;
    s->free_slots--;
    s->n_away -= e->away;
    a->places += !e->away;
    e->away = false;
    e->state = SCHED_FILL;
    e->order = ++s->order;
    e->waiting_ns = e->seat_ns = now_ns;
    a->owed += e->left;
    a->reserved += job_tokens(&e->job);
}

int sched_admit(struct sched *s, uint64_t now_ns, uint32_t *ret_job) {
    struct entry *head = NULL, *back;
    uint32_t at = 0;

    s->looked_ns = now_ns;
    promote(s, now_ns);
    accounts_refresh(s);
    if (queue_head(s, true, &at) == 0)
        head = &s->entries[s->queue[at]];
    if (head && !fits(s, head))
        head = NULL;
    /* a paused job holds memory others wait for, so of the same class it goes first */
    while ((back = best_paused(s)) && !(head && is_low(back) && !is_low(head))) {
        if (!seat_take(s, is_low(back), now_ns))
            return -EAGAIN;
        set_paused(s, back, false, now_ns);
    }
    if (!head || !seat_take(s, is_low(head), now_ns))
        return -EAGAIN;
    *ret_job = s->queue[at];
    admit(s, at, now_ns);
    return 0;
}

void sched_skip(struct sched *s, uint32_t job, bool skipped, uint64_t now_ns) {
    struct entry *e = entry_of(s, job);

    if (!e || e->skipped == skipped)
        return;
    entry_ran(e, now_ns);
    if (e->skipped && !FAULT(sched_tokens_unpark)) {
        uint64_t stood = waited(&e->skipped_ns, now_ns), room = s->cfg.park_ns - e->still_ns;

        e->still_ns += stood < room ? stood : room;
    }
    e->skipped = skipped;
    e->skipped_ns = now_ns;
}

/* ---- places and waiting times ---- */

void sched_measured_fill(struct sched *s, uint32_t tokens, uint64_t ns) {
    double one = tokens ? (double)ns / tokens : 0;

    if (one > 0)
        s->fill_ns = s->fill_ns > 0 ? s->fill_ns * 0.875 + one * 0.125 : one;
}

void sched_measured_token(struct sched *s, uint64_t ns) {
    if (ns)
        s->token_ns = s->token_ns > 0 ? s->token_ns * 0.95 + (double)ns * 0.05 : (double)ns;
}

static double answer_left(const struct sched *s, const struct entry *e) {
    double mean = s->answer > 0 ? s->answer : e->job.budget_tokens, left = mean - e->out;

    /* one that is past the mean is not about to end for that */
    if (left < mean / 2)
        left = mean / 2;
    if (left > (double)e->job.budget_tokens - e->out)
        left = (double)e->job.budget_tokens - e->out;
    return left > 0 ? left : 0;
}

/* The future as the estimate sees it: prompts one after another, answers beside them. */
struct future {
    struct sched *s;
    double fill_at; /* when the prompts so far have been read */
    uint32_t n, pages;
};

static void future_add(struct future *f, const struct entry *e, double from) {
    if (e->state == SCHED_QUEUED || e->state == SCHED_FILL) {
        if (f->fill_at < from)
            f->fill_at = from;
        f->fill_at += e->left * f->s->fill_ns;
        from = f->fill_at;
    }
    f->s->endings[f->n++] = (struct ending){ (uint64_t)(from + answer_left(f->s, e) * f->s->token_ns), e->need };
}

/* Takes away the one that ends first, and says when. */
static uint64_t future_next(struct future *f) {
    struct ending *all = f->s->endings, first;
    uint32_t best = 0;

    for (uint32_t i = 1; i < f->n; i++)
        if (all[i].at_ns < all[best].at_ns)
            best = i;
    first = all[best];
    all[best] = all[--f->n];
    f->pages += first.pages;
    return first.at_ns;
}

static void future_begin(struct sched *s, struct future *f) {
    *f = (struct future){ .s = s, .pages = s->free_pages };
    for (uint32_t i = 0; i < s->n_admitted; i++)
        future_add(f, &s->entries[s->admitted[i]], 0);
}

/* When this job can begin, not before `from`. */
static double future_admit(struct future *f, const struct entry *e, double from) {
    const struct sched_config *c = &f->s->cfg;
    uint32_t seats = c->max_running < c->n_slots ? c->max_running : c->n_slots;

    seats = seats < c->n_places ? seats : c->n_places;
    while (f->n && (f->n >= seats || f->pages < e->need)) {
        uint64_t at = future_next(f);

        if ((double)at > from)
            from = (double)at;
    }
    f->pages = f->pages > e->need ? f->pages - e->need : 0;
    future_add(f, e, from);
    return from;
}

/* The next one of n queued jobs, by the same order as queue_head but for quotas and holds. */
static uint32_t trial_head(const struct sched *s, const uint32_t *list, uint32_t n) {
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++) {
        const struct entry *a = &s->entries[list[i]], *b = &s->entries[list[best]];

        if (is_low(a) != is_low(b) ? is_low(b) : account_of(s, a)->trial < account_of(s, b)->trial)
            best = i;
    }
    return best;
}

void sched_positions(struct sched *s, uint64_t now_ns, sched_place_fn fn, void *ctx) {
    bool known = s->fill_ns > 0 && s->token_ns > 0;
    uint32_t n = 0;
    struct future f;
    double from = 0;

    promote(s, now_ns);
    accounts_refresh(s);
    future_begin(s, &f);
    for (uint32_t i = 0; i < s->n_queue; i++) {
        struct entry *e = &s->entries[s->queue[i]];

        if (e->skipped)
            continue; /* nobody waits for it */
        account_of(s, e)->trial = account_key(account_of(s, e));
        s->scratch[n++] = s->queue[i];
    }
    for (uint32_t place = 1; n; place++) {
        uint32_t best = trial_head(s, s->scratch, n), job = s->scratch[best];
        struct entry *e = &s->entries[job];
        struct account *a = account_of(s, e);

        a->trial += shares(a, e->left);
        memmove(s->scratch + best, s->scratch + best + 1, (n - best - 1) * sizeof *s->scratch);
        n--;
        from = future_admit(&f, e, from);
        fn(ctx, job, place, known ? (uint64_t)from + 1 : 0);
    }
}

uint64_t sched_retry_ns(struct sched *s) {
    struct future f;
    uint32_t at = 0;

    if (s->fill_ns <= 0 || s->token_ns <= 0)
        return 0;
    future_begin(s, &f);
    if (queue_head(s, false, &at) < 0)
        return 0;
    return (uint64_t)future_admit(&f, &s->entries[s->queue[at]], 0);
}
