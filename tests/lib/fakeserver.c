/* SPDX-License-Identifier: MIT */
/* The served fake: one thread, one listening socket, one script for every request; see fakedaemon.h.  It
 * obeys the rules of flow control, so that it can stream more than a ring holds.  Test processes only. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "fakedaemon.h"
#include "reqdec.h"
#include "seqsock.h"

#define MAX_CONNS 16
#define MAX_RUNS  64

struct run {
    uint64_t tag;
    uint32_t step; /* PROGRESS records, then tokens */
    uint32_t completion;
    char echo[1024];
    uint32_t echo_len;
    uint32_t echo_at;
    uint64_t due_ns;
};

struct served {
    bool used;
    struct fake f;
    struct run runs[MAX_RUNS];
    uint64_t notice_ns; /* when the next one is due */
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void last_user_text(struct fakeserver *s, struct served *v, const struct glmw_entry *e,
                           struct run *r) {
    uint8_t *payload = aligned_alloc(8, (e->payload_len + 8u) & ~7u);
    ck_assert_int_eq(shm_payload_read(&v->f.shm, e->payload_off, e->payload_len, payload), 0);
    memcpy(s->last_payload, payload,
           e->payload_len < sizeof s->last_payload ? e->payload_len : sizeof s->last_payload);
    struct glmw_limits lim = {.max_payload_bytes = 1u << 26,
                              .max_messages = 4096,
                              .max_parts = 8192,
                              .max_tools = 64,
                              .max_stops = 16,
                              .max_stop_bytes = 256,
                              .max_bias = 256,
                              .max_alts = 20,
                              .vocab_tokens = 200000,
                              .max_context_tokens = 1u << 20,
                              .max_output_tokens = 1u << 20};
    size_t n = reqdec_mem_bytes(&lim, e->payload_len);
    void *mem = aligned_alloc(8, (n + 8) & ~(size_t)7);
    struct reqdec_req q;
    struct reqdec_err err;
    int rc = reqdec_decode(payload, e->payload_len, &lim, FAKE_FEATURES, mem, n, &q, &err);
    if (rc == 0 && s->script.echo) {
        for (uint32_t i = 0; i < q.n_msgs; i++) {
            const struct reqdec_part *p = &q.parts[q.msgs[i].first_part];
            if (q.msgs[i].role != GLMW_ROLE_USER || !q.msgs[i].n_parts || p->text.len > sizeof r->echo)
                continue;
            memcpy(r->echo, p->text.ptr, p->text.len);
            r->echo_len = p->text.len;
        }
    }
    free(mem);
    free(payload);
}

static void submit(struct fakeserver *s, struct served *v, const struct glmw_entry *e) {
    s->n_submits++;
    s->last_submit = *e;
    for (unsigned i = 0; i < MAX_RUNS; i++) {
        struct run *r = &v->runs[i];
        if (r->tag)
            continue;
        *r = (struct run){.tag = e->tag};
        last_user_text(s, v, e, r);
        if (s->script.error_text) {
            fake_error(&v->f, e->tag, s->script.status, s->script.error_text);
            fake_end(&v->f, e->tag, s->script.status, GLMW_END_NONE);
            s->n_ends++;
            r->tag = 0;
        } else {
            fake_accept(&v->f, e->tag);
            r->due_ns = now_ns() + s->script.delay_us * 1000ull;
        }
        fake_flush(&v->f, true);
        return;
    }
    ck_abort_msg("more than %d requests in the fake server", MAX_RUNS);
}

static void finish(struct fakeserver *s, struct served *v, struct run *r, int status, uint16_t reason) {
    fake_usage(&v->f, r->tag, 11, r->completion);
    fake_end(&v->f, r->tag, status, reason);
    fake_flush(&v->f, true);
    s->n_ends++;
    r->tag = 0;
}

static void entries(struct fakeserver *s, struct served *v) {
    struct glmw_entry e;
    while (fake_pop(&v->f, &e)) {
        if (e.opcode == GLMW_OP_SUBMIT) {
            submit(s, v, &e);
        } else if (e.opcode == GLMW_OP_NOP) {
            s->n_nops++;
        } else if (e.opcode == GLMW_OP_CANCEL) {
            s->n_cancels++;
            for (unsigned i = 0; !s->script.deaf && i < MAX_RUNS; i++)
                if (v->runs[i].tag == e.tag)
                    finish(s, v, &v->runs[i], -ECANCELED, GLMW_END_CANCELED);
        }
    }
}

/* Leaves three slots for every live tag, as the daemon does. */
static bool has_credit(struct served *v) {
    struct fake *f = &v->f;
    uint32_t keep = 1 + GLMW_RESERVED_RECS * MAX_RUNS / 4;
    if (glmw_free_slots(&f->tq) > keep)
        return true;
    if (glmw_refresh(&f->tq) == 0 && glmw_free_slots(&f->tq) > keep)
        return true;
    if (glmw_credit_ask(&f->tq, &f->shm.d->credit_wanted) == 0 && glmw_free_slots(&f->tq) > keep) {
        glmw_credit_done(&f->shm.d->credit_wanted);
        return true;
    }
    return false;
}

/* One record of one run.  False: the connection dies now. */
static bool play(struct fakeserver *s, struct served *v, struct run *r) {
    const struct fake_script *k = &s->script;
    uint32_t total = k->n_tokens * (k->repeat ? k->repeat : 1);
    if (r->step < k->progress_steps) {
        r->step++;
        fake_progress(&v->f, r->tag, r->step * 64, k->progress_steps * 64, 0);
        fake_flush(&v->f, false);
        return true;
    }
    if (k->die_after && r->completion >= k->die_after)
        return false;
    if (k->echo && r->echo_at < r->echo_len) {
        uint32_t n = r->echo_len - r->echo_at;
        n = n < 3 ? n : 3;
        fake_piece(&v->f, r->tag, GLMW_CH_CONTENT, r->completion, r->echo + r->echo_at, n);
        r->echo_at += n;
    } else if (!k->echo && r->completion < total) {
        const struct fake_token *t = &k->tokens[r->completion % k->n_tokens];
        fake_piece(&v->f, r->tag, t->channel, r->completion, t->text, (uint32_t)strlen(t->text));
    } else {
        finish(s, v, r, k->status, k->reason ? k->reason : GLMW_END_STOP);
        return true;
    }
    r->completion++;
    fake_flush(&v->f, r->completion == 1);
    return true;
}

static void drop(struct served *v) {
    fake_close(&v->f);
    *v = (struct served){.used = false};
}

/* Returns when the next one is due, as a poll timeout. */
static int notice(struct fakeserver *s, struct served *v, uint64_t now) {
    struct hello_msg m = {.type = GLMW_PKT_NOTICE};
    m.u.notice.what = GLMW_NOTICE_STATE;
    m.u.notice.state = GLMW_STATE_READY;
    memcpy(m.u.notice.model, "fake", 5);
    if (!v->used || !s->script.notice_ms)
        return -1;
    if (now >= v->notice_ns) {
        fake_packet(&v->f, &m);
        v->notice_ns = now + s->script.notice_ms * 1000000ull;
    }
    return (int)((v->notice_ns - now) / 1000000u) + 1;
}

/* Plays what is due.  Returns when to look again, as a poll timeout. */
static int turn(struct fakeserver *s, struct served *v) {
    uint64_t now = now_ns();
    int wait = notice(s, v, now);
    if (v->used)
        entries(s, v);
    for (unsigned i = 0; v->used && i < MAX_RUNS; i++) {
        struct run *r = &v->runs[i];
        if (!r->tag)
            continue;
        if (now < r->due_ns) {
            int ms = (int)((r->due_ns - now) / 1000000u) + 1;
            wait = wait < 0 || ms < wait ? ms : wait;
            continue;
        }
        if (!has_credit(v))
            continue; /* the client's NOP rings the bell */
        r->due_ns = now + s->script.delay_us * 1000ull;
        if (!play(s, v, r))
            drop(v);
        wait = 0;
    }
    return wait;
}

static void hello(struct fakeserver *s, struct served *v) {
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    *v = (struct served){.used = true};
    fake_start_on(&v->f, &s->options, fd);
    s->n_connections++;
}

static void packet(struct served *v, struct seqsock_rx *rx) {
    struct hello_msg m;
    if (seqsock_recv(v->f.sock, rx) != 0 ||
        (rx->buf[4] != GLMW_PKT_HELLO &&
         hello_decode(rx->buf, rx->len, rx->n_fds, HELLO_SERVER_OPEN, &m, NULL) < 0)) {
        drop(v);
    } else if (rx->buf[4] == GLMW_PKT_PING) {
        m.type = GLMW_PKT_PONG;
        fake_packet(&v->f, &m);
    } else if (rx->buf[4] == GLMW_PKT_BYE) {
        drop(v);
    }
}

static void *serve(void *arg) {
    struct fakeserver *s = arg;
    struct served *v = calloc(MAX_CONNS, sizeof *v);
    ck_assert(v != NULL);
    for (;;) {
        struct pollfd p[2 + 2 * MAX_CONNS] = {{.fd = s->stop_fd, .events = POLLIN},
                                              {.fd = s->listener, .events = POLLIN}};
        int wait = -1;
        for (unsigned i = 0; i < MAX_CONNS; i++) {
            int w = turn(s, &v[i]);
            wait = w >= 0 && (wait < 0 || w < wait) ? w : wait;
            p[2 + 2 * i] = (struct pollfd){.fd = v[i].used ? v[i].f.sock : -1, .events = POLLIN};
            p[3 + 2 * i] = (struct pollfd){.fd = v[i].used ? v[i].f.bell.up_fd : -1, .events = POLLIN};
        }
        if (poll(p, 2 + 2 * MAX_CONNS, wait) < 0 && errno != EINTR)
            break;
        if (p[0].revents)
            break;
        for (unsigned i = 0; i < MAX_CONNS; i++) {
            static struct seqsock_rx rx;
            if (v[i].used && p[3 + 2 * i].revents)
                fake_bells(&v[i].f);
            if (v[i].used && p[2 + 2 * i].revents)
                packet(&v[i], &rx);
        }
        for (unsigned i = 0; p[1].revents && i < MAX_CONNS; i++) {
            if (!v[i].used) {
                hello(s, &v[i]);
                break;
            }
        }
    }
    for (unsigned i = 0; i < MAX_CONNS; i++)
        if (v[i].used)
            drop(&v[i]);
    free(v);
    return NULL;
}

void fakeserver_start(struct fakeserver *s, const struct fake_script *script, const struct fake_options *o) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    *s = (struct fakeserver){.script = *script};
    if (o)
        s->options = *o;
    snprintf(s->dir, sizeof s->dir, "/tmp/glmd-fake-XXXXXX");
    ck_assert(mkdtemp(s->dir) != NULL);
    snprintf(s->path, sizeof s->path, "%s/glmd.sock", s->dir);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", s->path);
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(s->listener, 0);
    ck_assert_int_eq(bind(s->listener, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(s->listener, 8), 0);
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    ck_assert_int_ge(s->stop_fd, 0);
    /* signals are for the test's own thread */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    ck_assert_int_eq(pthread_create(&s->thread, NULL, serve, s), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fakeserver_stop(struct fakeserver *s) {
    static const uint64_t one = 1;
    ck_assert_int_eq((int)write(s->stop_fd, &one, sizeof one), (int)sizeof one);
    ck_assert_int_eq(pthread_join(s->thread, NULL), 0);
    close(s->stop_fd);
    close(s->listener);
    unlink(s->path);
    ck_assert_int_eq(rmdir(s->dir), 0);
}
