/* SPDX-License-Identifier: MIT */
/* GGUF under calls that fail, one after another: a file that is read gives what it says or a sentence, one that is
 * written is the same or is not there, and the next call makes it; nothing is left in memory. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "directory.h"
#include "failctl.h"
#include "leakcheck.h"
#include "pack.h"
#include "packtest.h"
#include "tokenizer.h"

enum { MAX_CALLS = 200000 };

static char out[200], good[200], in[256];

static void setup(void) {
    leakcheck_setup();
    packtest_setup();
    snprintf(in, sizeof in, "%s", ckpt_model("twin-a"));
    snprintf(good, sizeof good, "%s", packtest_out("good"));
    snprintf(out, sizeof out, "%s", packtest_out("out"));
    /* what it prints is not looked at, and Check writes to files of its own */
    ck_assert(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
}

static void teardown(void) {
    packtest_teardown();
    leakcheck_teardown();
}

static int pack(const char *to) {
    const struct pack_options o = { .in = in, .out = to, .format = pack_format_find("q8_0") };

    return pack_run(&o);
}

/* ---- reading ---- */

/* Everything a daemon reads of it but the weights. 0, or negative with words. */
static int read_it(const char *dir, struct xerr *err) {
    struct model_config cfg;
    struct model_directory d;
    struct model_index *x = NULL;
    struct tok *t = NULL;
    int r = model_config_read(dir, &cfg, err);

    if (r >= 0)
        r = model_index_open(&x, dir, NULL, err);
    if (r >= 0 && (r = model_directory_build(&d, &cfg, x, err)) >= 0)
        model_directory_done(&d);
    if (r >= 0)
        r = tok_open(dir, &t, err);
    tok_free(t);
    model_index_close(x);
    return r;
}

START_TEST(every_call_of_reading) {
    static const enum fail_mode modes[] = { FAIL_ONCE, FAIL_EVER, FAIL_INTR, FAIL_SHORT };
    struct failctl *c = failctl_self;
    enum fail_mode mode = modes[_i];
    uint32_t n, step = 1, refused = 0;

    ck_assert_int_eq(pack(good), PACK_OK);
    unlink(ckpt_path(&packtest_dir, "good/config.json")); /* the file alone, if they are there */
    unlink(ckpt_path(&packtest_dir, "good/tokenizer.json"));
    for (n = 1; n < MAX_CALLS; n += step) {
        int64_t blocks = c->blocks, maps = c->maps;
        struct xerr err = { 0 };
        int r;

        failctl_arm(c, mode, n);
        r = read_it(good, &err);
        failctl_disarm(c);
        ck_assert_msg(r >= 0 || (err.msg[0] && mode != FAIL_INTR && mode != FAIL_SHORT), "%s: %d %s",
                      failctl_text(c, mode), r, err.msg);
        ck_assert_msg(c->blocks == blocks && c->maps == maps, "%s: memory is left", failctl_text(c, mode));
        refused += r < 0;
        if (c->failed == 0)
            break;
        step = 1 + n / 6; /* the tokenizer makes thousands alike */
    }
    ck_assert_msg(n < MAX_CALLS && (refused > 20 || mode > FAIL_WHILE), "%u calls, %u refused", n, refused);
}
END_TEST

/* ---- writing ---- */

START_TEST(calls_of_writing) {
    struct failctl *c = failctl_self;
    enum fail_mode mode = _i ? FAIL_EVER : FAIL_ONCE;
    char cmd[800];
    uint32_t n, failed = 0;

    ck_assert_int_eq(pack(good), PACK_OK);
    for (n = 1; n < MAX_CALLS; n += 1 + n / 2) {
        int64_t blocks = c->blocks, maps = c->maps;
        int r;

        failctl_arm(c, mode, n);
        r = pack(out);
        failctl_disarm(c);
        ck_assert_msg(r == PACK_OK || r == PACK_TROUBLE, "%s: %d", failctl_text(c, mode), r);
        ck_assert_msg(c->blocks == blocks && c->maps == maps, "%s: memory is left", failctl_text(c, mode));
        failed += r != PACK_OK;
        if (r != PACK_OK)
            ck_assert_msg(pack(out) == PACK_OK, "%s: the next call does not make it", failctl_text(c, mode));
        snprintf(cmd, sizeof cmd, "diff -r %s %s >/dev/null && rm -r %s", good, out, out);
        ck_assert_msg(system(cmd) == 0, "%s: it is not what is written without", failctl_text(c, mode));
        if (c->failed == 0)
            break;
    }
    ck_assert_msg(n < MAX_CALLS && failed > 5, "%u calls, %u failed", n, failed);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fail_gguf");
    TCase *tc = tcase_create("fail");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 180);
    tcase_add_loop_test(tc, every_call_of_reading, 0, 4);
    tcase_add_loop_test(tc, calls_of_writing, 0, 2);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
