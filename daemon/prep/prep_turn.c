/* SPDX-License-Identifier: MIT */
/* Answers that come back as history: what of an ended request is remembered, and how an assistant message is known
 * again. Text workers only; allocates. No text of either is logged. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "jlcanon.h"
#include "prep_impl.h"
#include "turns.h"

/* ---- remembering ----------------------------------------------------------------------------------------
 */

int prep_parser_new(const struct prep_model *m, struct prep_scratch *s) {
    const struct outparse_limits lim = OUTPARSE_LIMITS_DEFAULT;
    size_t bytes = outparse_bytes(&lim, m->tok);
    struct xerr err;
    int r = outparse_vocab_init(&s->vocab, m->tok, m->eos, m->n_eos, &err);

    if (r < 0)
        return r;
    s->parser_mem = malloc(bytes);
    return s->parser_mem ? outparse_init(s->parser_mem, bytes, &lim, m->tok, &s->parser) : -ENOMEM;
}

/* What the client was shown: the answer read again by the same parser. */
struct view {
    struct tbuf think, body, names, args, canon;
    struct {
        size_t name, args, canon; /* where each ends */
    } calls[TURNS_MAX_CALLS];
    uint32_t n_calls; /* begun */
};

static void view_sink(void *arg, const struct outparse_ev *ev) {
    struct view *v = arg;

    switch (ev->kind) {
    case OUT_EV_TEXT:
        tbuf_put(ev->channel == OUT_REASONING ? &v->think : &v->body, ev->text, ev->n);
        break;
    case OUT_EV_CALL:
        tbuf_put(&v->names, ev->text, ev->n);
        if (v->n_calls < TURNS_MAX_CALLS)
            v->calls[v->n_calls].name = v->names.n;
        v->n_calls++;
        break;
    case OUT_EV_ARGS:
        tbuf_put(&v->args, ev->text, ev->n);
        break;
    case OUT_EV_CALL_END:
        if (v->n_calls <= TURNS_MAX_CALLS)
            v->calls[v->n_calls - 1].args = v->args.n;
        break;
    }
}

static void view_init(struct view *v, size_t max) {
    struct tbuf *all[] = {&v->think, &v->body, &v->names, &v->args, &v->canon};

    v->n_calls = 0;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        tbuf_init(all[i], max);
        tbuf_reserve(all[i], 1);
    }
}

static int view_done(struct view *v) {
    struct tbuf *all[] = {&v->think, &v->body, &v->names, &v->args, &v->canon};
    int r = 0;

    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        r = r ? r : all[i]->err;
        tbuf_done(all[i]);
    }
    return r;
}

static struct tstr piece(const struct tbuf *b, size_t from, size_t to) {
    return (struct tstr){b->p + from, to - from};
}

static bool canon_calls(struct view *v, struct turn_call *calls) {
    size_t name = 0, args = 0, canon = 0;

    for (uint32_t i = 0; i < v->n_calls; i++) {
        struct tstr text = piece(&v->args, args, v->calls[i].args), object;

        if (jl_check(text.p, text.n, JL_MAX_DEPTH, &object, NULL) != JL_OBJECT)
            return false;
        jl_canon(object, &v->canon);
        v->calls[i].canon = v->canon.n;
        args = v->calls[i].args;
    }
    for (uint32_t i = 0; i < v->n_calls; i++) { /* the buffer moves no more */
        calls[i] = (struct turn_call){.name = piece(&v->names, name, v->calls[i].name),
                                      .args = piece(&v->canon, canon, v->calls[i].canon)};
        name = v->calls[i].name;
        canon = v->calls[i].canon;
    }
    return true;
}

/* Where its reasoning is over, when there is one such place; UINT32_MAX when not. Calls inside the reasoning, a
 * second block and the like are only put back whole. */
static uint32_t body_at(const struct outparse_vocab *v, const uint32_t *ids, uint32_t n, bool open) {
    uint32_t at = open ? UINT32_MAX : 0;

    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] == v->think_end && at == UINT32_MAX)
            at = i + 1;
        else if (ids[i] == v->think || ids[i] == v->think_end || (ids[i] == v->call && at == UINT32_MAX))
            return UINT32_MAX;
    }
    return at;
}

static bool is_markup(const struct outparse_vocab *v, uint32_t id) {
    return id == v->think || id == v->think_end || id == v->call || id == v->call_end || id == v->key ||
           id == v->key_end || id == v->value || id == v->value_end;
}

/* Role markers and the like are not shown, so nobody can say whether they are meant. */
static bool is_plain(const struct outparse_vocab *v, const uint32_t *ids, uint32_t n) {
    const uint8_t *bytes;
    size_t len;

    for (uint32_t i = 0; i < n; i++) {
        int flags = tok_bytes(v->tok, ids[i], &bytes, &len);

        if (flags < 0 || (flags & TOK_SPECIAL && !is_markup(v, ids[i])))
            return false;
    }
    return true;
}

/* Anything else was not shown as it was written. */
enum { GOOD_FLAGS = OUT_REASONING_OPEN | OUT_CALL_REPAIRED | OUT_CALL_IN_THINK | OUT_OVER_TOKENS };

static bool read_answer(struct prep_scratch *s, const struct prep_req *r, struct view *v) {
    const struct outparse_req req = {
        .vocab = &s->vocab,
        .tools = r->tools,
        .thinking_open = r->thinking_open,
        .sink = view_sink,
        .arg = v,
    };

    outparse_start(s->parser, &req);
    for (uint32_t i = 0; i < r->sched.n_answer; i++)
        outparse_push(s->parser, r->answer[i]);
    outparse_end(s->parser, r->sched.ended != STREAM_END_STOP);
    return !(outparse_result(s->parser)->flags & ~(unsigned)GOOD_FLAGS) && v->n_calls <= TURNS_MAX_CALLS;
}

static bool is_worth(const struct prep_model *m, const struct prep_req *r) {
    const struct sched_req *q = &r->sched;

    if (!m->turns || !r->answer || q->n_answer == 0 || q->n_answer > q->answer_cap)
        return false;
    /* behind a stop string the ids say more than the client was shown */
    return q->ended == STREAM_END_STOP || q->ended == STREAM_END_LENGTH || q->ended == STREAM_END_CANCELLED ||
           q->ended == STREAM_END_DEADLINE;
}

int prep_remember(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r) {
    struct turn_call calls[TURNS_MAX_CALLS];
    uint32_t n = r->sched.n_answer;
    struct turn t;
    struct view v;
    int kept = 0;

    if (!is_worth(m, r) || !is_plain(&s->vocab, r->answer, n))
        return 0;
    view_init(&v, (size_t)1 << 26);
    if (read_answer(s, r, &v) && canon_calls(&v, calls)) {
        if (outparse_result(s->parser)->flags & OUT_REASONING_OPEN)
            r->answer[n++] = s->vocab.think_end; /* as any later message will find it */
        t = (struct turn){
            .before = r->before,
            .open = r->thinking_open,
            .ids = r->answer,
            .n_ids = n,
            .body_at = body_at(&s->vocab, r->answer, n, r->thinking_open),
            .think = chat_strip(piece(&v.think, 0, v.think.n)),
            .body = chat_strip(piece(&v.body, 0, v.body.n)),
            .calls = calls,
            .n_calls = v.n_calls,
        };
        kept = !v.think.err && !v.body.err && !v.names.err && !v.args.err && !v.canon.err &&
               turns_add(m->turns, r->uid, &t) == 0;
    }
    view_done(&v);
    return kept;
}

/* ---- knowing it again -----------------------------------------------------------------------------------
 */

/* Names and canonical arguments of the calls of a message. False: one has none that could be compared. */
static bool read_calls(const struct chat_turn *t, struct turn_call *calls, struct tbuf *canon) {
    size_t ends[TURNS_MAX_CALLS], from = 0;

    for (size_t i = 0; i < t->n_calls; i++) {
        struct tbuf inner = {0};
        struct tstr args;
        int r = chat_call_args(&t->calls[i], &inner, &args);

        if (r == 0)
            jl_canon(args, canon);
        tbuf_done(&inner);
        if (r < 0 || canon->err)
            return false;
        ends[i] = canon->n;
    }
    for (size_t i = 0; i < t->n_calls; i++) {
        calls[i] =
            (struct turn_call){.name = t->calls[i].name, .args = piece(canon, from, ends[i]), .id = t->calls[i].id};
        from = ends[i];
    }
    return true;
}

static bool find(void *ctx, const struct chat_turn *t, struct chat_hit *ret) {
    struct prep_replay *p = ctx;
    struct prep_scratch *s = p->scratch;
    struct turn_call calls[TURNS_MAX_CALLS];
    struct turn_found f;
    struct tbuf canon;
    bool found = false;

    if (t->n_calls > TURNS_MAX_CALLS || !turns_any(p->model->turns, p->uid))
        return false;
    tbuf_init(&canon, SIZE_MAX / 2);
    tbuf_reserve(&canon, 1);
    if (read_calls(t, calls, &canon)) {
        const struct turn_query q = {
            .after_open = t->after_open,
            .after_closed = t->after_closed,
            .cleared = t->cleared,
            .has_think = t->think.p != NULL,
            .think = chat_strip(t->think),
            .body = t->body,
            .calls = calls,
            .n_calls = (uint32_t)t->n_calls,
        };

        found = turns_find(p->model->turns, p->uid, &q, p->left, &s->ids, &s->ids_cap, &f);
    }
    tbuf_done(&canon);
    if (!found)
        return false;
    p->left -= f.n_ids;
    if (f.whole && !f.open) { /* its prompt had closed the block */
        memmove(s->ids + 1, s->ids, f.n_ids * sizeof *s->ids);
        s->ids[0] = s->vocab.think_end;
    }
    *ret = (struct chat_hit){.ids = s->ids, .n = f.n_ids + (f.whole && !f.open), .whole = f.whole};
    return true;
}

void prep_replay_init(struct prep_replay *p, const struct prep_model *m, struct prep_scratch *s, uint32_t uid) {
    *p = (struct prep_replay){
        .replay = {.ctx = p, .key = turns_key(m->turns), .find = find},
        .model = m,
        .scratch = s,
        .uid = uid,
        .left = m->context_tokens,
    };
}
