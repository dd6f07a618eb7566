/* SPDX-License-Identifier: MIT */
/* Encodes, decodes and negotiates the packets of the handshake socket. Pure: no descriptor, no memory, no
 * clock; any thread. A packet is decoded from private memory (recvmsg has copied it). */
#include "hello.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "utf8chk.h"

#define BIT(phase) (1u << (phase))

static const struct packet_kind {
    size_t body_bytes;
    uint8_t fds;
    uint8_t phases;
    bool may_be_longer; /* crosses before a version is agreed */
} kinds[] = {
    [GLMW_PKT_HELLO] = {sizeof(struct glmw_hello), 0, BIT(HELLO_SERVER_FIRST), true},
    [GLMW_PKT_WELCOME] = {sizeof(struct glmw_welcome), GLMW_FD_COUNT, BIT(HELLO_CLIENT_FIRST), false},
    [GLMW_PKT_REJECT] = {sizeof(struct glmw_reject), 0, BIT(HELLO_CLIENT_FIRST), true},
    [GLMW_PKT_BULK] = {sizeof(struct glmw_bulk), 1, BIT(HELLO_SERVER_OPEN), false},
    [GLMW_PKT_BULK_OK] = {sizeof(struct glmw_bulk_answer), 0, BIT(HELLO_CLIENT_OPEN), false},
    [GLMW_PKT_BULK_ERR] = {sizeof(struct glmw_bulk_answer), 0, BIT(HELLO_CLIENT_OPEN), false},
    [GLMW_PKT_NOTICE] = {sizeof(struct glmw_notice_body), 0, BIT(HELLO_CLIENT_OPEN), false},
    [GLMW_PKT_PING] = {sizeof(struct glmw_ping), 0, BIT(HELLO_SERVER_OPEN) | BIT(HELLO_CLIENT_OPEN), false},
    [GLMW_PKT_PONG] = {sizeof(struct glmw_ping), 0, BIT(HELLO_SERVER_OPEN) | BIT(HELLO_CLIENT_OPEN), false},
    [GLMW_PKT_BYE] = {sizeof(struct glmw_bye), 0,
                      BIT(HELLO_CLIENT_FIRST) | BIT(HELLO_SERVER_OPEN) | BIT(HELLO_CLIENT_OPEN), false},
};

static const struct packet_kind *kind_of(uint16_t type) {
    if (type >= sizeof(kinds) / sizeof(kinds[0]) || kinds[type].body_bytes == 0)
        return NULL;
    return &kinds[type];
}

unsigned hello_fds(uint16_t type) {
    const struct packet_kind *k = kind_of(type);
    return k ? k->fds : 0;
}

size_t hello_body_bytes(uint16_t type) {
    const struct packet_kind *k = kind_of(type);
    return k ? k->body_bytes : 0;
}

static bool all_zero(const void *p, size_t len) {
    const uint8_t *b = p;
    uint8_t any = 0;
    for (size_t i = 0; i < len; i++)
        any |= b[i];
    return any == 0;
}

static bool is_control(char c) {
    return (unsigned char)c < 0x20 || c == 0x7f;
}

/* UTF-8 without control characters, then nothing but NUL: what may be shown to a person as it is. */
static bool is_text(const char *field, size_t len) {
    size_t n = strnlen(field, len);
    for (size_t i = 0; i < n; i++) {
        if (is_control(field[i]))
            return false;
    }
    return utf8chk_prefix(field, n) == n && all_zero(field + n, len - n);
}

static bool is_ascii(const char *field, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)field[i] > 0x7e)
            return false;
    }
    return true;
}

static const char *check_hello(const struct glmw_hello *h) {
    if (h->wire_min == 0 || h->wire_min > h->wire_max)
        return "HELLO: wire_min is 0 or above wire_max";
    if (h->page_size < 4096 || h->page_size > GLMW_REGION_ALIGN || (h->page_size & (h->page_size - 1)) != 0)
        return "HELLO: page_size is not a power of two between 4096 and 65536";
    if (!is_text(h->name, sizeof(h->name)) || !is_ascii(h->name, sizeof(h->name)))
        return "HELLO: name is not printable ASCII padded with NUL";
    if (!all_zero(h->zero, sizeof(h->zero)))
        return "HELLO: reserved bytes are not zero";
    return NULL;
}

static const char *check_limits(const struct glmw_limits *l) {
    return l->zero != 0 ? "limits: reserved word is not zero" : NULL;
}

static bool is_state(uint32_t state) {
    return state >= GLMW_STATE_LOADING && state <= GLMW_STATE_FAILED;
}

/* A region holds [off, off + bytes); no sum that can wrap. */
static bool lies_in(uint64_t off, uint64_t bytes, uint64_t region_bytes) {
    return off >= GLMW_REGION_ALIGN && off % GLMW_REGION_ALIGN == 0 && bytes <= region_bytes &&
           off <= region_bytes - bytes;
}

static const char *check_welcome(const struct glmw_welcome *w) {
    if (w->wire == 0 || !is_state(w->state) || w->generation == 0)
        return "WELCOME: wire, state or generation is impossible";
    if (w->sq_log2 < GLMW_SQ_LOG2_MIN || w->sq_log2 > GLMW_SQ_LOG2_MAX || w->tq_log2 < GLMW_TQ_LOG2_MIN ||
        w->tq_log2 > GLMW_TQ_LOG2_MAX || w->pay_log2 < GLMW_PAY_LOG2_MIN || w->pay_log2 > GLMW_PAY_LOG2_MAX ||
        w->txt_log2 < GLMW_TXT_LOG2_MIN || w->txt_log2 > GLMW_TXT_LOG2_MAX)
        return "WELCOME: a size is outside its limits";
    if (!lies_in(w->sq_off, (uint64_t)GLMW_SLOT_BYTES << w->sq_log2, w->u_bytes) ||
        !lies_in(w->pay_off, UINT64_C(1) << w->pay_log2, w->u_bytes) ||
        !lies_in(w->tq_off, (uint64_t)GLMW_SLOT_BYTES << w->tq_log2, w->d_bytes) ||
        !lies_in(w->txt_off, UINT64_C(1) << w->txt_log2, w->d_bytes))
        return "WELCOME: a ring or arena lies outside its region";
    if (w->zero != 0 || !is_text(w->model, sizeof(w->model)))
        return "WELCOME: reserved bytes or model name are malformed";
    return check_limits(&w->limits);
}

static const char *check_body(const struct hello_msg *m) {
    switch (m->type) {
    case GLMW_PKT_HELLO:
        return check_hello(&m->u.hello);
    case GLMW_PKT_WELCOME:
        return check_welcome(&m->u.welcome);
    case GLMW_PKT_REJECT:
        return m->u.reject.error < 0 && is_text(m->u.reject.text, sizeof(m->u.reject.text))
                   ? NULL
                   : "REJECT: error or text is malformed";
    case GLMW_PKT_BULK:
        return (m->u.bulk.kind == GLMW_BULK_PAYLOAD || m->u.bulk.kind == GLMW_BULK_IMAGE) &&
                       m->u.bulk.bytes > 0 && all_zero(m->u.bulk.zero, sizeof(m->u.bulk.zero))
                   ? NULL
                   : "BULK: kind, length or reserved bytes are malformed";
    case GLMW_PKT_BULK_OK:
    case GLMW_PKT_BULK_ERR:
        return (m->type == GLMW_PKT_BULK_OK ? m->u.bulk_answer.error == 0 : m->u.bulk_answer.error < 0) &&
                       all_zero(m->u.bulk_answer.zero, sizeof(m->u.bulk_answer.zero))
                   ? NULL
                   : "BULK answer: error or reserved bytes are malformed";
    case GLMW_PKT_NOTICE:
        if (m->u.notice.what < GLMW_NOTICE_STATE || m->u.notice.what > GLMW_NOTICE_MODEL ||
            !is_state(m->u.notice.state) || !is_text(m->u.notice.model, sizeof(m->u.notice.model)))
            return "NOTICE: code, state or model name is malformed";
        return check_limits(&m->u.notice.limits);
    case GLMW_PKT_BYE:
        return m->u.bye.error <= 0 && m->u.bye.zero == 0 && is_text(m->u.bye.text, sizeof(m->u.bye.text))
                   ? NULL
                   : "BYE: error, text or reserved bytes are malformed";
    default: /* PING and PONG carry opaque bytes */
        return NULL;
    }
}

/* 0, 1 (ignore) or -EPROTO; ret_reason as in hello_decode(). */
static int decode(const void *packet, size_t len, unsigned n_fds, enum hello_phase phase,
                  struct hello_msg *ret, const char **ret_reason) {
    struct glmw_packet_hdr h;
    *ret_reason = NULL;
    if (len < sizeof(h) || len > GLMW_PACKET_MAX) {
        *ret_reason = "packet is shorter than its header or longer than 4096 bytes";
        return -EPROTO;
    }
    memcpy(&h, packet, sizeof(h));
    if (h.magic != GLMW_MAGIC_PACKET || h.len != len - sizeof(h)) {
        *ret_reason = "packet has a wrong magic number or length";
        return -EPROTO;
    }
    if ((h.flags & ~GLMW_PKTF_IGNORABLE) != 0) {
        *ret_reason = "packet has unknown flags";
        return -EPROTO;
    }
    const struct packet_kind *k = kind_of(h.type);
    if (!k) {
        if ((h.flags & GLMW_PKTF_IGNORABLE) && phase >= HELLO_SERVER_OPEN)
            return 1;
        *ret_reason = "packet type is unknown";
        return -EPROTO;
    }
    if (!(k->phases & BIT(phase))) {
        *ret_reason = "packet type is not expected now";
        return -EPROTO;
    }
    if (n_fds != k->fds) {
        *ret_reason = "packet has too many or too few descriptors";
        return -EPROTO;
    }
    if (h.len < k->body_bytes || (h.len > k->body_bytes && !k->may_be_longer)) {
        *ret_reason = "packet body has the wrong length";
        return -EPROTO;
    }
    struct hello_msg m = {.type = h.type, .serial = h.serial};
    memcpy(&m.u, (const uint8_t *)packet + sizeof(h), k->body_bytes);
    *ret_reason = check_body(&m);
    if (*ret_reason)
        return -EPROTO;
    *ret = m;
    return 0;
}

int hello_decode(const void *packet, size_t len, unsigned n_fds, enum hello_phase phase,
                 struct hello_msg *ret, const char **reterr_reason) {
    const char *reason;
    int r = decode(packet, len, n_fds, phase, ret, &reason);
    if (r < 0 && reterr_reason)
        *reterr_reason = reason;
    return r;
}

int hello_encode(const struct hello_msg *msg, void *ret_packet, size_t cap) {
    const struct packet_kind *k = kind_of(msg->type);
    if (!k)
        return -EINVAL;
    size_t total = sizeof(struct glmw_packet_hdr) + k->body_bytes;
    if (total > cap)
        return -EMSGSIZE;
    const struct glmw_packet_hdr h = {
        .magic = GLMW_MAGIC_PACKET,
        .type = msg->type,
        .len = (uint32_t)k->body_bytes,
        .serial = msg->serial,
    };
    memcpy(ret_packet, &h, sizeof(h));
    memcpy((uint8_t *)ret_packet + sizeof(h), &msg->u, k->body_bytes);
    return (int)total;
}

void hello_set_text(char *field, size_t field_bytes, const char *text) {
    size_t n = strnlen(text, field_bytes);
    n = utf8chk_prefix(text, n);
    memset(field, 0, field_bytes);
    for (size_t i = 0; i < n; i++)
        field[i] = is_control(text[i]) ? '?' : text[i];
}

void hello_reject(struct glmw_reject *ret, int error, uint32_t retry_after_ms, uint32_t wire_min,
                  uint32_t wire_max, const char *text) {
    *ret = (struct glmw_reject){
        .error = error,
        .retry_after_ms = retry_after_ms,
        .wire_min = wire_min,
        .wire_max = wire_max,
    };
    hello_set_text(ret->text, sizeof(ret->text), text);
}

static unsigned grant(unsigned wanted, unsigned dflt, unsigned min, unsigned max) {
    unsigned v = wanted ? wanted : dflt;
    if (v > max)
        v = max;
    return v < min ? min : v;
}

int hello_negotiate(const struct hello_offer *offer, const struct glmw_hello *hello,
                    struct glmw_welcome *ret_welcome, struct shm_geom *ret_geom, struct glmw_reject *reterr) {
    char text[sizeof(reterr->text)];
    uint32_t lo = offer->wire_min > hello->wire_min ? offer->wire_min : hello->wire_min;
    uint32_t hi = offer->wire_max < hello->wire_max ? offer->wire_max : hello->wire_max;
    if (lo > hi) {
        snprintf(text, sizeof(text),
                 "no common wire version: the daemon speaks %u to %u, the client %u to %u; update the older",
                 offer->wire_min, offer->wire_max, hello->wire_min, hello->wire_max);
        hello_reject(reterr, -EPROTONOSUPPORT, 0, offer->wire_min, offer->wire_max, text);
        return -EPROTONOSUPPORT;
    }
    uint64_t missing = hello->features_required & ~offer->features;
    if (missing) {
        snprintf(text, sizeof(text),
                 "the client requires features this daemon does not offer: bits 0x%llx of 0x%llx required",
                 (unsigned long long)missing, (unsigned long long)hello->features_required);
        hello_reject(reterr, -EOPNOTSUPP, 0, offer->wire_min, offer->wire_max, text);
        return -EOPNOTSUPP;
    }
    struct shm_geom g;
    int r = shm_geom_init(
        grant(hello->sq_log2, GLMW_SQ_LOG2_DEFAULT, GLMW_SQ_LOG2_MIN, offer->sq_log2_max),
        grant(hello->tq_log2, GLMW_TQ_LOG2_DEFAULT, GLMW_TQ_LOG2_MIN, offer->tq_log2_max),
        grant(hello->pay_log2, GLMW_PAY_LOG2_DEFAULT, GLMW_PAY_LOG2_MIN, offer->pay_log2_max),
        grant(hello->txt_log2, GLMW_TXT_LOG2_DEFAULT, GLMW_TXT_LOG2_MIN, offer->txt_log2_max), &g);
    if (r < 0) { /* only a broken offer gets here: the grant lies between the limits otherwise */
        hello_reject(reterr, r, 0, offer->wire_min, offer->wire_max,
                     "the daemon is misconfigured: impossible ring sizes");
        return r;
    }
    struct glmw_welcome w = {
        .wire = hi,
        .state = offer->state,
        .features = (hello->features_wanted | hello->features_required) & offer->features,
        .generation = offer->generation,
        .conn_id = offer->conn_id,
        .u_bytes = g.u_bytes,
        .d_bytes = g.d_bytes,
        .sq_off = g.sq_off,
        .pay_off = g.pay_off,
        .tq_off = g.tq_off,
        .txt_off = g.txt_off,
        .sq_log2 = g.sq_log2,
        .tq_log2 = g.tq_log2,
        .pay_log2 = g.pay_log2,
        .txt_log2 = g.txt_log2,
        .limits = offer->limits,
    };
    if (w.limits.max_payload_bytes > UINT32_C(1) << g.pay_log2)
        w.limits.max_payload_bytes = UINT32_C(1) << g.pay_log2;
    hello_set_text(w.model, sizeof(w.model), offer->model);
    *ret_welcome = w;
    *ret_geom = g;
    return 0;
}
