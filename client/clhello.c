/* SPDX-License-Identifier: MIT */
/* Handshake and mapping.  Everything WELCOME says is checked against the descriptors that came with it and
 * against region D itself before anything is mapped or believed: a confused daemon must not crash a client.
 * Runs on the connecting thread; may block until the deadline. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clconn.h"
#include "clsay.h"

#define CL_FEATURES                                                                                          \
    (GLMW_FEAT_LOGPROBS | GLMW_FEAT_ALTS | GLMW_FEAT_BULK | GLMW_FEAT_RESUME | GLMW_FEAT_COALESCE |          \
     GLMW_FEAT_TOOL_EVENTS | GLMW_FEAT_TOKENIZE | GLMW_FEAT_SCHEMA)

#define CL_REGION_MAX ((uint64_t)1 << 30)

int cl_say(struct cl_say *s, int error, const char *fmt, ...) {
    if (s->text && s->bytes) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(s->text, s->bytes, fmt, ap);
        va_end(ap);
    }
    return error;
}

static int send_hello(glmd_conn *c, const struct glmd_options *opt, struct cl_say *say) {
    c->features = CL_FEATURES | (opt->features & GLMW_FEAT_NUMBERS);
    struct glmw_hello h = {
        .wire_min = GLMW_WIRE_MIN, .wire_max = GLMW_WIRE_MAX, .features_wanted = c->features};
    h.page_size = (uint32_t)sysconf(_SC_PAGESIZE);
    const uint32_t sizes[4] = {opt->entries_log2, opt->records_log2, opt->payload_log2, opt->text_log2};
    for (unsigned i = 0; i < 4; i++)
        if (sizes[i] > 31)
            return cl_say(say, -EINVAL, "a size of 2^%u was asked for a ring or arena: use at most 31",
                          sizes[i]);
    h.sq_log2 = (uint8_t)sizes[0];
    h.tq_log2 = (uint8_t)sizes[1];
    h.pay_log2 = (uint8_t)sizes[2];
    h.txt_log2 = (uint8_t)sizes[3];
    for (size_t i = 0; i < opt->client_name_len && i < sizeof h.name; i++) {
        char ch = opt->client_name[i];
        h.name[i] = ch >= 0x20 && ch < 0x7f ? ch : '?';
    }
    int r = cl_packet_send(c, GLMW_PKT_HELLO, &h, sizeof h);
    if (r == -EPIPE || r == -ECONNRESET)
        r = 0; /* the reason may already lie on our side of the socket: read it */
    if (r < 0)
        return cl_say(say, r, "%s: the greeting could not be sent: %s", say->where, glmd_strerror(r));
    return 0;
}

static int refused(const char *body, uint32_t len, struct cl_say *say) {
    struct glmw_reject j;
    if (len < sizeof j)
        return cl_say(say, -EPROTO, "%s: the daemon refused with a packet that is too short", say->where);
    memcpy(&j, body, sizeof j);
    j.text[sizeof j.text - 1] = 0;
    int r = j.error < 0 && j.error > -4096 ? j.error : -EPROTO;
    if (r == -EPROTONOSUPPORT)
        return cl_say(say, r,
                      "%s: the daemon speaks protocol %u to %u and this program %u to %u: "
                      "update the older of the two",
                      say->where, j.wire_min, j.wire_max, GLMW_WIRE_MIN, GLMW_WIRE_MAX);
    if (j.retry_after_ms)
        return cl_say(say, r, "%s: the daemon refused: %s; try again in %u ms", say->where,
                      j.text[0] ? j.text : glmd_strerror(r), j.retry_after_ms);
    return cl_say(say, r, "%s: the daemon refused: %s", say->where, j.text[0] ? j.text : glmd_strerror(r));
}

/* BYE in place of an answer: the daemon is stopping, or found the greeting wrong. */
static int dismissed(const char *body, uint32_t len, struct cl_say *say) {
    struct glmw_bye b = {.error = -EPROTO};
    if (len == sizeof b)
        memcpy(&b, body, sizeof b);
    b.text[sizeof b.text - 1] = 0;
    int r = b.error < 0 && b.error > -4096 ? b.error : -ECONNRESET;
    return cl_say(say, r, "%s: the daemon ended the connection: %s", say->where,
                  b.text[0] ? b.text : glmd_strerror(r));
}

/* WELCOME with its four descriptors. */
static int read_welcome(glmd_conn *c, uint64_t deadline_ns, struct cl_fds *fds, struct cl_say *say) {
    union {
        struct glmw_packet_hdr h;
        char bytes[GLMW_PACKET_MAX];
    } p;
    for (;;) {
        int n = cl_packet_recv(c->fd_sock, &p, sizeof p, fds);
        if (n == -EAGAIN) {
            uint64_t now = cl_now_ns();
            struct pollfd pf = {.fd = c->fd_sock, .events = POLLIN};
            if (now >= deadline_ns)
                return cl_say(say, -ETIMEDOUT,
                              "%s: the daemon did not answer in time: is it stopped or hung?", say->where);
            uint64_t ms = (deadline_ns - now) / CL_NS_PER_MS + 1;
            if (poll(&pf, 1, ms < INT_MAX ? (int)ms : INT_MAX) < 0 && errno != EINTR)
                return cl_say(say, -errno, "%s: waiting for the daemon failed", say->where);
            continue;
        }
        if (n == 0)
            return cl_say(say, -ECONNRESET,
                          "%s: the daemon closed the connection without a reason: see its log", say->where);
        if (n < 0)
            return cl_say(say, n, "%s: what answers is not a glmd daemon (%s)", say->where, glmd_strerror(n));
        const char *body = p.bytes + sizeof p.h;
        if (p.h.type == GLMW_PKT_WELCOME && p.h.len == sizeof c->hello && fds->n == GLMW_FD_COUNT) {
            memcpy(&c->hello, body, sizeof c->hello);
            return 0;
        }
        cl_fds_close(fds);
        if (p.h.type == GLMW_PKT_REJECT)
            return refused(body, p.h.len, say);
        if (p.h.type == GLMW_PKT_BYE)
            return dismissed(body, p.h.len, say);
        if (!(p.h.flags & GLMW_PKTF_IGNORABLE) || p.h.type == GLMW_PKT_WELCOME)
            return cl_say(say, -EPROTO,
                          "%s: the daemon answered the greeting with a packet of type %u, %u bytes "
                          "and %u descriptors",
                          say->where, p.h.type, p.h.len, fds->n);
    }
}

/* A part of a region: 64 KiB aligned, behind the control words, inside. */
static bool part_ok(uint64_t off, uint64_t bytes, uint64_t first, uint64_t region) {
    return off % GLMW_REGION_ALIGN == 0 && off >= first && bytes <= region && off <= region - bytes;
}

static bool apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    return a + a_bytes <= b || b + b_bytes <= a; /* both are below CL_REGION_MAX: no wrap */
}

static bool log2_ok(uint8_t v, unsigned min, unsigned max) {
    return v >= min && v <= max;
}

static const char *welcome_fault(const struct glmw_welcome *w, uint64_t asked) {
    if (w->wire < GLMW_WIRE_MIN || w->wire > GLMW_WIRE_MAX)
        return "protocol version";
    if (w->features & ~asked)
        return "features that were not asked for";
    if (!w->generation)
        return "generation";
    if (!log2_ok(w->sq_log2, GLMW_SQ_LOG2_MIN, GLMW_SQ_LOG2_MAX) ||
        !log2_ok(w->tq_log2, GLMW_TQ_LOG2_MIN, GLMW_TQ_LOG2_MAX) ||
        !log2_ok(w->pay_log2, GLMW_PAY_LOG2_MIN, GLMW_PAY_LOG2_MAX) ||
        !log2_ok(w->txt_log2, GLMW_TXT_LOG2_MIN, GLMW_TXT_LOG2_MAX))
        return "ring or arena size";
    if (w->u_bytes > CL_REGION_MAX || w->d_bytes > CL_REGION_MAX)
        return "region size";
    uint64_t sq = (uint64_t)GLMW_SLOT_BYTES << w->sq_log2, pay = (uint64_t)1 << w->pay_log2;
    uint64_t tq = (uint64_t)GLMW_SLOT_BYTES << w->tq_log2, txt = (uint64_t)1 << w->txt_log2;
    if (!part_ok(w->sq_off, sq, sizeof(struct glmw_u), w->u_bytes) ||
        !part_ok(w->pay_off, pay, sizeof(struct glmw_u), w->u_bytes) ||
        !apart(w->sq_off, sq, w->pay_off, pay))
        return "offsets in the upper region";
    if (!part_ok(w->tq_off, tq, sizeof(struct glmw_d), w->d_bytes) ||
        !part_ok(w->txt_off, txt, sizeof(struct glmw_d), w->d_bytes) ||
        !apart(w->tq_off, tq, w->txt_off, txt))
        return "offsets in the lower region";
    return NULL;
}

/* Large enough now and for ever: a memfd that may shrink would turn a read into SIGBUS. */
static bool region_ok(int fd, uint64_t bytes) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= 0 && (uint64_t)st.st_size >= bytes &&
           seals >= 0 && (seals & F_SEAL_SHRINK);
}

static int map_region(int fd, uint64_t bytes, int prot, void **ret) {
    void *p = mmap(NULL, (size_t)bytes, prot, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    /* a child that wrote into our rings would break the connection of its parent */
    if (madvise(p, (size_t)bytes, MADV_DONTFORK) < 0 && errno != EINVAL) {
        int r = -errno;
        munmap(p, (size_t)bytes);
        return r;
    }
    *ret = p;
    return 0;
}

static bool header_matches(const struct glmw_d GLMW_FOREIGN *d, const struct glmw_welcome *w) {
    struct glmw_d h;
    glmw_copy_words(&h, d, offsetof(struct glmw_d, pad0) / 4);
    return h.magic == GLMW_MAGIC_D && h.wire == w->wire && h.features == w->features &&
           h.generation == w->generation && h.conn_id == w->conn_id && h.u_bytes == w->u_bytes &&
           h.d_bytes == w->d_bytes && h.sq_off == w->sq_off && h.pay_off == w->pay_off &&
           h.tq_off == w->tq_off && h.txt_off == w->txt_off && h.sq_log2 == w->sq_log2 &&
           h.tq_log2 == w->tq_log2 && h.pay_log2 == w->pay_log2 && h.txt_log2 == w->txt_log2;
}

static int map_regions(glmd_conn *c, const struct cl_fds *fds, struct cl_say *say) {
    const struct glmw_welcome *w = &c->hello;
    const char *fault = welcome_fault(w, c->features);
    struct stat st;
    if (fault)
        return cl_say(say, -EPROTO, "%s: the daemon's welcome is wrong: %s", say->where, fault);
    if (!region_ok(fds->fd[GLMW_FD_U], w->u_bytes) || !region_ok(fds->fd[GLMW_FD_D], w->d_bytes))
        return cl_say(say, -EPROTO, "%s: the daemon sent a memory region that is too small or not sealed",
                      say->where);
    if (fstat(fds->fd[GLMW_FD_PIPE], &st) < 0 || !S_ISFIFO(st.st_mode))
        return cl_say(say, -EPROTO, "%s: the daemon sent something else than a pipe for wake-ups",
                      say->where);
    void *map = NULL;
    int r = map_region(fds->fd[GLMW_FD_U], w->u_bytes, PROT_READ | PROT_WRITE, &map);
    if (r == 0) {
        c->u = map;
        c->u_bytes = (size_t)w->u_bytes;
        r = map_region(fds->fd[GLMW_FD_D], w->d_bytes, PROT_READ, &map);
    }
    if (r < 0)
        return cl_say(say, r, "%s: %llu bytes of shared memory could not be mapped: %s", say->where,
                      (unsigned long long)(w->u_bytes + w->d_bytes), glmd_strerror(r));
    c->d = glmw_foreign(map);
    c->d_bytes = (size_t)w->d_bytes;
    if (!header_matches(c->d, w))
        return cl_say(say, -EPROTO, "%s: the shared memory and the daemon's welcome contradict each other",
                      say->where);
    return 0;
}

int cl_hello(glmd_conn *c, const struct glmd_options *opt, uint64_t deadline_ns, struct cl_say *say) {
    struct cl_fds fds = {.n = 0};
    int r = send_hello(c, opt, say);
    if (r == 0)
        r = read_welcome(c, deadline_ns, &fds, say);
    if (r < 0)
        return r;
    r = map_regions(c, &fds, say);
    if (r < 0) {
        cl_fds_close(&fds);
        return r;
    }
    c->fd_bell = fds.fd[GLMW_FD_BELL];
    c->fd_pipe = fds.fd[GLMW_FD_PIPE];
    close(fds.fd[GLMW_FD_U]); /* the maps stay */
    close(fds.fd[GLMW_FD_D]);
    int flags = fcntl(c->fd_pipe, F_GETFL);
    if (flags < 0 || fcntl(c->fd_pipe, F_SETFL, flags | O_NONBLOCK) < 0)
        return cl_say(say, -errno, "%s: the wake-up pipe cannot be made non-blocking", say->where);
    const struct glmw_welcome *w = &c->hello;
    uint8_t *u = (uint8_t *)c->u;
    const uint8_t GLMW_FOREIGN *d = (const uint8_t GLMW_FOREIGN *)c->d;
    c->pay = u + w->pay_off;
    c->txt = (const char GLMW_FOREIGN *)d + w->txt_off;
    c->txt_bytes = 1u << w->txt_log2;
    glmw_producer_init(&c->sq, u + w->sq_off, w->sq_log2, &c->u->sq_tail, &c->d->sq_head, &c->d->sq_event,
                       GLMW_FIRST_INDEX);
    glmw_consumer_init(&c->tq, d + w->tq_off, w->tq_log2, &c->d->tq_tail, &c->u->tq_head, &c->u->tq_event,
                       GLMW_FIRST_INDEX);
    return 0;
}
