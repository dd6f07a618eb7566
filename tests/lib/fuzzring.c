/* SPDX-License-Identifier: MIT */
/* Fuzz body of the daemon's side of the rings: the rooms conn, prep and emit as they are, one turn at a time,
 * between a played engine and two clients. The hostile one writes what the input says into region U, its
 * socket and its bells; the honest one must get exactly the records of a quiet run. Afterwards nothing is
 * left: no request, no stream, no connection.
 *
 * Deterministic: the text worker's body runs here, between turns, and the engine's tokens are a function of the
 * prompt. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "busguard.h"
#include "chat.h"
#include "conn_impl.h"
#include "fuzz.h"
#include "rawclient.h"
#include "texttest.h"

enum { STREAMS = 24, KEPT = 4, HONEST_TOKENS = 6, MAX_TOKENS = 40 };

struct running { /* a request the played engine has */
    const struct sched_req *req;
    struct stream_id id;
    uint32_t done, max, first, n_alts;
    bool cancelled;
};

static struct { /* made once */
    bool ready;
    struct tok *tok;
    struct chat *chat;
    struct prep_model model;
    struct prep_scratch *scratch;
    uint32_t eos[3];
    int bulk_fd; /* a sealed object with a prompt of three ids */
} once;

static struct {
    struct loop *loop;
    struct emit *emit;
    struct prep *prep;
    struct server *server;
    struct conf conf;
    struct stream_sink sink;
    struct running run[STREAMS];
    uint32_t tokens_out;
} d;

struct honest {
    struct rawclient c;
    uint64_t tag;
    uint32_t seq, tokens, rounds;
    bool open; /* a request is live */
};

/* ---- the played engine --------------------------------------------------------------------------------- */

static int engine_submit(void *ctx, struct sched_req *req) {
    (void)ctx;
    for (unsigned i = 0; i < STREAMS; i++)
        if (!d.run[i].req) {
            d.run[i] = (struct running){
                .req = req,
                .id = req->stream,
                .max = req->max_tokens && req->max_tokens < MAX_TOKENS ? req->max_tokens : MAX_TOKENS,
                .first = req->n_ids ? req->ids[0] : 0,
                .n_alts = req->sampling.n_alts};
            return 0;
        }
    return -EAGAIN;
}

static void engine_cancel(void *ctx, struct stream_id id) {
    (void)ctx;
    for (unsigned i = 0; i < STREAMS; i++)
        if (d.run[i].req && d.run[i].id.index == id.index && d.run[i].id.gen == id.gen)
            d.run[i].cancelled = true;
}

static void engine_end(struct running *r, enum stream_reason reason, int status) {
    struct stream_event ev = {.stream = r->id,
                              .type = STREAM_EV_END,
                              .reason = (uint16_t)reason,
                              .status = status,
                              .token = UINT32_MAX,
                              .u.usage = {.prompt = 3, .completion = r->done}};

    r->req = NULL; /* not ours from here on */
    d.sink.publish(d.sink.ctx, &ev, 1);
}

static void engine_step(void) {
    for (unsigned i = 0; i < STREAMS; i++) {
        struct running *r = &d.run[i];
        struct stream_event ev = {.type = STREAM_EV_TOKEN, .logprob = NAN};
        uint32_t need = stream_token_records(r->n_alts);

        if (!r->req)
            continue;
        if (r->cancelled || r->done == r->max) {
            engine_end(r, r->cancelled ? STREAM_END_CANCELLED : STREAM_END_LENGTH,
                       r->cancelled ? -ECANCELED : 0);
            continue;
        }
        if (atomic_load(&d.sink.credit[r->id.index].records) < need &&
            d.sink.refresh(d.sink.ctx, r->id, 0) < need)
            continue;
        ev.stream = r->id;
        ev.first = r->done == 0;
        ev.token = (r->first + 37 * r->done) % once.model.vocab_tokens;
        ev.n_alts = r->n_alts;
        for (uint32_t k = 0; k < r->n_alts; k++)
            ev.alts[k] = (struct stream_alt){k, -1.0f};
        r->done++;
        d.tokens_out++;
        d.sink.publish(d.sink.ctx, &ev, 1);
    }
}

/* ---- the daemon, a turn at a time ---------------------------------------------------------------------- */

static void on_bind(void *ctx, const struct prep_req *r) {
    struct emit_bind b = {.tools = r->tools,
                          .stop = r->stop,
                          .thinking_open = r->thinking_open,
                          .ignore_eos = r->sched.ignore_eos,
                          .n_alts = r->sched.sampling.n_alts};

    (void)ctx;
    emit_stream_bind(d.emit, r->stream, &b);
}

static void on_done(void *ctx, struct prep_req *r, enum prep_outcome outcome) {
    (void)ctx;
    FUZZ_NEED(outcome != PREP_FAILED || r->error.code < 0);
    server_prepared(d.server, r, outcome);
}

static bool on_turn(void *ctx) {
    bool more = server_turn(d.server);

    (void)ctx;
    if (!more)
        loop_stop(d.loop);
    return more;
}

static void turn(void) {
    loop_kick(d.loop);
    FUZZ_NEED(loop_run(d.loop) == 0);
    while (prep_work_now(d.prep, once.scratch))
        ;
}

static void nothing(void *ctx) {
    (void)ctx;
}

static void wake_io(void *ctx) {
    (void)ctx;
    if (d.server)
        server_wake(d.server);
}

static int make_bulk(void) {
    static const uint32_t prompt[6] = {GLMW_TLV_TOKENS, 12, 5, 6, 7, 0};
    int fd = memfd_create("fuzz-bulk", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    FUZZ_NEED(fd >= 0 && write(fd, prompt, sizeof prompt) == (ssize_t)sizeof prompt);
    FUZZ_NEED(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

static void make_once(void) {
    struct xerr err = {0};
    const char *dir = texttest_model("nano");

    log_set_level(LOG_LEVEL_ERROR);
    signal(SIGPIPE, SIG_IGN);
    FUZZ_NEED(busguard_install() == 0);
    FUZZ_NEED(tok_open(dir, &once.tok, &err) == 0);
    FUZZ_NEED(chat_open(dir, once.tok, &once.chat, &err) == 0);
    once.eos[0] = (uint32_t)tok_id(once.tok, "<|user|>");
    once.model = (struct prep_model){.tok = once.tok,
                                     .chat = once.chat,
                                     .vocab_tokens = tok_size(once.tok),
                                     .context_tokens = 4096,
                                     .think_open = (uint32_t)tok_id(once.tok, "<think>"),
                                     .think_close = (uint32_t)tok_id(once.tok, "</think>"),
                                     .max_prompt_bytes = 1 << 20};
    FUZZ_NEED(prep_scratch_new(&once.model, &once.scratch) == 0);
    once.bulk_fd = make_bulk();
    once.ready = true;
}

void fuzz_ring_cleanup(void) {
    if (!once.ready)
        return;
    prep_scratch_free(once.scratch);
    chat_free(once.chat);
    tok_free(once.tok);
    close(once.bulk_fd);
    once.ready = false;
}

static void daemon_begin(void) {
    struct emit_options eo = {.max_streams = STREAMS,
                              .inline_step_ns = UINT32_MAX, /* there is no emit thread */
                              .inline_conns = 8,
                              .outbox_bytes = 8192,
                              .max_kept = KEPT,
                              .store_bytes = 4096,
                              .kick = nothing,
                              .wake_io = wake_io,
                              .cancel = engine_cancel};
    struct prep_options po = {.workers = 0, .hooks = {.submit = engine_submit, .bind = on_bind, .done = on_done}};
    struct server_options so = {.cancel = engine_cancel};
    struct server_model sm = {.name = "fuzz", .context_tokens = 4096, .has_text = true};
    struct xerr err;

    if (!once.ready)
        make_once();
    memset(&d, 0, sizeof d);
    conf_init(&d.conf);
    d.conf.payload_bytes = d.conf.text_bytes = 1 << 16;
    d.conf.max_kept = KEPT;
    FUZZ_NEED(loop_new(LOOP_EPOLL, &d.loop, NULL) == 0);
    FUZZ_NEED(emit_new(&eo, &d.emit) == 0);
    FUZZ_NEED(emit_set_text(d.emit, once.tok, once.eos, 1, &err) == 0);
    emit_get_sink(d.emit, &d.sink);
    FUZZ_NEED(prep_new(&po, &d.prep) == 0);
    prep_set_model(d.prep, &once.model);
    so.loop = d.loop;
    so.emit = d.emit;
    so.prep = d.prep;
    so.conf = &d.conf;
    FUZZ_NEED(server_new(&so, &d.server) == 0);
    loop_set_turn(d.loop, on_turn, NULL);
    sm.vocab_tokens = once.model.vocab_tokens;
    server_set_model(d.server, &sm);
    server_set_state(d.server, GLMW_STATE_READY);
}

/* Every request the engine has ends as soon as it is told, or at its length; then nothing may be left. */
static void daemon_end(void) {
    server_close_all(d.server);
    for (int i = 0; i < MAX_TOKENS + 4 && !server_is_empty(d.server); i++) {
        engine_step();
        turn();
    }
    for (unsigned i = 0; i < STREAMS; i++)
        FUZZ_NEED(d.run[i].req == NULL);
    FUZZ_NEED(server_live(d.server) == 0);
    FUZZ_NEED(server_is_empty(d.server));
    server_free(d.server);
    d.server = NULL;
    prep_free(d.prep);
    emit_free(d.emit);
    loop_free(d.loop);
    conf_done(&d.conf);
}

static void connect_client(struct rawclient *c, uint64_t features) {
    struct hello_msg m = raw_hello();
    int sv[2];

    FUZZ_NEED(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) == 0);
    conn_open(d.server, sv[0]);
    m.u.hello.features_wanted = features;
    m.u.hello.sq_log2 = GLMW_SQ_LOG2_MIN;
    m.u.hello.tq_log2 = GLMW_TQ_LOG2_MIN;
    m.u.hello.pay_log2 = GLMW_PAY_LOG2_MIN;
    m.u.hello.txt_log2 = GLMW_TXT_LOG2_MIN;
    raw_send(sv[1], &m, NULL, 0);
    turn();
    raw_welcome(c, sv[1]);
}

/* ---- the honest client --------------------------------------------------------------------------------- */

static void honest_submit(struct honest *h) {
    struct glmw_entry e = raw_request(&h->c, ++h->tag);

    e.flags = GLMW_ENT_QUIET;
    e.max_tokens = HONEST_TOKENS;
    raw_submit(&h->c, &e);
    h->seq = h->tokens = 0;
    h->open = true;
}

/* Reads what is there: ACCEPTED, the tokens in order, USAGE, END, and nothing else. */
static void honest_read(struct honest *h) {
    struct glmw_rec r;
    int n;

    while ((n = glmw_peek(&h->c.tq)) > 0) {
        glmw_take(&h->c.tq, &r);
        if (r.tag == 0) {
            FUZZ_NEED(r.type == GLMW_REC_NOTICE);
            continue;
        }
        FUZZ_NEED(h->open && r.tag == h->tag && r.seq == h->seq);
        h->seq++;
        switch (r.type) {
        case GLMW_REC_ACCEPTED:
            FUZZ_NEED(r.seq == 0);
            break;
        case GLMW_REC_TOKEN:
            FUZZ_NEED(r.seq > 0 && r.token == (5 + 37 * h->tokens) % once.model.vocab_tokens);
            h->tokens++;
            break;
        case GLMW_REC_TEXT:
            FUZZ_NEED(h->tokens == HONEST_TOKENS);
            break;
        case GLMW_REC_USAGE:
            FUZZ_NEED(h->tokens == HONEST_TOKENS);
            break;
        default:
            FUZZ_NEED(r.type == GLMW_REC_END && h->tokens == HONEST_TOKENS && r.u.end.status == 0 &&
                      r.u.end.reason == GLMW_END_LENGTH);
            h->open = false;
            h->rounds++;
            break;
        }
    }
    FUZZ_NEED(n == 0);
    if (glmw_give_back(&h->c.tq, &h->c.view.d->credit_wanted)) {
        struct glmw_entry nop = {.opcode = GLMW_OP_NOP};

        raw_submit(&h->c, &nop);
    }
}

/* ---- the hostile client -------------------------------------------------------------------------------- */

static uint8_t *at_u(struct rawclient *c, uint64_t off) {
    return (uint8_t *)c->view.u + off;
}

static void write_word(struct rawclient *c, struct fuzz_in *in) {
    static const uint32_t words[] = {offsetof(struct glmw_u, sq_tail), offsetof(struct glmw_u, tq_head),
                                     offsetof(struct glmw_u, tq_event), offsetof(struct glmw_u, sleeping)};
    uint8_t how = fuzz_u8(in);
    uint32_t off = how & 4 ? fuzz_u16(in) % (sizeof(struct glmw_u) / 4) * 4 : words[how & 3], v;

    memcpy(&v, at_u(c, off), 4);
    v = how & 8 ? fuzz_u32(in) : v + (uint32_t)(int8_t)fuzz_u8(in);
    __atomic_store_n((uint32_t *)(void *)at_u(c, off), v, __ATOMIC_RELEASE);
}

/* An entry at the tail this client pretends, published by moving the word. */
static void push_entry(struct rawclient *c, const struct glmw_entry *e) {
    uint32_t tail = __atomic_load_n(&c->view.u->sq_tail, __ATOMIC_RELAXED);
    uint32_t slot = tail & ((1u << c->welcome.sq_log2) - 1);

    memcpy(at_u(c, c->welcome.sq_off + (uint64_t)slot * GLMW_SLOT_BYTES), e, sizeof *e);
    __atomic_store_n(&c->view.u->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static void submit_ids(struct rawclient *c, struct fuzz_in *in) {
    struct glmw_entry e = raw_request(c, 1 + fuzz_u8(in) % 16);
    uint8_t how = fuzz_u8(in);

    e.opcode = how & 1 ? GLMW_OP_SUBMIT : (uint8_t)(how >> 1 & 7);
    e.flags = how & 16 ? (uint8_t)(how >> 5) : 0;
    e.max_tokens = fuzz_u8(in) % 64;
    if (e.flags & GLMW_ENT_BULK) { /* ids are small numbers */
        e.payload_off = e.tag & 3;
        e.payload_len = 0;
    }
    if (e.opcode == GLMW_OP_RESUME)
        e = (struct glmw_entry){.opcode = GLMW_OP_RESUME,
                                .tag = e.tag,
                                .payload_off = d.server->kept[how >> 4 & (KEPT - 1)].id,
                                .session = e.max_tokens};
    if (e.opcode == GLMW_OP_NOP || e.opcode == GLMW_OP_CANCEL || e.opcode == GLMW_OP_CANCEL_ALL)
        e = (struct glmw_entry){.opcode = e.opcode, .tag = e.opcode == GLMW_OP_CANCEL ? e.tag : 0};
    push_entry(c, &e);
}

static void submit_chat(struct rawclient *c, struct fuzz_in *in) {
    static struct tlvbuf t;
    struct glmw_entry e = {.opcode = GLMW_OP_SUBMIT, .tag = 1 + fuzz_u8(in) % 16, .max_tokens = 5};
    uint16_t at = fuzz_u16(in);

    t.len = 0;
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_text(&t, GLMW_TLV_PART_TEXT, "What is it like in Lima?");
    tlv_end(&t);
    if (at & 1)
        ipc_full_chat(&t);
    e.payload_len = (uint32_t)t.len;
    e.payload_off = 4096;
    if (at & 2)
        t.b[at % t.len] = fuzz_u8(in);
    memcpy(at_u(c, c->welcome.pay_off + 4096), t.b, t.len);
    push_entry(c, &e);
}

static void raw_bytes(struct rawclient *c, struct fuzz_in *in, uint64_t off, uint64_t area) {
    uint32_t at = fuzz_u16(in);
    size_t n = fuzz_u8(in);
    const uint8_t *p = fuzz_bytes(in, &n);

    at %= (uint32_t)(area - n);
    memcpy(at_u(c, off + at), p, n);
}

static void send_packet(struct rawclient *c, struct fuzz_in *in) {
    uint8_t packet[300];
    struct glmw_packet_hdr h = {.magic = GLMW_MAGIC_PACKET, .type = fuzz_u8(in)};
    size_t n = fuzz_u8(in);
    const int *fd = h.type & 64 ? &once.bulk_fd : &c->fds[GLMW_FD_U];
    bool with_fd = h.type & 128 && *fd >= 0;
    const uint8_t *p = fuzz_bytes(in, &n);

    h.type &= 63;
    h.len = (uint32_t)n;
    memcpy(packet, &h, sizeof h);
    memcpy(packet + sizeof h, p, n);
    (void)!seqsock_send(c->fd, packet, sizeof h + n, fd, with_fd);
}

static void read_back(struct rawclient *c, uint8_t n) {
    uint32_t tail = __atomic_load_n(&c->view.d->tq_tail, __ATOMIC_ACQUIRE);
    uint32_t head = __atomic_load_n(&c->view.u->tq_head, __ATOMIC_RELAXED);

    if (tail - head <= 1u << c->welcome.tq_log2)
        __atomic_store_n(&c->view.u->tq_head, tail - head < n ? tail : head + n, __ATOMIC_RELEASE);
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* One move of the hostile client or of the world around it. */
static void move(struct rawclient *c, struct fuzz_in *in) {
    uint64_t one = 1;

    switch (fuzz_u8(in) % 16) {
    case 0:
        write_word(c, in);
        break;
    case 1:
        submit_ids(c, in);
        break;
    case 2:
        submit_chat(c, in);
        break;
    case 3: /* a whole entry by hand */
        raw_bytes(c, in, c->welcome.sq_off, (uint64_t)GLMW_SLOT_BYTES << c->welcome.sq_log2);
        break;
    case 4:
        raw_bytes(c, in, c->welcome.pay_off, 8192);
        break;
    case 5:
        raw_bytes(c, in, 0, sizeof(struct glmw_u));
        break;
    case 6:
        send_packet(c, in);
        break;
    case 7:
        read_back(c, fuzz_u8(in));
        break;
    case 8:
        (void)!write(c->fds[GLMW_FD_BELL], &one, 8);
        break;
    case 9: /* pages vanish */
        (void)!fallocate(c->fds[GLMW_FD_U], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)(fuzz_u8(in) % 48) * 4096, 4096);
        break;
    case 10:
        close_fd(&c->fds[GLMW_FD_PIPE]);
        break;
    case 11:
        if (fuzz_u8(in) % 8 == 0)
            close_fd(&c->fd);
        break;
    case 12:
        server_tick(d.server);
        break;
    case 13:
        engine_step();
        break;
    default:
        (void)!write(c->fds[GLMW_FD_BELL], &one, 8);
        turn();
        break;
    }
}

/* No one but the client itself loses anything by what it does. */
int fuzz_ring_hostile(const uint8_t *data, size_t size) {
    struct fuzz_in in = {data, size};
    struct rawclient c;
    struct honest h = {0};
    unsigned moves = 0;

    daemon_begin();
    connect_client(&h.c, 0);
    connect_client(&c, GLMW_FEAT_ALL);
    honest_submit(&h);
    while (in.n > 0 && moves++ < 200) {
        move(&c, &in);
        honest_read(&h);
        if (!h.open)
            honest_submit(&h);
    }
    for (int i = 0; i < HONEST_TOKENS + 4 && h.open; i++) {
        turn();
        engine_step();
        honest_read(&h);
    }
    FUZZ_NEED(!h.open);
    FUZZ_NEED(d.server->users && d.server->conns); /* the honest one is still there */
    daemon_end();
    for (int i = 0; i < (int)GLMW_FD_COUNT; i++) {
        close_fd(&c.fds[i]);
        close_fd(&h.c.fds[i]);
    }
    shm_view_done(&c.view);
    shm_view_done(&h.c.view);
    close_fd(&c.fd);
    close_fd(&h.c.fd);
    return 0;
}
