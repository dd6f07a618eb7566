/* SPDX-License-Identifier: MIT */
/* The wire by hand and at random; see chaos.h. Results of system calls are of no interest here: whatever the
 * daemon refuses, the next act follows. */
#include "chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "seqsock.h"

enum { MAX_CONNS = 3, MAX_ACTS = 250 };

static uint64_t state;
static uint64_t heard_of; /* a kept stream of any of our connections, 0 = none yet */
static uint8_t junk[4096];

uint64_t mad_next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

void mad_seed(uint64_t seed) {
    signal(SIGPIPE, SIG_IGN);
    state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < 10; i++)
        mad_next();
}

uint32_t mad_below(uint32_t n) {
    return (uint32_t)(mad_next() >> 20) % n;
}

static void ignore(ssize_t n) {
    (void)n;
}

static int dial(const char *path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0)
        return fd;
    close(fd);
    return -1;
}

bool mad_open(struct mad *c, const char *path) {
    static struct seqsock_rx rx;
    struct hello_msg m = {.type = GLMW_PKT_HELLO};
    struct glmw_hello *h = &m.u.hello;
    uint8_t packet[GLMW_PACKET_MAX];
    struct pollfd p;
    const char *why;
    int n;

    memset(c, 0, sizeof *c);
    c->fd = dial(path);
    if (c->fd < 0)
        return false;
    h->wire_min = h->wire_max = GLMW_WIRE_MAX;
    h->features_wanted = mad_below(2) ? GLMW_FEAT_ALL : mad_next();
    h->page_size = 4096;
    h->sq_log2 = (uint8_t)(4 + mad_below(5));
    h->tq_log2 = (uint8_t)(6 + mad_below(4));
    h->pay_log2 = h->txt_log2 = (uint8_t)(16 + mad_below(3));
    n = hello_encode(&m, packet, sizeof packet);
    p = (struct pollfd){.fd = c->fd, .events = POLLIN};
    if (seqsock_send(c->fd, packet, (size_t)n, NULL, 0) < 0 || poll(&p, 1, 10000) != 1 ||
        seqsock_recv(c->fd, &rx) < 0 ||
        hello_decode(rx.buf, rx.len, rx.n_fds, HELLO_CLIENT_FIRST, &m, &why) != 0 ||
        m.type != GLMW_PKT_WELCOME)
        return false;
    memcpy(c->fds, rx.fds, sizeof c->fds);
    c->welcome = m.u.welcome;
    if (shm_view_map(&c->welcome, c->fds[GLMW_FD_U], c->fds[GLMW_FD_D], &c->view) < 0)
        return false;
    shm_view_rings(&c->view, &c->sq, &c->tq);
    return true;
}

void mad_bell(struct mad *c) {
    uint64_t one = 1;

    ignore(write(c->fds[GLMW_FD_BELL], &one, sizeof one));
}

void mad_put(struct mad *c, const struct glmw_entry *e) {
    glmw_refresh(&c->sq);
    if (glmw_put(&c->sq, e) < 0 || glmw_publish(&c->sq, false) || mad_below(4) == 0)
        mad_bell(c);
}

static uint32_t tlv(uint8_t *b, uint32_t at, uint32_t type, const void *body, uint32_t n) {
    struct glmw_tlv t = {.type = (uint16_t)type, .len = n};
    uint32_t padded = (n + 7) & ~7u;

    memcpy(b + at, &t, sizeof t);
    memset(b + at + sizeof t, 0, padded);
    memcpy(b + at + sizeof t, body, n);
    return at + (uint32_t)sizeof t + padded;
}

/* Well-formed as a rule, with some bytes changed now and then. */
static uint32_t payload(uint8_t *b) {
    uint32_t at = 0, ids[40], n = 1 + mad_below(40);

    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (uint8_t)(mad_below(4) ? 'a' + mad_below(26) : mad_next());
    for (uint32_t i = 0; i < n; i++)
        ids[i] = mad_below(mad_below(8) ? 100 : 103);
    if (mad_below(2)) {
        struct glmw_sampling s = {.size = sizeof s, .has = GLMW_HAS_N_ALTS, .n_alts = mad_below(21)};

        if (mad_below(4) == 0)
            memcpy((uint8_t *)&s + 4, junk, sizeof s - 4);
        at = tlv(b, at, GLMW_TLV_SAMPLING, &s, sizeof s);
    }
    for (uint32_t i = mad_below(mad_below(4) ? 3 : 100); i > 0; i--)
        at = tlv(b, at, GLMW_TLV_STOP, junk + mad_below(99), 1 + mad_below(30));
    if (mad_below(4) == 0)
        at = tlv(b, at, GLMW_TLV_LOGIT_BIAS, junk, 8 * (1 + mad_below(300)));
    if (mad_below(3)) {
        at = tlv(b, at, GLMW_TLV_TOKENS, ids, 4 * n);
    } else {
        struct glmw_tlv_msg m = {.role = 1 + mad_below(4)};

        at = tlv(b, at, GLMW_TLV_MSG_BEGIN, &m, sizeof m);
        at = tlv(b, at, GLMW_TLV_PART_TEXT + mad_below(5), junk, mad_below(3000));
        at = tlv(b, at, GLMW_TLV_MSG_END, "", 0);
    }
    for (uint32_t i = mad_below(4) ? 0 : mad_below(10); i > 0; i--)
        b[mad_below(at)] = (uint8_t)mad_next();
    return at;
}

void mad_submit(struct mad *c) {
    struct glmw_entry e = {
        .opcode = (uint8_t)(mad_below(6) ? GLMW_OP_SUBMIT : GLMW_OP_TOKENIZE + mad_below(2)),
        .flags = mad_below(2) ? GLMW_ENT_QUIET : 0,
        .payload_len = payload((uint8_t *)c->view.u + c->welcome.pay_off),
        .tag = 1 + mad_below(5000),
        .max_tokens = mad_below(60),
        .deadline_ms = mad_below(4) ? 0 : mad_below(50),
    };

    if (e.opcode == GLMW_OP_SUBMIT && c->welcome.features & GLMW_FEAT_RESUME && mad_below(4) == 0) {
        e.flags |= GLMW_ENT_KEEP;
        e.max_tokens |= 1; /* it goes on without us: not for ever */
    }
    mad_put(c, &e);
}

/* A bulk object, which is well-formed as a rule, and perhaps the request that names it. */
static void bulk(struct mad *c) {
    static uint8_t body[1 << 16];
    struct glmw_entry e = {.opcode = GLMW_OP_SUBMIT, .flags = GLMW_ENT_BULK, .tag = 1 + mad_below(5000)};
    struct hello_msg m = {.type = GLMW_PKT_BULK};
    int fd = memfd_create("mad", MFD_CLOEXEC | (mad_below(8) ? MFD_ALLOW_SEALING : 0));
    uint8_t packet[GLMW_PACKET_MAX];
    int n;

    m.u.bulk.id = mad_below(20);
    m.u.bulk.kind = mad_below(8) ? 1 : mad_below(4);
    m.u.bulk.bytes = payload(body);
    ignore(write(fd, body, m.u.bulk.bytes));
    if (mad_below(8))
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    m.u.bulk.bytes += mad_below(8) ? 0 : mad_below(9000);
    n = hello_encode(&m, packet, sizeof packet);
    if (n > 0)
        seqsock_send(c->fd, packet, (size_t)n, &fd, 1);
    close(fd);
    usleep(mad_below(500));
    e.payload_off = mad_below(6) ? m.u.bulk.id : mad_below(20);
    e.max_tokens = mad_below(60);
    if (mad_below(5))
        mad_put(c, &e);
}

/* The stream that was heard of last, or a guess. */
static void resume(struct mad *c) {
    struct glmw_entry e = {.opcode = GLMW_OP_RESUME, .tag = 1 + mad_below(5000)};

    e.payload_off = heard_of && mad_below(8) ? heard_of : mad_next();
    e.session = mad_below(2) ? 0 : mad_below(300);
    mad_put(c, &e);
}

static void cancel(struct mad *c) {
    struct glmw_entry e = {.opcode = GLMW_OP_CANCEL};

    for (uint32_t i = mad_below(8) ? 1 : mad_below(300); i > 0; i--) {
        e.tag = 1 + mad_below(5000);
        mad_put(c, &e);
    }
    e = (struct glmw_entry){.opcode = GLMW_OP_CANCEL_ALL};
    if (mad_below(4) == 0)
        mad_put(c, &e);
}

static void read_some(struct mad *c) {
    static const struct glmw_entry nop = {.opcode = GLMW_OP_NOP};
    uint32_t most = mad_below(2) ? UINT32_MAX : mad_below(20);
    struct glmw_rec r;

    for (int n = glmw_peek(&c->tq); n > 0 && most > 0; n--, most--) {
        glmw_take(&c->tq, &r);
        if (r.type == GLMW_REC_ACCEPTED && r.u.accepted.stream_id)
            heard_of = r.u.accepted.stream_id;
    }
    if (glmw_give_back(&c->tq, &c->view.d->credit_wanted) && mad_below(10))
        mad_put(c, &nop);
}

static void sleep_for_bell(struct mad *c) {
    struct pollfd p = {.fd = c->fds[GLMW_FD_PIPE], .events = POLLIN};
    char drain[256];

    glmw_arm(&c->tq, 1 + mad_below(3));
    if (poll(&p, 1, (int)mad_below(5)) == 1)
        ignore(read(p.fd, drain, sizeof drain));
}

static void send_packet(struct mad *c) {
    uint32_t n = mad_below(2) ? 16 + mad_below(200) : 1 + mad_below(sizeof junk);
    struct glmw_packet_hdr h = {GLMW_MAGIC_PACKET, (uint16_t)mad_below(14), (uint16_t)mad_below(2), n - 16,
                                0};
    int fds[GLMW_PACKET_FDS_MAX] = {-1, -1, -1, -1};
    unsigned n_fds = mad_below(GLMW_PACKET_FDS_MAX + 1);

    if (n >= sizeof h && mad_below(4))
        memcpy(junk, &h, sizeof h);
    for (unsigned i = 0; i < n_fds; i++)
        fds[i] = mad_below(2) ? memfd_create("mad", MFD_CLOEXEC) : open("/dev/null", O_RDONLY | O_CLOEXEC);
    seqsock_send(c->fd, junk, n, fds, n_fds);
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
}

static void break_memory(struct mad *c) {
    uint8_t *u = (uint8_t *)c->view.u;

    switch (mad_below(6)) {
    case 0:
        __atomic_store_n(&c->view.u->tq_head,
                         mad_below(2) ? (uint32_t)mad_next() : c->tq.given - mad_below(5), __ATOMIC_RELEASE);
        break;
    case 1:
        __atomic_store_n(&c->view.u->sq_tail,
                         mad_below(2) ? (uint32_t)mad_next() : c->sq.tail + mad_below(300), __ATOMIC_RELEASE);
        mad_bell(c);
        break;
    case 2:
        __atomic_store_n(&c->view.u->tq_event, (uint32_t)mad_next(), __ATOMIC_RELEASE);
        break;
    case 3:
        for (uint32_t i = mad_below(4000); i > 0; i--)
            u[mad_below((uint32_t)c->welcome.u_bytes)] = (uint8_t)mad_next();
        break;
    case 4:
        fallocate(c->fds[GLMW_FD_U], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, mad_below(1 << 18),
                  1 + mad_below(1 << 18));
        break;
    default:
        ignore(ftruncate(c->fds[GLMW_FD_U], 0));
        ignore(ftruncate(c->fds[GLMW_FD_D], 0));
        fcntl(c->fds[GLMW_FD_U], F_ADD_SEALS, F_SEAL_WRITE);
    }
}

static void break_descriptors(struct mad *c) {
    uint64_t big = UINT64_MAX - 100000;

    switch (mad_below(4)) {
    case 0:
        for (uint32_t i = mad_below(5000); i > 0; i--)
            mad_bell(c);
        break;
    case 1:
        ignore(write(c->fds[GLMW_FD_BELL], &big, sizeof big));
        break;
    case 2:
        close(c->fds[GLMW_FD_PIPE]);
        c->fds[GLMW_FD_PIPE] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        break;
    default:
        shutdown(c->fd, (int)mad_below(3));
    }
}

static void act(struct mad *c, bool rude) {
    struct glmw_entry e = {
        .opcode = (uint8_t)mad_next(), .tag = mad_next(), .payload_len = (uint32_t)mad_next()};
    uint32_t what = mad_below(rude ? 100 : 85);

    if (what < 4 && c->welcome.features & GLMW_FEAT_BULK)
        bulk(c);
    else if (what < 7 && c->welcome.features & GLMW_FEAT_RESUME)
        resume(c);
    else if (what < 35)
        mad_submit(c);
    else if (what < 50)
        cancel(c);
    else if (what < 70)
        read_some(c);
    else if (what < 78)
        sleep_for_bell(c);
    else if (what < 85)
        usleep(mad_below(2000));
    else if (what < 87)
        mad_put(c, &e);
    else if (what < 90)
        send_packet(c);
    else if (what < 97)
        break_memory(c);
    else
        break_descriptors(c);
}

void chaos_client(const char *socket_path, uint64_t seed) {
    static struct mad c[MAX_CONNS];
    bool open_now[MAX_CONNS], rude;
    uint32_t n;

    mad_seed(seed);
    rude = mad_below(2);
    n = 1 + mad_below(MAX_CONNS);
    if (mad_below(8) == 0) { /* half a handshake */
        c[0].fd = dial(socket_path);
        if (mad_below(2))
            send_packet(&c[0]);
        _exit(0);
    }
    for (uint32_t i = 0; i < n; i++)
        open_now[i] = mad_open(&c[i], socket_path);
    for (uint32_t k = mad_below(MAX_ACTS); k > 0; k--) {
        uint32_t i = mad_below(n);

        if (open_now[i])
            act(&c[i], rude);
    }
    if (mad_below(2))
        kill(getpid(), SIGKILL);
    _exit(0);
}
