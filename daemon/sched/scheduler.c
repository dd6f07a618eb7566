/* SPDX-License-Identifier: MIT */
/* scheduler.c: the scheduler's tables: admission by both currencies, accounts by user id, batch choice.
 * Owned by the engine thread; may not look at a clock, allocate or call the system. */
#include "scheduler.h"

#include <errno.h>
#include <string.h>

#include "size.h"

struct entry {
    struct sched_job job;
    uint8_t state;
    bool skipped;
    uint32_t account;    /* index into accounts */
    uint32_t pages;      /* reserved; 0 while queued */
    uint32_t left;       /* prompt tokens still to read */
    uint64_t order;      /* of arrival, then of admission */
    uint64_t waiting_ns; /* FILL: since when it waits for a chunk */
};

/* Tokens served to one user. Kept after the user's last job, so that leaving and coming back is no way to a
 * clean account; the least recently used idle one is given away when the table is full. */
struct account {
    uint32_t uid;
    uint32_t jobs; /* live ones; 0 = idle */
    bool used;
    uint64_t served;
    uint64_t touched; /* order number of its last change */
    uint64_t trial;   /* scratch of sched_positions */
    uint64_t reserved; /* prompt and budget of its running jobs */
    uint64_t held;     /* number of the look at the queue that found it over its quota */
};

struct sched {
    struct sched_config cfg;
    struct entry *entries;    /* [max_jobs] */
    struct account *accounts; /* [max_jobs + SPARE_ACCOUNTS] */
    uint32_t *queue;          /* [max_jobs] jobs in order of arrival */
    uint32_t *running;        /* [max_running] jobs in order of admission */
    uint32_t *scratch;        /* [max_jobs] */
    uint32_t n_accounts, n_queue, n_running;
    uint32_t free_pages, free_slots;
    uint64_t order, looks;
    uint64_t floor; /* what an account is lifted to when its user becomes active */
};

enum { SPARE_ACCOUNTS = 64 };

/* Offsets of the six areas, and the end of the last one in off[6]. */
static int layout(const struct sched_config *cfg, uint64_t off[7]) {
    uint64_t at = 0, n;
    const uint64_t counts[6] = { 1, cfg->max_jobs, (uint64_t)cfg->max_jobs + SPARE_ACCOUNTS, cfg->max_jobs,
                                 cfg->max_running, cfg->max_jobs };
    const uint64_t sizes[6] = { sizeof(struct sched), sizeof(struct entry), sizeof(struct account),
                                sizeof(uint32_t), sizeof(uint32_t), sizeof(uint32_t) };

    if (!cfg->max_jobs || !cfg->max_running || !cfg->n_pages || !cfg->n_slots || !cfg->page_tokens)
        return -EINVAL;
    for (int i = 0; i < 6; i++) {
        off[i] = at;
        if (!size_mul(counts[i], sizes[i], &n) || !size_add(at, n, &at) || !size_align(at, 16, &at))
            return -EOVERFLOW;
    }
    if (at > SIZE_MAX / 2)
        return -EOVERFLOW;
    off[6] = at;
    return 0;
}

int sched_bytes(const struct sched_config *cfg, uint64_t *ret_bytes) {
    uint64_t off[7];
    int r = layout(cfg, off);

    if (r < 0)
        return r;
    *ret_bytes = off[6];
    return 0;
}

int sched_init(const struct sched_config *cfg, void *mem, uint64_t bytes, struct sched **ret) {
    uint64_t off[7];
    char *base = mem;
    struct sched *s = mem;
    int r = layout(cfg, off);

    if (r < 0)
        return r;
    if (bytes < off[6] || (uintptr_t)mem % 16)
        return -EINVAL;
    memset(mem, 0, (size_t)off[6]);
    s->cfg = *cfg;
    s->entries = (struct entry *)(void *)(base + off[1]);
    s->accounts = (struct account *)(void *)(base + off[2]);
    s->queue = (uint32_t *)(void *)(base + off[3]);
    s->running = (uint32_t *)(void *)(base + off[4]);
    s->scratch = (uint32_t *)(void *)(base + off[5]);
    s->n_accounts = cfg->max_jobs + SPARE_ACCOUNTS;
    s->free_pages = cfg->n_pages;
    s->free_slots = cfg->n_slots;
    *ret = s;
    return 0;
}

static struct entry *entry_of(const struct sched *s, uint32_t job) {
    if (job >= s->cfg.max_jobs || s->entries[job].state == SCHED_FREE)
        return NULL;
    return &s->entries[job];
}

static uint64_t job_tokens(const struct sched_job *j) {
    return (uint64_t)j->prompt_tokens + j->budget_tokens;
}

static uint64_t pages_for(const struct sched *s, const struct sched_job *j) {
    uint64_t tokens = job_tokens(j);

    if (FAULT(sched_pages_round_down))
        return tokens / s->cfg.page_tokens ? tokens / s->cfg.page_tokens : 1;
    return (tokens + s->cfg.page_tokens - 1) / s->cfg.page_tokens;
}

uint64_t sched_largest(const struct sched *s) {
    return (uint64_t)s->cfg.n_pages * s->cfg.page_tokens;
}

/* There are more accounts than jobs, so an idle one always exists. */
static uint32_t account_open(struct sched *s, uint32_t uid) {
    uint32_t best = 0;
    bool have = false;
    struct account *a;

    for (uint32_t i = 0; i < s->n_accounts; i++) {
        a = &s->accounts[i];
        if (a->used && a->uid == uid) {
            best = i;
            break;
        }
        if (a->jobs)
            continue;
        if (!have || (s->accounts[best].used && (!a->used || a->touched < s->accounts[best].touched))) {
            best = i;
            have = true;
        }
    }
    a = &s->accounts[best];
    if (!a->used || a->uid != uid)
        *a = (struct account){ .uid = uid, .used = true, .served = s->floor };
    if (!a->jobs && a->served < s->floor)
        a->served = s->floor;
    a->jobs++;
    a->touched = ++s->order;
    return best;
}

/* The floor never falls: it is the least served active account's total. */
static void floor_update(struct sched *s) {
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < s->n_accounts; i++)
        if (s->accounts[i].jobs && s->accounts[i].served < least)
            least = s->accounts[i].served;
    if (least != UINT64_MAX && least > s->floor)
        s->floor = least;
}

int sched_add(struct sched *s, uint32_t job, const struct sched_job *j, uint64_t now_ns) {
    struct entry *e;

    if (job >= s->cfg.max_jobs || !j->prompt_tokens)
        return -EINVAL;
    e = &s->entries[job];
    if (e->state != SCHED_FREE)
        return -EEXIST;
    if (pages_for(s, j) > s->cfg.n_pages || (j->user_tokens && job_tokens(j) > j->user_tokens))
        return -E2BIG;
    floor_update(s);
    *e = (struct entry){ .job = *j, .state = SCHED_QUEUED, .left = j->prompt_tokens, .waiting_ns = now_ns };
    e->account = account_open(s, j->uid);
    e->order = ++s->order;
    s->queue[s->n_queue++] = job;
    return 0;
}

static void list_remove(uint32_t *list, uint32_t *n, uint32_t job) {
    for (uint32_t i = 0; i < *n; i++) {
        if (list[i] == job) {
            memmove(list + i, list + i + 1, (*n - i - 1) * sizeof *list);
            (*n)--;
            return;
        }
    }
}

void sched_remove(struct sched *s, uint32_t job) {
    struct entry *e = entry_of(s, job);
    struct account *a;

    if (!e)
        return;
    a = &s->accounts[e->account];
    if (e->state == SCHED_QUEUED) {
        list_remove(s->queue, &s->n_queue, job);
    } else {
        list_remove(s->running, &s->n_running, job);
        s->free_pages += e->pages;
        s->free_slots++;
        a->reserved -= job_tokens(&e->job);
        a->served -= e->left; /* charged at admission, never read */
    }
    a->jobs--;
    a->touched = ++s->order;
    memset(e, 0, sizeof *e);
}

/* Place in the queue of the job whose turn it is: the oldest of the least served user that is within its
 * quota. -EAGAIN: there is none. */
static int queue_head(struct sched *s, uint32_t *ret) {
    const struct account *best = NULL;

    s->looks++;
    for (uint32_t i = 0; i < s->n_queue; i++) {
        const struct sched_job *j = &s->entries[s->queue[i]].job;
        struct account *a = &s->accounts[s->entries[s->queue[i]].account];

        if (j->user_tokens && !FAULT(sched_no_quota) &&
            (a->reserved > j->user_tokens || job_tokens(j) > j->user_tokens - a->reserved))
            a->held = s->looks;
        if (a->held == s->looks || (best && a->served >= best->served))
            continue;
        best = a;
        *ret = i;
    }
    return best ? 0 : -EAGAIN;
}

int sched_admit(struct sched *s, uint64_t now_ns, uint32_t *ret_job) {
    struct entry *e;
    uint32_t at, job;
    uint64_t pages;

    if (!s->n_queue || s->n_running == s->cfg.max_running || !s->free_slots)
        return -EAGAIN;
    if (queue_head(s, &at) < 0)
        return -EAGAIN;
    job = s->queue[at];
    e = &s->entries[job];
    pages = pages_for(s, &e->job);
    if (pages > s->free_pages)
        return -EAGAIN;
    memmove(s->queue + at, s->queue + at + 1, (s->n_queue - at - 1) * sizeof *s->queue);
    s->n_queue--;
    s->running[s->n_running++] = job;
    s->free_pages -= (uint32_t)pages;
    s->free_slots--;
    e->pages = (uint32_t)pages;
    e->state = SCHED_FILL;
    e->order = ++s->order;
    e->waiting_ns = now_ns;
    /* The prompt is charged now: otherwise one user's burst would be admitted whole before the first of its
     * tokens counts. */
    s->accounts[e->account].served += e->job.prompt_tokens;
    s->accounts[e->account].reserved += job_tokens(&e->job);
    *ret_job = job;
    return 0;
}

uint32_t sched_job_pages(const struct sched *s, uint32_t job) {
    const struct entry *e = entry_of(s, job);

    return e ? e->pages : 0;
}

int sched_pick_fill(struct sched *s, uint64_t now_ns, uint32_t *ret_job) {
    const struct entry *best = NULL;
    uint32_t best_job = 0;

    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct entry *e = &s->entries[s->running[i]];
        bool e_old, best_old;

        if (e->state != SCHED_FILL || e->skipped)
            continue;
        e_old = now_ns > e->waiting_ns && now_ns - e->waiting_ns >= s->cfg.aging_ns;
        best_old = best && now_ns > best->waiting_ns && now_ns - best->waiting_ns >= s->cfg.aging_ns;
        if (!best || (e_old && (!best_old || e->waiting_ns < best->waiting_ns)) ||
            (!e_old && !best_old && e->left < best->left)) {
            best = e;
            best_job = s->running[i];
        }
    }
    if (!best)
        return -EAGAIN;
    *ret_job = best_job;
    return 0;
}

void sched_filled(struct sched *s, uint32_t job, uint32_t tokens, uint64_t now_ns) {
    struct entry *e = entry_of(s, job);

    if (!e || e->state != SCHED_FILL)
        return;
    e->left -= tokens < e->left ? tokens : e->left;
    e->waiting_ns = now_ns;
    if (!e->left)
        e->state = SCHED_DECODE;
}

uint32_t sched_pick_decode(const struct sched *s, uint32_t *ret_jobs, uint32_t max) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_running && n < max; i++) {
        const struct entry *e = &s->entries[s->running[i]];

        if (e->state == SCHED_DECODE && !e->skipped)
            ret_jobs[n++] = s->running[i];
    }
    return n;
}

void sched_served(struct sched *s, uint32_t job, uint32_t tokens) {
    struct entry *e = entry_of(s, job);

    if (e)
        s->accounts[e->account].served += tokens;
}

void sched_skip(struct sched *s, uint32_t job, bool skipped) {
    struct entry *e = entry_of(s, job);

    if (e)
        e->skipped = skipped;
}

uint64_t sched_next_deadline(const struct sched *s) {
    uint64_t t = SCHED_NEVER;

    for (uint32_t i = 0; i < s->n_queue; i++)
        if (s->entries[s->queue[i]].job.deadline_ns < t)
            t = s->entries[s->queue[i]].job.deadline_ns;
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->entries[s->running[i]].job.deadline_ns < t)
            t = s->entries[s->running[i]].job.deadline_ns;
    return t;
}

int sched_pick_expired(const struct sched *s, uint64_t now_ns, uint32_t *ret_job) {
    for (uint32_t i = 0; i < s->n_queue; i++) {
        if (s->entries[s->queue[i]].job.deadline_ns <= now_ns) {
            *ret_job = s->queue[i];
            return 0;
        }
    }
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->entries[s->running[i]].job.deadline_ns <= now_ns) {
            *ret_job = s->running[i];
            return 0;
        }
    }
    return -EAGAIN;
}

enum sched_state sched_job_state(const struct sched *s, uint32_t job) {
    const struct entry *e = entry_of(s, job);

    return e ? (enum sched_state)e->state : SCHED_FREE;
}

void sched_get_counts(const struct sched *s, struct sched_counts *ret) {
    struct sched_counts c = { .queued = s->n_queue, .running = s->n_running, .free_pages = s->free_pages,
                              .free_slots = s->free_slots };

    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->entries[s->running[i]].state == SCHED_FILL)
            c.filling++;
        else
            c.decoding++;
    }
    *ret = c;
}

void sched_positions(struct sched *s, void (*fn)(void *ctx, uint32_t job, uint32_t place), void *ctx) {
    uint32_t n = s->n_queue;

    memcpy(s->scratch, s->queue, n * sizeof *s->scratch);
    for (uint32_t i = 0; i < n; i++)
        s->accounts[s->entries[s->scratch[i]].account].trial =
            s->accounts[s->entries[s->scratch[i]].account].served;
    for (uint32_t place = 1; n; place++) {
        uint32_t best = 0, job;
        struct account *a;

        for (uint32_t i = 1; i < n; i++)
            if (s->accounts[s->entries[s->scratch[i]].account].trial <
                s->accounts[s->entries[s->scratch[best]].account].trial)
                best = i;
        job = s->scratch[best];
        a = &s->accounts[s->entries[job].account];
        a->trial += s->entries[job].job.prompt_tokens;
        memmove(s->scratch + best, s->scratch + best + 1, (n - best - 1) * sizeof *s->scratch);
        n--;
        fn(ctx, job, place);
    }
}
