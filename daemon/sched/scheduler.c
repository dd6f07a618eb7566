/* SPDX-License-Identifier: MIT */
/* scheduler.c: the scheduler's tables: jobs come and go, accounts by user id. Owned by the engine thread; may
 * not look at a clock, allocate or call the system. */
#include "scheduler.h"

#include <errno.h>
#include <string.h>

#include "sched_priv.h"
#include "size.h"

enum { AREAS = 7 };

static uint32_t places_of(const struct sched_config *cfg) {
    return cfg->n_places ? cfg->n_places : cfg->n_slots;
}

/* Offsets of the areas, and the end of the last one behind them. */
static int layout(const struct sched_config *cfg, uint64_t off[AREAS + 1]) {
    uint64_t at = 0, n;
    const uint64_t counts[AREAS] = { 1, cfg->max_jobs, (uint64_t)cfg->max_jobs + SPARE_ACCOUNTS, cfg->max_jobs,
                                     places_of(cfg), cfg->max_jobs, places_of(cfg) };
    const uint64_t sizes[AREAS] = { sizeof(struct sched), sizeof(struct entry), sizeof(struct account),
                                    sizeof(uint32_t), sizeof(uint32_t), sizeof(uint32_t),
                                    sizeof(struct ending) };

    if (!cfg->max_jobs || !cfg->max_running || !cfg->n_pages || !cfg->n_slots || !cfg->page_tokens)
        return -EINVAL;
    for (int i = 0; i < AREAS; i++) {
        off[i] = at;
        if (!size_mul(counts[i], sizes[i], &n) || !size_add(at, n, &at) || !size_align(at, 16, &at))
            return -EOVERFLOW;
    }
    if (at > SIZE_MAX / 2)
        return -EOVERFLOW;
    off[AREAS] = at;
    return 0;
}

int sched_bytes(const struct sched_config *cfg, uint64_t *ret_bytes) {
    uint64_t off[AREAS + 1];
    int r = layout(cfg, off);

    if (r < 0)
        return r;
    *ret_bytes = off[AREAS];
    return 0;
}

int sched_init(const struct sched_config *cfg, void *mem, uint64_t bytes, struct sched **ret) {
    uint64_t off[AREAS + 1];
    char *base = mem;
    struct sched *s = mem;
    int r = layout(cfg, off);

    if (r < 0)
        return r;
    if (bytes < off[AREAS] || (uintptr_t)mem % 16)
        return -EINVAL;
    memset(mem, 0, (size_t)off[AREAS]);
    s->cfg = *cfg;
    s->cfg.n_places = places_of(cfg);
    s->entries = (struct entry *)(void *)(base + off[1]);
    s->accounts = (struct account *)(void *)(base + off[2]);
    s->queue = (uint32_t *)(void *)(base + off[3]);
    s->admitted = (uint32_t *)(void *)(base + off[4]);
    s->scratch = (uint32_t *)(void *)(base + off[5]);
    s->endings = (struct ending *)(void *)(base + off[6]);
    s->n_accounts = cfg->max_jobs + SPARE_ACCOUNTS;
    s->free_pages = cfg->n_pages;
    s->free_slots = cfg->n_slots;
    s->free_places = UINT32_MAX;
    *ret = s;
    return 0;
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
static uint32_t account_open(struct sched *s, const struct sched_job *j) {
    uint32_t best = 0;
    bool have = false;
    struct account *a;

    for (uint32_t i = 0; i < s->n_accounts; i++) {
        a = &s->accounts[i];
        if (a->used && a->uid == j->uid) {
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
    if (!a->used || a->uid != j->uid)
        *a = (struct account){ .uid = j->uid, .used = true, .served = s->floor };
    a->weight = j->weight ? j->weight : SCHED_WEIGHT; /* what holds for the user now, for all its jobs */
    a->jobs++;
    a->touched = ++s->order;
    return best;
}

int sched_add(struct sched *s, uint32_t job, const struct sched_job *j, uint64_t now_ns) {
    struct entry *e;

    if (job >= s->cfg.max_jobs || !j->prompt_tokens || j->weight > SCHED_WEIGHT_MAX)
        return -EINVAL;
    e = &s->entries[job];
    if (e->state != SCHED_FREE)
        return -EEXIST;
    if (pages_for(s, j) > s->cfg.n_pages || (j->user_tokens && job_tokens(j) > j->user_tokens))
        return -E2BIG;
    if (s->cfg.max_queued && s->n_queue + s->n_admitted >= (uint64_t)s->cfg.max_running + s->cfg.max_queued &&
        !FAULT(sched_queue_unbounded))
        return -EBUSY;
    accounts_refresh(s); /* the floor before the newcomer stands on it */
    *e = (struct entry){ .job = *j, .state = SCHED_QUEUED, .left = j->prompt_tokens, .waiting_ns = now_ns,
                         .need = (uint32_t)pages_for(s, j) };
    e->account = account_open(s, j);
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

static void take_back(struct sched *s, uint32_t job, struct entry *e) {
    struct account *a = account_of(s, e);

    list_remove(s->admitted, &s->n_admitted, job);
    s->n_paused -= e->paused;
    s->free_pages += e->need;
    s->free_slots++;
    a->reserved -= job_tokens(&e->job);
    a->owed -= e->left; /* never read */
}

void sched_requeue(struct sched *s, uint32_t job, uint32_t tokens, uint64_t now_ns) {
    struct entry *e = entry_of(s, job);

    if (!e || e->state == SCHED_QUEUED)
        return;
    entry_ran(e, now_ns);
    take_back(s, job, e);
    e->state = SCHED_QUEUED;
    e->paused = e->promoted = false;
    e->away = true;
    s->n_away++;
    e->left = tokens ? tokens : 1;
    e->need = (uint32_t)pages_for(s, &e->job);
    e->waiting_ns = now_ns;
    e->order = ++s->order;
    s->queue[s->n_queue++] = job;
}

void sched_remove(struct sched *s, uint32_t job) {
    struct entry *e = entry_of(s, job);
    struct account *a;

    if (!e)
        return;
    a = account_of(s, e);
    if (e->state == SCHED_QUEUED) {
        list_remove(s->queue, &s->n_queue, job);
        s->n_away -= e->away;
        a->places -= e->away;
    } else {
        take_back(s, job, e);
        a->places--;
        if (e->out)
            s->answer = s->answer > 0 ? s->answer * 0.875 + e->out * 0.125 : e->out;
    }
    a->jobs--;
    a->touched = ++s->order;
    memset(e, 0, sizeof *e);
}

void sched_available(struct sched *s, uint32_t pages, uint32_t slots) {
    s->free_pages = pages;
    s->free_slots = slots;
}

void sched_set_places(struct sched *s, uint32_t places) {
    s->free_places = places;
}

void sched_set_need(struct sched *s, uint32_t job, uint32_t pages, uint32_t tokens) {
    struct entry *e = entry_of(s, job);

    if (!e)
        return;
    tokens = tokens ? tokens : 1;
    if (e->state != SCHED_QUEUED) {
        struct account *a = account_of(s, e);

        s->free_pages = s->free_pages + e->need > pages ? s->free_pages + e->need - pages : 0;
        a->owed = a->owed - e->left + tokens;
    }
    e->need = pages;
    e->left = tokens;
}

void sched_hold(struct sched *s, uint32_t job, bool held) {
    struct entry *e = entry_of(s, job);

    if (e)
        e->held = held;
}

uint32_t sched_job_pages(const struct sched *s, uint32_t job) {
    const struct entry *e = entry_of(s, job);

    return e && e->state != SCHED_QUEUED ? e->need : 0;
}

enum sched_state sched_job_state(const struct sched *s, uint32_t job) {
    const struct entry *e = entry_of(s, job);

    return e ? (enum sched_state)e->state : SCHED_FREE;
}

bool sched_job_paused(const struct sched *s, uint32_t job) {
    const struct entry *e = entry_of(s, job);

    return e && e->paused;
}

void sched_get_counts(const struct sched *s, struct sched_counts *ret) {
    struct sched_counts c = { .queued = s->n_queue, .paused = s->n_paused, .free_pages = s->free_pages,
                              .running = s->n_admitted - s->n_paused, .free_slots = s->free_slots };

    for (uint32_t i = 0; i < s->n_admitted; i++) {
        const struct entry *e = &s->entries[s->admitted[i]];

        if (e->paused)
            continue;
        if (e->state == SCHED_FILL)
            c.filling++;
        else
            c.decoding++;
    }
    *ret = c;
}

uint64_t sched_user_tokens(const struct sched *s, uint32_t uid) {
    for (uint32_t i = 0; i < s->n_accounts; i++)
        if (s->accounts[i].used && s->accounts[i].uid == uid)
            return s->accounts[i].tokens;
    return 0;
}
