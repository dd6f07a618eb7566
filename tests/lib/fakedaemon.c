/* SPDX-License-Identifier: MIT */
/* The step-by-step fake; see fakedaemon.h.  Test processes only. */
#include "fakedaemon.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "seqsock.h"

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void offer(const struct fake_options *o, struct fake *f) {
    struct hello_offer of = {.wire_min = GLMW_WIRE_MIN,
                             .wire_max = GLMW_WIRE_MAX,
                             .features = o->features ? o->features : FAKE_FEATURES,
                             .sq_log2_max = GLMW_SQ_LOG2_MAX,
                             .tq_log2_max = GLMW_TQ_LOG2_MAX,
                             .pay_log2_max = GLMW_PAY_LOG2_MAX,
                             .txt_log2_max = GLMW_TXT_LOG2_MAX,
                             .state = GLMW_STATE_READY,
                             .generation = 7,
                             .conn_id = 3,
                             .limits = o->limits,
                             .model = "fake"};
    struct glmw_hello h = {.wire_min = GLMW_WIRE_MIN,
                           .wire_max = GLMW_WIRE_MAX,
                           .features_wanted = ~0ull,
                           .sq_log2 = o->sq_log2,
                           .tq_log2 = o->tq_log2,
                           .pay_log2 = o->pay_log2,
                           .txt_log2 = o->txt_log2,
                           .page_size = 4096};
    h.features_wanted = GLMW_FEAT_ALL;
    of.limits.max_live = o->live ? o->live : 64;
    struct shm_geom g;
    struct glmw_reject rej;
    ck_assert_int_eq(hello_negotiate(&of, &h, &f->welcome, &g, &rej), 0);
    struct shm_ident id = {.wire = f->welcome.wire,
                           .features = f->welcome.features,
                           .generation = f->welcome.generation,
                           .conn_id = f->welcome.conn_id};
    ck_assert_int_eq(shm_pair_create(&g, &id, &f->shm), 0);
    ck_assert_int_eq(bell_open(&f->bell), 0);
    shm_pair_rings(&f->shm, &f->sq, &f->tq);
    struct glmw_status s = {.state = GLMW_STATE_READY, .heartbeat_ns = now_ns(), .start_ns = now_ns()};
    glmw_status_write(&f->shm.d->status, &s);
}

/* A memfd of the same size and content that nobody sealed. */
static int unsealed_copy(int fd, uint64_t bytes) {
    int m = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(m, 0);
    ck_assert_int_eq(ftruncate(m, (off_t)bytes), 0);
    char page[4096];
    ck_assert_int_eq((int)pread(fd, page, sizeof page, 0), (int)sizeof page);
    ck_assert_int_eq((int)pwrite(m, page, sizeof page, 0), (int)sizeof page);
    return m;
}

static void send_welcome(struct fake *f, const struct fake_options *o) {
    struct hello_msg m = {.type = GLMW_PKT_WELCOME, .serial = f->serial++};
    uint8_t p[GLMW_PACKET_MAX];
    int fds[4] = {f->shm.u_fd, f->shm.d_fd, f->bell.up_fd, f->bell.pipe_r};
    if (o->spoil)
        o->spoil(&f->welcome, f->shm.d, o->spoil_arg);
    if (o->swap_pipe)
        fds[3] = f->bell.up_fd;
    if (o->unsealed) {
        fds[0] = unsealed_copy(f->shm.u_fd, f->welcome.u_bytes);
        fds[1] = unsealed_copy(f->shm.d_fd, f->welcome.d_bytes);
    }
    m.u.welcome = f->welcome;
    int len = hello_encode(&m, p, sizeof p);
    ck_assert_int_gt(len, 0);
    unsigned n = o->n_fds < 0 ? 0 : o->n_fds ? (unsigned)o->n_fds : 4;
    ck_assert_int_eq(seqsock_send(f->sock, p, (size_t)len, fds, n), 0);
    if (o->unsealed) {
        close(fds[0]);
        close(fds[1]);
    }
    close(f->bell.pipe_r);
    f->bell.pipe_r = -1;
}

void fake_start_on(struct fake *f, const struct fake_options *o, int sock) {
    static const struct fake_options none;
    *f = (struct fake){.sock = sock};
    offer(o ? o : &none, f);
    send_welcome(f, o ? o : &none);
}

void fake_open(struct fake *f, const struct fake_options *o, int *ret_client) {
    int sv[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    *ret_client = sv[1];
    fake_start_on(f, o, sv[0]);
}

void fake_die(struct fake *f) {
    if (f->sock >= 0)
        close(f->sock);
    f->sock = -1;
    bell_close(&f->bell);
}

void fake_close(struct fake *f) {
    fake_die(f);
    shm_pair_done(&f->shm);
}

glmd_conn *fake_connect(struct fake *f, const struct fake_options *o) {
    int fd;
    glmd_conn *c;
    char err[256] = "";
    struct glmd_options go = {.size = sizeof go, .error = err, .error_bytes = sizeof err, .timeout_ms = 2000};
    fake_open(f, o, &fd);
    int r = glmd_connect_fd(fd, &go, &c);
    ck_assert_msg(r == 0, "connect: %d %s", r, err);
    return c;
}

/* ---- entries ---- */

bool fake_pop(struct fake *f, struct glmw_entry *ret) {
    int n = glmw_peek(&f->sq);
    ck_assert_int_ge(n, 0);
    if (n == 0)
        return false;
    glmw_take(&f->sq, ret);
    glmw_give_back(&f->sq, NULL);
    glmw_arm(&f->sq, 1);
    return true;
}

uint64_t fake_pop_submit(struct fake *f) {
    struct glmw_entry e;
    ck_assert(fake_pop(f, &e));
    ck_assert_int_eq(e.opcode, GLMW_OP_SUBMIT);
    ck_assert(e.tag != 0);
    return e.tag;
}

/* A fake may read the counter although a daemon may not: nothing here can be blocked by it. */
uint64_t fake_bells(struct fake *f) {
    uint64_t n = 0;
    struct pollfd p = {.fd = f->bell.up_fd, .events = POLLIN};
    if (poll(&p, 1, 0) == 1)
        ck_assert_int_eq((int)read(f->bell.up_fd, &n, sizeof n), (int)sizeof n);
    return n;
}

/* ---- records ---- */

static uint32_t next_seq(struct fake *f, uint64_t tag) {
    struct fake_tag *empty = NULL;
    if (!tag)
        return 0;
    for (unsigned i = 0; i < FAKE_MAX_TAGS; i++) {
        if (f->tags[i].tag == tag)
            return f->tags[i].seq++;
        if (!f->tags[i].tag && !empty)
            empty = &f->tags[i];
    }
    ck_assert_msg(empty != NULL, "more than %d tags in the fake", FAKE_MAX_TAGS);
    *empty = (struct fake_tag){tag, 1};
    return 0;
}

void fake_put(struct fake *f, const void *rec64) {
    if (glmw_free_slots(&f->tq) == 0)
        ck_assert_int_eq(glmw_refresh(&f->tq), 0);
    ck_assert_int_eq(glmw_put(&f->tq, rec64), 0);
}

struct glmw_rec fake_rec(struct fake *f, uint8_t type, uint64_t tag) {
    return (struct glmw_rec){.type = type,
                             .seq = next_seq(f, tag),
                             .tag = tag,
                             .token = GLMW_TOKEN_NONE,
                             .logprob = (float)NAN,
                             .t_ns = now_ns()};
}

void fake_accept(struct fake *f, uint64_t tag) {
    struct glmw_rec r = fake_rec(f, GLMW_REC_ACCEPTED, tag);
    fake_put(f, &r);
}

void fake_progress(struct fake *f, uint64_t tag, uint32_t done, uint32_t total, uint32_t queue_pos) {
    struct glmw_rec r = fake_rec(f, GLMW_REC_PROGRESS, tag);
    r.u.progress.done = done;
    r.u.progress.total = total;
    r.u.progress.queue_pos = queue_pos;
    r.u.progress.wait_ms = queue_pos * 1500;
    r.u.progress.phase = queue_pos ? GLMW_PHASE_QUEUED : GLMW_PHASE_PREFILL;
    fake_put(f, &r);
}

static void set_text(struct fake *f, struct glmw_rec *r, const char *text, uint32_t len) {
    r->text_len = (uint16_t)len;
    if (len <= GLMW_INLINE_BYTES) {
        r->flags |= GLMW_RF_INLINE;
        memcpy(r->u.text, text, len);
        return;
    }
    ck_assert_uint_le(len, GLMW_SPAN_MAX);
    uint32_t size = 1u << f->welcome.txt_log2;
    if (f->txt_at + len > size)
        f->txt_at = 0;
    r->text_off = f->txt_at;
    memcpy((uint8_t *)f->shm.d + f->welcome.txt_off + f->txt_at, text, len);
    f->txt_at += len;
}

void fake_piece(struct fake *f, uint64_t tag, uint8_t channel, uint32_t token, const char *text,
                uint32_t len) {
    struct glmw_rec r = fake_rec(f, token == GLMW_TOKEN_NONE ? GLMW_REC_TEXT : GLMW_REC_TOKEN, tag);
    r.channel = channel;
    r.token = token;
    set_text(f, &r, text, len);
    fake_put(f, &r);
}

void fake_text(struct fake *f, uint64_t tag, uint32_t token, const char *text) {
    fake_piece(f, tag, GLMW_CH_CONTENT, token, text, (uint32_t)strlen(text));
}

void fake_usage(struct fake *f, uint64_t tag, uint32_t prompt, uint32_t completion) {
    struct glmw_usage u = {.type = GLMW_REC_USAGE,
                           .version = GLMW_USAGE_VERSION,
                           .seq = next_seq(f, tag),
                           .tag = tag,
                           .prompt_tokens = prompt,
                           .completion_tokens = completion,
                           .cached_tokens = prompt / 2,
                           .tier_tokens = prompt / 3,
                           .time_shift = 2,
                           .queued = 250,
                           .prefill = 500,
                           .decode = 750,
                           .longest_gap = UINT32_MAX};
    fake_put(f, &u);
}

void fake_error(struct fake *f, uint64_t tag, int status, const char *text) {
    struct glmw_rec r = fake_rec(f, GLMW_REC_ERROR, tag);
    r.token = (uint32_t)status;
    set_text(f, &r, text, (uint32_t)strlen(text));
    fake_put(f, &r);
}

void fake_end(struct fake *f, uint64_t tag, int status, uint16_t reason) {
    struct glmw_rec r = fake_rec(f, GLMW_REC_END, tag);
    r.u.end.status = status;
    r.u.end.reason = reason;
    fake_put(f, &r);
    for (unsigned i = 0; i < FAKE_MAX_TAGS; i++)
        if (f->tags[i].tag == tag)
            f->tags[i].tag = 0;
}

void fake_flush(struct fake *f, bool urgent) {
    int r = bell_publish(&f->tq, f->bell.pipe_w, urgent, &f->counts);
    ck_assert(r == 0 || r == -EPIPE);
}

/* ---- packets ---- */

void fake_packet(struct fake *f, const struct hello_msg *m) {
    uint8_t p[GLMW_PACKET_MAX];
    int len = hello_encode(m, p, sizeof p);
    ck_assert_int_gt(len, 0);
    fake_packet_raw(f, p, (size_t)len, NULL, 0);
}

void fake_packet_raw(struct fake *f, const void *p, size_t len, const int *fds, unsigned n_fds) {
    ck_assert_int_eq(seqsock_send(f->sock, p, len, fds, n_fds), 0);
}

void fake_expect(struct fake *f, uint16_t type, struct hello_msg *ret) {
    static struct seqsock_rx rx;
    for (;;) {
        struct pollfd p = {.fd = f->sock, .events = POLLIN};
        ck_assert_msg(poll(&p, 1, 1000) == 1, "the client sent no packet of type %u", type);
        ck_assert_int_eq(seqsock_recv(f->sock, &rx), 0);
        uint16_t got;
        memcpy(&got, rx.buf + 4, sizeof got);
        enum hello_phase phase = got == GLMW_PKT_HELLO ? HELLO_SERVER_FIRST : HELLO_SERVER_OPEN;
        const char *why = "";
        int r = hello_decode(rx.buf, rx.len, rx.n_fds, phase, ret, &why);
        seqsock_drop_fds(&rx);
        ck_assert_msg(r == 0, "the client sent a bad packet: %s", why);
        if (ret->type == type)
            return;
    }
}
