/* SPDX-License-Identifier: MIT */
/* The scheduler's tables, seen inside the room only. The engine thread owns them. */
#ifndef GLMD_SCHED_PRIV_H
#define GLMD_SCHED_PRIV_H

#include "scheduler.h"

#define NONE UINT32_MAX

struct entry {
    struct sched_job job;
    uint8_t state;
    bool skipped, paused, held;
    bool away;           /* queued again: the caller still keeps its sequence */
    bool promoted;       /* a background job that waited long enough */
    uint32_t account;    /* index into accounts */
    uint32_t need;       /* pages it would take, or has taken */
    uint32_t left;       /* prompt tokens still to compute */
    uint32_t part;       /* scratch of sched_plan_chunk: tokens given to it */
    uint32_t out;        /* tokens of output so far */
    uint64_t order;      /* of arrival, then of admission */
    uint64_t waiting_ns; /* since when: QUEUED for admission, FILL for a chunk */
    uint64_t seat_ns;    /* since when it has its seat, or is paused */
    uint64_t skipped_ns; /* since when it is skipped, or is not */
    uint64_t still_ns;   /* skipped before that, less what it has run since: see is_parked() */
};

/* Tokens served to one user. Kept after the user's last job, so that leaving and coming back is no way to a
 * clean account; the least recently used idle one is given away when the table is full. */
struct account {
    uint32_t uid;
    uint32_t jobs; /* live ones; 0 = idle */
    uint32_t places; /* of its jobs, admitted or away */
    uint32_t weight;
    uint32_t backlog; /* jobs that have something to be read */
    bool used;
    bool held, held_low; /* scratch of a look at the queue: over its quota */
    bool still;          /* the same: the reader of one of its jobs stands still */
    uint64_t served;     /* UNIT / weight for each token */
    uint64_t tokens;     /* the same, not divided */
    uint64_t owed;       /* tokens admitted and not yet read */
    uint64_t touched;    /* order number of its last change */
    uint64_t trial;      /* scratch: what it would have had */
    uint64_t reserved;   /* prompt and budget of its admitted jobs */
};

/* One that will be there, for the estimate. */
struct ending {
    uint64_t at_ns; /* from now */
    uint32_t pages;
};

struct sched {
    struct sched_config cfg;
    struct entry *entries;    /* [max_jobs] */
    struct account *accounts; /* [max_jobs + SPARE_ACCOUNTS] */
    uint32_t *queue;          /* [max_jobs] jobs in order of arrival */
    uint32_t *admitted;       /* [n_places] jobs with a slot in order of admission */
    uint32_t *scratch;        /* [max_jobs] */
    struct ending *endings;   /* [n_places] */
    uint32_t n_accounts, n_queue, n_admitted, n_paused, n_away;
    uint32_t free_pages, free_slots, free_places;
    uint64_t order;
    uint64_t floor; /* what an account is lifted to when its user gets something to be read */
    uint64_t looked_ns;     /* the last look for seats */
    uint64_t background_ns; /* when a background prompt last got a chunk before interactive ones */
    double fill_ns, token_ns, answer; /* a prompt token, a token of an answer; tokens of an answer; 0 = unknown */
};

enum { SPARE_ACCOUNTS = 64, UNIT = 1 << 20 };

static inline struct entry *entry_of(const struct sched *s, uint32_t job) {
    if (job >= s->cfg.max_jobs || s->entries[job].state == SCHED_FREE)
        return NULL;
    return &s->entries[job];
}

static inline struct account *account_of(const struct sched *s, const struct entry *e) {
    return &s->accounts[e->account];
}

static inline uint64_t job_tokens(const struct sched_job *j) {
    return (uint64_t)j->prompt_tokens + j->budget_tokens;
}

static inline uint64_t shares(const struct account *a, uint64_t tokens) {
    return tokens * UNIT / (FAULT(sched_no_weights) ? SCHED_WEIGHT : a->weight);
}

/* A clock that was set back does not let anybody wait again for what it lost. */
static inline uint64_t waited(uint64_t *since_ns, uint64_t now_ns) {
    if (now_ns < *since_ns)
        *since_ns = now_ns;
    return now_ns - *since_ns;
}

/* Its reader has stood still for so long that what it holds is for others. A token now and then makes no reader: time
 * with a seat takes back three times as much, so one that lets its sequence run for less than a quarter of the time is
 * parked in the end, and one that reads faster never. */
enum { PARK_RUN_SHARE = 3 };

static inline bool is_parked(const struct sched *s, struct entry *e, uint64_t now_ns) {
    return s->cfg.park_ns && e->skipped && waited(&e->skipped_ns, now_ns) >= s->cfg.park_ns - e->still_ns;
}

/* Not to be admitted now, whatever there is. */
static inline bool is_passed_over(const struct entry *e) {
    return e->held || (e->skipped && !FAULT(sched_parked_returns));
}

static inline bool is_low(const struct entry *e) {
    return e->job.background && !e->promoted;
}

/* schedadmit.c: who has something to be read, and the floor; before accounts are compared */
void accounts_refresh(struct sched *s);
void entry_ran(struct entry *e, uint64_t now_ns); /* before its seat goes, or its reader stands still */
void account_charge(struct sched *s, struct account *a, uint32_t tokens);

#endif
