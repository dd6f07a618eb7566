/* SPDX-License-Identifier: MIT */
/* Plays engine and client around a real emit room; see emittest.h. */
#include "emittest.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "busguard.h"
#include "daemonfix.h"

struct emit *et_emit;
struct stream_sink et_sink;
struct tok *et_tok;
_Atomic int et_kicks, et_wakes, et_cancels;
_Atomic int et_retired;
bool et_measuring;

static void on_kick(void *ctx) {
    (void)ctx;
    et_kicks++;
}

static void on_wake(void *ctx) {
    (void)ctx;
    et_wakes++;
}

static void on_cancel(void *ctx, struct stream_id id) {
    (void)ctx;
    (void)id;
    et_cancels++;
}

void et_on_retired(void *ctx, void *owner) {
    (void)ctx;
    (void)owner;
    et_retired++;
}

void et_begin(uint32_t inline_conns, bool text) {
    struct emit_options o = {.max_streams = ET_STREAMS,
                             .inline_conns = inline_conns,
                             .inline_step_ns = et_measuring ? 0 : 12000,
                             .max_kept = ET_STREAMS,
                             .store_bytes = 1 << 19, /* what the tests say fits */
                             .kick = on_kick,
                             .wake_io = on_wake,
                             .cancel = on_cancel};
    uint32_t eos[1];
    char dir[300];
    struct xerr err;

    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(busguard_install(), 0);
    et_kicks = et_wakes = et_cancels = et_retired = 0;
    ck_assert_int_eq(emit_new(&o, &et_emit), 0);
    if (text) {
        snprintf(dir, sizeof dir, "%s/nano", daemonfix_models());
        ck_assert_msg(tok_open(dir, &et_tok, &err) == 0, "%s", err.msg);
        eos[0] = (uint32_t)tok_id(et_tok, "<|user|>");
        ck_assert_msg(emit_set_text(et_emit, et_tok, eos, 1, &err) == 0, "%s", err.msg);
    }
    emit_get_sink(et_emit, &et_sink);
    ck_assert_int_eq(emit_start(et_emit), 0);
}

void et_finish(void) {
    emit_stop(et_emit);
    emit_take_retired(et_emit, et_on_retired, NULL);
    et_emit = emit_free(et_emit);
    et_tok = tok_free(et_tok);
}

void et_open(struct et_client *c, unsigned tq_log2, unsigned txt_log2) {
    et_open_with(c, tq_log2, txt_log2, GLMW_FEAT_ALL);
}

void et_open_with(struct et_client *c, unsigned tq_log2, unsigned txt_log2, uint64_t features) {
    struct shm_ident id = {.wire = 1, .features = features, .generation = 6, .conn_id = 7};
    struct shm_geom g;
    struct glmw_producer unused;
    struct glmw_welcome w = {.wire = 1, .features = features, .generation = 6, .conn_id = 7};

    ck_assert_int_eq(shm_geom_init(4, tq_log2, 16, txt_log2, &g), 0);
    ck_assert_int_eq(shm_pair_create(&g, &id, &c->pair), 0);
    ck_assert_int_eq(bell_open(&c->bell), 0);
    w.u_bytes = g.u_bytes;
    w.d_bytes = g.d_bytes;
    w.sq_off = g.sq_off;
    w.pay_off = g.pay_off;
    w.tq_off = g.tq_off;
    w.txt_off = g.txt_off;
    w.sq_log2 = g.sq_log2;
    w.tq_log2 = g.tq_log2;
    w.pay_log2 = g.pay_log2;
    w.txt_log2 = g.txt_log2;
    ck_assert_int_eq(shm_view_map(&w, c->pair.u_fd, c->pair.d_fd, &c->view), 0);
    shm_view_rings(&c->view, &unused, &c->tq);
    ck_assert_int_eq(emit_conn_new(et_emit, &c->pair, c->bell.pipe_w, &c->conn), 0);
}

void et_close(struct et_client *c) {
    emit_conn_close(c->conn);
    emit_take_retired(et_emit, et_on_retired, NULL);
    ck_assert_uint_eq(emit_conn_live(c->conn), 0);
    emit_conn_free(c->conn);
    shm_view_done(&c->view);
    shm_pair_done(&c->pair);
    bell_close(&c->bell);
}

bool et_take(struct et_client *c, struct glmw_rec *r) {
    glmw_give_back(&c->tq, &c->view.d->credit_wanted);
    if (glmw_peek(&c->tq) <= 0)
        return false;
    glmw_take(&c->tq, r);
    return true;
}

const uint8_t *et_text(const struct et_client *c, const struct glmw_rec *r) {
    if (r->flags & GLMW_RF_INLINE)
        return r->u.text;
    return (const uint8_t *)c->view.d + c->view.geom.txt_off + r->text_off;
}

struct stream_id et_accept(struct et_client *c, uint64_t tag, uint32_t n_alts, bool thinking) {
    struct emit_accept a = {.tag = tag};
    struct emit_bind b = {.n_alts = n_alts, .thinking_open = thinking};
    struct stream_id id;
    int r = emit_conn_accept(c->conn, &a, &id);

    ck_assert_msg(r == 0, "accept: %d", r);
    emit_stream_bind(et_emit, id, &b);
    return id;
}

struct stream_event et_token(struct stream_id id, uint32_t token) {
    return (struct stream_event){
        .stream = id, .type = STREAM_EV_TOKEN, .token = token, .logprob = NAN, .t_ns = 1};
}

struct stream_event et_end(struct stream_id id, enum stream_reason reason, int status) {
    return (struct stream_event){.stream = id,
                                 .type = STREAM_EV_END,
                                 .reason = (uint16_t)reason,
                                 .status = status,
                                 .token = UINT32_MAX,
                                 .u.usage = {.prompt = 3, .completion = 9}};
}
