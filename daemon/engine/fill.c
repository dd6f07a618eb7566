/* SPDX-License-Identifier: MIT */
/* fill.c: the prefill lane. A prompt is read in chunks that begin on the absolute KERN_GRID-token grid; a
 * chunk runs layer by layer, and decode steps run between slices of layers. Engine thread.
 *
 * How long a slice is: the time decode steps took is a debt to the prefill; a slice spends what is owed, so
 * each side gets about half of the device whatever a step or a layer costs. A program cannot be cut, so one
 * that takes longer than the largest debt waits until half of its time is owed, and no longer. Without decoding
 * streams a slice is bounded only so that a cancellation does not wait long.
 *
 * What a program takes is measured by the size of its chunk, in powers of two: a single row costs nearly what
 * sixteen do, because the weights have to be read for it as well. */
#include <errno.h>
#include <math.h>

#include "clock.h"
#include "engine_priv.h"

enum { IDLE_SLICE_NS = 50000000, MAX_DEBT_NS = 200000000 };

void fill_programs(struct engine *e, struct fill *f, bool head, bool draft) {
    uint32_t n = 0;

    f->progs[n++] = e->progs.embed;
    for (uint32_t i = 0; i < e->progs.n_layers; i++)
        f->progs[n++] = e->progs.layer[i];
    if (head || draft)
        f->progs[n++] = e->progs.final;
    if (head)
        f->progs[n++] = e->progs.head;
    if (draft)
        f->progs[n++] = e->progs.draft;
    f->n_progs = n;
    f->next = f->launched = 0;
}

int fill_load(struct engine *e) {
    const struct kern_plan *plan;
    uint64_t bytes;
    int r = plan_end(&e->plan, &plan, &bytes);

    return r < 0 ? r : kern_plan_load(e->k, plan, bytes);
}

static int chunk_plan(struct engine *e, struct fill *f, struct eng_seq *q) {
    const struct sched_req *req = e->streams[q->stream].req;
    int r, row = 0;

    plan_begin(&e->plan, KERN_LANE_PREFILL, ++e->step);
    r = plan_seq(&e->plan, q->slot, f->pos0, 0,
                 KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | (f->pos0 ? 0u : (uint32_t)KERN_SEQ_RESET), q->pages,
                 mem_pages_for(f->pos0 + f->n_rows));
    for (uint32_t i = 0; r >= 0 && i < f->n_rows; i++) {
        r = row = plan_row(&e->plan, req->ids[f->pos0 + i], KERN_NONE);
        if (q->penalties)
            seen_add(&q->seen, req->ids[f->pos0 + i], 0);
    }
    if (r >= 0 && f->last)
        r = step_sample(e, q, (uint32_t)row);
    return r < 0 ? r : fill_load(e);
}

int fill_start(struct engine *e) {
    struct fill *f = &e->fill;
    struct eng_seq *q;
    uint32_t stream, left;
    int r;

    if (f->active)
        return 1;
    if (sched_pick_fill(e->sched, e->now_ns, &stream) < 0)
        return 0;
    q = stream_seq(e, stream);
    left = e->streams[stream].req->n_ids - q->pos;
    f->seq = (uint32_t)(q - e->seqs);
    f->pos0 = q->pos;
    f->n_rows = left < e->opt.prefill_tokens ? left : e->opt.prefill_tokens;
    f->last = f->n_rows == left;
    fill_programs(e, f, f->last, false);
    r = chunk_plan(e, f, q);
    if (r < 0)
        return engine_fail(e, "prefill plan", r);
    f->active = true;
    return 1;
}

static double *program_ns(struct fill *f) {
    uint32_t i = 0;

    while (f->n_rows > 1u << i)
        i++;
    return &f->program_ns[i];
}

int fill_launch(struct engine *e, bool busy) {
    struct fill *f = &e->fill;
    double one = *program_ns(f), budget = IDLE_SLICE_NS;
    uint32_t want = f->n_progs - f->next;

    if (busy) {
        double most = FAULT(fill_debt_capped) || one / 2 < MAX_DEBT_NS ? MAX_DEBT_NS : one / 2;

        budget = (double)f->debt_ns + (double)e->decode_ns;
        if (budget > most)
            budget = most;
        f->debt_ns = (uint64_t)budget;
        if (budget < floor(one / 2))
            return 0;
    }
    if (one <= 0)
        want = 1;
    else if (budget / one < want)
        want = budget / one < 1 ? 1 : (uint32_t)(budget / one);
    f->began_ns = clock_now_ns();
    for (f->launched = 0; f->launched < want; f->launched++) {
        int r = kern_launch(e->k, f->progs[f->next + f->launched]);

        if (r == -EAGAIN && f->launched)
            break;
        if (r < 0)
            return engine_fail(e, "prefill slice", r);
    }
    return 1;
}

static void chunk_done(struct engine *e, struct fill *f, const struct kern_result *res) {
    struct eng_seq *q = &e->seqs[f->seq];
    uint32_t stream = q->stream;

    f->active = false;
    q->pos += f->n_rows;
    stat_add(&e->stats.prefill_tokens, f->n_rows);
    sched_filled(e->sched, stream, f->n_rows, e->now_ns);
    event_progress(e, stream, q->pos, 0);
    if (!f->last)
        return;
    if (e->streams[stream].skipped) {
        q->deferred = true;
        q->deferred_ns = e->now_ns;
        q->result = *res;
        return;
    }
    step_token(e, f->seq, res, e->now_ns);
}

int fill_finish(struct engine *e) {
    struct fill *f = &e->fill;
    const struct kern_result *res;
    /* the slice had the device to itself since its launch, or since the decode step before it ended */
    uint64_t began = f->began_ns > e->now_ns ? f->began_ns : e->now_ns, took;
    uint32_t n = 0, layers;
    int r = kern_wait(e->k, KERN_LANE_PREFILL);

    if (r < 0)
        return engine_fail(e, "prefill slice", r);
    e->now_ns = clock_now_ns();
    took = e->now_ns - began;
    f->debt_ns -= took < f->debt_ns ? took : f->debt_ns;
    /* the embedding costs nothing beside a layer: counting it would make the first slices far too long */
    layers = f->next ? f->launched : f->launched - 1;
    if (layers) {
        double one = (double)took / layers, *known = program_ns(f);

        *known = *known > 0 ? *known * 0.75 + one * 0.25 : one;
    }
    f->next += f->launched;
    f->launched = 0;
    if (f->next < f->n_progs)
        return 0;
    res = kern_results(e->k, KERN_LANE_PREFILL, &n);
    if (n != (uint32_t)f->last)
        return engine_fail(e, "prefill results", -EBADMSG);
    chunk_done(e, f, res);
    return 0;
}
