/* SPDX-License-Identifier: MIT */
/* The desktop example on a screen of its own (Xvfb): it paints while an answer comes, however fast, its Stop
 * button works meanwhile, and a daemon that is not there yet, or no more, is told in the window. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clienttest.h"
#include "examplefix.h"
#include "leakcheck.h"
#include "runprog.h"

#ifdef __SANITIZE_THREAD__
#define STOP_AFTER "900"
#else
#define STOP_AFTER "9000"
#endif

#define QUESTION "Why is the sky blue?"

static struct runprog screen, window; /* large */

static void start_screen(void) {
    runprog_start(&screen,
                  (const char *const[]){"Xvfb", "-displayfd", "1", "-screen", "0", "1024x768x24", "-nolisten",
                                        "tcp", NULL},
                  NULL, true, false);
    runprog_expect(&screen, "\n"); /* its number, when it is ready */
}

static void stop_screen(void) {
    kill(screen.pid, SIGTERM);
    runprog_finish(&screen);
}

/* The sanitizers are told to look at nothing but memory errors: GTK keeps what it has to the end, and GLib's
 * locks are unknown to the thread sanitizer. */
static void start_window(const char *const *args) {
    const char *argv[16] = {TEST_BUILD "/examples/glmd_window", "--demo", QUESTION};
    char display[32];
    const char *env[] = {display,
                         "NO_AT_BRIDGE=1",
                         "GSETTINGS_BACKEND=memory",
                         "LC_ALL=C.UTF-8",
                         "ASAN_OPTIONS=detect_leaks=0",
                         "TSAN_OPTIONS=report_bugs=0",
                         NULL};

    snprintf(display, sizeof display, "DISPLAY=:%d", atoi(screen.out_text));
    for (int n = 0; n < 12 && args[n]; n++)
        argv[n + 3] = args[n];
    runprog_start(&window, argv, env, false, false);
}

static unsigned frames(void) {
    const char *at = strrchr(window.out_text, '[');
    unsigned n = 0;

    ck_assert_msg(at && sscanf(at, "[%u frames]", &n) == 1, "\"%s\" / %s", window.out_text, window.err_text);
    return n;
}

/* From the first token to the last, by what the closing line says. */
static double seconds(void) {
    const char *at = strstr(window.out_text, "\n[Ended.");
    unsigned tokens = 0;
    double rate = 0;

    ck_assert_msg(at && sscanf(at, "\n[Ended. %u tokens %lf", &tokens, &rate) == 2 && rate > 0, "\"%s\"",
                  at ? at : window.out_text);
    return tokens / rate;
}

static void expect_shown(const char *text) {
    ck_assert_msg(strstr(window.out_text, text) != NULL, "no \"%s\" in \"%s\" / %s", text, window.out_text,
                  window.err_text);
}

START_TEST(paints_while_it_streams) {
    struct daemonfix f;
    unsigned char head[8] = {0};
    char png[100];
    struct stat st;
    FILE *o;

    start_screen();
    example_daemon(&f, "step-us 25000\nrequest\ntokens " THOUGHT SKY "198 " SKY "198 " SKY "4060\n");
    snprintf(png, sizeof png, "%s/window.png", f.dir);
    start_window((const char *const[]){"-s", f.socket, "--snapshot", png, NULL});
    ck_assert_int_eq(runprog_finish(&window), 0);
    expect_shown(QUESTION "\n" EXAMPLE_THOUGHT "\n" EXAMPLE_TEXT "\n" EXAMPLE_TEXT "\n" EXAMPLE_TEXT
                          "\n[Done.   48 tokens   ");
    expect_shown(" tokens/s]");
    ck_assert_msg(frames() >= 12, "painted %u times for 48 tokens in more than a second", frames());
    ck_assert_str_eq(window.err_text, "");
    o = fopen(png, "re");
    ck_assert_msg(o && fread(head, 1, 8, o) == 8 && memcmp(head, "\x89PNG\r\n\x1a\n", 8) == 0, "%s", png);
    fclose(o);
    ck_assert_int_eq(stat(png, &st), 0);
    ck_assert_int_gt((int)st.st_size, 5000); /* an empty one has less */
    daemonfix_stop(&f);
    daemonfix_done(&f);
    stop_screen();
}
END_TEST

START_TEST(quick_answer_leaves_painting_and_buttons) {
    struct daemonfix f;

    start_screen();
    example_daemon(&f, "step-us 0\nrequest\ntokens 4082 " SKY "198\nrepeat\n");
    start_window((const char *const[]){"-s", f.socket, "--stop-after", STOP_AFTER, NULL});
    ck_assert_int_eq(runprog_finish(&window), 1);
    expect_shown("\nStopped.\n[Ended.");
    /* how long so many tokens take is the machine's business; the first layout may fall into it */
    ck_assert_msg(frames() >= 1 && frames() >= 10 * (seconds() - 0.8), "painted %u times in %.2f s beside %s tokens",
                  frames(), seconds(), STOP_AFTER);
    daemonfix_stop(&f);
    daemonfix_done(&f);
    stop_screen();
}
END_TEST

START_TEST(waits_for_a_daemon) {
    char text[200], socket[96];
    struct daemonfix f;

    start_screen();
    example_daemon(&f, "request\ntokens 4082 " SKY "4060\n");
    snprintf(socket, sizeof socket, "%s", f.socket);
    daemonfix_stop(&f);
    start_window((const char *const[]){"-s", socket, NULL});
    snprintf(text, sizeof text, "[no daemon at %s", socket);
    runprog_expect(&window, text);
    daemonfix_start(&f, NULL);
    ck_assert_int_eq(runprog_finish(&window), 0);
    snprintf(text, sizeof text, "\nno daemon at %s", socket);
    expect_shown(text);
    expect_shown(QUESTION "\n" EXAMPLE_TEXT "\n[Done.");
    ck_assert_ptr_eq(strstr(strstr(window.out_text, text) + 1, text), NULL); /* once, not every second */
    daemonfix_stop(&f);
    daemonfix_done(&f);
    stop_screen();
}
END_TEST

START_TEST(death_is_shown) {
    struct glmd_info info = {.size = sizeof info};
    uint64_t until = test_now_ms() + 20000;
    struct daemonfix f;
    glmd_conn *c;

    start_screen();
    example_daemon(&f, "step-us 2000\nrequest\ntokens 4082 " SKY "198\nrepeat\n");
    c = daemonfix_connect(&f, NULL);
    start_window((const char *const[]){"-s", f.socket, NULL});
    while (glmd_get_info(c, &info) == 0 && info.running == 0) {
        ck_assert_msg(test_now_ms() < until, "nothing was asked: %s", window.err_text);
        usleep(5000);
    }
    kill(f.pid, SIGKILL);
    ck_assert_int_eq(runprog_finish(&window), 1);
    expect_shown(glmd_strerror(-EPIPE));
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 128 + SIGKILL);
    glmd_close(c);
    daemonfix_done(&f);
    stop_screen();
}
END_TEST

int main(void) {
    Suite *s = suite_create("examples_window");
    TCase *tc = ct_case(s, "window", 60);

    tcase_add_test(tc, paints_while_it_streams);
    tcase_add_test(tc, quick_answer_leaves_painting_and_buttons);
    tcase_add_test(tc, waits_for_a_daemon);
    tcase_add_test(tc, death_is_shown);
    return ct_main(s);
}
