/* SPDX-License-Identifier: MIT */
/* The script format: what it accepts, and that everything else is refused with its line. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kern.h"
#include "leakcheck.h"

#define OK "glmd-script 1\nvocab 100\n"

START_TEST(test_info) {
    struct kern_script_info i;
    char why[200] = "";

    ck_assert_int_eq(kern_script_info("# a comment\n\n  glmd-script\t1 # version\nmodel /a/b\ncontext 512\n"
                                      "stop 9 8\nlayers 7\nloop\nrequest first 0\ntokens 4\nrequest\r\n"
                                      "tokens 5 6\ntokens 7",
                                      &i, why, sizeof why),
                     0);
    ck_assert_str_eq(i.model, "/a/b");
    ck_assert_uint_eq(i.context_tokens, 512);
    ck_assert_uint_eq(i.layers, 7);
    ck_assert_uint_eq(i.n_stops, 2);
    ck_assert_uint_eq(i.stops[1], 8);
    ck_assert_uint_eq(i.probe, 1); /* 0 is bound */
    ck_assert_uint_eq(i.first_token, 5);
    ck_assert_int_eq(kern_script_info(OK "request\nlogits 0 3:1 9:2.5 8:2.5\n", &i, why, sizeof why), 0);
    ck_assert_uint_eq(i.first_token, 8);
    ck_assert_uint_eq(i.vocab_tokens, 100);
    ck_assert_int_eq(kern_script_info(OK "request\nfail 0 nan\n", &i, why, sizeof why), 0);
    ck_assert_uint_eq(i.probe, KERN_NONE);
    ck_assert_int_eq(kern_script_info(OK "stop 42\nrequest\n", &i, why, sizeof why), 0);
    ck_assert_uint_eq(i.first_token, 42);
}
END_TEST

START_TEST(test_refused) {
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "", "line 1: the script is empty" },
        { "glmd-script 2\n", "line 1: the first line" },
        { "vocab 100\n", "line 1: the first line" },
        { "glmd-script 1 2\n", "line 1: found \"2\" after" },
        { OK, "line 3: the script ends without a request" },
        { "glmd-script 1\nrequest\n", "without a model or vocab" },
        { OK "request first 3\n", "without a request that has no \"first\"" },
        { OK "model x\n", "line 3: both vocab and model" },
        { "glmd-script 1\nmodel x\nvocab 5\n", "line 3: both model and vocab" },
        { OK "vocab 5\n", "line 3: \"vocab\" a second time" },
        { OK "speed 5\n", "line 3: unknown word \"speed\"" },
        { OK "tokens 5\n", "line 3: \"tokens\" belongs into a request" },
        { OK "request\nloop\n", "line 4: \"loop\" belongs before" },
        { OK "request\ntokens\n", "line 4: found the end of the line, expected token ids" },
        { OK "request\ntokens 100\n", "line 4: found \"100\", expected a token id from 0 to 99" },
        { OK "request\ntokens -1\n", "line 4: found \"-1\"" },
        { OK "request\ntokens 1x\n", "line 4: found \"1x\"" },
        { OK "request\ntokens 99999999999999999999999\n", "line 4: found" },
        { OK "request last 3\n", "line 3: found \"last\", expected first" },
        { OK "request first\n", "line 3: found the end" },
        { OK "request\nlogits 0 5\n", "line 4: found \"5\", expected ID:LOGIT" },
        { OK "request\nlogits 0 5:\n", "line 4: found \"5:\", expected ID:LOGIT" },
        { OK "request\nlogits 0 5:nan\n", "line 4: found \"nan\", expected a finite logit" },
        { OK "request\nlogits 0 5:1e9\n", "expected a finite logit" },
        { OK "request\nlogits 0\n", "line 4: found the end" },
        { OK "request\nfail 1 maybe\n", "line 4: found \"maybe\", expected lost or nan" },
        { OK "request\nfail 1 nan\nfail 2 nan\n", "line 5: \"fail\" a second time" },
        { OK "layers 0\n", "line 3: found \"0\", expected a number of layers from 1 to 127" },
        { OK "layers 128\n", "line 3" },
        { OK "step-us 1.5\n", "line 3: found \"1.5\"" },
        { OK "fail-step 0 lost\n", "line 3" },
        { OK "stop 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n", "line 3: more than 16" },
        { OK "request\ntokens 1\001\n", "line 4: a control character (0x01)" },
    };
    struct kern_script_info i;
    char why[200], *longword;

    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        why[0] = 0;
        ck_assert_msg(kern_script_info(bad[k].text, &i, why, sizeof why) == -EINVAL, "accepted: %s", bad[k].text);
        ck_assert_msg(strstr(why, bad[k].why), "found \"%s\", expected \"%s\"", why, bad[k].why);
    }
    longword = malloc(2000);
    ck_assert_ptr_nonnull(longword);
    memset(longword, 'x', 1999);
    longword[1999] = 0;
    memcpy(longword, "glmd-script 1\nmodel ", 20);
    ck_assert_int_eq(kern_script_info(longword, &i, why, sizeof why), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why, "line 2: a word longer"));
    free(longword);
}
END_TEST

/* Any damage to a good script is either still a script or refused; nothing is read out of bounds. */
START_TEST(test_damage) {
    static const char good[] = OK "stop 9 8\nstep-us 3\nfail-step 4 lost\nrequest first 3\ntokens 1 2\nfail 1 nan\n"
                                  "repeat\nrequest\nlogits 2 5:1.5 6:-2e1\ntokens 7\n";
    unsigned seed = 5;

    for (int k = 0; k < 20000; k++) {
        struct kern_script_info i;
        char why[200];
        size_t n = strlen(good);
        char *text = malloc(n + 1); /* exact, so that a sanitizer sees one byte too far */

        ck_assert_ptr_nonnull(text);
        memcpy(text, good, n + 1);
        for (int d = rand_r(&seed) % 4; d >= 0; d--)
            text[(size_t)rand_r(&seed) % n] = (char)(rand_r(&seed) % 128);
        if (rand_r(&seed) % 4 == 0)
            text[(size_t)rand_r(&seed) % n] = 0;
        if (kern_script_info(text, &i, why, sizeof why) < 0)
            ck_assert(strncmp(why, "line ", 5) == 0);
        free(text);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("script_parse");
    TCase *tc = tcase_create("parse");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, test_info);
    tcase_add_test(tc, test_refused);
    tcase_add_test(tc, test_damage);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
