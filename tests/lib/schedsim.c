/* SPDX-License-Identifier: MIT */
/* schedsim.c: see schedsim.h. The stated bound of a wait: the time the machine would need, one after another and
 * each alone, for all that is admitted when the request comes, for what its user has queued before it times the
 * others' share, and for two requests of the largest kind of each user; and all the time that readers are stalled,
 * because a stalled request keeps its memory. A background request: patience_ns for each background or paused one
 * before it as well. */
#include "schedsim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "governor.h"
#include "scheduler.h"
#include "simcache.h"

#define MS       UINT64_C(1000000)
#define SEC      UINT64_C(1000000000)
#define CHECKPOINT_BYTES UINT64_C(148000000)
#define TOKEN_BYTES      UINT64_C(6171)

enum {
    JOBS = 48, USERS = 6, SEATS = 6, PAGE = 256, GRID = 64, LAYERS = 45, CHUNK = 2048, GROUPS = 3, PARTS = 8
};

struct job {
    uint32_t uid, prompt, budget, answer;
    uint32_t group, own_from; /* the conversation its ids are of, up to where it goes its own way */
    bool shared;              /* with all users, and not only with those of the same */
    bool background, begun, ended, again; /* again: it reads what it had */
    uint64_t at, deadline, cancel_at, stall_at, stall_ns; /* of the true clock */
    struct simcache_seq q;
    uint64_t bound, admitted;
    uint32_t out, ends;
};

struct sim {
    uint64_t rng;
    struct sched *s;
    struct governor g;
    struct sched_config cfg;
    struct job job[JOBS];
    struct simcache cache;
    struct simcache_seq *seqs[JOBS];
    uint32_t weight[USERS], n_jobs, live;
    uint64_t now;    /* the true time */
    int64_t skew;    /* what the clock shows besides */
    uint64_t jump_at, stalled_ns;
    int64_t jump;
    struct sched_part parts[PARTS]; /* of the chunk in flight; of a job that has ended: 0 tokens */
    uint32_t n_parts, fill_rows, fill_left;
    uint64_t last_step, slices_ns, looked; /* looked: when stalls were looked at */
    struct schedsim_result *ret;
    uint64_t n_checks;
    bool failed;
};

static uint64_t rnd(struct sim *m, uint64_t n) {
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return m->rng % n;
}

static uint64_t clock_of(const struct sim *m) {
    return m->now + (uint64_t)m->skew;
}

__attribute__((format(printf, 2, 3))) static void fail(struct sim *m, const char *fmt, ...) {
    va_list ap;

    if (m->failed)
        return;
    m->failed = true;
    va_start(ap, fmt);
    vsnprintf(m->ret->why, sizeof m->ret->why, fmt, ap);
    va_end(ap);
}

/* ---- costs ---- */

static uint64_t step_cost(uint32_t rows) {
    return 30 * MS + rows * 2 * MS;
}

static uint64_t program_cost(uint32_t rows) {
    return 5600000 + (uint64_t)rows * 20000;
}

static uint64_t alone_cost(const struct job *j) {
    uint64_t chunks = (j->prompt + CHUNK - 1) / CHUNK;

    return LAYERS * chunks * program_cost(CHUNK) + j->answer * step_cost(1);
}

/* ---- the workload ---- */

static uint32_t log_uniform(struct sim *m, uint32_t lo, uint32_t doublings) {
    uint32_t base = lo << rnd(m, doublings);

    return base + (uint32_t)rnd(m, base);
}

static uint32_t system_tokens(uint32_t group) {
    return 300u << group;
}

static void draw(struct sim *m) {
    uint64_t t = SEC;
    bool flood = rnd(m, 4) == 0;

    m->n_jobs = 4 + (uint32_t)rnd(m, JOBS - 4);
    for (uint32_t u = 0; u < USERS; u++)
        m->weight[u] = 1 + (uint32_t)rnd(m, 400);
    for (uint32_t i = 0; i < m->n_jobs; i++) {
        struct job *j = &m->job[i];

        *j = (struct job){ .uid = flood && rnd(m, 3) ? 0 : (uint32_t)rnd(m, USERS),
                           .prompt = log_uniform(m, 8, 12), .budget = log_uniform(m, 1, 9),
                           .group = (uint32_t)rnd(m, GROUPS), .background = rnd(m, 5) == 0 };
        j->shared = rnd(m, 4) != 0;
        switch (rnd(m, 3)) {
        case 0: j->own_from = UINT32_MAX; break; /* more of the same conversation */
        case 1: j->own_from = system_tokens(j->group); break;
        default: j->own_from = (uint32_t)rnd(m, j->prompt + 1); break;
        }
        j->answer = 1 + (uint32_t)rnd(m, j->budget);
        j->deadline = j->cancel_at = j->stall_at = SCHED_NEVER;
        t += flood ? rnd(m, 50 * MS) : rnd(m, 8 * SEC);
        j->at = t;
        if (rnd(m, 10) == 0)
            j->deadline = t + rnd(m, 120 * SEC);
        if (rnd(m, 8) == 0)
            j->cancel_at = t + rnd(m, 60 * SEC);
        if (rnd(m, 6) == 0) {
            j->stall_at = t + rnd(m, 60 * SEC);
            j->stall_ns = rnd(m, 2) ? rnd(m, 5 * SEC) : rnd(m, 300 * SEC);
            m->stalled_ns += j->stall_ns;
        }
    }
    m->jump_at = rnd(m, 10) ? SCHED_NEVER : SEC + rnd(m, t);
    m->jump = rnd(m, 2) ? -(int64_t)(3600 * SEC) : (int64_t)(rnd(m, 3600) * SEC);
}

static int open_sim(struct sim *m, void **ret_mem) {
    uint64_t memory = 8000000000u + rnd(m, 16) * 1000000000u, slots = SEATS + rnd(m, 8), bytes = 0;

    m->cfg = (struct sched_config){ .max_jobs = JOBS, .max_running = SEATS, .n_slots = (uint32_t)slots,
                                    .page_tokens = PAGE, .aging_ns = 10 * SEC, .park_ns = 30 * SEC,
                                    .patience_ns = 60 * SEC, .max_queued = rnd(m, 4) ? 0 : 16 };
    m->cfg.n_pages = (uint32_t)((memory - slots * CHECKPOINT_BYTES) / (PAGE * TOKEN_BYTES));
    if (rnd(m, 2))
        m->cfg.n_pages = 300; /* tight: the longest prompt takes more than half */
    if (sched_bytes(&m->cfg, &bytes) < 0 || !(*ret_mem = aligned_alloc(64, (bytes + 63) & ~UINT64_C(63))))
        return -1;
    for (uint32_t i = 0; i < JOBS; i++)
        m->seqs[i] = &m->job[i].q;
    if (simcache_init(&m->cache, m->cfg.n_pages, m->cfg.n_slots, SEATS, CHECKPOINT_BYTES, PAGE * TOKEN_BYTES, m->seqs,
                      JOBS) < 0)
        return -1;
    governor_init(&m->g, 200 * MS);
    return sched_init(&m->cfg, *ret_mem, bytes, &m->s);
}

/* ---- memory ---- */

static bool seq_open(struct sim *m, uint32_t i) {
    struct job *j = &m->job[i];
    uint32_t n = j->prompt + j->budget;

    j->q = (struct simcache_seq){ .domain = j->shared ? UINT64_C(1) << 32 : j->uid, .prompt = j->prompt,
                                  .system = system_tokens(j->group), .read = j->prompt, .n_pages = mem_pages_for(n) };
    j->q.ids = malloc(n * sizeof *j->q.ids);
    j->q.pages = malloc(j->q.n_pages * sizeof *j->q.pages);
    for (uint32_t k = 0; j->q.ids && k < n; k++)
        j->q.ids[k] = (k < j->own_from ? j->group : GROUPS + i) << 20 | k;
    return j->q.ids && j->q.pages;
}

static void seq_close(struct job *j) {
    free(j->q.ids);
    free(j->q.pages);
    j->q.ids = NULL;
    j->q.pages = NULL;
}

static void tell_room(struct sim *m, uint32_t head) {
    uint32_t need, left;

    if (simcache_look(&m->cache, &m->job[head].q, &need, &left))
        sched_set_need(m->s, head, need, left);
}

static void take_room(struct sim *m, uint32_t job) {
    struct simcache_seq *q = &m->job[job].q;
    int own = simcache_take(&m->cache, q);

    if (own < 0) {
        fail(m, "job %u was admitted without room for %u pages", job, q->n_pages);
        return;
    }
    m->ret->hits += q->pos != 0;
    sched_set_need(m->s, job, (uint32_t)own, q->read - q->pos);
}

/* ---- the loop ---- */

static void end(struct sim *m, uint32_t i, bool finished) {
    struct job *j = &m->job[i];

    if (sched_job_state(m->s, i) != SCHED_QUEUED) {
        simcache_end(&m->cache, &j->q, finished);
        for (uint32_t k = 0; k < m->n_parts; k++)
            if (m->parts[k].job == i)
                m->parts[k].tokens = 0;
    }
    sched_remove(m->s, i);
    seq_close(j);
    j->ended = true;
    if (++j->ends != 1)
        fail(m, "job %u ended %u times", i, j->ends);
    m->live--;
}

static bool is_live(const struct job *j) {
    return j->begun && !j->ended;
}

static void set_bound(struct sim *m, uint32_t at) {
    struct job *j = &m->job[at];
    uint64_t own = 0, running = 0, most = 0, sum = 0;

    for (uint32_t u = 0; u < USERS; u++)
        sum += m->weight[u];
    for (uint32_t i = 0; i < m->n_jobs; i++) {
        const struct job *o = &m->job[i];

        most = alone_cost(o) > most ? alone_cost(o) : most;
        if (i == at || !is_live(o))
            continue;
        if (o->admitted)
            running += alone_cost(o);
        else if (o->uid == j->uid)
            own += alone_cost(o);
        if (j->background)
            j->bound += m->cfg.patience_ns;
    }
    j->bound += running + own / m->weight[j->uid] * sum + USERS * most + m->stalled_ns +
                (j->background ? m->cfg.patience_ns : 0);
}

static void arrive(struct sim *m, uint32_t i) {
    struct job *j = &m->job[i];
    struct sched_job w = { .uid = j->uid, .prompt_tokens = j->prompt, .budget_tokens = j->budget,
                           .weight = m->weight[j->uid], .background = j->background,
                           .movable = true, .deadline_ns = SCHED_NEVER };
    int r;

    if (j->deadline != SCHED_NEVER)
        w.deadline_ns = j->deadline + (uint64_t)m->skew;
    r = sched_add(m->s, i, &w, clock_of(m));
    j->begun = true;
    if (r < 0) {
        if (r != -EBUSY || !m->cfg.max_queued || m->live < SEATS + m->cfg.max_queued)
            fail(m, "job %u refused: %d", i, r);
        j->ended = true;
        j->ends = 1;
        m->ret->refused++;
        return;
    }
    if (m->cfg.max_queued && m->live >= SEATS + m->cfg.max_queued)
        fail(m, "the queue has no bound");
    m->live++;
    if (!seq_open(m, i))
        fail(m, "no memory for the simulation");
    set_bound(m, i);
}

static bool in_chunk(const struct sim *m, uint32_t job) {
    for (uint32_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].job == job && m->parts[i].tokens)
            return true;
    return false;
}

static bool is_stalled(const struct sim *m, const struct job *j) {
    return j->stall_at <= m->now && m->now < j->stall_at + j->stall_ns;
}

static void release(struct sim *m, uint32_t i) {
    struct job *j = &m->job[i];

    if (!j->background && !is_stalled(m, j))
        fail(m, "job %u is none of the background, its reader reads, and it was released", i);
    j->again |= sched_job_state(m->s, i) == SCHED_DECODE;
    if (j->again && j->q.read < j->q.pos)
        j->q.read = j->q.pos;
    simcache_leave(&m->cache, &j->q);
    sched_requeue(m->s, i, j->q.read, clock_of(m));
    m->ret->released++;
}

static void admit(struct sim *m) {
    uint32_t head, got, pages, slots;

    for (uint32_t n = 0; n < 4 * JOBS; n++) {
        simcache_available(&m->cache, &pages, &slots);
        sched_available(m->s, pages, slots);
        if (sched_peek(m->s, clock_of(m), &head) == 0)
            tell_room(m, head);
        if (sched_admit(m->s, clock_of(m), &got) < 0) {
            if (sched_pick_release(m->s, &got) < 0 || in_chunk(m, got))
                return;
            release(m, got);
            continue;
        }
        if (got != head) {
            fail(m, "admitted %u, looked at %u", got, head);
            return;
        }
        take_room(m, got);
        if (!m->job[got].admitted)
            m->job[got].admitted = m->now;
    }
    fail(m, "jobs take each other's memory without end");
}

static void skips(struct sim *m) {
    m->looked = m->now;
    for (uint32_t i = 0; i < m->n_jobs; i++)
        if (is_live(&m->job[i]) && m->job[i].admitted)
            sched_skip(m->s, i, is_stalled(m, &m->job[i]), clock_of(m));
}

static void house(struct sim *m) {
    uint32_t i;

    if (m->jump_at <= m->now) {
        m->skew += m->jump;
        m->jump_at = SCHED_NEVER;
        if (m->now + (uint64_t)m->skew > (uint64_t)1 << 63) /* before the beginning of the clock */
            m->skew = 0;
    }
    for (i = 0; i < m->n_jobs; i++) {
        struct job *j = &m->job[i];

        if (!j->begun && j->at <= m->now)
            arrive(m, i);
        if (is_live(j) && j->cancel_at <= m->now)
            end(m, i, false);
    }
    while (sched_pick_expired(m->s, clock_of(m), &i) == 0)
        end(m, i, false);
    skips(m); /* first, so that one that can go on again gets its seat back */
    admit(m);
    skips(m);
}

static uint32_t step(struct sim *m) {
    uint32_t jobs[JOBS], n = sched_pick_decode(m->s, jobs, SEATS);
    uint64_t before = m->now, most;

    if (!n) {
        m->last_step = m->slices_ns = 0;
        return 0;
    }
    /* between two steps lies a slice and nothing else, whoever is stalled */
    most = m->g.target_gap_ns > m->g.decode_ns ? m->g.target_gap_ns - m->g.decode_ns : 0;
    most = most > m->g.decode_ns / 3 ? most : m->g.decode_ns / 3;
    most = most > program_cost(CHUNK) ? most : program_cost(CHUNK);
    if (m->last_step && m->slices_ns > most + program_cost(CHUNK) && !m->failed)
        fail(m, "%.1f ms between two steps", (double)m->slices_ns / 1e6);
    for (uint32_t k = 0; k < n; k++)
        simcache_roll(&m->cache, &m->job[jobs[k]].q);
    m->now += step_cost(n);
    governor_decoded(&m->g, m->now - before);
    for (uint32_t k = 0; k < n; k++) {
        struct job *j = &m->job[jobs[k]];

        if (is_stalled(m, j) && j->stall_at <= m->looked)
            fail(m, "a stalled stream is in the step");
        if (sched_job_paused(m->s, jobs[k]))
            fail(m, "a paused job is in the step");
        sched_served(m->s, jobs[k], 1);
        sched_measured_token(m->s, m->now - before);
        j->q.pos++;
        if (++j->out >= j->answer)
            end(m, jobs[k], true);
    }
    m->last_step = m->now;
    m->slices_ns = 0;
    m->ret->steps++;
    return n;
}

static bool ends_prompt(const struct sim *m, const struct sched_part *p) {
    return p->tokens == m->job[p->job].q.read - m->job[p->job].q.pos;
}

/* As the engine does (chunk_split in fill.c). */
static void split_chunk(struct sim *m) {
    uint32_t ends = 0, n = 0;

    for (uint32_t i = 0; i < m->n_parts; i++)
        ends += ends_prompt(m, &m->parts[i]) ? m->parts[i].tokens : 0;
    if (!ends || ends == m->fill_rows || !governor_splits(&m->g, ends, m->fill_rows))
        return;
    for (uint32_t i = 0; i < m->n_parts; i++)
        if (ends_prompt(m, &m->parts[i]))
            m->parts[n++] = m->parts[i];
    m->n_parts = n;
    m->fill_rows = ends;
}

/* 0: nobody has a prompt to read. */
static bool begin_chunk(struct sim *m, bool busy) {
    m->n_parts = sched_plan_chunk(m->s, clock_of(m), governor_rows(&m->g, busy, CHUNK, CHUNK, GRID), GRID, m->parts,
                                  PARTS);
    m->fill_rows = 0;
    m->fill_left = LAYERS;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        const struct job *j = &m->job[m->parts[i].job];
        uint32_t n = m->parts[i].tokens, left = j->q.read - j->q.pos, mark = simcache_next_mark(&j->q) - j->q.pos;

        if (!n || n > left || (n % GRID && n != left))
            fail(m, "a part of %u rows of %u", n, left);
        m->parts[i].tokens = n < mark ? n : mark;
        m->fill_rows += m->parts[i].tokens;
        if (sched_job_paused(m->s, m->parts[i].job) || (is_stalled(m, j) && j->stall_at <= m->looked))
            fail(m, "a paused or stalled job is in the chunk");
    }
    split_chunk(m);
    if (m->fill_rows > CHUNK)
        fail(m, "a chunk of %u rows", m->fill_rows);
    return m->n_parts != 0;
}

static void end_chunk(struct sim *m) {
    sched_measured_fill(m->s, m->fill_rows, LAYERS * program_cost(m->fill_rows));
    for (uint32_t i = 0; i < m->n_parts; i++) {
        uint32_t job = m->parts[i].job;
        struct job *j = &m->job[job];

        if (!m->parts[i].tokens)
            continue;
        j->q.pos += m->parts[i].tokens;
        sched_filled(m->s, job, m->parts[i].tokens, clock_of(m));
        simcache_filled(&m->cache, &j->q);
        if (sched_job_state(m->s, job) == SCHED_DECODE && !j->again && ++j->out >= j->answer)
            end(m, job, true);
        if (sched_job_state(m->s, job) == SCHED_DECODE)
            j->again = false;
    }
    m->n_parts = 0;
    m->ret->chunks++;
}

static bool fill(struct sim *m, bool busy) {
    uint32_t n, live = 0;

    for (uint32_t i = 0; i < m->n_parts; i++)
        live += m->parts[i].tokens != 0;
    if (!live && !begin_chunk(m, busy))
        return false;
    n = governor_slice(&m->g, busy, m->fill_rows, LAYERS - m->fill_left, m->fill_left);
    if (!n)
        return busy;
    m->now += n * program_cost(m->fill_rows);
    m->slices_ns += n * program_cost(m->fill_rows);
    governor_sliced(&m->g, m->fill_rows, LAYERS - m->fill_left, n, n * program_cost(m->fill_rows));
    m->fill_left -= n;
    if (!m->fill_left)
        end_chunk(m);
    return true;
}

static void check(struct sim *m) {
    const char *wrong = simcache_check(&m->cache, ++m->n_checks % 512 == 0, false);
    uint32_t paused = 0;
    struct sched_counts c;

    for (uint32_t i = 0; i < m->n_jobs; i++) {
        const struct job *j = &m->job[i];
        uint64_t waited = j->admitted ? j->admitted - j->at : m->now - j->at;

        if (!is_live(j))
            continue;
        paused += j->q.holds && sched_job_paused(m->s, i);
        if ((double)waited > m->ret->wait_of_bound * (double)j->bound)
            m->ret->wait_of_bound = (double)waited / (double)j->bound;
        if (waited > j->bound)
            fail(m, "job %u of user %u has waited %.1f s, the bound is %.1f s", i, j->uid, (double)waited / 1e9,
                 (double)j->bound / 1e9);
    }
    sched_get_counts(m->s, &c);
    if (wrong)
        fail(m, "%s", wrong);
    if (c.running > SEATS || c.paused != paused || c.queued + c.running + c.paused != m->live)
        fail(m, "%u with a seat, %u paused (%u), %u wait, %u live", c.running, c.paused, paused, c.queued, m->live);
    m->ret->parked += c.paused != 0;
}

/* Nothing runs: until something can. */
static bool sleep_on(struct sim *m) {
    uint64_t at = m->jump_at, event = sched_next_event(m->s);

    for (uint32_t i = 0; i < m->n_jobs; i++) {
        const struct job *j = &m->job[i];
        bool live = is_live(j);
        uint64_t t[4] = { j->begun ? SCHED_NEVER : j->at, live ? j->cancel_at : SCHED_NEVER,
                          live && is_stalled(m, j) ? j->stall_at + j->stall_ns : SCHED_NEVER,
                          live && event != SCHED_NEVER ? event - (uint64_t)m->skew : SCHED_NEVER };

        for (int k = 0; k < 4; k++)
            if (t[k] > m->now && t[k] < at)
                at = t[k];
    }
    if (at == SCHED_NEVER)
        return false;
    m->now = at;
    m->last_step = 0;
    return true;
}

int schedsim_run(uint64_t seed, struct schedsim_result *ret) {
    struct sim m = { .rng = seed * UINT64_C(0x9e3779b97f4a7c15) + 1, .ret = ret };
    const char *wrong;
    void *mem = NULL;
    uint64_t rounds = 0;

    if (open_sim(&m, &mem) < 0)
        fail(&m, "the scheduler could not be made");
    draw(&m);
    m.now = SEC;
    while (!m.failed) {
        uint32_t stepped;
        bool filled;

        house(&m);
        stepped = step(&m);
        filled = fill(&m, stepped > 0);
        check(&m);
        if (!stepped && !filled && !sleep_on(&m))
            break;
        if (++rounds > 2000000)
            fail(&m, "it does not end");
    }
    ret->jobs += m.n_jobs;
    for (uint32_t i = 0; i < m.n_jobs; i++)
        if (m.job[i].ends != 1)
            fail(&m, "job %u ended %u times; state %d, paused %d", i, m.job[i].ends, (int)sched_job_state(m.s, i),
                 sched_job_paused(m.s, i));
    wrong = m.failed ? NULL : simcache_check(&m.cache, true, true);
    if (wrong)
        fail(&m, "when all had ended: %s", wrong);
    for (uint32_t i = 0; i < JOBS; i++)
        seq_close(&m.job[i]);
    simcache_done(&m.cache);
    free(mem);
    return m.failed ? -1 : 0;
}
