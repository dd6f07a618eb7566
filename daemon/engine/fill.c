/* SPDX-License-Identifier: MIT */
/* fill.c: the prefill lane. Prompts are read in chunks that begin on the absolute KERN_GRID-token grid; a chunk
 * runs layer by layer, and decode steps run between slices of layers. How many rows a chunk has and how long a
 * slice is, is the governor's business (sched/governor.h); whose prompts it reads is the scheduler's. Engine thread.
 *
 * Nothing of a chunk can be taken out once it has begun: its layers write into the slots and pages of all its
 * sequences to the end. So a sequence that ends meanwhile keeps its own until the chunk is done, unless it is the
 * last one of it; then the rest of the chunk is not computed. */
#include <errno.h>

#include "clock.h"
#include "engine_priv.h"

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

    return r < 0 ? r : ranks_plan_load(&e->ranks, plan, bytes);
}

static uint32_t prompt_left(const struct eng_seq *q) {
    return q->n_read - q->pos;
}

static int part_plan(struct engine *e, struct fill_part *p) {
    struct eng_seq *q = &e->seqs[p->seq];
    const struct sched_req *req = e->streams[q->stream].req;
    int r, row = 0;

    r = plan_seq(&e->plan, q->slot, p->pos0, 0,
                 KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | (p->pos0 ? 0u : (uint32_t)KERN_SEQ_RESET), q->pages,
                 mem_pages_for(p->pos0 + p->n_rows));
    for (uint32_t i = 0; r >= 0 && i < p->n_rows; i++) {
        r = row = plan_row(&e->plan, away_id(e, q, p->pos0 + i), KERN_NONE);
        if (q->penalties && p->pos0 + i == q->n_seen && q->n_seen < req->n_ids)
            seen_add(&q->seen, req->ids[q->n_seen++], 0);
    }
    if (r >= 0 && p->last)
        r = step_sample(e, q, (uint32_t)row);
    return r;
}

static bool ends_prompt(const struct engine *e, const struct fill_part *p) {
    return p->n_rows == prompt_left(&e->seqs[p->seq]);
}

/* What the scheduler gave to one prompt, cut where the cache wants a state. */
static struct fill_part part_of(struct engine *e, const struct sched_part *given) {
    struct eng_seq *q = stream_seq(e, given->job);
    struct fill_part p = { .seq = (uint32_t)(q - e->seqs), .pos0 = q->pos, .n_rows = given->tokens };
    uint32_t mark = ecache_next_mark(e, q, q->pos);

    if (p.n_rows > mark - q->pos)
        p.n_rows = mark - q->pos;
    p.last = p.n_rows == prompt_left(q) && !q->answers;
    return p;
}

/* Prompts that end do not wait for what is read of others, unless that costs next to nothing. */
static void chunk_split(struct engine *e, struct fill *f) {
    uint32_t ends = 0, all = 0, n = 0;

    for (uint32_t i = 0; i < f->n_parts; i++) {
        all += f->parts[i].n_rows;
        ends += ends_prompt(e, &f->parts[i]) ? f->parts[i].n_rows : 0;
    }
    if (ends && ends < all && governor_splits(&e->governor, ends, all) && !FAULT(fill_all_together)) {
        for (uint32_t i = 0; i < f->n_parts; i++)
            if (ends_prompt(e, &f->parts[i]))
                f->parts[n++] = f->parts[i];
        f->n_parts = n;
    }
    f->n_rows = 0;
    f->head = false;
    for (uint32_t i = 0; i < f->n_parts; i++) {
        f->n_rows += f->parts[i].n_rows;
        f->head |= f->parts[i].last;
    }
}

int fill_start(struct engine *e, bool busy) {
    struct fill *f = &e->fill;
    struct sched_part given[ENGINE_FILL_PARTS];
    uint32_t max = e->opt.prefill_tokens, rows;
    uint32_t parts = e->opt.max_seqs < ENGINE_FILL_PARTS ? e->opt.max_seqs : ENGINE_FILL_PARTS;
    int r = 0;

    if (f->active)
        return 1;
    rows = governor_rows(&e->governor, busy, max, max, KERN_GRID);
    f->n_parts = sched_plan_chunk(e->sched, e->now_ns, rows, KERN_GRID, given, FAULT(fill_one_prompt) ? 1 : parts);
    if (!f->n_parts)
        return 0;
    for (uint32_t i = 0; i < f->n_parts; i++)
        f->parts[i] = part_of(e, &given[i]);
    chunk_split(e, f);
    fill_programs(e, f, f->head, false);
    plan_begin(&e->plan, KERN_LANE_PREFILL, ++e->step);
    for (uint32_t i = 0; r >= 0 && i < f->n_parts; i++)
        r = part_plan(e, &f->parts[i]);
    if (r >= 0)
        r = fill_load(e);
    if (r < 0)
        return engine_fail(e, "prefill plan", r);
    f->active = true;
    f->started_ns = e->now_ns;
    return 1;
}

/* The embedding is no program to the governor: it costs nothing beside a layer, and runs with the first one. */
static uint32_t place_of(uint32_t prog) {
    return prog ? prog - 1 : 0;
}

int fill_launch(struct engine *e, bool busy) {
    struct fill *f = &e->fill;
    uint32_t first = place_of(f->next);
    uint32_t want = governor_slice(&e->governor, busy, f->n_rows, first, place_of(f->n_progs) - first);

    if (!want)
        return 0;
    want += !f->next;
    f->began_ns = clock_now_ns();
    for (f->launched = 0; f->launched < want; f->launched++) {
        int r = ranks_launch(&e->ranks, f->progs[f->next + f->launched]);

        if (r == -EAGAIN && f->launched)
            break;
        if (r < 0)
            return engine_fail(e, "prefill slice", r);
    }
    return 1;
}

bool fill_leave(struct engine *e, uint32_t seq) {
    struct fill *f = &e->fill;
    uint32_t others = 0;
    bool in = false;

    for (uint32_t i = 0; f->active && i < f->n_parts; i++) {
        if (f->parts[i].seq == seq)
            in = true;
        else
            others += !e->seqs[f->parts[i].seq].gone;
    }
    if (!in || FAULT(fill_gives_early))
        return true;
    if (others)
        return false;
    f->active = false; /* nobody wants the rest; who gets these slots next resets them */
    for (uint32_t i = 0; i < f->n_parts; i++)
        if (f->parts[i].seq != seq)
            seq_give(e, f->parts[i].seq);
    return true;
}

uint32_t fill_until(const struct engine *e, uint32_t seq) {
    const struct fill *f = &e->fill;

    for (uint32_t i = 0; f->active && i < f->n_parts; i++)
        if (f->parts[i].seq == seq)
            return f->parts[i].pos0 + f->parts[i].n_rows;
    return e->seqs[seq].pos;
}

static void part_done(struct engine *e, const struct fill_part *p, const struct kern_result *res) {
    struct eng_seq *q = &e->seqs[p->seq];
    uint32_t stream = q->stream;

    if (q->gone) {
        seq_give(e, p->seq);
        return;
    }
    q->pos += p->n_rows;
    if (q->answers && !prompt_left(q))
        q->answers = false;
    stat_add(&e->stats.prefill_tokens, p->n_rows);
    sched_filled(e->sched, stream, p->n_rows, e->now_ns);
    event_progress(e, stream, q->pos, 0, 0);
    ecache_filled(e, q);
    if (!p->last)
        return;
    if (e->streams[stream].skipped) {
        q->deferred = true;
        q->deferred_ns = e->now_ns;
        q->result = *res;
        return;
    }
    step_token(e, p->seq, res, e->now_ns);
}

static int chunk_done(struct engine *e, struct fill *f) {
    uint32_t n = 0, want = 0;
    const struct kern_result *res = kern_results(e->k, KERN_LANE_PREFILL, &n);

    for (uint32_t i = 0; i < f->n_parts; i++)
        want += f->parts[i].last;
    if (n != want)
        return engine_fail(e, "prefill results", -EBADMSG);
    f->active = false;
    sched_measured_fill(e->sched, f->n_rows, e->now_ns > f->started_ns ? e->now_ns - f->started_ns : 0);
    for (uint32_t i = 0; i < f->n_parts; i++) {
        part_done(e, &f->parts[i], res);
        if (atomic_load(&e->lost)) /* with the copy of a checkpoint: nobody of the others is there any more */
            return -EIO;
        res += f->parts[i].last;
    }
    return 0;
}

int fill_finish(struct engine *e) {
    struct fill *f = &e->fill;
    /* the slice had the device to itself since its launch, or since the decode step before it ended */
    uint64_t began = f->began_ns > e->now_ns ? f->began_ns : e->now_ns;
    int r = ranks_wait(&e->ranks, KERN_LANE_PREFILL);

    if (r < 0)
        return engine_fail(e, "prefill slice", r);
    e->now_ns = clock_now_ns();
    governor_sliced(&e->governor, f->n_rows, place_of(f->next), f->next ? f->launched : f->launched - 1,
                    e->now_ns > began ? e->now_ns - began : 0);
    if (FAULT(fill_dawdles) && e->n_batch) /* the handicap of `make bench-sched` */
        while (clock_now_ns() - e->now_ns < 2 * (e->now_ns - began))
            ;
    f->next += f->launched;
    f->launched = 0;
    return f->next < f->n_progs ? 0 : chunk_done(e, f);
}
