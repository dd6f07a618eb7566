/* SPDX-License-Identifier: MIT */
/* What goes wrong only at a certain moment of a turn: the rooms conn, prep and emit as they are, one turn at a time on
 * this thread, under a played engine that answers a cancellation before the call returns, as the engine's own
 * thread may. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "busguard.h"
#include "clock.h"
#include "conn_impl.h"
#include "leakcheck.h"
#include "rawclient.h"

enum { STREAMS = 8, VOCAB = 100 };

static struct loop *loop;
static struct emit *emit;
static struct prep *prep;
static struct prep_scratch *scratch;
static struct server *server;
static struct conf conf;
static struct stream_sink sink;

static struct stream_id running[STREAMS]; /* in the order the engine got them */
static unsigned n_running;
static int ends_at_cancel; /* which of them ends when another is cancelled, -1 = none */

/* ---- the played engine ----------------------------------------------------------------------------------- */

static int engine_submit(void *ctx, struct sched_req *req) {
    (void)ctx;
    ck_assert_uint_lt(n_running, STREAMS);
    running[n_running++] = req->stream;
    return 0;
}

static void say_token(unsigned i) {
    struct stream_event ev = {.stream = running[i], .type = STREAM_EV_TOKEN, .token = 7, .logprob = NAN};

    sink.publish(sink.ctx, &ev, 1);
}

static void say_end(unsigned i, enum stream_reason reason, int status) {
    struct stream_event ev = {.stream = running[i],
                              .type = STREAM_EV_END,
                              .reason = (uint16_t)reason,
                              .status = status,
                              .token = UINT32_MAX};

    sink.publish(sink.ctx, &ev, 1);
}

static void engine_cancel(void *ctx, struct stream_id id) {
    int i = ends_at_cancel;

    (void)ctx;
    (void)id;
    ends_at_cancel = -1;
    if (i >= 0)
        say_end((unsigned)i, STREAM_END_LENGTH, 0);
}

/* ---- the daemon, a turn at a time ------------------------------------------------------------------------ */

static void on_bind(void *ctx, const struct prep_req *r) {
    struct emit_bind b = {.n_alts = r->sched.sampling.n_alts};

    (void)ctx;
    emit_stream_bind(emit, r->stream, &b);
}

static void on_done(void *ctx, struct prep_req *r, enum prep_outcome outcome) {
    (void)ctx;
    server_prepared(server, r, outcome);
}

static void nothing(void *ctx) {
    (void)ctx;
}

static void wake_io(void *ctx) {
    (void)ctx;
    server_wake(server);
}

static bool on_turn(void *ctx) {
    (void)ctx;
    server_turn(server);
    loop_stop(loop);
    return false;
}

/* What clients did is seen, and what follows from it, until nothing is left to do. */
static void turns(void) {
    for (int i = 0; i < 4; i++) {
        loop_kick(loop);
        ck_assert_int_eq(loop_run(loop), 0);
        while (prep_work_now(prep, scratch))
            ;
    }
}

static void begin(void) {
    static const struct prep_model model = {.vocab_tokens = VOCAB, .context_tokens = 1024};
    struct emit_options eo = {.max_streams = STREAMS,
                              .inline_conns = STREAMS,
                              .inline_step_ns = UINT32_MAX, /* there is no emit thread */
                              .max_kept = 4,
                              .kick = nothing,
                              .wake_io = wake_io,
                              .cancel = engine_cancel};
    struct prep_options po = {.workers = 0, .hooks = {.submit = engine_submit, .bind = on_bind, .done = on_done}};
    struct server_options so = {.cancel = engine_cancel, .conf = &conf};
    struct server_model sm = {.name = "played", .vocab_tokens = VOCAB, .context_tokens = 1024};

    n_running = 0;
    ends_at_cancel = -1;
    log_set_level(LOG_LEVEL_ERROR);
    conf_init(&conf);
    ck_assert_int_eq(busguard_install(), 0);
    ck_assert_int_eq(loop_new(LOOP_EPOLL, &loop, NULL), 0);
    ck_assert_int_eq(emit_new(&eo, &emit), 0);
    emit_get_sink(emit, &sink);
    ck_assert_int_eq(prep_new(&po, &prep), 0);
    ck_assert_int_eq(prep_set_model(prep, &model), 0);
    ck_assert_int_eq(prep_scratch_new(&model, &scratch), 0);
    so.loop = loop;
    so.emit = emit;
    so.prep = prep;
    ck_assert_int_eq(server_new(&so, &server), 0);
    loop_set_turn(loop, on_turn, NULL);
    server_set_model(server, &sm);
    server_set_state(server, GLMW_STATE_READY);
}

static void finish(void) {
    uint64_t accepted, ended;

    server_close_all(server);
    turns();
    ck_assert(server_is_empty(server));
    server_count(server, &accepted, &ended);
    ck_assert_uint_eq(accepted, ended);
    server_free(server);
    prep_scratch_free(scratch);
    prep_free(prep);
    emit_free(emit);
    loop_free(loop);
    conf_done(&conf);
}

static void connect_client(struct rawclient *c) {
    struct hello_msg m = raw_hello();
    int sv[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
    conn_open(server, sv[0]);
    raw_send(sv[1], &m, NULL, 0);
    turns();
    raw_welcome(c, sv[1]);
}

static void submit(struct rawclient *c, uint64_t tag, uint8_t flags) {
    struct glmw_entry e = raw_request(c, tag);
    unsigned before = n_running;

    e.flags = flags | GLMW_ENT_QUIET;
    raw_submit(c, &e);
    turns();
    ck_assert_uint_eq(n_running, before + 1);
}

static struct glmw_rec next(struct rawclient *c, uint64_t tag, unsigned type) {
    struct glmw_rec r;

    do
        ck_assert_msg(raw_record(c, &r, 0, false), "no record of type %u", type);
    while (r.tag == 0);
    ck_assert_uint_eq(r.tag, tag);
    ck_assert_uint_eq(r.type, type);
    return r;
}

/* The head of the token ring where it cannot be; the next token finds it. */
static void break_ring(struct rawclient *c, unsigned stream) {
    __atomic_store_n(&c->view.u->tq_head, c->view.u->tq_head - 5, __ATOMIC_RELEASE);
    say_token(stream);
}

/* The engine ends a kept stream after the turn has taken what had ended, and before the turn finds the stream's
 * connection broken. The connection stays until the stream is taken from the list of those that ended. */
START_TEST(kept_stream_ends_while_its_connection_breaks) {
    struct rawclient first, second, later;
    struct glmw_entry e = {.opcode = GLMW_OP_RESUME, .tag = 9};

    begin();
    connect_client(&second);
    connect_client(&first); /* the newest is looked at first */
    submit(&second, 1, GLMW_ENT_KEEP);
    submit(&first, 2, 0);
    e.payload_off = next(&second, 1, GLMW_REC_ACCEPTED).u.accepted.stream_id;
    say_token(0);
    break_ring(&second, 0);
    break_ring(&first, 1);
    ends_at_cancel = 0;
    server_turn(server);
    ck_assert_int_eq(ends_at_cancel, -1);
    ck_assert_msg(server_connections(server) == 2, "%u connections are left, and the stream of one that is gone "
                  "is on the list of those that ended", server_connections(server));
    turns();
    ck_assert_uint_eq(server_connections(server), 1);
    say_end(1, STREAM_END_CANCELLED, -ECANCELED);
    turns();
    ck_assert_uint_eq(server_connections(server), 0);
    ck_assert_uint_eq(server_live(server), 0);

    /* nothing of it is lost */
    connect_client(&later);
    raw_submit(&later, &e);
    turns();
    next(&later, 9, GLMW_REC_ACCEPTED);
    next(&later, 9, GLMW_REC_TOKEN);
    next(&later, 9, GLMW_REC_TOKEN);
    next(&later, 9, GLMW_REC_USAGE);
    ck_assert_int_eq(next(&later, 9, GLMW_REC_END).u.end.reason, GLMW_END_LENGTH);
    raw_close(&first);
    raw_close(&second);
    raw_close(&later);
    finish();
}
END_TEST

/* As after a thousand bells in this second. */
static void flood(struct rawclient *c, struct conn *of) {
    of->edges = 1000;
    of->edges_since_ns = clock_now_ns();
    raw_bell(c);
    loop_kick(loop);
    ck_assert_int_eq(loop_run(loop), 0);
    ck_assert_uint_ne(of->paused_until_ns, 0);
}

/* One bell after the other is paused; the first is heard again in its time, while the second is still out of
 * sight. A machine that sleeps over that moment is asked again. */
START_TEST(bells_paused_later_put_nobody_off) {
    struct rawclient first, second;
    struct conn *a, *b;
    bool seen = false;

    begin();
    connect_client(&first);
    a = server->conns;
    connect_client(&second);
    b = server->conns;
    for (int i = 0; i < 500 && !seen; i++) {
        uint64_t until;

        flood(&first, a);
        until = a->paused_until_ns;
        usleep(6000);
        flood(&second, b);
        while (clock_now_ns() <= until)
            usleep(200);
        for (int k = 0; k < 2; k++) { /* the timer may come with either */
            loop_kick(loop);
            ck_assert_int_eq(loop_run(loop), 0);
        }
        seen = clock_now_ns() < b->paused_until_ns;
        if (seen)
            ck_assert_msg(a->paused_until_ns != until, "a bell is put off by one that was paused later");
        a->edges = b->edges = 0; /* or what is heard again is out of sight again */
        while (a->paused_until_ns || b->paused_until_ns) {
            usleep(1000);
            loop_kick(loop);
            ck_assert_int_eq(loop_run(loop), 0);
        }
    }
    ck_assert(seen);
    raw_close(&first);
    raw_close(&second);
    finish();
}
END_TEST

int main(void) {
    Suite *s = suite_create("conn_ends");
    TCase *tc = tcase_create("turn");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, kept_stream_ends_while_its_connection_breaks);
    tcase_add_test(tc, bells_paused_later_put_nobody_off);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
