/* SPDX-License-Identifier: MIT */
/* ranks_run.c: the other ranks' threads, and what the engine thread tells them. A command is told under a lock and done
 * in order; who tells waits only where it needs the end: after a lane's wait, and after copies. A rank that fails gives
 * the exchange up, so that the others stop at once, with its words. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ranks_priv.h"
#include "seal.h"

/* ---- a rank's thread ---- */

static int do_command(struct kern *k, const struct rank_command *c) {
    switch (c->op) {
    case OP_LOAD:
        return kern_plan_load(k, c->from, c->bytes);
    case OP_LAUNCH:
        return kern_launch(k, kern_prog_at(k, c->a));
    case OP_WAIT:
        return kern_wait(k, c->a);
    case OP_SLOT_COPY:
        return kern_slot_copy(k, c->a, c->b);
    case OP_PAGE_COPY:
        return kern_page_copy(k, c->a, c->b);
    case OP_SLOT_READ:
        return kern_slot_read(k, c->a, c->to, c->bytes);
    case OP_SLOT_WRITE:
        return kern_slot_write(k, c->a, c->from, c->bytes);
    case OP_PAGE_WRITE:
        return kern_page_write(k, c->a, c->from, c->bytes);
    default:
        return 0;
    }
}

static void give_up(struct rank *w) {
    struct comm *c = w->group->end[w->no];
    char words[320];

    snprintf(words, sizeof words, "rank %u failed: %s", w->no, kern_last_error(w->k));
    c->ops->give_up(c, words);
}

static void *rank_main(void *arg) {
    struct rank *w = arg;
    bool quit = false;

    seal_this_thread();
    while (!quit) {
        struct rank_command c;
        int r, failed;

        pthread_mutex_lock(&w->lock);
        while (w->n_done == w->n_told)
            pthread_cond_wait(&w->told, &w->lock);
        c = w->command[w->n_done % RANKS_COMMANDS];
        failed = w->failed;
        pthread_mutex_unlock(&w->lock);
        quit = c.op == OP_QUIT;
        r = failed < 0 ? failed : do_command(w->k, &c);
        if (r < 0 && failed >= 0 && c.op <= OP_WAIT)
            give_up(w);
        pthread_mutex_lock(&w->lock);
        if (c.op > OP_WAIT)
            w->result = r;
        else if (r < 0)
            w->failed = r;
        w->n_done++;
        pthread_cond_signal(&w->done);
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

int ranks_start(struct ranks *g, struct xerr *err) {
    for (uint32_t i = 1; i < g->n; i++) {
        struct rank *w = &g->rank[i];
        int r;

        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->told, NULL);
        pthread_cond_init(&w->done, NULL);
        r = -pthread_create(&w->thread, NULL, rank_main, w);
        if (r < 0) {
            pthread_cond_destroy(&w->done);
            pthread_cond_destroy(&w->told);
            pthread_mutex_destroy(&w->lock);
            return xerr_set(err, r, "ranks: the thread of rank %u cannot be started: %s", i, strerror(-r));
        }
        w->has_thread = true;
    }
    return 0;
}

/* ---- the engine thread ---- */

void ranks_tell(struct rank *w, const struct rank_command *c) {
    pthread_mutex_lock(&w->lock);
    w->command[w->n_told % RANKS_COMMANDS] = *c;
    w->n_told++;
    pthread_cond_signal(&w->told);
    pthread_mutex_unlock(&w->lock);
}

static void tell_all(struct ranks *g, const struct rank_command *c) {
    for (uint32_t i = 1; i < g->n; i++)
        ranks_tell(&g->rank[i], c);
}

static struct timespec deadline_of(const struct ranks *g) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += 2 * (time_t)(g->timeout_ms / 1000) + 1;
    return t;
}

static int failed(struct ranks *g, const struct rank *w, int r) {
    if (!g->error[0]) {
        if (r == -ETIMEDOUT)
            snprintf(g->error, sizeof g->error, "rank %u is missing: it has not done what it was told within %u ms",
                     w->no, 2 * g->timeout_ms);
        else
            snprintf(g->error, sizeof g->error, "rank %u: %s", w->no, kern_last_error(w->k));
    }
    return r == -ETIMEDOUT ? -EIO : r;
}

/* Until the rank has done all it was told. */
static int settle(struct ranks *g, struct rank *w, const struct timespec *deadline) {
    int r = 0;

    pthread_mutex_lock(&w->lock);
    while (w->n_done != w->n_told && !r)
        r = -pthread_cond_clockwait(&w->done, &w->lock, CLOCK_MONOTONIC, deadline);
    if (!r)
        r = w->failed;
    pthread_mutex_unlock(&w->lock);
    return r < 0 ? failed(g, w, r) : 0;
}

static int settle_all(struct ranks *g) {
    const struct timespec deadline = deadline_of(g);
    int r = 0;

    for (uint32_t i = 1; i < g->n; i++) {
        int one = settle(g, &g->rank[i], &deadline);

        r = r < 0 ? r : one;
    }
    for (int l = 0; l < KERN_LANES && r >= 0; l++)
        g->unread[l] = false;
    return r;
}

void ranks_stop(struct ranks *g) {
    for (uint32_t i = 1; i < g->n; i++) {
        struct rank *w = &g->rank[i];

        if (!w->has_thread)
            continue;
        ranks_tell(w, &(struct rank_command){ .op = OP_QUIT });
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->done);
        pthread_cond_destroy(&w->told);
        pthread_mutex_destroy(&w->lock);
        w->has_thread = false;
    }
}

/* Rank 0 has failed: the others need not wait for it. */
static int first_failed(struct ranks *g, int r) {
    if (g->n > 1)
        give_up(&g->rank[0]);
    return r;
}

int ranks_plan_load(struct ranks *g, const struct kern_plan *plan, uint64_t bytes) {
    struct rank_command c = { .op = OP_LOAD, .bytes = bytes };
    int r = kern_plan_load(g->rank[0].k, plan, bytes);

    if (r < 0 || g->n < 2)
        return r;
    if (g->unread[plan->lane] && (r = settle_all(g)) < 0)
        return r;
    memcpy(g->plan[plan->lane], plan, bytes);
    g->unread[plan->lane] = true;
    c.from = g->plan[plan->lane];
    tell_all(g, &c);
    return 0;
}

/* Room for a lane's launches, its wait, and what the other lane may have told. */
static bool is_full(struct ranks *g) {
    bool full = false;

    for (uint32_t i = 1; i < g->n; i++) {
        pthread_mutex_lock(&g->rank[i].lock);
        full |= g->rank[i].n_told - g->rank[i].n_done > RANKS_COMMANDS - 8;
        pthread_mutex_unlock(&g->rank[i].lock);
    }
    return full;
}

int ranks_launch(struct ranks *g, const struct kern_prog *prog) {
    int r;

    if (g->n > 1 && is_full(g))
        return -EAGAIN;
    r = kern_launch(g->rank[0].k, prog);
    if (r < 0)
        return r == -EAGAIN ? r : first_failed(g, r);
    tell_all(g, &(struct rank_command){ .op = OP_LAUNCH, .a = kern_prog_no(g->rank[0].k, prog) });
    return 0;
}

int ranks_wait(struct ranks *g, uint32_t lane) {
    int r, others;

    tell_all(g, &(struct rank_command){ .op = OP_WAIT, .a = lane });
    r = kern_wait(g->rank[0].k, lane);
    if (g->n < 2)
        return r;
    if (r < 0)
        first_failed(g, r);
    others = settle_all(g);
    return r < 0 ? r : others;
}

const char *ranks_error(const struct ranks *g) {
    if (g->error[0])
        return g->error;
    return g->n && g->rank[0].k ? kern_last_error(g->rank[0].k) : "no backend";
}

/* ---- slots and pages: done when they return. What one rank refuses (bytes from outside) ends nothing ---- */

/* Rank 0's part of what all were told, and the others' end. */
static int together(struct ranks *g, const struct rank_command *c) {
    int r = do_command(g->rank[0].k, c), others;

    if (g->n < 2)
        return r;
    others = settle_all(g);
    for (uint32_t i = 1; i < g->n && others >= 0; i++) {
        pthread_mutex_lock(&g->rank[i].lock);
        others = g->rank[i].result;
        pthread_mutex_unlock(&g->rank[i].lock);
    }
    return r < 0 ? r : others;
}

static int everywhere(struct ranks *g, const struct rank_command *c) {
    if (!FAULT(ranks_copy_alone))
        tell_all(g, c);
    return together(g, c);
}

int ranks_slot_copy(struct ranks *g, uint32_t dst, uint32_t src) {
    return everywhere(g, &(struct rank_command){ .op = OP_SLOT_COPY, .a = dst, .b = src });
}

int ranks_page_copy(struct ranks *g, uint32_t dst, uint32_t src) {
    return everywhere(g, &(struct rank_command){ .op = OP_PAGE_COPY, .a = dst, .b = src });
}

uint64_t ranks_slot_bytes(const struct ranks *g) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < g->n; i++)
        sum += kern_slot_bytes(g->rank[i].k);
    return sum;
}

/* Each rank's part of a slot's bytes, to or from. */
static int slot_parts(struct ranks *g, struct rank_command c, uint64_t bytes) {
    uint64_t at = kern_slot_bytes(g->rank[0].k);

    if (bytes < ranks_slot_bytes(g))
        return -EINVAL;
    for (uint32_t i = 1; i < g->n; i++) {
        struct rank_command own = c;

        own.bytes = kern_slot_bytes(g->rank[i].k);
        own.to = c.to ? (char *)c.to + at : NULL;
        own.from = c.from ? (const char *)c.from + at : NULL;
        at += FAULT(ranks_parts_overlap) ? 0 : own.bytes;
        ranks_tell(&g->rank[i], &own);
    }
    c.bytes = kern_slot_bytes(g->rank[0].k);
    return together(g, &c);
}

int ranks_slot_read(struct ranks *g, uint32_t slot, void *dst, uint64_t bytes) {
    return slot_parts(g, (struct rank_command){ .op = OP_SLOT_READ, .a = slot, .to = dst }, bytes);
}

int ranks_slot_write(struct ranks *g, uint32_t slot, const void *src, uint64_t bytes) {
    return slot_parts(g, (struct rank_command){ .op = OP_SLOT_WRITE, .a = slot, .from = src }, bytes);
}

uint64_t ranks_page_bytes(const struct ranks *g) {
    return kern_page_bytes(g->rank[0].k);
}

int ranks_page_read(struct ranks *g, uint32_t page, void *dst, uint64_t bytes) {
    return kern_page_read(g->rank[0].k, page, dst, bytes);
}

int ranks_page_write(struct ranks *g, uint32_t page, const void *src, uint64_t bytes) {
    return everywhere(g, &(struct rank_command){ .op = OP_PAGE_WRITE, .a = page, .from = src, .bytes = bytes });
}
