/* SPDX-License-Identifier: MIT */
/* score.c: evaluation over the serving pieces. One thread, the engine not running; allocates only here. */
#include "score.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine_priv.h"

struct scorer {
    struct engine *e;
    const struct score_query *q;
    const struct score_out *out;
    struct mem_slot slot;
    struct mem_page *pages;
    uint32_t n_pages;
    float *logits; /* of a row */
    float *peek; /* activations of a chunk */
    uint64_t peek_floats;
    bool draft;
};

void score_get_shape(const struct engine *e, struct score_shape *ret) {
    const struct kern_model_desc *m = &e->kc.model;

    *ret = (struct score_shape){ .n_layers = m->n_layers, .n_draft = e->opt.draft ? m->n_draft : 0,
                                 .hc_mult = m->hc_mult, .hidden = m->hidden, .vocab_rows = m->vocab_rows,
                                 .vocab_tokens = m->vocab_tokens, .context_tokens = e->kc.max_context };
}

static void row_from(struct score_row *ret, const struct kern_result *r) {
    *ret = (struct score_row){ .top1 = r->top1, .logsumexp = r->logsumexp, .target = r->target,
                               .flags = r->flags };
}

/* Sampling entries of rows [pos0, pos0 + n): the trunk's when asked for, the draft's where the next id is
 * known. */
static int add_samples(struct scorer *s, uint32_t pos0, uint32_t n) {
    uint32_t total = s->q->n_ids;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = pos0 + i;
        bool last = pos + 1 == total;
        struct kern_sample *w;

        if (s->out->rows || last) {
            if (!(w = plan_sample(&s->e->plan, i, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK)))
                return -ENOSPC;
            w->target = last ? KERN_NONE : s->q->ids[pos + 1];
        }
        if (s->draft && !last && (s->out->draft || pos + 2 == total) &&
            !plan_sample(&s->e->plan, i, KERN_SAMPLE_SCORE, KERN_SOURCE_DRAFT))
            return -ENOSPC;
    }
    return 0;
}

/* Results of the lane's step go to where their rows belong. */
static int take_results(struct scorer *s, uint32_t lane, uint32_t pos0) {
    struct engine *e = s->e;
    uint32_t n = 0, rows = e->kc.model.vocab_rows;
    const struct kern_result *res = kern_results(e->k, lane, &n);
    int r = 0;

    if (n != e->plan.n_samples)
        return -EBADMSG;
    for (uint32_t i = 0; i < n && r >= 0; i++) {
        const struct kern_sample *w = &e->plan.samples[i];
        uint32_t pos = pos0 + w->row;

        if (w->source == KERN_SOURCE_TRUNK) {
            if (s->out->rows)
                row_from(&s->out->rows[pos], &res[i]);
            if (s->q->logits) {
                r = kern_peek(e->k, lane, KERN_PEEK_LOGITS, i, 1, s->logits, rows);
                if (r < 0)
                    break;
                s->q->logits(s->q->ctx, pos, s->logits);
            }
            if (pos + 1 == s->q->n_ids && s->out->logits_last)
                r = kern_peek(e->k, lane, KERN_PEEK_LOGITS, i, 1, s->out->logits_last, rows);
        } else {
            if (s->out->draft)
                row_from(&s->out->draft[pos], &res[i]);
            if (pos + 2 == s->q->n_ids && s->out->draft_logits_last)
                r = kern_peek(e->k, lane, KERN_PEEK_LOGITS, i, 1, s->out->draft_logits_last, rows);
        }
    }
    if (r >= 0 && s->out->counters)
        r = kern_counters(e->k, lane, s->out->counters);
    return r;
}

/* What stands in the streams after program i of the chunk: the embedding enters layer 0, layer L's output
 * enters layer L + 1, and after kern_final the hidden state replaces them. */
static int show(struct scorer *s, uint32_t prog, uint32_t pos0, uint32_t n) {
    uint32_t layers = s->e->progs.n_layers;
    enum kern_peek what = prog < layers ? KERN_PEEK_STREAMS : KERN_PEEK_HIDDEN;
    int r;

    if (!s->q->show || prog == layers || prog > layers + 1)
        return 0;
    r = kern_peek(s->e->k, KERN_LANE_PREFILL, what, 0, n, s->peek, s->peek_floats);
    if (r >= 0)
        s->q->show(s->q->ctx, prog < layers ? prog : layers, pos0, n, s->peek);
    return r;
}

static int chunk(struct scorer *s, uint32_t pos0, uint32_t n) {
    struct engine *e = s->e;
    struct fill *f = &e->fill;
    uint32_t flags = KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | (pos0 ? 0u : (uint32_t)KERN_SEQ_RESET) |
                     (s->draft ? (uint32_t)KERN_SEQ_DRAFT : 0u);
    int r;

    plan_begin(&e->plan, KERN_LANE_PREFILL, ++e->step);
    r = plan_seq(&e->plan, s->slot, pos0, 0, flags, s->pages, mem_pages_for(pos0 + n));
    for (uint32_t i = 0; r >= 0 && i < n; i++) {
        uint32_t next = s->draft && pos0 + i + 1 < s->q->n_ids ? s->q->ids[pos0 + i + 1] : KERN_NONE;

        r = plan_row(&e->plan, s->q->ids[pos0 + i], next);
    }
    if (r >= 0)
        r = add_samples(s, pos0, n);
    if (r >= 0)
        r = fill_load(e);
    fill_programs(e, f, e->plan.n_samples || s->q->show, s->draft);
    for (uint32_t i = 0; r >= 0 && i < f->n_progs; i++) {
        r = ranks_launch(&e->ranks, f->progs[i]);
        if (r >= 0)
            r = ranks_wait(&e->ranks, KERN_LANE_PREFILL);
        if (r >= 0)
            r = show(s, i, pos0, n);
    }
    return r < 0 ? r : take_results(s, KERN_LANE_PREFILL, pos0);
}

static int feed(struct scorer *s, uint32_t pos) {
    struct engine *e = s->e;
    const struct kern_plan *plan;
    uint64_t bytes;
    int r;

    plan_begin(&e->plan, KERN_LANE_DECODE, ++e->step);
    r = plan_seq(&e->plan, s->slot, pos, 0, KERN_SEQ_COMMIT | (pos ? 0u : (uint32_t)KERN_SEQ_RESET), s->pages,
                 mem_pages_for(pos + 1));
    if (r >= 0)
        r = plan_row(&e->plan, s->q->ids[pos], KERN_NONE);
    if (r >= 0)
        r = add_samples(s, pos, 1);
    if (r >= 0)
        r = plan_end(&e->plan, &plan, &bytes);
    if (r < 0 || (r = ranks_plan_load(&e->ranks, plan, bytes)) < 0 ||
        (r = ranks_launch(&e->ranks, e->progs.decode)) < 0 || (r = ranks_wait(&e->ranks, KERN_LANE_DECODE)) < 0)
        return r;
    return take_results(s, KERN_LANE_DECODE, pos);
}

static int run(struct scorer *s) {
    uint32_t prefill = s->q->n_ids - s->q->fed_tokens, n;
    uint32_t chunk_tokens = s->q->chunk_tokens ? s->q->chunk_tokens : s->e->opt.prefill_tokens;
    bool draft = s->draft;
    int r = 0;

    for (uint32_t pos = 0; r >= 0 && pos < prefill; pos += n) {
        n = prefill - pos < chunk_tokens ? prefill - pos : chunk_tokens;
        r = chunk(s, pos, n);
    }
    s->draft = false; /* the draft stages are not part of the decode program */
    for (uint32_t pos = prefill; r >= 0 && pos < s->q->n_ids; pos++)
        r = feed(s, pos);
    s->draft = draft;
    return r;
}

static int check_query(const struct engine *e, const struct score_query *q, const struct score_out *out,
                       struct xerr *err) {
    if (!e->loaded)
        return xerr_set(err, -EINVAL, "evaluation: the model is not loaded");
    if (!q->n_ids || q->n_ids > e->kc.max_context)
        return xerr_set(err, -EOVERFLOW, "evaluation: found %u ids, expected 1 to %u, the context", q->n_ids,
                        e->kc.max_context);
    if (q->fed_tokens > q->n_ids || q->chunk_tokens % KERN_GRID || q->chunk_tokens > e->opt.prefill_tokens)
        return xerr_set(err, -EINVAL, "evaluation: chunk of %u tokens or %u fed tokens is out of range",
                        q->chunk_tokens, q->fed_tokens);
    if ((out->rows || out->draft) && !e->opt.score)
        return xerr_set(err, -EINVAL, "evaluation: rows were asked for, but the engine was opened without score");
    if ((out->draft || out->draft_logits_last) && !e->progs.draft)
        return xerr_set(err, -EINVAL, "evaluation: drafts were asked for, but the model was opened without them");
    for (uint32_t i = 0; i < q->n_ids; i++)
        if (q->ids[i] >= e->kc.model.vocab_tokens)
            return xerr_set(err, -EINVAL, "evaluation: id %u is %u, expected below %u", i, q->ids[i],
                            e->kc.model.vocab_tokens);
    return 0;
}

int score_prompt(struct engine *e, const struct score_query *q, const struct score_out *out, struct xerr *err) {
    struct scorer s = { .e = e, .q = q, .out = out, .draft = out->draft || out->draft_logits_last };
    int r = check_query(e, q, out, err);

    if (r < 0)
        return r;
    s.n_pages = mem_pages_for(q->n_ids);
    s.pages = calloc(s.n_pages, sizeof *s.pages);
    s.peek_floats = (uint64_t)e->opt.prefill_tokens * e->kc.model.hc_mult * e->kc.model.hidden;
    s.peek = q->show ? calloc(s.peek_floats, sizeof *s.peek) : NULL;
    s.logits = q->logits ? calloc(e->kc.model.vocab_rows, sizeof *s.logits) : NULL;
    if (!s.pages || (q->show && !s.peek) || (q->logits && !s.logits)) {
        r = xerr_set(err, -ENOMEM, "evaluation: no memory");
    } else if ((r = mem_pages_take(&e->pages, s.n_pages, s.pages)) < 0) {
        xerr_set(err, r, "evaluation: %u ids need %u pages, fewer are free", q->n_ids, s.n_pages);
    } else if ((r = mem_slot_take(&e->slots, &s.slot)) < 0) {
        mem_pages_give(&e->pages, s.n_pages, s.pages);
        xerr_set(err, r, "evaluation: no free slot");
    } else {
        r = run(&s);
        if (r < 0)
            xerr_set(err, r, "evaluation: %s (%s)", ranks_error(&e->ranks), strerror(-r));
        mem_slot_give(&e->slots, s.slot);
        mem_pages_give(&e->pages, s.n_pages, s.pages);
    }
    free(s.pages);
    free(s.peek);
    free(s.logits);
    return r < 0 ? r : 0;
}

/* ---- greedy continuation through the serving loop ---- */

struct catcher {
    uint32_t *ids;
    uint32_t n, cap;
    bool ended;
    int status;
};

static void catch_events(void *ctx, const struct stream_event *ev, uint32_t n) {
    struct catcher *c = ctx;

    for (uint32_t i = 0; i < n; i++) {
        bool is_stop = ev[i].type == STREAM_EV_END && ev[i].reason == STREAM_END_STOP;

        if ((ev[i].type == STREAM_EV_TOKEN || is_stop) && c->n < c->cap)
            c->ids[c->n++] = ev[i].token;
        if (ev[i].type == STREAM_EV_END) {
            c->ended = true;
            c->status = ev[i].status;
        }
    }
}

int score_greedy(struct engine *e, const uint32_t *ids, uint32_t n_ids, uint32_t *ret_ids, uint32_t cap,
                 uint32_t *ret_n, struct xerr *err) {
    struct catcher c = { .ids = ret_ids, .cap = cap };
    struct stream_sink before = e->sink;
    struct sched_req req = { .stream = { .index = 0, .gen = 1 }, .ids = ids, .n_ids = n_ids, .max_tokens = cap,
                             .quiet = true, .no_cache = true, .sampling = { .top_p = 1.0f, .repetition = 1.0f } };
    int r;

    if (!e->loaded)
        return xerr_set(err, -EINVAL, "evaluation: the model is not loaded");
    e->sink = (struct stream_sink){ .ctx = &c, .publish = catch_events };
    r = engine_submit(e, &req);
    if (r < 0) {
        xerr_set(err, r, "evaluation: the prompt of %u ids was refused: %s", n_ids, strerror(-r));
    } else {
        while (!c.ended)
            if (engine_round(e, false) < 0)
                events_publish(e);
        r = c.status;
        if (r < 0)
            xerr_set(err, r, "evaluation: generation failed: %s (%s)", strerror(-r), ranks_error(&e->ranks));
    }
    e->sink = before;
    *ret_n = c.n;
    return r;
}
