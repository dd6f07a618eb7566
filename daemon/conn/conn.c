/* SPDX-License-Identifier: MIT */
/* One connection: accept, handshake, packets on the socket, bells, and the end. Its memory outlives the
 * socket until every stream is retired, because engine and emit thread write to the rings until then. io
 * thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "conn_impl.h"

enum { MAX_EDGES_PER_SEC = 1000, MAX_FAULTS = 10 };

void conn_log(struct conn *c, enum log_level level, enum log_event ev, const char *text) {
    struct log_fields f = {.event = ev, .conn = c->id, .uid = c->user->uid};

    struct log_rate *rate = level == LOG_LEVEL_DEBUG ? &c->user->debug_rate : &c->user->rate;

    log_full(level, &f, FAULT(conn_log_unlimited) ? NULL : rate, "%s (process %u)", text, c->pid);
}

int conn_send(struct conn *c, struct hello_msg *msg, const int *fds, unsigned n_fds) {
    uint8_t packet[GLMW_PACKET_MAX];
    int n;

    msg->serial = c->serial++;
    n = hello_encode(msg, packet, sizeof packet);
    if (n < 0)
        return n;
    return seqsock_send(c->fd, packet, (size_t)n, fds, n_fds);
}

static void send_reject(struct conn *c, const struct glmw_reject *r) {
    struct hello_msg msg = {.type = GLMW_PKT_REJECT, .u.reject = *r};

    conn_send(c, &msg, NULL, 0);
}

static void reject(struct conn *c, int error, uint32_t retry_ms, const char *text) {
    struct glmw_reject r;

    hello_reject(&r, error, retry_ms, GLMW_WIRE_MIN, GLMW_WIRE_MAX, text);
    send_reject(c, &r);
    conn_log(c, LOG_LEVEL_NOTICE, LOG_EV_CONN_REJECTED, text);
    conn_close(c, 0, NULL);
}

void conn_send_notice(struct conn *c, enum glmw_notice what) {
    struct hello_msg msg = {.type = GLMW_PKT_NOTICE};

    if (c->state != CONN_OPEN)
        return;
    if (what == GLMW_NOTICE_MODEL) {
        struct glmw_limits granted = c->limits;

        conn_limits(c, &c->limits);
        /* what the handshake settled stays */
        c->limits.max_live = granted.max_live;
        c->limits.max_payload_bytes = granted.max_payload_bytes;
        c->limits.max_bulk = granted.max_bulk;
        c->limits.max_bulk_bytes = granted.max_bulk_bytes;
        c->model_known = c->server->has_model;
    }
    msg.u.notice.what = what;
    msg.u.notice.state = c->server->state;
    msg.u.notice.limits = c->limits;
    hello_set_text(msg.u.notice.model, sizeof msg.u.notice.model, c->server->model.name);
    /* a client that does not read its socket learns it from the status block */
    conn_send(c, &msg, NULL, 0);
}

void conn_fault(struct conn *c, int error, const char *rule) {
    struct user *u = c->user;
    uint64_t now = clock_now_ns();

    if (now - u->faults_since_ns > 60 * CLOCK_NS_PER_SEC) {
        u->faults_since_ns = now;
        u->faults = 0;
    }
    if (++u->faults >= MAX_FAULTS && u->refused_until_ns < now) {
        struct log_fields f = {.event = LOG_EV_PROTOCOL, .conn = c->id, .uid = u->uid};

        /* at most once a minute, so the user's own limit does not apply */
        log_full(LOG_LEVEL_WARNING, &f, NULL, "user refused for a minute after repeated protocol faults");
        u->refused_until_ns = now + 60 * CLOCK_NS_PER_SEC;
    }
    conn_log(c, LOG_LEVEL_WARNING, LOG_EV_PROTOCOL, rule);
    conn_close(c, error, rule);
}

void conn_close(struct conn *c, int error, const char *why) {
    struct server *s = c->server;

    if (c->state == CONN_CLOSING)
        return;
    if (error) {
        struct hello_msg msg = {.type = GLMW_PKT_BYE, .u.bye.error = error};

        hello_set_text(msg.u.bye.text, sizeof msg.u.bye.text, why ? why : "");
        conn_send(c, &msg, NULL, 0);
    }
    c->state = CONN_CLOSING;
    loop_del(s->opt.loop, c->socket);
    loop_del(s->opt.loop, c->bell_source);
    c->socket = c->bell_source = NULL;
    seqsock_close(c->fd);
    c->fd = -1;
    for (struct request *r = c->requests, *next; r; r = next) {
        next = r->next;
        if (r->kept)
            kept_detach(r, 0, NULL);
    }
    if (c->out)
        emit_conn_close(c->out);
    for (struct request *r = c->requests; r; r = r->next)
        request_cancel(r);
    bulk_drop_unnamed(c);
    server_wake(s);
}

void conn_finish_if_done(struct conn *c) {
    struct server *s = c->server;

    if (c->state != CONN_CLOSING || c->requests)
        return;
    emit_conn_free(c->out);
    shm_pair_done(&c->shm);
    if (!FAULT(conn_bell_leaked))
        bell_close(&c->bell);
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_conns--;
    c->user->connections--;
    c->user->region_bytes -= c->region_bytes;
    conn_log(c, LOG_LEVEL_DEBUG, LOG_EV_NONE, "connection closed");
    user_put(s, c->user);
    free(c);
}

/* ---- handshake ------------------------------------------------------------------------------------------
 */

static void on_bell(void *ctx, unsigned events) {
    struct conn *c = ctx;
    uint64_t now = clock_now_ns();

    (void)events;
    if (now - c->edges_since_ns > CLOCK_NS_PER_SEC) {
        c->edges_since_ns = now;
        c->edges = 0;
    }
    /* A flood of bells without entries costs its sender, not us: for the rest of the second every further
     * bell puts it out of our sight for a moment, and its entries are found on a timer. */
    if (++c->edges > MAX_EDGES_PER_SEC && !FAULT(conn_bells_unbounded) &&
        loop_pause(c->server->opt.loop, c->bell_source, true) == 0) {
        c->paused_until_ns = now + 10 * CLOCK_NS_PER_MS;
        server_plan_bells(c->server, c->paused_until_ns);
        return;
    }
    c->ready = true;
    c->server->any_ready = true;
}

static uint8_t log2_of(uint64_t n) {
    uint8_t l = 0;

    while ((UINT64_C(1) << (l + 1)) <= n)
        l++;
    return l;
}

void conn_limits(const struct conn *c, struct glmw_limits *ret) {
    const struct server *s = c->server;
    const struct conf *conf = s->opt.conf;

    *ret = (struct glmw_limits){
        .max_live = c->quota.requests_per_connection,
        .max_context_tokens = s->has_model ? s->model.context_tokens : 0,
        .max_output_tokens = s->has_model ? s->model.context_tokens : 0,
        .vocab_tokens = s->has_model ? s->model.vocab_tokens : 0,
        .max_payload_bytes = (uint32_t)conf->payload_bytes,
        .max_messages = 65536,
        .max_parts = 262144,
        .max_tools = PREP_MAX_TOOLS,
        .max_stops = STOPSTR_MAX_STRINGS,
        .max_stop_bytes = 1024,
        .max_bias = SCHED_MAX_BIAS,
        .max_alts = STREAM_MAX_ALTS,
        .max_bulk = conf->max_bulk_bytes ? BULK_MAX : 0,
        .max_bulk_bytes = conf->max_bulk_bytes,
    };
}

static int make_regions(struct conn *c, const struct shm_geom *geom, const struct glmw_welcome *w) {
    struct shm_ident ident = {
        .wire = w->wire, .features = w->features, .generation = w->generation, .conn_id = w->conn_id};
    int r;

    r = shm_pair_create(geom, &ident, &c->shm);
    if (r == 0)
        r = bell_open(&c->bell);
    if (r == 0)
        r = emit_conn_new(c->server->opt.emit, &c->shm, c->bell.pipe_w, &c->out);
    if (r == 0)
        r = loop_add(c->server->opt.loop, c->bell.up_fd, on_bell, c, &c->bell_source);
    if (r == 0) {
        struct glmw_producer unused;

        shm_pair_rings(&c->shm, &c->sq, &unused);
    }
    return r;
}

static void send_welcome(struct conn *c, const struct glmw_welcome *w) {
    struct hello_msg msg = {.type = GLMW_PKT_WELCOME, .u.welcome = *w};
    int fds[GLMW_FD_COUNT] = {
        [GLMW_FD_U] = c->shm.u_fd,
        [GLMW_FD_D] = c->shm.d_fd,
        [GLMW_FD_BELL] = c->bell.up_fd,
        [GLMW_FD_PIPE] = c->bell.pipe_r,
    };
    int r;

    server_write_conn_status(c->server, c);
    server_write_conn_numbers(c->server, c);
    r = conn_send(c, &msg, fds, GLMW_FD_COUNT);

    if (r < 0) {
        conn_close(c, 0, NULL);
        return;
    }
    /* the client's alone from here on */
    close(c->shm.d_fd);
    c->shm.d_fd = -1;
    close(c->bell.pipe_r);
    c->bell.pipe_r = -1;
    c->state = CONN_OPEN;
    c->ready = true;
    c->server->any_ready = true;
    conn_log(c, LOG_LEVEL_DEBUG, LOG_EV_NONE, "connection open");
}

static void on_hello(struct conn *c, const struct glmw_hello *h) {
    struct server *s = c->server;
    const struct conf *conf = s->opt.conf;
    struct hello_offer offer = {
        .wire_min = GLMW_WIRE_MIN,
        .wire_max = GLMW_WIRE_MAX,
        .features = GLMW_FEAT_LOGPROBS | GLMW_FEAT_ALTS | GLMW_FEAT_COALESCE | GLMW_FEAT_TOOL_EVENTS |
                    GLMW_FEAT_TOKENIZE | GLMW_FEAT_SCHEMA | GLMW_FEAT_NUMBERS | kept_features(s) |
                    (conf->max_bulk_bytes ? GLMW_FEAT_BULK : 0),
        .sq_log2_max = log2_of(conf->sq_entries),
        .tq_log2_max = log2_of(conf->tq_records),
        .pay_log2_max = log2_of(conf->payload_bytes),
        .txt_log2_max = log2_of(conf->text_bytes),
        .state = s->state,
        .generation = s->generation,
        .conn_id = c->id,
        .model = s->model.name,
    };
    struct glmw_reject rej;
    struct glmw_welcome w;
    struct shm_geom geom;
    uint32_t fits;
    int r;

    conn_limits(c, &offer.limits);
    if (hello_negotiate(&offer, h, &w, &geom, &rej) < 0) {
        send_reject(c, &rej);
        conn_log(c, LOG_LEVEL_NOTICE, LOG_EV_CONN_REJECTED, "connection refused: wire version or features");
        conn_close(c, 0, NULL);
        return;
    }
    c->region_bytes = geom.u_bytes + geom.d_bytes;
    c->user->region_bytes += c->region_bytes;
    if (c->user->region_bytes > c->quota.region_bytes_per_uid) {
        reject(c, -EDQUOT, 0, "this user's connections have all the shared memory that [Quota] allows");
        return;
    }
    r = make_regions(c, &geom, &w);
    if (r < 0) {
        reject(c, r, 1000,
               r == -ENOSPC || r == -ENOMEM ? "the daemon has no memory left for the regions of a connection"
               : r == -EMFILE || r == -ENFILE ? "the daemon has no descriptor left for a connection"
                                              : "the regions of the connection could not be made");
        return;
    }
    /* every live request keeps slots back; a small ring takes fewer of them */
    fits = ((1u << geom.tq_log2) - 16) / (GLMW_RESERVED_RECS + 1);
    if (w.limits.max_live > fits)
        w.limits.max_live = fits;
    if (!(w.features & GLMW_FEAT_BULK)) {
        w.limits.max_bulk = 0;
        w.limits.max_bulk_bytes = 0;
    }
    c->limits = w.limits;
    c->features = w.features;
    c->model_known = s->has_model;
    send_welcome(c, &w);
}

static void on_packet(struct conn *c, struct seqsock_rx *rx) {
    enum hello_phase phase = c->state == CONN_HELLO ? HELLO_SERVER_FIRST : HELLO_SERVER_OPEN;
    struct hello_msg msg;
    const char *why = "a malformed packet";
    int r;

    r = hello_decode(rx->buf, rx->len, rx->n_fds, phase, &msg, &why);
    if (r < 0) {
        conn_fault(c, -EPROTO, why);
        return;
    }
    if (r > 0)
        return;
    switch (msg.type) {
    case GLMW_PKT_HELLO:
        on_hello(c, &msg.u.hello);
        break;
    case GLMW_PKT_PING:
        msg.type = GLMW_PKT_PONG;
        conn_send(c, &msg, NULL, 0);
        break;
    case GLMW_PKT_PONG:
        break;
    case GLMW_PKT_BYE:
        conn_close(c, 0, NULL);
        break;
    case GLMW_PKT_BULK:
        if (c->features & GLMW_FEAT_BULK) {
            bulk_receive(c, &msg.u.bulk, rx->fds[0]); /* the decoder saw to it that there is one */
            break;
        }
        /* fall through */
    default:
        conn_fault(c, -EPROTO, "a packet of a feature that was not granted");
        break;
    }
}

static bool no_descriptor_left(void) {
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return errno == EMFILE || errno == ENFILE;
    close(fd);
    return false;
}

static void on_socket(void *ctx, unsigned events) {
    struct conn *c = ctx;
    struct server *s = c->server;

    (void)events;
    /* bounded: a client that floods its socket gets the loop's attention once per turn like everybody */
    for (int i = 0; i < 64; i++) {
        int r = seqsock_recv(c->fd, &s->rx);

        if (r == -EAGAIN)
            return;
        /* the kernel says in the same way that there was no number for a descriptor it brought */
        if (r == -EPROTO && no_descriptor_left()) {
            conn_log(c, LOG_LEVEL_WARNING, LOG_EV_CONN_REJECTED, "no descriptor left for what a client sent");
            conn_close(c, -EMFILE, "the daemon has no descriptor left for what was sent; try again later");
            return;
        }
        if (r == -EPROTO) {
            conn_fault(c, -EPROTO, "a packet too long or with too many descriptors");
            return;
        }
        if (r < 0) {
            conn_close(c, 0, NULL);
            return;
        }
        on_packet(c, &s->rx);
        seqsock_drop_fds(&s->rx); /* whatever the packet was, its descriptors go no further */
        if (c->state == CONN_CLOSING)
            return;
    }
    conn_fault(c, -EPROTO, "a flood of packets on the socket");
}

/* A refusal before the connection counts: the socket's buffer takes one packet without waiting. */
static void refuse(struct server *s, int fd, struct user *u, int error, uint32_t retry_ms, const char *text) {
    struct hello_msg msg = {.type = GLMW_PKT_REJECT};
    struct log_fields f = {.event = LOG_EV_CONN_REJECTED, .uid = u ? u->uid : LOG_NO_UID};
    uint8_t packet[GLMW_PACKET_MAX];
    int n;

    hello_reject(&msg.u.reject, error, retry_ms, GLMW_WIRE_MIN, GLMW_WIRE_MAX, text);
    n = hello_encode(&msg, packet, sizeof packet);
    if (n > 0)
        seqsock_send(fd, packet, (size_t)n, NULL, 0);
    seqsock_close(fd);
    log_full(LOG_LEVEL_NOTICE, &f, u ? &u->rate : NULL, "connection refused: %s", text);
    if (u)
        user_put(s, u);
}

void conn_open(struct server *s, int fd) {
    const struct conf *conf = s->opt.conf;
    struct conf_quota quota;
    struct ucred cred;
    struct user *u;
    struct conn *c;

    if (seqsock_peer(fd, &cred) < 0) {
        close(fd);
        return;
    }
    u = user_get(s, cred.uid);
    if (!u) {
        refuse(s, fd, NULL, -ENOMEM, 1000, "the daemon has no memory left for a connection");
        return;
    }
    if (u->refused_until_ns > clock_now_ns()) {
        refuse(s, fd, u, -EACCES, 60000,
               "this user broke the protocol repeatedly and is refused for a minute");
        return;
    }
    if (s->n_conns >= conf->max_connections) {
        refuse(s, fd, u, -EBUSY, 1000, "all connections of [IPC] MaxConnections are in use");
        return;
    }
    quota_resolve(s, u, fd, &quota);
    if (u->connections >= quota.connections_per_uid) {
        refuse(s, fd, u, -EDQUOT, 1000,
               "this user has all the connections that [Quota] MaxConnectionsPerUid allows");
        return;
    }
    c = calloc(1, sizeof *c);
    if (!c || loop_add(s->opt.loop, fd, on_socket, c, &c->socket) < 0) {
        free(c);
        refuse(s, fd, u, -ENOMEM, 1000, "the daemon has no memory left for a connection");
        return;
    }
    c->server = s;
    c->user = u;
    c->quota = quota;
    c->fd = fd;
    c->pid = (uint32_t)cred.pid;
    c->id = ++s->last_id ? s->last_id : ++s->last_id;
    c->state = CONN_HELLO;
    c->shm.u_fd = c->shm.d_fd = -1;
    c->bell.up_fd = c->bell.pipe_r = c->bell.pipe_w = -1;
    c->hello_by_ns = clock_now_ns() + conf->handshake_timeout_sec * CLOCK_NS_PER_SEC;
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    s->n_conns++;
    u->connections++;
}
