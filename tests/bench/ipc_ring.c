/* SPDX-License-Identifier: MIT */
/* ring-throughput: records through one token ring between two processes, from the ring operations and the bell of
 * the daemon's side to the events that libglmd gives its caller. The producer fills whole TOKEN records with inline
 * text and publishes them 16 at a time, as a step of 16 streams does; when the ring is full it waits for room. The
 * consumer takes events 64 at a time, gives them back, and sleeps when there are none. The library checks
 * sequence numbers, tags and spans; the bench checks that every token and every text is the one that was sent.
 *
 * Rounds of a million; the figure is their median; bar: 5 million records a second.
 * BENCH_HANDICAP=1 runs a library that dawdles over every record. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "benchipc.h"
#include "fakedaemon.h"

enum { ROUNDS = 9, RECORDS = 1000000, PUBLISH = 16, TAKE = 64 };

struct shared {
    int fd; /* the client's end of the handshake */
    double rate[ROUNDS];
};

static uint32_t token_of(uint32_t i) {
    return (i * 2654435761u) >> 12;
}

/* Five bytes that differ from those of the neighbours. */
static void text_of(uint32_t i, char text[5]) {
    uint32_t t = token_of(i);

    for (int k = 0; k < 5; k++, t >>= 4)
        text[k] = (char)('a' + (t & 15));
}

/* ---- the client ---- */

static int take_round(glmd_conn *c, double *ret_rate) {
    static struct glmd_event ev[TAKE];
    uint64_t tag, began = 0;
    uint32_t seen = 0;
    glmd_req *q;
    int n = glmd_req_new(c, &q);

    for (uint32_t i = 0; i < TAKE; i++)
        ev[i].size = sizeof ev[i];
    if (n < 0 || (n = glmd_req_message(q, GLMD_ROLE_USER, "x", 1)) < 0 || (n = glmd_submit(c, q, &tag)) < 0)
        return n;
    for (;;) {
        n = glmd_next_n(c, ev, TAKE);
        if (n == 0) {
            if ((n = glmd_wait(c, INT64_C(10000000000))) <= 0)
                return n < 0 ? n : -ETIMEDOUT;
            continue;
        }
        if (n < 0)
            return n;
        for (int i = 0; i < n; i++) {
            char text[5];

            if (ev[i].type == GLMD_EV_ACCEPTED) {
                began = bench_now_ns();
                continue;
            }
            if (ev[i].type == GLMD_EV_END) {
                *ret_rate = RECORDS / ((double)(bench_now_ns() - began) / 1e9);
                return seen == RECORDS ? 0 : -EBADMSG;
            }
            text_of(seen, text);
            if (ev[i].type != GLMD_EV_TOKEN || ev[i].token != token_of(seen) || ev[i].text_len != sizeof text ||
                memcmp(ev[i].text, text, sizeof text) != 0)
                return -EBADMSG;
            seen++;
        }
        glmd_release(c);
    }
}

static int client(void *arg) {
    struct shared *sh = arg;
    struct glmd_options opt = {.size = sizeof opt};
    glmd_conn *c;
    int r = glmd_connect_fd(sh->fd, &opt, &c);

    if (r < 0)
        return r;
    for (int i = 0; i < ROUNDS && r == 0; i++)
        r = take_round(c, &sh->rate[i]);
    if (r < 0)
        fprintf(stderr, "ring-throughput: the client: %s\n", glmd_strerror(r));
    glmd_close(c);
    return r;
}

/* ---- the daemon's side ---- */

static int wait_for_room(struct fake *f, uint32_t need) {
    for (uint32_t spins = 1; glmw_free_slots(&f->tq) < need; spins++) {
        if (glmw_refresh(&f->tq) < 0)
            return -EPROTO;
        if (spins % 100000 == 0) /* perhaps there is only one core for both */
            sched_yield();
    }
    return 0;
}

static int put_round(struct fake *f, uint64_t tag) {
    fake_accept(f, tag);
    fake_flush(f, true);
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct glmw_rec r = {.type = GLMW_REC_TOKEN,
                             .flags = GLMW_RF_INLINE | GLMW_RF_STEP_END,
                             .seq = i + 1,
                             .tag = tag,
                             .token = token_of(i),
                             .logprob = (float)NAN,
                             .text_len = 5,
                             .t_ns = i};

        text_of(i, (char *)r.u.text);
        if (i % PUBLISH == 0 && wait_for_room(f, PUBLISH + 2) < 0)
            return -EPROTO;
        glmw_put(&f->tq, &r);
        if (i % PUBLISH == PUBLISH - 1 && bell_publish(&f->tq, f->bell.pipe_w, false, &f->counts) < 0)
            return -EPIPE;
    }
    for (uint32_t i = 0; i < FAKE_MAX_TAGS; i++)
        if (f->tags[i].tag == tag)
            f->tags[i].seq = RECORDS + 1;
    fake_end(f, tag, 0, GLMW_END_LENGTH);
    fake_flush(f, true);
    return 0;
}

static int run(void) {
    struct shared *sh = bench_shared(sizeof *sh);
    struct fake f;
    struct glmw_entry e;
    pid_t pid;
    int r = 0;

    fake_open(&f, NULL, &sh->fd);
    pid = bench_child(client, sh, BENCH_RECEIVER);
    bench_pin(BENCH_SENDER);
    for (int i = 0; i < ROUNDS && r == 0; i++) {
        uint64_t until = bench_now_ns() + UINT64_C(10000000000);

        while (!fake_pop(&f, &e) && bench_now_ns() < until)
            bench_sleep_ns(1000000);
        r = put_round(&f, e.tag);
    }
    if (bench_child_end(pid) < 0 || r < 0)
        return 2;
    fake_close(&f);
    printf("# %lu records, %lu bells, %lu publications without one\n", (unsigned long)f.counts.records,
           (unsigned long)f.counts.sent, (unsigned long)f.counts.suppressed);
    return bench_verdict("ring-throughput", bench_median(sh->rate, ROUNDS) / 1e6, "M/s", 5.0, BENCH_AT_LEAST);
}

int main(void) {
    bench_fault("slow_take");
    bench_step_forward();
    return bench_with_check(run);
}
