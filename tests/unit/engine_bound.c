/* SPDX-License-Identifier: MIT */
/* How soon a cancellation or a deadline ends a request. The rounds of the engine are driven by hand and its
 * clock is the test's: device time passes only where the script says so, so that every bound is an exact
 * number of steps and slices and not a guess about a busy machine. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine_priv.h"
#include "ipctest.h"
#include "leakcheck.h"

#define HEAD    "glmd-script 1\nvocab 300\ncontext 4096\nstop 299 298\nlayers 32\n"
#define STEP_NS 1000000u

enum { STREAMS = 8 };

/* ---- the clock -------------------------------------------------------------------------------------------
 */

static uint64_t virtual_ns; /* 0: the machine's */

static struct timespec as_timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* In place of the C library's, for everything linked into this program. */
int clock_gettime(clockid_t id, struct timespec *ret) {
    if (id != CLOCK_MONOTONIC || !virtual_ns)
        return (int)syscall(SYS_clock_gettime, id, ret);
    *ret = as_timespec(virtual_ns);
    return 0;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *at, struct timespec *rest) {
    uint64_t ns = (uint64_t)at->tv_sec * 1000000000u + (uint64_t)at->tv_nsec;

    if (id != CLOCK_MONOTONIC || !virtual_ns)
        return syscall(SYS_clock_nanosleep, id, flags, at, rest) < 0 ? errno : 0;
    if (flags != TIMER_ABSTIME)
        ns += virtual_ns;
    if (ns > virtual_ns)
        virtual_ns = ns;
    return 0;
}

/* ---- the engine ------------------------------------------------------------------------------------------
 */

static struct engine *e;
static struct stream_credit credit[STREAMS];
static struct {
    uint32_t tokens, ends, late;
    struct stream_event end;
    uint64_t end_seen_ns;
} s[STREAMS];
static int cancel_while_publishing = -1; /* this stream, at the next call of the sink */
static uint64_t cancelled_ns;

static void on_publish(void *ctx, const struct stream_event *ev, uint32_t n) {
    (void)ctx;
    if (cancel_while_publishing >= 0) {
        engine_cancel(e, (struct stream_id){(uint32_t)cancel_while_publishing, 1});
        cancelled_ns = virtual_ns;
    }
    cancel_while_publishing = -1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = ev[i].stream.index;

        s[k].late += s[k].ends;
        s[k].tokens += ev[i].type == STREAM_EV_TOKEN;
        if (ev[i].type == STREAM_EV_END) {
            s[k].ends++;
            s[k].end = ev[i];
            s[k].end_seen_ns = virtual_ns;
        }
    }
}

static uint32_t on_refresh(void *ctx, struct stream_id id, uint32_t wanted) {
    (void)wanted;
    (void)ctx;
    (void)id;
    return 1u << 20;
}

static void open_engine(const char *script, uint32_t max_seqs) {
    struct stream_sink sink = {.publish = on_publish, .refresh = on_refresh, .credit = credit};
    struct engine_options o = {.max_seqs = max_seqs, .max_streams = STREAMS};
    struct xerr err = {0};
    char model[64] = "script:/tmp/glmd-test-XXXXXX";
    int fd = mkstemp(model + 7);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, script, strlen(script)), (ssize_t)strlen(script));
    close(fd);
    o.model = model;
    ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.msg);
    ck_assert_msg(engine_load(e, NULL, NULL, &err) == 0, "%s", err.msg);
    unlink(model + 7);
    engine_set_sink(e, &sink);
    memset(s, 0, sizeof s);
    for (uint32_t i = 0; i < STREAMS; i++)
        atomic_store(&credit[i].records, 1u << 20);
    cancel_while_publishing = -1;
    virtual_ns = UINT64_C(1000000000000);
}

static void close_engine(void) {
    engine_stop(e, 0);
    ck_assert_int_eq(engine_run(e), 0);
    for (uint32_t i = 0; i < STREAMS; i++) {
        ck_assert_uint_le(s[i].ends, 1);
        ck_assert_uint_eq(s[i].late, 0);
    }
    engine_close(e);
    virtual_ns = 0;
}

static struct sched_req request(uint32_t stream, const uint32_t *ids, uint32_t n_ids) {
    return (struct sched_req){.stream = {.index = stream, .gen = 1},
                              .uid = 1000,
                              .ids = ids,
                              .n_ids = n_ids,
                              .max_tokens = 4000 - n_ids,
                              .quiet = true,
                              .sampling = {.top_p = 1.0f, .repetition = 1.0f}};
}

static void submit(struct sched_req *q) {
    ck_assert_int_eq(engine_submit(e, q), 0);
}

static void round_once(void) {
    ck_assert_int_ge(engine_round(e, false), 0);
}

/* Rounds until the stream has ended; each is at most one step and one slice of a prompt. */
static uint32_t rounds_to_end(uint32_t stream) {
    uint32_t n = 0;

    while (!s[stream].ends) {
        uint64_t before = atomic_load(&e->stats.steps);

        round_once();
        ck_assert_uint_le(atomic_load(&e->stats.steps) - before, 1);
        ck_assert_uint_lt(++n, 1000);
    }
    return n;
}

static uint32_t prompt[3900];

/* ---- cancellation ----------------------------------------------------------------------------------------
 */

/* A running stream, a prompt being read and one that waits, beside others that go on: cancelled between two
 * rounds, the next one ends it, before it computes anything. */
START_TEST(cancel_between_rounds) {
    struct ipc_rng rng = {.s = 11};

    for (int n = 0; n < 60; n++) {
        struct sched_req q[4];
        uint32_t victim = ipc_below(&rng, 4), tokens, others = 0;
        uint64_t asked;

        open_engine(HEAD "step-us 1000\nprefill-us 10\nrequest\ntokens 1 2 3\nrepeat\n", 3);
        for (uint32_t i = 0; i < 4; i++) { /* two short ones, a long prompt, and one that finds no place */
            q[i] = request(i, prompt, i == 2 ? 3000 : 3 + i);
            submit(&q[i]);
            round_once();
        }
        for (uint32_t i = ipc_below(&rng, 200); i > 0; i--)
            round_once();
        if (s[victim].ends) { /* none is short enough */
            ck_abort_msg("stream %u ended by itself", victim);
        }
        tokens = s[victim].tokens;
        asked = virtual_ns;
        engine_cancel(e, q[victim].stream);
        ck_assert_uint_eq(rounds_to_end(victim), 1);
        ck_assert_uint_eq(s[victim].end.reason, STREAM_END_CANCELLED);
        ck_assert_int_eq(s[victim].end.status, -ECANCELED);
        ck_assert_uint_le(s[victim].end.t_ns, asked + STEP_NS);
        ck_assert_uint_le(s[victim].tokens - tokens, 1); /* made before, published with the END */
        for (uint32_t i = 0; i < 4; i++)
            others += i != victim && !s[i].ends;
        ck_assert_uint_eq(others, 3);
        close_engine();
    }
}
END_TEST

/* Cancelled while a step and a slice are on the device: the rest of this round and the next, no more. In
 * device time that is one step and one slice. */
START_TEST(cancel_within_a_round) {
    struct ipc_rng rng = {.s = 12};

    for (int n = 0; n < 60; n++) {
        struct sched_req q[3];
        uint32_t victim = ipc_below(&rng, 3), tokens;
        uint64_t slice_ns;

        open_engine(HEAD "step-us 1000\nprefill-us 100\nrequest\ntokens 1 2 3\nrepeat\n", 3);
        for (uint32_t i = 0; i < 3; i++) {
            q[i] = request(i, prompt, i == 2 ? 3000 : 3);
            submit(&q[i]);
            round_once();
        }
        for (uint32_t i = ipc_below(&rng, 200); i > 0; i--)
            round_once();
        ck_assert_uint_eq(s[victim].ends, 0);
        tokens = s[victim].tokens;
        cancel_while_publishing = (int)victim;
        while (cancel_while_publishing >= 0)
            round_once();
        ck_assert_uint_le(rounds_to_end(victim), 1);
        /* 512 tokens at 100 us in 32 layers: a program of the chunk takes 1.6 ms */
        slice_ns = UINT64_C(512) * 100000 / 32;
        ck_assert_uint_le(s[victim].end.t_ns, cancelled_ns + STEP_NS + slice_ns);
        ck_assert_uint_le(s[victim].tokens - tokens, 3);
        close_engine();
    }
}
END_TEST

/* A prompt alone on the device is read in slices too: a cancellation waits for one, not for the chunk. */
START_TEST(cancel_of_a_prompt_alone) {
    for (uint32_t after = 1; after < 40; after += 3) {
        struct sched_req q = request(0, prompt, 3900);
        uint64_t asked, chunk_ns = UINT64_C(512) * 4000000;

        open_engine(HEAD "prefill-us 4000\nrequest\ntokens 1\n", 2);
        submit(&q);
        for (uint32_t i = 0; i < after; i++)
            round_once();
        ck_assert_uint_eq(s[0].tokens, 0);
        asked = virtual_ns;
        engine_cancel(e, q.stream);
        ck_assert_uint_eq(rounds_to_end(0), 1);
        ck_assert_uint_le(s[0].end_seen_ns - asked, chunk_ns / 32);
        close_engine();
    }
}
END_TEST

/* ---- deadlines -------------------------------------------------------------------------------------------
 */

/* Whatever the wall says: a nanosecond before the engine's clock has reached the deadline nothing ends, and
 * when it has the next round ends the request, with what was produced so far. */
START_TEST(deadline_by_the_engines_clock) {
    struct sched_req q[4];

    open_engine(HEAD "request\ntokens 1 2 3\nrepeat\n", 3);
    for (uint32_t i = 0; i < 4; i++) { /* running, running, in its prompt, waiting */
        q[i] = request(i, prompt, i == 2 ? 3000 : 3);
        q[i].deadline_ns = virtual_ns + 5000000000u + i;
        submit(&q[i]);
        round_once();
    }
    for (int i = 0; i < 100; i++) /* a layer of a prompt each */
        round_once();
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t tokens;

        virtual_ns = q[i].deadline_ns - 1;
        for (int k = 0; k < 3; k++)
            round_once();
        ck_assert_uint_eq(s[i].ends, 0);
        tokens = s[i].tokens;
        virtual_ns = q[i].deadline_ns;
        ck_assert_uint_eq(rounds_to_end(i), 1);
        ck_assert_uint_eq(s[i].end.reason, STREAM_END_DEADLINE);
        ck_assert_int_eq(s[i].end.status, -ETIMEDOUT);
        ck_assert_uint_ge(s[i].end.t_ns, q[i].deadline_ns);
        ck_assert_uint_le(s[i].tokens - tokens, 1);
        ck_assert_uint_eq(s[i].end.u.usage.completion, s[i].tokens);
        ck_assert(i > 1 || s[i].tokens > 10);
    }
    close_engine();
}
END_TEST

/* On a device that takes its time: at most a step and a slice after the deadline. */
START_TEST(deadline_beside_a_prompt) {
    struct sched_req q[2];
    uint64_t slice_ns = UINT64_C(512) * 100000 / 32;

    for (uint64_t at = 1; at < 60; at += 7) {
        open_engine(HEAD "step-us 1000\nprefill-us 100\nrequest\ntokens 1 2 3\nrepeat\n", 3);
        q[0] = request(0, prompt, 3);
        q[1] = request(1, prompt, 3900);
        q[0].deadline_ns = q[1].deadline_ns = virtual_ns + at * 1000000 + 333333;
        submit(&q[0]);
        submit(&q[1]);
        rounds_to_end(0);
        rounds_to_end(1);
        for (uint32_t i = 0; i < 2; i++) {
            ck_assert_uint_eq(s[i].end.reason, STREAM_END_DEADLINE);
            ck_assert_uint_ge(s[i].end.t_ns, q[i].deadline_ns);
            ck_assert_uint_le(s[i].end.t_ns, q[i].deadline_ns + STEP_NS + slice_ns);
        }
        close_engine();
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("engine_bound");
    TCase *tc = tcase_create("bound");
    SRunner *sr;
    int failed;

    for (uint32_t i = 0; i < sizeof prompt / sizeof *prompt; i++)
        prompt[i] = 1 + i % 200;
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, cancel_between_rounds);
    tcase_add_test(tc, cancel_within_a_round);
    tcase_add_test(tc, cancel_of_a_prompt_alone);
    tcase_add_test(tc, deadline_by_the_engines_clock);
    tcase_add_test(tc, deadline_beside_a_prompt);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
