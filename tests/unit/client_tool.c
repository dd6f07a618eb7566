/* SPDX-License-Identifier: MIT */
/* glmctl as people and scripts meet it: pipes, a terminal, Ctrl-C, exit statuses. */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clienttest.h"
#include "fakedaemon.h"
#include "reqdec.h"
#include "runprog.h"

#define TOOL TEST_BUILD "/glmctl"

static struct runprog p;

static const struct fake_token words[] = {{GLMW_CH_REASONING, "let me "},
                                          {GLMW_CH_REASONING, "think"},
                                          {GLMW_CH_CONTENT, "Hello "},
                                          {GLMW_CH_CONTENT, "there"}};
static const struct fake_script thinking = {
    .tokens = words, .n_tokens = 4, .progress_steps = 2, .delay_us = 500};
static const struct fake_script echo = {.echo = true};

/* Runs glmctl with the server's socket; returns the exit status. */
#define RUN(server, input, ...) run_tool(server, input, (const char *const[]){TOOL, __VA_ARGS__, NULL}, false)

static void socket_env(const struct fakeserver *s, char *ret, size_t size) {
    snprintf(ret, size, "GLMD_SOCKET=%s", s ? s->path : "/nonexistent/glmd.sock");
}

static int run_tool(const struct fakeserver *s, const char *input, const char *const *argv, bool native) {
    char sock[160];
    socket_env(s, sock, sizeof sock);
    const char *const env[] = {sock, NULL};
    ck_assert_msg(access(TOOL, X_OK) == 0, "%s is missing: build it first", TOOL);
    return runprog(&p, argv, env, native, input);
}

static void start_tty(const struct fakeserver *s, const char *const *argv) {
    char sock[160];
    socket_env(s, sock, sizeof sock);
    const char *const env[] = {sock, NULL};
    ck_assert_msg(access(TOOL, X_OK) == 0, "%s is missing: build it first", TOOL);
    runprog_start(&p, argv, env, false, true);
}

static void said(const char *text) {
    ck_assert_msg(strstr(p.err_text, text) != NULL, "\"%s\" does not hold \"%s\"", p.err_text, text);
}

START_TEST(run_in_a_pipe) {
    struct fakeserver s;
    unsigned prompt, output, ms;
    float rate;
    fakeserver_start(&s, &thinking, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "run", "hi"), 0);
    ck_assert_str_eq(p.out_text, "Hello there\n");
    ck_assert_int_eq(sscanf(p.err_text,
                            "%u prompt tokens (5 cached), %u output tokens, first token after %u ms, %f tokens/s\n",
                            &prompt, &output, &ms, &rate),
                     4);
    ck_assert_uint_eq(prompt, 11);
    ck_assert_uint_eq(output, 4);
    ck_assert(rate > 0);
    ck_assert_int_eq(RUN(&s, NULL, "run", "--reasoning=show", "--quiet", "hi"), 0);
    ck_assert_str_eq(p.out_text, "let me think\n\nHello there\n");
    ck_assert_str_eq(p.err_text, "");
    ck_assert_int_eq(RUN(&s, NULL, "run", "--reasoning", "hide", "--", "-hi"), 0);
    ck_assert_str_eq(p.out_text, "Hello there\n");
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_submits, 3);
}
END_TEST

START_TEST(only_reasoning_is_said) {
    struct fakeserver s;
    static const struct fake_script only = {.tokens = words, .n_tokens = 2, .reason = GLMW_END_LENGTH};
    fakeserver_start(&s, &only, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "run", "hi"), 0);
    ck_assert_str_eq(p.out_text, "");
    said("ended by: length");
    said("only reasoning; --reasoning show");
    fakeserver_stop(&s);
}
END_TEST

START_TEST(run_json) {
    struct fakeserver s;
    char text[256] = "", *line, *save = NULL;
    const char *last = "";
    int n = 0, n_progress = 0;
    fakeserver_start(&s, &thinking, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "run", "--json", "hi"), 0);
    ck_assert_str_eq(p.err_text, "");
    json_t *j = NULL;
    for (line = strtok_r(p.out_text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_error_t e;
        json_decref(j);
        j = json_loads(line, JSON_REJECT_DUPLICATES, &e);
        ck_assert_msg(json_is_object(j), "%s: %s", line, e.text);
        last = json_string_value(json_object_get(j, "event"));
        ck_assert_ptr_nonnull(last);
        ck_assert(n++ || !strcmp(last, "accepted"));
        n_progress += !strcmp(last, "progress");
        if (!strcmp(last, "token") && !strcmp(json_string_value(json_object_get(j, "channel")), "content"))
            strcat(text, json_string_value(json_object_get(j, "text")));
    }
    ck_assert_str_eq(text, "Hello there");
    ck_assert_int_eq(n_progress, 2);
    ck_assert_str_eq(last, "usage");
    ck_assert_int_eq(json_integer_value(json_object_get(j, "prompt_tokens")), 11);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "completion_tokens")), 4);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "status")), 0);
    ck_assert_str_eq(json_string_value(json_object_get(j, "reason")), "stop");
    ck_assert(json_real_value(json_object_get(j, "tokens_per_second")) > 0);
    json_decref(j);
    fakeserver_stop(&s);
}
END_TEST

static const char nasty[] = "a\x1b[31mb\x07\x7f\tc\xc2\x9b"
                            "2J\xe2\x80\xae"
                            "d\xffz\"\\\r\n";

START_TEST(terminal_controls_are_neutralised) {
    struct fakeserver s;
    static const struct fake_token t[] = {{GLMW_CH_REASONING, "hm"}, {GLMW_CH_CONTENT, nasty}};
    static const struct fake_script script = {.tokens = t, .n_tokens = 2};
    static const char *const argv[] = {TOOL, "run", "--quiet", "hi", NULL};
    fakeserver_start(&s, &script, NULL);
    start_tty(&s, argv);
    ck_assert_int_eq(runprog_finish(&p), 0);
    ck_assert_str_eq(p.out_text, "\x1b[2mhm\x1b[22m\n\na^[[31mb^G^?\tc<9b>2J<u+202e>d\xef\xbf\xbdz\"\\^M\n");
    /* a pipe gets the bytes as they are */
    ck_assert_int_eq(RUN(&s, NULL, "run", "--quiet", "hi"), 0);
    ck_assert_str_eq(p.out_text, nasty);
    /* JSON is always printable and always UTF-8 */
    ck_assert_int_eq(RUN(&s, NULL, "run", "--json", "hi"), 0);
    ck_assert_ptr_nonnull(strstr(p.out_text,
                                 "\"text\":\"a\\u001b[31mb\\u0007\\u007f\\u0009c\\u009b2J\xe2\x80\xae"
                                 "d\\ufffdz\\\"\\\\\\u000d\\n\""));
    fakeserver_stop(&s);
}
END_TEST

START_TEST(progress_and_first_token_on_a_terminal) {
    struct fakeserver s;
    static const struct fake_script slow = {
        .tokens = words, .n_tokens = 4, .repeat = 100000, .progress_steps = 2, .delay_us = 20000};
    static const char *const argv[] = {TOOL, "run", "hi", NULL};
    fakeserver_start(&s, &slow, NULL);
    start_tty(&s, argv);
    runprog_expect(&p, "reading the prompt: 64 of 128 tokens");
    runprog_expect(&p, "\r\x1b[K\x1b[2mlet me ");
    runprog_expect(&p, "Hello ");
    /* Ctrl-C cancels, the closing line still comes */
    runprog_type(&p, "\x03");
    ck_assert_int_eq(runprog_finish(&p), 130);
    ck_assert_ptr_nonnull(strstr(p.out_text, "11 prompt tokens"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "ended by: cancelled"));
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_cancels, 1);
    ck_assert_uint_eq(s.n_ends, 1);
}
END_TEST

START_TEST(second_interrupt_ends) {
    struct fakeserver s;
    static const struct fake_script deaf = {
        .tokens = words, .n_tokens = 2, .repeat = 100000, .delay_us = 5000, .deaf = true};
    static const char *const argv[] = {TOOL, "run", "hi", NULL};
    fakeserver_start(&s, &deaf, NULL);
    start_tty(&s, argv);
    runprog_expect(&p, "let me think");
    runprog_type(&p, "\x03");
    usleep(100000);
    runprog_type(&p, "\x03");
    ck_assert_int_eq(runprog_finish(&p), 130);
    /* the terminal is left as it was found */
    ck_assert_ptr_nonnull(strstr(p.out_text, "\x1b[0m\n"));
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_cancels, 1);
}
END_TEST

START_TEST(exit_statuses) {
    struct fakeserver s;
    static const struct fake_script refuse = {
        .error_text = "top_p is 7:\x1b[2J expected more than 0, at most 1", .status = -EINVAL};
    static const struct fake_script die = {.tokens = words, .n_tokens = 4, .die_after = 3};
    fakeserver_start(&s, &refuse, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "run", "--top-p", "7", "hi"), 1);
    said("top_p is 7:^[[2J expected more than 0, at most 1");
    ck_assert_ptr_null(strchr(p.err_text, 0x1b));
    ck_assert_int_eq(RUN(&s, NULL, "run", "--json", "hi"), 1);
    ck_assert_ptr_nonnull(strstr(p.out_text, "{\"event\":\"error\",\"status\":-22,\"text\":\"top_p"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "{\"event\":\"usage\",\"status\":-22"));
    fakeserver_stop(&s);
    fakeserver_start(&s, &die, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "run", "hi"), 4);
    ck_assert_str_eq(p.out_text, "Hello \n");
    said("the daemon closed the connection");
    said("3 output tokens arrived, first token after ");
    ck_assert_ptr_null(strstr(p.err_text, "prompt tokens"));
    ck_assert_int_eq(RUN(&s, NULL, "run", "--max-tokens", "0", "hi"), 2);
    said("--max-tokens 0: expected a whole number from 1 to 4294967295");
    static const char *const full[] = {"sh", "-c", "exec \"$0\" status > /dev/full", TOOL, NULL};
    if (!getenv("GLMD_TEST_RUN")) {
        ck_assert_int_eq(run_tool(&s, NULL, full, true), 5);
        said("standard output could not be written");
    }
    fakeserver_stop(&s);
    ck_assert_int_eq(RUN(NULL, NULL, "run", "hi"), 3);
    said("no daemon at /nonexistent/glmd.sock");
    ck_assert_int_eq(RUN(NULL, NULL, "status", "--socket", "/nonexistent/other"), 3);
    said("no daemon at /nonexistent/other");
}
END_TEST

START_TEST(wrong_usage) {
    static const struct {
        const char *argv[7];
        const char *word;
    } cases[] = {
        {{"run", NULL}, "no prompt"},
        {{"run", "", NULL}, "the prompt is empty"},
        {{"run", "a", "b", NULL}, "quotes"},
        {{"run", "a", "b", "c", NULL}, "quotes"},
        {{"run", "--nope", "a", NULL}, "unknown option --nope"},
        {{"run", "-x", "a", NULL}, "unknown option -x"},
        {{"run", "--seed", NULL}, "needs a value"},
        {{"run", "--seed", "-1", "a", NULL}, "expected a whole number"},
        {{"run", "--seed", "1x", "a", NULL}, "expected a whole number"},
        {{"run", "--seed", "99999999999999999999", "a", NULL}, "expected a whole number"},
        {{"run", "--temperature", "hot", "a", NULL}, "expected a number"},
        {{"run", "--think", "maybe", "a", NULL}, "on or off"},
        {{"run", "--json=1", "a", NULL}, "takes no value"},
        {{"run", "--reasoning", "loud", "a", NULL}, "auto|show|hide"},
        {{"run", "--tokens", "1,x", NULL}, "byte 3"},
        {{"run", "--tokens", "4294967295", NULL}, "byte 1"},
        {{"run", "--tokens", "", NULL}, "no token id"},
        {{"run", "--tokens", "1", "prompt", NULL}, "takes the place"},
        {{"run", "--tokens", "1", "--system", "s", NULL}, "no place"},
        {{"run", "--schema", "s", "--json-object", "a", NULL}, "--schema and --json-object: only one"},
        {{"run", "--schema", "s", "--schema", "t", "a", NULL}, "--schema and --schema: only one"},
        {{"chat", "hello", NULL}, "standard input"},
        {{"chat", "--tokens", "1", NULL}, "unknown option"},
        {{"status", "hello", NULL}, "no further words"},
        {{"help", "sing", NULL}, "no command \"sing\""},
        {{"--socket", "/tmp/s", "status", NULL}, "--socket: options follow the command"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *argv[8] = {TOOL};
        for (int k = 0; cases[i].argv[k]; k++)
            argv[k + 1] = cases[i].argv[k];
        int r = run_tool(NULL, NULL, argv, false);
        ck_assert_msg(r == 2, "case %zu: status %d: %s", i, r, p.err_text);
        said(cases[i].word);
        ck_assert_str_eq(p.out_text, "");
    }
    static const char *const helps[] = {"run", "chat", "status", "resume", "top", "probe"};
    for (int i = 0; i < 12; i++) {
        ck_assert_int_eq(i < 6 ? RUN(NULL, NULL, helps[i], "--help") : RUN(NULL, NULL, "help", helps[i - 6]), 0);
        ck_assert_ptr_nonnull(strstr(p.out_text, "usage: glmctl "));
        ck_assert_ptr_nonnull(strstr(p.out_text, "--socket PATH"));
    }
    ck_assert_int_eq(RUN(NULL, NULL, "--help"), 0);
    ck_assert_int_eq(RUN(NULL, NULL, "--version"), 0);
    ck_assert_str_eq(p.out_text, "glmctl " GLMD_VERSION "\n");
}
END_TEST

/* What the server got, decoded by the daemon's own decoder. */
static void got(const struct fakeserver *s, struct reqdec_req *ret) {
    static uint8_t mem[1 << 16] __attribute__((aligned(8)));
    static uint8_t copy[sizeof s->last_payload] __attribute__((aligned(8)));
    static const struct glmw_limits l = {.max_payload_bytes = sizeof copy,
                                         .max_messages = 64,
                                         .max_parts = 64,
                                         .max_stops = 8,
                                         .max_stop_bytes = 64,
                                         .max_alts = 20,
                                         .max_tools = 1,
                                         .max_bias = 1,
                                         .vocab_tokens = 200000,
                                         .max_context_tokens = 1 << 20,
                                         .max_output_tokens = 1 << 20};
    struct reqdec_err e = {0};
    memcpy(copy, s->last_payload, sizeof copy);
    int r = reqdec_decode(copy, s->last_submit.payload_len, &l, FAKE_FEATURES, mem, sizeof mem, ret, &e);
    ck_assert_msg(r == 0, "the payload does not decode: %s", e.reason);
}

static void is(struct reqdec_str str, const char *want) {
    ck_assert_uint_eq(str.len, strlen(want));
    ck_assert(str.len == 0 || !memcmp(str.ptr, want, str.len));
}

START_TEST(options_reach_the_daemon) {
    struct fakeserver s;
    struct reqdec_req q;
    fakeserver_start(&s, &echo, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "run", "--max-tokens", "9", "--temperature=0", "--seed",
                         "18446744073709551615", "--top-p", "0.5", "--top-k", "3", "--min-p", "0.25",
                         "--repetition-penalty", "2", "--presence-penalty", "-1", "--frequency-penalty", "1",
                         "--min-tokens", "2", "--stop", "A", "--stop", "B", "--effort", "low", "--think",
                         "off", "--thinking-budget", "7", "--loop-guard", "on", "--ignore-eos",
                         "--logprobs", "--alternatives", "2", "--deadline", "60000", "--system", "sys", "hi"),
                     0);
    fakeserver_stop(&s);
    ck_assert_str_eq(p.out_text, "hi\n");
    got(&s, &q);
    ck_assert_uint_eq(s.last_submit.max_tokens, 9);
    ck_assert_uint_eq(s.last_submit.deadline_ms, 60000);
    ck_assert_uint_eq(q.sampling.has, GLMW_HAS_ALL);
    ck_assert_uint_eq(q.sampling.flags, GLMW_SAMP_LOGPROBS | GLMW_SAMP_IGNORE_EOS);
    ck_assert(q.sampling.temperature == 0 && q.sampling.top_p == 0.5f && q.sampling.min_p == 0.25f);
    ck_assert(q.sampling.repetition_penalty == 2 && q.sampling.presence_penalty == -1);
    ck_assert_uint_eq(q.sampling.seed, UINT64_MAX);
    ck_assert_uint_eq(q.chat.effort, GLMW_EFFORT_LOW);
    ck_assert_uint_eq(q.chat.thinking, GLMW_OFF);
    ck_assert_uint_eq(q.n_stops, 2);
    is(q.stops[1], "B");
    ck_assert_uint_eq(q.n_msgs, 2);
    ck_assert_uint_eq(q.msgs[0].role, GLMW_ROLE_SYSTEM);
    is(q.parts[0].text, "sys");
    is(q.parts[1].text, "hi");
}
END_TEST

START_TEST(prompts_from_elsewhere) {
    struct fakeserver s;
    struct reqdec_req q;
    fakeserver_start(&s, &echo, NULL);
    ck_assert_int_eq(RUN(&s, "from standard\ninput", "run", "--quiet", "-"), 0);
    ck_assert_str_eq(p.out_text, "from standard\ninput\n");
    /* echo and printf ask the same; only the last end of line is the shell's */
    ck_assert_int_eq(RUN(&s, "two\n\n", "run", "--quiet", "-"), 0);
    got(&s, &q);
    is(q.parts[0].text, "two\n");
    ck_assert_int_eq(RUN(&s, "crlf\r\n", "run", "--quiet", "-"), 0);
    got(&s, &q);
    is(q.parts[0].text, "crlf");
    ck_assert_int_eq(RUN(&s, "\n", "run", "--quiet", "-"), 2);
    said("the prompt is empty");
    ck_assert_int_eq(RUN(&s, NULL, "run", "--quiet", "--tokens", "[1, 22,\n154820]"), 0);
    ck_assert_int_eq(RUN(&s, "7 8 9", "run", "--quiet", "--tokens", "-"), 0);
    ck_assert_int_eq(RUN(&s, NULL, "run", "--quiet", "--tokens", "1,22,154820"), 0);
    fakeserver_stop(&s);
    got(&s, &q);
    ck_assert_uint_eq(q.n_tokens, 3);
    ck_assert_uint_eq(q.tokens[2], 154820);
    ck_assert_uint_eq(s.n_submits, 6);
}
END_TEST

/* More than the default arena: the tool asks for a larger one, and a daemon that grants less is named. */
START_TEST(large_prompt) {
    struct fakeserver s;
    size_t len = 3u << 20;
    char *text = malloc(len + 1), dir[] = "/tmp/glmd-tool-XXXXXX", file[64], sock[160];
    memset(text, 'a', len);
    text[len] = 0;
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(file, sizeof file, "%s/prompt", dir);
    FILE *f = fopen(file, "we");
    ck_assert_uint_eq(fwrite(text, 1, len, f), len);
    fclose(f);
    fakeserver_start(&s, &thinking, NULL);
    socket_env(&s, sock, sizeof sock);
    /* the fake grants its own sizes, which are the default */
    const char *const argv[] = {"sh", "-c", "exec $GLMD_TEST_RUN \"$0\" run - < \"$1\"", TOOL, file, NULL};
    const char *const env[] = {sock, NULL};
    ck_assert_int_eq(runprog(&p, argv, env, true, NULL), 1);
    said("at most 1048576 bytes");
    fakeserver_stop(&s);
    const struct fake_options o = {.pay_log2 = 22};
    fakeserver_start(&s, &thinking, &o);
    socket_env(&s, sock, sizeof sock);
    ck_assert_int_eq(runprog(&p, argv, env, true, NULL), 0);
    fakeserver_stop(&s);
    ck_assert_uint_ge(s.last_submit.payload_len, len);
    unlink(file);
    rmdir(dir);
    free(text);
}
END_TEST

START_TEST(chat_in_a_pipe) {
    struct fakeserver s;
    struct reqdec_req q;
    fakeserver_start(&s, &thinking, NULL);
    ck_assert_int_eq(
        RUN(&s, "one\n\ntwo \\\nlines\n/clear\nfirst\n/help\nsecond\n", "chat", "--quiet", "--system", "sys"),
        0);
    ck_assert_str_eq(p.out_text, "Hello there\nHello there\nHello there\nHello there\n");
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_submits, 4);
    got(&s, &q);
    ck_assert(s.last_submit.session != 0);
    ck_assert_uint_eq(q.n_msgs, 4);
    is(q.parts[q.msgs[0].first_part].text, "sys");
    is(q.parts[q.msgs[1].first_part].text, "first");
    ck_assert_uint_eq(q.msgs[2].role, GLMW_ROLE_ASSISTANT);
    ck_assert_uint_eq(q.msgs[2].n_parts, 2);
    ck_assert_uint_eq(q.parts[q.msgs[2].first_part].type, GLMW_TLV_PART_REASONING);
    is(q.parts[q.msgs[2].first_part].text, "let me think");
    is(q.parts[q.msgs[2].first_part + 1].text, "Hello there");
    is(q.parts[q.msgs[3].first_part].text, "second");
}
END_TEST

/* Ctrl-C at the prompt. The thread sanitizer loses a signal now and then that comes just before the program waits
 * for input; in its builds the program gets the time to wait. */
static void ctrl_c_at_prompt(void) {
#if defined(__SANITIZE_THREAD__)
    usleep(50000);
#endif
    runprog_type(&p, "\x03");
}

START_TEST(chat_on_a_terminal) {
    struct fakeserver s;
    static const struct fake_token t[] = {{GLMW_CH_CONTENT, "word "}};
    static const struct fake_script endless = {
        .tokens = t, .n_tokens = 1, .repeat = 100000, .delay_us = 5000};
    static const char *const argv[] = {TOOL, "chat", "--quiet", NULL};
    struct reqdec_req q;
    fakeserver_start(&s, &endless, NULL);
    start_tty(&s, argv);
    for (int i = 0; i < 2; i++) {
        runprog_expect(&p, "\n> ");
        p.out_text[p.out_len = 0] = 0;
        runprog_type(&p, i ? "again\n" : "hello\n");
        runprog_expect(&p, "word word word ");
        runprog_type(&p, "\x03");
    }
    runprog_expect(&p, "\n> ");
    /* at the prompt it ends the program */
    ctrl_c_at_prompt();
    ck_assert_int_eq(runprog_finish(&p), 130);
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_cancels, 2);
    got(&s, &q);
    /* what was said before the first Ctrl-C is part of the conversation */
    ck_assert_uint_eq(q.n_msgs, 3);
    is(q.parts[q.msgs[2].first_part].text, "again");
}
END_TEST

/* However soon after the prompt it is pressed: nothing lies between a look at a flag and a read that blocks.
 */
START_TEST(ctrl_c_at_the_prompt) {
    struct fakeserver s;
    static const char *const argv[] = {TOOL, "chat", "--quiet", NULL};
    for (int i = 0; i < 60; i++) {
        fakeserver_start(&s, &echo, NULL);
        start_tty(&s, argv);
        runprog_expect(&p, "\n> ");
        ctrl_c_at_prompt();
        ck_assert_int_eq(runprog_finish(&p), 130);
        fakeserver_stop(&s);
    }
}
END_TEST

/* Before the request is sent there is nothing to cancel. */
START_TEST(ctrl_c_before_the_request) {
    struct fakeserver s;
    static const char *const argv[] = {TOOL, "run", "-", NULL};
    char sock[160];
    int unread = 1;
    fakeserver_start(&s, &echo, NULL);
    socket_env(&s, sock, sizeof sock);
    const char *const env[] = {sock, NULL};
    runprog_start(&p, argv, env, false, false);
    runprog_type(&p, "half a prompt\n");
    while (unread > 0) { /* what it has read it has read with its handler in place */
        ck_assert_int_eq(ioctl(p.in, FIONREAD, &unread), 0);
        usleep(1000);
    }
    ck_assert_int_eq(kill(p.pid, SIGINT), 0);
    /* standard input stays open until the program has ended by itself */
    int status;
    ck_assert_int_eq(waitpid(p.pid, &status, 0), p.pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 130, "status %#x", (unsigned)status);
    close(p.in);
    close(p.out);
    close(p.err);
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_submits, 0);
}
END_TEST

START_TEST(chat_when_the_daemon_refuses_or_dies) {
    struct fakeserver s;
    static const struct fake_script refuse = {.error_text = "no", .status = -EOVERFLOW};
    static const struct fake_script die = {.tokens = words, .n_tokens = 4, .die_after = 1};
    fakeserver_start(&s, &refuse, NULL);
    ck_assert_int_eq(RUN(&s, "one\ntwo\n", "chat"), 1);
    said("glmctl: no\n");
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_submits, 1);
    fakeserver_start(&s, &die, NULL);
    ck_assert_int_eq(RUN(&s, "one\ntwo\n", "chat"), 4);
    fakeserver_stop(&s);
}
END_TEST

START_TEST(tools_reach_the_daemon) {
    static const char wx[] = "{\"name\": \"wx\"}\n";
    static const struct {
        const char *word, *name;
        uint32_t mode;
    } choice[] = {{"auto", "", GLMW_CHOICE_AUTO},
                  {"none", "", GLMW_CHOICE_NONE},
                  {"required", "", GLMW_CHOICE_REQUIRED},
                  {"wx", "wx", GLMW_CHOICE_NAMED}};
    struct fakeserver s;
    struct reqdec_req q;
    char path[] = "/tmp/glmd-test-XXXXXX";
    int fd = mkstemp(path);
    ck_assert(fd >= 0 && write(fd, wx, strlen(wx)) == (ssize_t)strlen(wx));
    close(fd);
    for (size_t i = 0; i < 4; i++) {
        fakeserver_start(&s, &echo, NULL);
        ck_assert_int_eq(RUN(&s, NULL, "run", "--tool", path, "--tool-choice", choice[i].word, "--parallel-calls",
                             i % 2 ? "on" : "off", "hi"),
                         0);
        fakeserver_stop(&s);
        got(&s, &q);
        ck_assert_uint_eq(q.n_tools, 1);
        is(q.tools[0], wx);
        ck_assert_uint_eq(q.choice.mode, choice[i].mode);
        ck_assert_uint_eq(q.choice.flags, i % 2 ? 0 : GLMW_CHOICE_ONE_CALL);
        is(q.choice_name, choice[i].name);
    }
    unlink(path);
    fakeserver_start(&s, &echo, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "run", "--tool", path, "hi"), 2);
    ck_assert_ptr_nonnull(strstr(p.err_text, path));
    ck_assert_int_eq(RUN(&s, NULL, "run", "--schema", "/dev/null", "hi"), 2);
    said("--schema /dev/null: the file is empty, expected a JSON schema");
    ck_assert_int_eq(RUN(&s, NULL, "run", "--schema", path, "hi"), 2);
    ck_assert(strstr(p.err_text, path) && strstr(p.err_text, ": No such file or directory"));
    ck_assert_int_eq(RUN(&s, NULL, "run", "--thinking-budget", "4294967296", "hi"), 2);
    said("--thinking-budget 4294967296: expected a whole number from 0 to 4294967295");
    fakeserver_stop(&s);
}
END_TEST

START_TEST(status) {
    struct fakeserver s;
    json_error_t e;
    fakeserver_start(&s, &echo, NULL);
    ck_assert_int_eq(RUN(&s, NULL, "status"), 0);
    ck_assert_ptr_nonnull(strstr(p.out_text, "model        fake\nstate        ready\n"));
    ck_assert_ptr_nonnull(strstr(p.out_text, "logprobs alternatives coalesce tool-events tokenize"));
    ck_assert_ptr_nonnull(strstr(p.out_text, " states free\n"));
    ck_assert_int_eq(RUN(&s, NULL, "status", "--json"), 0);
    json_t *j = json_loads(p.out_text, 0, &e);
    ck_assert_ptr_nonnull(j);
    ck_assert_str_eq(json_string_value(json_object_get(j, "model")), "fake");
    ck_assert_str_eq(json_string_value(json_object_get(j, "state")), "ready");
    ck_assert_int_eq(json_integer_value(json_object_get(j, "max_live")), 64);
    ck_assert_uint_eq(json_array_size(json_object_get(j, "features")), 5);
    json_decref(j);
    fakeserver_stop(&s);
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_tool");
    TCase *t = ct_case(s, "tool", 60);
    tcase_add_test(t, run_in_a_pipe);
    tcase_add_test(t, tools_reach_the_daemon);
    tcase_add_test(t, only_reasoning_is_said);
    tcase_add_test(t, run_json);
    tcase_add_test(t, terminal_controls_are_neutralised);
    tcase_add_test(t, progress_and_first_token_on_a_terminal);
    tcase_add_test(t, second_interrupt_ends);
    tcase_add_test(t, exit_statuses);
    tcase_add_test(t, wrong_usage);
    tcase_add_test(t, options_reach_the_daemon);
    tcase_add_test(t, prompts_from_elsewhere);
    tcase_add_test(t, large_prompt);
    tcase_add_test(t, chat_in_a_pipe);
    tcase_add_test(t, chat_on_a_terminal);
    tcase_add_test(t, ctrl_c_at_the_prompt);
    tcase_add_test(t, ctrl_c_before_the_request);
    tcase_add_test(t, chat_when_the_daemon_refuses_or_dies);
    tcase_add_test(t, status);
    return ct_main(s);
}
