/* SPDX-License-Identifier: MIT */
/* ttft: from glmd_submit() to the first TOKEN event in the client's hands, less the time the engine spent on
 * the prompt. What is left is the client library, the bell, checks, chat format, tokenizer, hand-over, parser,
 * record and wake-up. A 1,000-word chat prompt on nano, greedy, one request at a time.
 *
 * Bar: median 1 ms or less. BENCH_HANDICAP=1 runs the mutation build with a text worker that dawdles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchlib.h"
#include "glmd.h"

enum { ROUNDS = 40 };

/* Returns the first token's time since submit and the engine's share of it, in ns. */
static int one(glmd_conn *c, const char *prompt, size_t len, uint64_t *ret_first_ns, uint64_t *ret_engine_ns) {
    struct glmd_event ev = {.size = sizeof ev};
    uint64_t tag, t0, first = 0;
    glmd_req *r;
    int n = glmd_req_new(c, &r);

    if (n < 0)
        return n;
    if ((n = glmd_req_message(r, GLMD_ROLE_USER, prompt, len)) < 0 ||
        (n = glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 2)) < 0 ||
        (n = glmd_req_set_f64(r, GLMD_KEY_TEMPERATURE, 0)) < 0) {
        glmd_req_free(r);
        return n;
    }
    t0 = bench_now_ns();
    n = glmd_submit(c, r, &tag);
    if (n < 0) {
        glmd_req_free(r);
        return n;
    }
    for (;;) {
        n = glmd_wait(c, INT64_C(20000000000));
        if (n <= 0)
            return n ? n : -110;
        while ((n = glmd_next(c, &ev)) == 1) {
            if (ev.type == GLMD_EV_TOKEN && !first)
                first = bench_now_ns();
            if (ev.type == GLMD_EV_END) {
                if (ev.status < 0 || !first || !ev.usage)
                    return ev.status < 0 ? ev.status : -71;
                *ret_first_ns = first - t0;
                *ret_engine_ns = ev.usage->prefill_ns;
                return 0;
            }
        }
        if (n < 0)
            return n;
    }
}

int main(void) {
    static const char word[] = "The river runs past the old mill and the road turns north. ";
    struct bench_daemon d;
    struct glmd_options opt = {.size = sizeof opt};
    double overhead[ROUNDS];
    char *prompt = malloc(sizeof word * 85);
    glmd_conn *c;
    int n = 0;

    if (!prompt)
        return 2;
    bench_step_forward();
    prompt[0] = 0;
    for (int i = 0; i < 84; i++)
        strcat(prompt, word);
    if (bench_daemon_start(&d, "build/models/nano", "slow_prepare", NULL) < 0)
        return 2;
    opt.socket_path = d.socket;
    opt.socket_path_len = strlen(d.socket);
    n = glmd_connect(&opt, &c);
    for (int i = -3; n == 0 && i < ROUNDS; i++) { /* three rounds to warm up */
        uint64_t first, engine;

        n = one(c, prompt, strlen(prompt), &first, &engine);
        if (n == 0 && i >= 0)
            overhead[i] = ((double)first - (double)engine) / 1e6;
    }
    if (n < 0)
        fprintf(stderr, "ttft: %s\n", glmd_strerror(n));
    else
        glmd_close(c);
    bench_daemon_stop(&d);
    free(prompt);
    if (n < 0)
        return 2;
    return bench_verdict("ttft", bench_median(overhead, ROUNDS), "ms", 1.0, BENCH_AT_MOST);
}
