/* SPDX-License-Identifier: MIT */
/* Fuzz bodies of libglmd against a hostile daemon: region D, the socket and the bells say what the input
 * says. The library may end the connection, never crash: pointers of events lie inside the shared memory,
 * every accepted submit gets exactly one END, an error is final, and nothing leaks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clconn.h"
#include "fakedaemon.h"
#include "fuzz.h"
#include "seqsock.h"

enum { MAX_SUBMITS = 24, MAX_EVENTS = 4096 };

struct run {
    struct fake f;
    glmd_conn *c;
    uint64_t tags[MAX_SUBMITS];
    bool ended[MAX_SUBMITS];
    unsigned n_tags;
    int error; /* sticky, 0 while alive */
};

/* ---- what the library must keep ------------------------------------------------------------------------ */

static bool in_d(const struct run *x, const void *p, size_t n) {
    uintptr_t lo = (uintptr_t)glmw_address(x->c->d), at = (uintptr_t)p;

    return at >= lo && n <= x->c->d_bytes && at - lo <= x->c->d_bytes - n;
}

static volatile uint32_t seen; /* what is handed out is read, so that the address sanitizer looks at it */

static void check_event(struct run *x, const struct glmd_event *e) {
    unsigned i = 0;

    FUZZ_NEED(e->type >= GLMD_EV_ACCEPTED && e->type <= GLMD_EV_IDS);
    FUZZ_NEED(e->text != NULL && (e->text_len == 0 || in_d(x, e->text, e->text_len)));
    FUZZ_NEED(e->n_ids == 0 || in_d(x, e->ids, e->n_ids * sizeof e->ids[0]));
    FUZZ_NEED(e->n_alts <= GLMW_ALTS_MAX && (e->n_alts == 0 || e->alts != NULL));
    for (uint32_t k = 0; k < e->n_alts; k++)
        seen += e->alts[k].token;
    for (uint32_t k = 0; k < e->n_ids; k++)
        seen += e->ids[k];
    if (e->tag == 0)
        return;
    while (i < x->n_tags && x->tags[i] != e->tag)
        i++;
    FUZZ_NEED(i < x->n_tags && !x->ended[i]);
    if (e->type == GLMD_EV_END) {
        FUZZ_NEED(e->status <= 0 && e->status >= -4095);
        FUZZ_NEED(!e->usage || e->usage->size == sizeof *e->usage);
        x->ended[i] = true;
    }
}

static void note(struct run *x, int r) {
    if (r >= 0)
        return;
    FUZZ_NEED(r >= -4095);
    if (x->error)
        FUZZ_NEED(r == x->error);
    x->error = r;
}

static int next_events(struct run *x, unsigned most) {
    struct glmd_event e = {.size = sizeof e};
    int r = 0;

    for (unsigned i = 0; i < most && (r = glmd_next(x->c, &e)) == 1; i++)
        check_event(x, &e);
    note(x, r);
    return r;
}

/* ---- the moves of the daemon --------------------------------------------------------------------------- */

static void slot_put(struct run *x, const void *rec64) {
    struct fake *f = &x->f;
    uint32_t mask = (1u << f->welcome.tq_log2) - 1;

    memcpy((uint8_t *)f->shm.d + f->welcome.tq_off + (size_t)(f->tq.tail & mask) * GLMW_SLOT_BYTES, rec64,
           GLMW_SLOT_BYTES);
    f->tq.tail++;
}

static void publish(struct run *x) {
    __atomic_store_n(&x->f.shm.d->tq_tail, x->f.tq.tail, __ATOMIC_RELEASE);
    if (x->f.sock >= 0)
        bell_ring(x->f.bell.pipe_w);
}

/* A record that would be right, with one byte changed when the input says so. */
static void put_record(struct run *x, struct fuzz_in *in) {
    static const char text[] = "some text that does not fit into a record";
    uint8_t what = fuzz_u8(in), which = fuzz_u8(in);
    uint64_t tag = x->n_tags ? x->tags[which % x->n_tags] : which;
    struct glmw_rec r = fake_rec(&x->f, (uint8_t)(what % 12), what & 128 ? 0 : tag);

    switch (r.type) {
    case GLMW_REC_TOKEN:
    case GLMW_REC_TEXT:
        r.channel = which >> 4 & 3;
        r.token = which;
        r.text_len = which % (sizeof text - 1);
        r.text_off = which * 64u;
        if (r.text_len <= GLMW_INLINE_BYTES) {
            r.flags = GLMW_RF_INLINE;
            r.text_off = 0;
            memcpy(r.u.text, text, r.text_len);
        }
        if (what & 64 && r.type == GLMW_REC_TOKEN) {
            r.flags |= GLMW_RF_ALTS_FOLLOW;
            r.n_alts = which % 21;
        }
        break;
    case GLMW_REC_TOOL:
        r.u.tool.phase = 1 + which % 3;
        break;
    case GLMW_REC_ERROR:
        r.token = (uint32_t)-EIO;
        break;
    case GLMW_REC_IDS: {
        struct glmw_ids ids = {
            .type = GLMW_REC_IDS, .count = (uint8_t)(1 + which % 12), .tag = tag, .seq = r.seq};
        memcpy(&r, &ids, sizeof r);
        break;
    }
    case GLMW_REC_ALTS: {
        struct glmw_alts alts = {.type = GLMW_REC_ALTS, .tag = tag, .seq = r.seq};
        memcpy(&r, &alts, sizeof r);
        break;
    }
    default:
        break;
    }
    if (what & 32) {
        uint8_t at = fuzz_u8(in);

        ((uint8_t *)&r)[at % GLMW_SLOT_BYTES] ^= fuzz_u8(in);
    }
    slot_put(x, &r);
}

static void write_word(struct run *x, struct fuzz_in *in) {
    static const uint32_t words[] = {offsetof(struct glmw_d, sq_head), offsetof(struct glmw_d, sq_event),
                                     offsetof(struct glmw_d, tq_tail),
                                     offsetof(struct glmw_d, credit_wanted)};
    uint8_t how = fuzz_u8(in);
    uint32_t off = how & 4 ? fuzz_u16(in) % (sizeof(struct glmw_d) / 4) * 4 : words[how & 3], v;
    uint8_t *at = (uint8_t *)x->f.shm.d + off;

    memcpy(&v, at, 4);
    v = how & 8 ? fuzz_u32(in) : v + (uint32_t)(int8_t)fuzz_u8(in);
    __atomic_store_n((uint32_t *)(void *)at, v, __ATOMIC_RELEASE);
}

static void packet(int sock, const int *fds, struct fuzz_in *in) {
    uint8_t p[300];
    struct glmw_packet_hdr h = {.magic = GLMW_MAGIC_PACKET, .type = fuzz_u8(in), .flags = fuzz_u8(in)};
    size_t n = fuzz_u8(in);
    bool with_fd = h.flags & 128;
    const uint8_t *body = fuzz_bytes(in, &n);

    h.flags &= 127;
    h.len = (uint32_t)n;
    memcpy(p, &h, sizeof h);
    memcpy(p + sizeof h, body, n);
    (void)!seqsock_send(sock, p, sizeof h + n, fds, with_fd);
}

static void take_entries(struct run *x) {
    struct glmw_entry e;

    while (glmw_peek(&x->f.sq) > 0) /* a library that lies to us would be a fault of its own */
        glmw_take(&x->f.sq, &e);
    glmw_give_back(&x->f.sq, NULL);
    glmw_arm(&x->f.sq, 1);
}

static void submit(struct run *x, uint8_t how) {
    glmd_req *q;
    uint64_t tag;
    int r;

    if (x->n_tags == MAX_SUBMITS || glmd_req_new(x->c, &q) < 0)
        return;
    FUZZ_NEED(glmd_req_message(q, GLMD_ROLE_USER, "hi", 2) == 0);
    r = how & 1 ? glmd_tokenize(x->c, q, &tag) : glmd_submit(x->c, q, &tag);
    if (r == 0) {
        x->tags[x->n_tags++] = tag;
    } else {
        FUZZ_NEED(r > -4096);
        glmd_req_free(q);
    }
}

static void ask(struct run *x, uint8_t how) {
    struct glmd_info i = {.size = sizeof i};
    const char *text;

    FUZZ_NEED(glmd_get_info(x->c, &i) == 0);
    FUZZ_NEED(memchr(i.model, 0, sizeof i.model) != NULL);
    glmd_get_error(x->c, &text);
    FUZZ_NEED(text != NULL);
    glmd_set_coalesce(x->c, how & 15, 1000);
}

static void move(struct run *x, struct fuzz_in *in) {
    uint8_t rec[GLMW_SLOT_BYTES] = {0};
    size_t n = sizeof rec;
    int r;

    switch (fuzz_u8(in) % 16) {
    case 0:
    case 1:
        put_record(x, in);
        break;
    case 2:
        memcpy(rec, fuzz_bytes(in, &n), n);
        slot_put(x, rec);
        break;
    case 3:
    case 4:
        publish(x);
        break;
    case 5:
        write_word(x, in);
        break;
    case 6:
        if (x->f.sock >= 0)
            packet(x->f.sock, &x->f.shm.u_fd, in);
        break;
    case 7:
        submit(x, fuzz_u8(in));
        break;
    case 8:
    case 9:
        next_events(x, 1 + fuzz_u8(in));
        break;
    case 10:
        r = glmd_dispatch(x->c);
        note(x, r);
        break;
    case 11:
        r = glmd_prepare(x->c);
        note(x, r);
        break;
    case 12:
        if (x->n_tags)
            glmd_cancel(x->c, x->tags[fuzz_u8(in) % x->n_tags]);
        break;
    case 13:
        glmd_release(x->c);
        break;
    case 14:
        take_entries(x);
        break;
    default:
        ask(x, fuzz_u8(in));
        break;
    }
}

int fuzz_client_ring(const uint8_t *data, size_t size) {
    static struct run x;
    struct fuzz_in in = {data, size};
    struct fake_options o = {.sq_log2 = GLMW_SQ_LOG2_MIN,
                             .tq_log2 = GLMW_TQ_LOG2_MIN,
                             .pay_log2 = GLMW_PAY_LOG2_MIN,
                             .txt_log2 = GLMW_TXT_LOG2_MIN};
    int r = 1;

    memset(&x, 0, sizeof x);
    x.c = fake_connect(&x.f, &o);
    for (unsigned i = 0; in.n > 0 && i < 300; i++)
        move(&x, &in);
    /* the daemon is gone: what it published, then one END for each request that lives, then the error */
    fake_die(&x.f);
    for (unsigned i = 0; r >= 0; i++) {
        FUZZ_NEED(i < MAX_EVENTS);
        r = glmd_dispatch(x.c);
        note(&x, r);
        r = next_events(&x, MAX_EVENTS);
    }
    for (unsigned i = 0; i < x.n_tags; i++)
        FUZZ_NEED(x.ended[i]);
    glmd_close(x.c);
    fake_close(&x.f);
    return 0;
}

/* ---- the handshake ------------------------------------------------------------------------------------- */

/* First byte: what is sent. 0: WELCOME with bytes changed, or region D's header; 1: anything. Then pairs of
 * offset and value; offsets from 216 on change region D. */
int fuzz_client_hello(const uint8_t *data, size_t size) {
    struct fuzz_in in = {data, size};
    struct fake_options none = {.sq_log2 = GLMW_SQ_LOG2_MIN,
                                .tq_log2 = GLMW_TQ_LOG2_MIN,
                                .pay_log2 = GLMW_PAY_LOG2_MIN,
                                .txt_log2 = GLMW_TXT_LOG2_MIN,
                                .n_fds = -1};
    uint8_t how = fuzz_u8(&in), p[GLMW_PACKET_MAX];
    char err[256] = "";
    struct glmd_options o = {.size = sizeof o, .error = err, .error_bytes = sizeof err, .timeout_ms = 1};
    struct seqsock_rx rx;
    struct hello_msg m = {.type = GLMW_PKT_WELCOME};
    struct glmd_event e = {.size = sizeof e};
    struct fake f;
    glmd_conn *c = NULL;
    int fd, fds[4], r;

    fake_open(&f, &none, &fd);
    FUZZ_NEED(seqsock_recv(fd, &rx) == 0); /* the fake's own WELCOME, which has no descriptors */
    bell_close(&f.bell);                   /* its read end was given away */
    FUZZ_NEED(bell_open(&f.bell) == 0);
    m.u.welcome = f.welcome;
    r = hello_encode(&m, p, sizeof p);
    FUZZ_NEED(r == (int)(sizeof(struct glmw_packet_hdr) + sizeof f.welcome));
    fds[0] = f.shm.u_fd;
    fds[1] = f.shm.d_fd;
    fds[2] = f.bell.up_fd;
    fds[3] = f.bell.pipe_r;
    if (how & 1) {
        packet(f.sock, fds, &in);
    } else {
        for (unsigned i = 0; i < 32 && in.n >= 3; i++) {
            uint16_t at = fuzz_u16(&in);
            uint8_t v = fuzz_u8(&in);

            if (at < sizeof f.welcome)
                p[sizeof(struct glmw_packet_hdr) + at] = v;
            else
                ((uint8_t *)f.shm.d)[(at - sizeof f.welcome) % sizeof(struct glmw_d)] = v;
        }
        FUZZ_NEED(seqsock_send(f.sock, p, (size_t)r, fds, how & 2 ? 1 + (how >> 2 & 3) : 4) == 0);
    }
    r = glmd_connect_fd(fd, &o, &c); /* takes fd */
    if (r == 0) {
        FUZZ_NEED(c != NULL);
        r = glmd_next(c, &e);
        FUZZ_NEED(r <= 1);
        glmd_close(c);
    } else {
        FUZZ_NEED(r < 0 && c == NULL && err[0]);
    }
    fake_close(&f);
    return 0;
}
