/* SPDX-License-Identifier: MIT */
/* A client's life for `make soak`. Runs in a child process over libglmd and judges what it sees: every tag
 * ends once, nothing follows its END, the tokens of an answer are those of the script in their order. What
 * the driver does to it (stop, kill) it does not know. */
#include "soak.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "chaos.h"
#include "glmd.h"

enum { MAX_TAGS = 8, FIRST_TOKEN = 10, N_SCRIPT_TOKENS = 7, BULK_IDS = 40000 };

const char *const soak_act_names[ACT_COUNT] = {"honest",  "cancel", "deadline", "disconnect", "killed",
                                               "stalled", "resume", "bulk",     "chaos"};

struct tag {
    uint64_t tag, stream_id;
    uint32_t tokens, next_seq, ends;
    int32_t status;
};

struct life {
    glmd_conn *c;
    const char *path;
    uint64_t rng;
    enum act act;
    struct soak_counts *counts;
    struct tag t[MAX_TAGS];
    uint32_t n;
};

static _Noreturn void wrong(const struct life *l, const char *fmt, ...) {
    va_list ap;

    fprintf(stderr, "soak: client %d (%s): ", (int)getpid(), soak_act_names[l->act]);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    _exit(3);
}

static uint32_t below(struct life *l, uint32_t n) {
    l->rng ^= l->rng << 13;
    l->rng ^= l->rng >> 7;
    l->rng ^= l->rng << 17;
    return (uint32_t)(l->rng >> 20) % n;
}

static uint64_t now_ms(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void dial(struct life *l) {
    char error[300] = "";
    struct glmd_options o = {
        .size = sizeof o, .timeout_ms = 60000, .error = error, .error_bytes = sizeof error};
    int r;

    o.socket_path = l->path;
    o.socket_path_len = strlen(l->path);
    o.payload_log2 = 16;
    o.records_log2 = 6 + below(l, 5);
    r = glmd_connect(&o, &l->c);
    if (r == -EBUSY || r == -EDQUOT) { /* others have all connections: said, and no reason to complain */
        atomic_fetch_add(&l->counts->refused, 1);
        _exit(0);
    }
    if (r < 0)
        wrong(l, "connect: %d %s", r, error);
}

static void submit(struct life *l, uint32_t n_ids, uint64_t max_tokens, uint64_t deadline_ms, bool keep) {
    static uint32_t ids[BULK_IDS];
    struct tag *t = &l->t[l->n];
    glmd_req *r;
    int e;

    for (uint32_t i = 0; i < n_ids; i++)
        ids[i] = 5 + i % 90;
    if (glmd_req_new(l->c, &r) < 0 || glmd_req_tokens(r, ids, n_ids) < 0 ||
        glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max_tokens) < 0 ||
        (deadline_ms && glmd_req_set_u64(r, GLMD_KEY_DEADLINE_MS, deadline_ms) < 0) ||
        (keep && glmd_req_set_u64(r, GLMD_KEY_KEEP, 1) < 0))
        wrong(l, "a request cannot be made");
    *t = (struct tag){0};
    e = glmd_submit(l->c, r, &t->tag);
    if (e < 0) {
        glmd_req_free(r);
        wrong(l, "submit: %d", e);
    }
    l->n++;
    atomic_fetch_add(&l->counts->submitted, 1);
}

static void take(struct life *l, const struct glmd_event *ev) {
    struct tag *t = NULL;

    for (uint32_t i = 0; i < l->n; i++)
        if (l->t[i].tag == ev->tag)
            t = &l->t[i];
    if (ev->tag == 0)
        return;
    if (!t)
        wrong(l, "an event of type %u with an unknown tag", ev->type);
    if (t->ends)
        wrong(l, "an event of type %u after END", ev->type);
    if (ev->seq < t->next_seq)
        wrong(l, "seq %u after %u", ev->seq, t->next_seq - 1);
    t->next_seq = ev->seq + 1;
    if (ev->type == GLMD_EV_ACCEPTED)
        t->stream_id = ev->stream_id;
    if (ev->type == GLMD_EV_TOKEN && ev->token != GLMD_NO_TOKEN) {
        if (ev->token != FIRST_TOKEN + t->tokens % N_SCRIPT_TOKENS)
            wrong(l, "token %u is %u", t->tokens, ev->token);
        t->tokens++;
        atomic_fetch_add(&l->counts->tokens, 1);
    }
    if (ev->type == GLMD_EV_END) {
        t->ends++;
        t->status = ev->status;
        atomic_fetch_add(&l->counts->ended, 1);
        if (ev->status == -EBUSY || ev->status == -EDQUOT)
            atomic_fetch_add(&l->counts->refused, 1);
    }
}

/* Until every tag has ended, or so many tokens of the first came, or so many milliseconds passed (0: no limit
 * but that of a hang). */
static void read_on(struct life *l, uint32_t tokens, uint32_t ms) {
    uint64_t began = now_ms();

    for (;;) {
        struct glmd_event ev = {.size = sizeof ev};
        uint32_t ended = 0;
        int r;

        while ((r = glmd_next(l->c, &ev)) == 1)
            take(l, &ev);
        for (uint32_t i = 0; i < l->n; i++)
            ended += l->t[i].ends;
        if (ended == l->n || (tokens && l->t[0].tokens >= tokens) || (ms && now_ms() - began >= ms))
            return;
        if (r < 0)
            wrong(l, "the connection died: %d", r);
        if (now_ms() - began > 120000)
            wrong(l, "%u of %u requests did not end in two minutes", l->n - ended, l->n);
        r = glmd_wait(l->c, ms ? 5000000 : 1000000000);
        if (r < 0 && r != -EINTR && r != -EPIPE)
            wrong(l, "wait: %d", r);
    }
}

/* Allowed: what was asked for, or that there was no room, or that its reader was stopped for too long. */
static void expect(struct life *l, int32_t also) {
    for (uint32_t i = 0; i < l->n; i++) {
        int32_t s = l->t[i].status;

        if (s != 0 && s != also && s != -EBUSY && s != -EDQUOT && !(l->act == ACT_STALLED && s == -ETIMEDOUT))
            wrong(l, "request %u ended with %d after %u tokens", i, s, l->t[i].tokens);
    }
}

static void resume(struct life *l) {
    struct tag old;

    submit(l, 3, 200 + below(l, 300), 0, true);
    read_on(l, 1 + below(l, 50), 0);
    old = l->t[0];
    glmd_close(l->c);
    if (below(l, 4) == 0 || old.ends)
        _exit(0); /* nobody comes back: its time runs out */
    usleep(below(l, 300000));
    dial(l);
    l->t[0] = (struct tag){.tokens = old.tokens, .next_seq = old.next_seq};
    if (glmd_resume(l->c, old.stream_id, old.next_seq, &l->t[0].tag) < 0)
        wrong(l, "resume");
    /* the ACCEPTED of the new tag begins anew, and then goes on where the old one was left */
    l->t[0].next_seq = 0;
    atomic_fetch_add(&l->counts->submitted, 1);
    read_on(l, 0, 0);
    expect(l, -ENODATA);
    if (l->t[0].status == 0 && l->t[0].tokens < 200)
        wrong(l, "the resumed answer has only %u tokens", l->t[0].tokens);
    glmd_close(l->c);
}

static void live(struct life *l) {
    uint32_t n = 1 + below(l, 4);

    switch (l->act) {
    case ACT_HONEST:
        for (uint32_t i = 0; i < n; i++)
            submit(l, 1 + below(l, 600), 1 + below(l, 200), 0, false);
        read_on(l, 0, 0);
        expect(l, 0);
        break;
    case ACT_CANCEL:
        for (uint32_t i = 0; i < n; i++)
            submit(l, 1 + below(l, 600), 1000000, 0, false);
        read_on(l, 0, 1 + below(l, 200));
        for (uint32_t i = 0; i < l->n; i++)
            glmd_cancel(l->c, l->t[i].tag);
        read_on(l, 0, 0);
        expect(l, -ECANCELED);
        break;
    case ACT_DEADLINE:
        for (uint32_t i = 0; i < n; i++)
            submit(l, 1 + below(l, 600), 1000000, 1 + below(l, 300), false);
        read_on(l, 0, 0);
        expect(l, -ETIMEDOUT);
        break;
    case ACT_RESUME:
        resume(l);
        return;
    case ACT_BULK:
        submit(l, 20000 + below(l, BULK_IDS - 20000), 1 + below(l, 100), 0, false);
        if (below(l, 3))
            read_on(l, 0, 0);
        expect(l, -EOVERFLOW);
        break;
    default: /* leaves, is killed or stopped while it reads */
        for (uint32_t i = 0; i < n; i++)
            submit(l, 1 + below(l, 600), l->act == ACT_STALLED ? 3000 : 1000000, 0, false);
        read_on(l, 0, l->act == ACT_DISCONNECT ? below(l, 300) + 1 : 0);
        expect(l, 0);
    }
    glmd_close(l->c);
}

_Noreturn void soak_client(const char *socket_path, enum act act, uint64_t seed, struct soak_counts *counts) {
    static struct life l;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    atomic_fetch_add(&counts->clients[act], 1);
    if (act == ACT_CHAOS)
        chaos_client(socket_path, seed);
    l = (struct life){
        .path = socket_path, .rng = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15), .act = act, .counts = counts};
    dial(&l);
    live(&l);
    _exit(0);
}
