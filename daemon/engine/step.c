/* SPDX-License-Identifier: MIT */
/* step.c: the decode step: every running sequence that can take a token, in one plan; then the decision over
 * each token. Engine thread. */
#include <errno.h>

#include "clock.h"
#include "engine_priv.h"

_Static_assert(sizeof(struct sched_bias) == sizeof(struct kern_bias) &&
                   offsetof(struct sched_bias, bias) == offsetof(struct kern_bias, bias),
               "a request's biases are copied into plans as they are");
_Static_assert((int)STREAM_MAX_ALTS == (int)KERN_MAX_ALTS, "alternatives fit an event");

/* The sampling entry of a sequence's next token, for row `row` of the plan being built. */
int step_sample(struct engine *e, const struct eng_seq *q, uint32_t row) {
    const struct sched_sampling *w = &e->streams[q->stream].req->sampling;
    struct kern_sample *s = plan_sample(&e->plan, row, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
    struct control_next next;
    int r;

    if (!s)
        return -ENOSPC;
    s->temperature = w->temperature;
    s->top_p = w->top_p;
    s->min_p = w->min_p;
    s->repetition = w->repetition;
    s->presence = w->presence;
    s->frequency = w->frequency;
    s->top_k = w->top_k;
    s->n_alts = w->n_alts;
    s->seed = w->seed;
    control_next(&q->control, &next);
    if (next.forced != CONTROL_NONE)
        s->forced = next.forced;
    r = plan_ban(&e->plan, s, next.ban, next.n_ban);
    if (r >= 0 && next.masked) {
        uint32_t *words = plan_mask_of(&e->plan, s);

        if (!words)
            return -ENOSPC;
        control_mask(&q->control, words, plan_mask_words(&e->kc));
    }
    if (r >= 0)
        r = plan_bias(&e->plan, s, (const struct kern_bias *)(const void *)w->bias, w->n_bias);
    if (r >= 0 && q->penalties)
        r = plan_seen(&e->plan, s, q->seen.list, q->seen.n);
    return r;
}

int step_launch(struct engine *e) {
    const struct kern_plan *plan;
    uint64_t bytes;
    int r, row;

    e->n_batch = sched_pick_decode(e->sched, e->batch, e->opt.max_seqs);
    if (!e->n_batch)
        return 0;
    plan_begin(&e->plan, KERN_LANE_DECODE, ++e->step);
    for (uint32_t i = 0; i < e->n_batch; i++) {
        const struct eng_seq *q = stream_seq(e, e->batch[i]);

        e->batch[i] = (uint32_t)(q - e->seqs);
        r = plan_seq(&e->plan, q->slot, q->pos, 0, KERN_SEQ_COMMIT, q->pages, mem_pages_for(q->pos + 1));
        if (r < 0 || (r = row = plan_row(&e->plan, q->token, KERN_NONE)) < 0 ||
            (r = step_sample(e, q, (uint32_t)row)) < 0)
            return engine_fail(e, "decode plan", r);
    }
    if ((r = plan_end(&e->plan, &plan, &bytes)) < 0 || (r = ranks_plan_load(&e->ranks, plan, bytes)) < 0 ||
        (r = ranks_launch(&e->ranks, e->progs.decode)) < 0)
        return engine_fail(e, "decode step", r);
    return 1;
}

static void event_token(struct engine *e, const struct eng_seq *q, const struct kern_result *r, uint64_t t_ns) {
    const struct eng_stream *st = &e->streams[q->stream];
    const struct sched_sampling *w = &st->req->sampling;
    struct stream_event *ev = event_push(e, st->id, STREAM_EV_TOKEN, t_ns);

    ev->token = r->token;
    ev->first = q->control.n_out == 1;
    ev->forced = q->control.forced;
    if (w->logprobs || w->n_alts)
        ev->logprob = r->logprob;
    ev->n_alts = r->n_alts < w->n_alts ? r->n_alts : w->n_alts;
    for (uint32_t i = 0; i < ev->n_alts; i++)
        ev->alts[i] = (struct stream_alt){ .token = r->alts[i].token, .logprob = r->alts[i].logprob };
}

/* Nobody is cut off without being told by what: max_tokens may be more than the context takes. */
static enum stream_reason limit_reason(const struct engine *e, const struct eng_seq *q) {
    return q->control.limit_tokens == e->streams[q->stream].req->max_tokens ? STREAM_END_LENGTH : STREAM_END_CONTEXT;
}

static void answer_add(struct sched_req *req, uint32_t token) {
    if (req->n_answer < req->answer_cap && !FAULT(engine_answer_lost))
        req->answer[req->n_answer] = token;
    req->n_answer++;
}

/* One sampled token of a sequence: reported, then perhaps the end. */
void step_token(struct engine *e, uint32_t seq, const struct kern_result *r, uint64_t t_ns) {
    struct eng_seq *q = &e->seqs[seq];
    enum control_verdict v;

    if (r->flags & KERN_RESULT_NONFINITE) {
        stream_end(e, q->stream, STREAM_END_ERROR, -EDOM, UINT32_MAX);
        return;
    }
    if (r->flags & KERN_RESULT_EMPTY) {
        stream_end(e, q->stream, STREAM_END_ERROR, -ENODATA, UINT32_MAX);
        return;
    }
    if (q->first_ns && t_ns - q->last_ns > q->longest_gap_ns)
        q->longest_gap_ns = t_ns - q->last_ns;
    if (q->first_ns && t_ns > q->last_ns)
        sched_measured_token(e->sched, t_ns - q->last_ns);
    if (!q->first_ns)
        q->first_ns = t_ns;
    q->last_ns = t_ns;
    sched_served(e->sched, q->stream, 1);
    if (!FAULT(engine_first_uncounted) || q->control.n_out)
        stat_add(&e->stats.sampled_tokens, 1); /* here, for the first one comes out of the prompt, not a step */
    v = control_token(&q->control, r->token);
    if (v == CONTROL_STOP_ID) {
        stream_end(e, q->stream, STREAM_END_STOP, 0, r->token);
        return;
    }
    if (v == CONTROL_BROKEN) {
        stream_end(e, q->stream, STREAM_END_ERROR, -EBADMSG, UINT32_MAX);
        return;
    }
    event_token(e, q, r, t_ns);
    answer_add(e->streams[q->stream].req, r->token);
    ecache_token(q, r->token);
    q->token = r->token;
    if (q->penalties)
        seen_add(&q->seen, r->token, 1);
    if (v == CONTROL_STOP_STRING)
        stream_end(e, q->stream, STREAM_END_STOP_STRING, 0, UINT32_MAX);
    else if (v == CONTROL_CALLED)
        stream_end(e, q->stream, STREAM_END_STOP, 0, UINT32_MAX);
    else if (v == CONTROL_LOOP)
        stream_end(e, q->stream, STREAM_END_LOOP, 0, UINT32_MAX);
    else if (v == CONTROL_LENGTH)
        stream_end(e, q->stream, limit_reason(e, q), 0, UINT32_MAX);
}

int step_finish(struct engine *e) {
    const struct kern_result *res;
    uint64_t began = e->now_ns;
    uint32_t n = 0;
    int r = ranks_wait(&e->ranks, KERN_LANE_DECODE);

    if (r < 0)
        return engine_fail(e, "decode step", r);
    e->now_ns = clock_now_ns();
    governor_decoded(&e->governor, e->now_ns > began ? e->now_ns - began : 0);
    res = kern_results(e->k, KERN_LANE_DECODE, &n);
    if (n != e->n_batch)
        return engine_fail(e, "decode step's results", -EBADMSG);
    stat_add(&e->stats.steps, 1);
    for (uint32_t i = 0; i < n; i++) {
        e->seqs[e->batch[i]].pos++;
        step_token(e, e->batch[i], &res[i], e->now_ns);
    }
    /* Handing over costs one wake however many clients there are, and the other thread's way to its core then
     * passes while the next step is planned. And where this thread computes itself, no device would idle. */
    if (kern_caller_computes(e->k) || (e->sink.hands_over && e->sink.hands_over(e->sink.ctx)))
        events_publish(e);
    return 0;
}
