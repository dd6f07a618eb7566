/* SPDX-License-Identifier: MIT */
/* The text workers and their queue: the one place of the daemon with a mutex, which is held to link and
 * unlink requests, never while text is being worked on. */
#include "prep.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "prep_impl.h"
#include "outtools.h"
#include "prep_queue.h"

struct prep {
    struct prep_options opt;
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_mutex_t submit_lock; /* the engine takes requests from one thread at a time */
    struct prep_queue queue;
    struct prep_req *ended, **last_ended; /* whose answers are to be remembered */
    uint64_t n_ended, n_taken;            /* pushed there, taken from there */
    pthread_cond_t remembered;
    uint64_t *at_ended; /* [workers] which one a worker is at; 0 = none */
    struct prep_model model;
    bool has_model, stop;
    uint32_t n_threads;
    pthread_t *threads;
    struct worker {
        struct prep *p;
        uint32_t index;
    } *worker;
};

struct prep_req *prep_req_free(struct prep_req *r) {
    if (!r)
        return NULL;
    free(r->ids);
    outtools_free(r->tools);
    prep_grammar_drop(r);
    free(r->stop);
    free(r->stops);
    free(r->bias);
    free(r->answer);
    free(r->names);
    free(r->dec_mem);
    free(r->payload);
    free(r);
    return NULL;
}

/* The model is known by now, whatever conn knew when the request came. */
static int decode_sealed(const struct prep_model *m, struct prep_req *r) {
    r->limits.vocab_tokens = m->vocab_tokens;
    return prep_decode(r, &r->error);
}

static void refuse_busy(const struct prep_hooks *h, struct prep_req *r) {
    uint32_t ms = h->retry_ms ? h->retry_ms(h->ctx) : 0;

    if (ms)
        xerr_set(&r->error, -EBUSY, "the queue is full; a place will probably be free in about %u s",
                 ms / 1000 + (ms % 1000 != 0));
    else
        xerr_set(&r->error, -EBUSY, "the queue is full; try again when one of the requests before has ended");
}

static void work_on(struct prep *p, const struct prep_model *m, struct prep_scratch *s, struct prep_req *r) {
    const struct prep_hooks *h = &p->opt.hooks;
    int status;

    if (atomic_load(&r->cancelled)) {
        h->done(h->ctx, r, PREP_CANCELLED);
        return;
    }
    r->error = (struct xerr){0};
    if (FAULT(slow_prepare)) /* the handicap of `make bench` */
        for (uint64_t until = clock_now_ns() + 3 * CLOCK_NS_PER_MS; clock_now_ns() < until;)
            ;
    if (r->deadline_ns && clock_now_ns() >= r->deadline_ns)
        status = xerr_set(&r->error, -ETIMEDOUT, "the request's deadline passed before it could be prepared");
    else
        status = r->sealed ? decode_sealed(m, r) : 0;
    if (status == 0)
        status = prep_make(m, s, r, &r->error);
    /* io unmaps it later: taking many pages out of the tables is work, and better done here */
    if (r->sealed)
        madvise((void *)(uintptr_t)r->sealed, r->payload_len, MADV_DONTNEED);
    if (status < 0) {
        if (r->error.code == 0)
            xerr_set(&r->error, status, "the request could not be prepared: %s", strerror(-status));
        h->done(h->ctx, r, PREP_FAILED);
        return;
    }
    if (r->op != PREP_SUBMIT) {
        h->done(h->ctx, r, PREP_IDS);
        return;
    }
    h->bind(h->ctx, r);
    pthread_mutex_lock(&p->submit_lock);
    status = h->submit(h->ctx, &r->sched);
    /* From here on the engine owns r, and io may free it as soon as its END was published. A cancellation
     * that came after the look above is not lost: io has told the engine by the stream's name, which holds
     * also for a request that comes later. */
    pthread_mutex_unlock(&p->submit_lock);
    if (status == 0)
        return;
    switch (status) {
    case -EOVERFLOW:
        xerr_set(&r->error, status, "the prompt of %u tokens is longer than the context of %u tokens",
                 r->n_ids, m->context_tokens);
        break;
    case -EDQUOT:
        r->over_quota = "MaxQueuedPromptTokensPerUid";
        xerr_set(&r->error, status,
                 "with its prompt of %u tokens this user would have more than %llu tokens waiting to be read, "
                 "which is the quota ([Quota] MaxQueuedPromptTokensPerUid)",
                 r->n_ids, (unsigned long long)r->queued_quota);
        break;
    case -EFBIG:
        r->over_quota = "MaxKVTokensPerUid";
        xerr_set(&r->error, -EDQUOT,
                 "prompt and longest answer need %llu tokens of the cache, and this user may have %llu ([Quota] "
                 "MaxKVTokensPerUid)",
                 (unsigned long long)r->n_ids + r->max_tokens, (unsigned long long)r->kv_quota);
        break;
    case -EAGAIN:
        refuse_busy(h, r);
        break;
    case -ESHUTDOWN:
        xerr_set(&r->error, status, "the daemon is shutting down and takes no new requests");
        break;
    default:
        xerr_set(&r->error, status, "the engine refused the request: %s", strerror(-status));
    }
    h->done(h->ctx, r, PREP_FAILED);
}

/* With the lock held, and one there. */
static struct prep_req *take_ended(struct prep *p) {
    struct prep_req *r = p->ended;

    p->ended = r->next;
    if (!p->ended)
        p->last_ended = &p->ended;
    p->n_taken++;
    return r;
}

/* With the lock held: all that had ended before the request came were taken, but some may not be remembered yet,
 * and what it is to be made of may be their answers. */
static void wait_remembered(struct prep *p, const struct prep_req *r) {
    for (uint32_t i = 0; i < p->opt.workers; i++)
        while (p->at_ended[i] && p->at_ended[i] <= r->after && !FAULT(turns_not_waited_for))
            pthread_cond_wait(&p->remembered, &p->lock);
}

/* With the lock held, which is given up meanwhile. */
static void remember(struct prep *p, uint32_t worker, struct prep_scratch **s) {
    struct prep_req *r = take_ended(p);
    struct prep_model m = p->model;

    p->at_ended[worker] = p->n_taken;
    pthread_mutex_unlock(&p->lock);
    if (FAULT(turns_not_waited_for))
        usleep(100000);
    if (*s || prep_scratch_new(&m, s) == 0)
        prep_remember(&m, *s, r);
    prep_req_free(r);
    pthread_mutex_lock(&p->lock);
    p->at_ended[worker] = 0;
    pthread_cond_broadcast(&p->remembered);
}

static void *worker_main(void *ctx) {
    struct prep *p = ((struct worker *)ctx)->p;
    uint32_t index = ((struct worker *)ctx)->index;
    struct prep_scratch *s = NULL;
    struct prep_turn turn;

    pthread_setname_np(pthread_self(), "glmd-text");
    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct prep_req *r;
        struct prep_model m;

        while (!p->stop && !(p->has_model && (prep_queue_ready(&p->queue) || p->ended)))
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        if (p->ended) {
            remember(p, index, &s);
            continue;
        }
        r = prep_queue_take(&p->queue, &turn);
        wait_remembered(p, r);
        m = p->model;
        pthread_mutex_unlock(&p->lock);
        if (!s && prep_scratch_new(&m, &s) < 0) {
            xerr_set(&r->error, -ENOMEM, "no memory to prepare the request");
            p->opt.hooks.done(p->opt.hooks.ctx, r, PREP_FAILED);
        } else {
            work_on(p, &m, s, r);
        }
        pthread_mutex_lock(&p->lock);
        prep_queue_done(&p->queue, &turn);
    }
    pthread_mutex_unlock(&p->lock);
    prep_scratch_free(s);
    return NULL;
}

bool prep_work_now(struct prep *p, struct prep_scratch *s) {
    struct prep_req *r = NULL;
    struct prep_turn turn;
    struct prep_model m;

    pthread_mutex_lock(&p->lock);
    while (p->ended)
        remember(p, 0, &s);
    if (p->has_model)
        r = prep_queue_take(&p->queue, &turn);
    m = p->model;
    pthread_mutex_unlock(&p->lock);
    if (!r)
        return false;
    work_on(p, &m, s, r);
    pthread_mutex_lock(&p->lock);
    prep_queue_done(&p->queue, &turn);
    pthread_mutex_unlock(&p->lock);
    return true;
}

int prep_new(const struct prep_options *opt, struct prep **ret) {
    struct prep *p = calloc(1, sizeof *p);
    sigset_t all, old;
    int r = 0;

    if (!p)
        return -ENOMEM;
    p->opt = *opt;
    prep_queue_init(&p->queue, opt->workers);
    p->last_ended = &p->ended;
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->submit_lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->remembered, NULL);
    p->threads = calloc(opt->workers, sizeof *p->threads);
    p->worker = calloc(opt->workers, sizeof *p->worker);
    p->at_ended = calloc((size_t)opt->workers + 1, sizeof *p->at_ended);
    if (!p->threads || !p->worker || !p->at_ended)
        r = -ENOMEM;
    /* signals belong to the io thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 0; i < opt->workers && r == 0; i++) {
        p->worker[i] = (struct worker){p, i};
        r = -pthread_create(&p->threads[i], NULL, worker_main, &p->worker[i]);
        if (r == 0)
            p->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r < 0) {
        prep_free(p);
        return r;
    }
    *ret = p;
    return 0;
}

struct prep *prep_free(struct prep *p) {
    if (!p)
        return NULL;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    while (p->ended)
        prep_req_free(take_ended(p));
    free(p->threads);
    free(p->worker);
    free(p->at_ended);
    pthread_cond_destroy(&p->remembered);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->submit_lock);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return NULL;
}

int prep_set_model(struct prep *p, const struct prep_model *m) {
    pthread_mutex_lock(&p->lock);
    p->model = *m;
    p->model.turns = m->tok && m->chat ? p->opt.turns : NULL;
    p->has_model = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

void prep_set_max_prompt(struct prep *p, uint64_t bytes) {
    pthread_mutex_lock(&p->lock);
    p->model.max_prompt_bytes = bytes;
    pthread_mutex_unlock(&p->lock);
}

void prep_push(struct prep *p, struct prep_req *r) {
    pthread_mutex_lock(&p->lock);
    r->after = p->n_ended;
    prep_queue_push(&p->queue, r);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

void prep_retire(struct prep *p, struct prep_req *r) {
    if (!r || !r->answer || r->sched.n_answer == 0) {
        prep_req_free(r);
        return;
    }
    prep_grammar_drop(r);
    r->next = NULL;
    pthread_mutex_lock(&p->lock);
    *p->last_ended = r;
    p->last_ended = &r->next;
    p->n_ended++;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

bool prep_take_back(struct prep *p, struct prep_req *r) {
    bool found;

    pthread_mutex_lock(&p->lock);
    found = prep_queue_remove(&p->queue, r);
    pthread_mutex_unlock(&p->lock);
    return found;
}
