/* SPDX-License-Identifier: MIT */
/* Every call of the spill tier into the system fails, one after another, once and for ever, interrupted and halfway:
 * opening says what is wrong or the tier works, what is read is what was written, and nothing is left behind. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemonfix.h"
#include "failctl.h"
#include "leakcheck.h"
#include "spilltest.h"

enum { MAX_CALLS = 400 };

static struct spilltest t;
static uint32_t ids[SPILLTEST_MAX_TOKENS];

static void setup(void) {
    leakcheck_setup();
    spilltest_init(&t, "/dev/shm");
    spilltest_text(1, ids, SPILLTEST_MAX_TOKENS);
}

static void teardown(void) {
    spilltest_done(&t);
    leakcheck_teardown();
}

/* A put and a get. The tier may fail at either, never give out something wrong. Check allocates: no asserts here. */
static uint32_t use(void) {
    spilltest_put(t.s, 7, SPILL_EXACT, ids, 36);
    return spilltest_get(t.s, 7, ids, 200);
}

START_TEST(every_call) {
    enum fail_mode mode = (enum fail_mode)(_i % FAIL_MODES);
    struct failctl *c = failctl_self;
    uint32_t n;

    if (mode == FAIL_OFF)
        return;
    t.o.plain = _i >= FAIL_MODES;
    for (n = 1; n < MAX_CALLS; n++) {
        int64_t blocks = c->blocks, maps = c->maps;
        int r;

        ids[0] = n;
        failctl_disarm(c);
        t.o.survive = true;
        ck_assert_msg(spilltest_open(&t) == 0, "after %s: %s", failctl_text(c, mode), t.err.msg);
        spilltest_put(t.s, 7, SPILL_EXACT, ids, 20);
        spilltest_close(&t);
        failctl_arm(c, mode, n);
        r = spilltest_open(&t);
        if (r == 0) {
            uint32_t got = use();

            failctl_disarm(c);
            use(); /* it has got over it */
            spilltest_close(&t);
            ck_assert_msg(got == 0 || got == 36 || got == 20, "%s: %u tokens", failctl_text(c, mode), got);
        } else {
            failctl_disarm(c);
            ck_assert_msg(mode != FAIL_INTR && mode != FAIL_SHORT && t.err.msg[0], "%s: refused with %d",
                          failctl_text(c, mode), r);
        }
        ck_assert_msg(c->blocks == blocks && c->maps == maps, "%s: memory is left", failctl_text(c, mode));
        ck_assert_msg(spilltest_files(&t, ".tmp") == 0 || mode == FAIL_EVER || mode == FAIL_WHILE,
                      "%s: a half-written file is left", failctl_text(c, mode));
        if (c->failed == 0)
            break;
        spilltest_empty(&t);
    }
    ck_assert_msg(n > 3 && n < MAX_CALLS, "%u calls", n);
}
END_TEST

/* A kernel that takes nothing more through the ring costs the ring and nothing else. */
START_TEST(a_ring_that_takes_nothing) {
    struct failctl *c = failctl_self;

    ck_assert_int_eq(spilltest_open(&t), 0);
    ck_assert_ptr_nonnull(strstr(spill_io_text(t.s), "io_uring"));
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 20));
    failctl_arm_only(c, "io_uring_submit_and_wait_timeout", FAIL_EVER, 2);
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 36));
    ck_assert_uint_gt(c->failed, 0);
    failctl_disarm(c);
    ck_assert_ptr_nonnull(strstr(spilltest_log(&t), "going on without it"));
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 200), 36);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fail_spill");
    TCase *tc = tcase_create("fail");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, every_call, 0, 2 * FAIL_MODES);
    /* an emulator has no io_uring */
    if (daemonfix_loops() == 2)
        tcase_add_test(tc, a_ring_that_takes_nothing);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
