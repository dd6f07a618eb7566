/* SPDX-License-Identifier: MIT */
/* Clients that change shared memory while the daemon reads it, or want what belongs to others: the table at
 * the top of conn_hostile.c says which test stands for which rule. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hostilefix.h"
#include "wire_tlv.h"
#include "wire_num.h"

/* ---- a thread that changes memory as fast as it can ------------------------------------------------------
 */

struct flipper {
    pthread_t thread;
    _Atomic bool stop;
    void (*once)(struct rawclient *c, uint32_t round);
    struct rawclient *c;
};

static void *flip(void *arg) {
    struct flipper *p = arg;

    for (uint32_t round = 0; !atomic_load_explicit(&p->stop, memory_order_relaxed); round++)
        p->once(p->c, round);
    return NULL;
}

static void flipper_start(struct flipper *p, void (*once)(struct rawclient *c, uint32_t round)) {
    *p = (struct flipper){.once = once, .c = &hf.c};
    ck_assert_int_eq(pthread_create(&p->thread, NULL, flip, p), 0);
}

static void flipper_stop(struct flipper *p) {
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
}

static void open_small(void) {
    struct hello_msg h = raw_hello();

    h.u.hello.sq_log2 = 4;
    raw_open(&hf.c, hf.f.socket, &h);
}

static uint8_t *slot(struct rawclient *c, uint32_t i) {
    return (uint8_t *)c->view.u + c->welcome.sq_off + (size_t)i * GLMW_SLOT_BYTES;
}

static uint8_t *arena(struct rawclient *c) {
    return (uint8_t *)c->view.u + c->welcome.pay_off;
}

/* The first eight bytes of an entry: operation and length of the payload are in them, so the daemon sees both
 * of one or both of the other. */
static uint64_t first_word(uint8_t opcode, uint32_t payload_len) {
    struct glmw_entry e = {.opcode = opcode, .payload_len = payload_len};
    uint64_t w;

    memcpy(&w, &e, sizeof w);
    return w;
}

/* Of the slot that is offered next, so that as many changes as possible fall into the moment of reading. */
static void flip_slot(struct rawclient *c, uint64_t word) {
    uint32_t i = __atomic_load_n(&c->view.d->sq_head, __ATOMIC_RELAXED) % 16;

    __atomic_store_n((uint64_t *)(void *)slot(c, i), word, __ATOMIC_RELAXED);
}

/* Offers the next slot as it is. */
static void offer_slot(struct rawclient *c) {
    glmw_refresh(&c->sq);
    ck_assert_uint_gt(glmw_free_slots(&c->sq), 0);
    c->sq.tail++;
    glmw_publish(&c->sq, true);
    raw_bell(c);
}

/* ---- entries that change ---------------------------------------------------------------------------------
 */

static void submit_or_broken_tokenize(struct rawclient *c, uint32_t round) {
    uint32_t i = __atomic_load_n(&c->view.d->sq_head, __ATOMIC_RELAXED) % 16;
    struct glmw_entry *e = (struct glmw_entry *)(void *)slot(c, i);

    __atomic_store_n(&e->client_ns, round & 1, __ATOMIC_RELAXED);
    flip_slot(c, round & 1 ? first_word(GLMW_OP_SUBMIT, 24) : first_word(GLMW_OP_TOKENIZE, 23));
}

/* Two entries, each of which has a result of its own: a token, or a request cut off in the middle. A
 * daemon that looked at the ring twice would mix them, and answer TOKENIZE with the right length: with IDS.
 */
START_TEST(entry_changes_between_check_and_use) {
    struct flipper p;
    struct glmw_rec r;
    uint32_t n_run = 0, n_refused = 0, n_torn = 0;
    uint64_t until = test_now_ms() + 40000, patience = test_now_ms() + 8000;

    open_small();
    raw_request(&hf.c, 0);
    for (uint32_t i = 0; i < 16; i++) {
        struct glmw_entry e = {.opcode = GLMW_OP_SUBMIT, .payload_len = 24, .tag = 100 + i, .max_tokens = 1};

        memcpy(slot(&hf.c, i), &e, sizeof e);
    }
    flipper_start(&p, submit_or_broken_tokenize);
    /* halves of two entries are the proof that both threads ran at once; that is waited for, but not for ever
     */
    while (n_run < 400 || n_refused < 400 || (n_torn < 3 && test_now_ms() < patience)) {
        uint32_t tokens = 0, errors = 0;

        ck_assert_uint_lt(test_now_ms(), until);
        offer_slot(&hf.c);
        do {
            ck_assert(raw_record(&hf.c, &r, 10000, false));
            ck_assert_uint_ne(r.type, GLMW_REC_IDS);
            n_torn += r.type == GLMW_REC_ACCEPTED && r.u.accepted.client_ns == 0;
            tokens += r.type == GLMW_REC_TOKEN;
            if (r.type == GLMW_REC_ERROR) {
                errors++;
                ck_assert_int_eq((int32_t)r.token, -EBADMSG);
            }
        } while (r.type != GLMW_REC_END);
        ck_assert_uint_eq(tokens, errors ? 0 : 1);
        ck_assert_int_eq(r.u.end.status, errors ? -EBADMSG : 0);
        n_run += !errors;
        n_refused += errors;
    }
    flipper_stop(&p);
    raw_close(&hf.c);
}
END_TEST

static void submit_or_nonsense(struct rawclient *c, uint32_t round) {
    flip_slot(c, first_word(round & 1 ? GLMW_OP_SUBMIT : 99, round & 1 ? 24 : UINT32_MAX));
}

/* Well-formed or broken, never half of each: the request runs whole, or the connection ends. */
START_TEST(entry_flips_to_nonsense) {
    uint64_t until = test_now_ms() + 40000;

    for (int k = 0; k < 8; k++) {
        struct flipper p;
        struct glmw_rec r;

        open_small();
        raw_request(&hf.c, 0);
        for (uint32_t i = 0; i < 16; i++) {
            struct glmw_entry e = {.opcode = GLMW_OP_SUBMIT, .payload_len = 24, .tag = 100 + i};

            memcpy(slot(&hf.c, i), &e, sizeof e);
        }
        flipper_start(&p, submit_or_nonsense);
        for (;;) { /* one of them meets the nonsense */
            uint32_t tokens = 0;

            ck_assert_uint_lt(test_now_ms(), until);
            offer_slot(&hf.c);
            do {
                if (!raw_record(&hf.c, &r, 300, false))
                    goto dead;
                ck_assert_uint_ne(r.type, GLMW_REC_ERROR);
                tokens += r.type == GLMW_REC_TOKEN;
            } while (r.type != GLMW_REC_END);
            ck_assert_uint_eq(tokens, 10);
        }
    dead:
        flipper_stop(&p);
        hostilefix_cut_off("a submission entry with an unknown operation");
    }
}
END_TEST

/* ---- index words that change -----------------------------------------------------------------------------
 */

static void twist_safe_words(struct rawclient *c, uint32_t round) {
    uint32_t x = round * 2654435761u;

    __atomic_store_n(&c->view.u->tq_event, x, __ATOMIC_RELAXED);
    __atomic_store_n(&c->view.u->sleeping, ~x, __ATOMIC_RELAXED);
    __atomic_store_n(&c->view.u->last_awake_ns, (uint64_t)x << 32 | round, __ATOMIC_RELAXED);
}

/* Any value of these is safe: bells come or do not come, and the stream is whole. */
START_TEST(event_and_sleeping_take_any_value) {
    struct flipper p;
    struct glmw_entry e;
    struct glmw_rec r;
    uint32_t seq = 0;

    raw_open(&hf.c, hf.f.socket, NULL);
    flipper_start(&p, twist_safe_words);
    for (uint64_t tag = 1; tag <= 30; tag++, seq = 0) {
        uint64_t until = test_now_ms() + 20000;

        e = raw_request(&hf.c, tag);
        raw_submit(&hf.c, &e);
        do { /* looks by itself, because it cannot be told */
            ck_assert_uint_lt(test_now_ms(), until);
            if (glmw_peek(&hf.c.tq) <= 0) {
                usleep(200);
                continue;
            }
            glmw_take(&hf.c.tq, &r);
            glmw_give_back(&hf.c.tq, NULL);
            ck_assert_uint_eq(r.seq, seq++);
        } while (seq == 0 || r.type != GLMW_REC_END);
        ck_assert_int_eq(r.u.end.status, 0);
    }
    flipper_stop(&p);
    raw_close(&hf.c);
}
END_TEST

static void twist_sq_tail(struct rawclient *c, uint32_t round) {
    __atomic_store_n(&c->view.u->sq_tail, round & 1 ? 0 : 3, __ATOMIC_RELEASE);
}

static void twist_tq_head(struct rawclient *c, uint32_t round) {
    __atomic_store_n(&c->view.u->tq_head, round & 1 ? 0 : glmw_fetch32(&c->view.d->tq_tail),
                     __ATOMIC_RELEASE);
}

/* Forward and back again: nothing else than the rule can come of it. */
START_TEST(indices_go_back_and_forth) {
    static const char *const rule[] = {"an impossible tail of the submission ring",
                                       "an impossible head of the token ring"};

    for (int k = 0; k < 6; k++) {
        uint64_t until = test_now_ms() + 20000;
        struct pollfd from_daemon = {.events = POLLIN};
        struct flipper p;
        struct glmw_entry e;

        open_small(); /* three NOPs lie in the slots: zeros */
        from_daemon.fd = hf.c.fd;
        if (k & 1) {
            e = hostilefix_request(&hf.c, 1, HOSTILE_ENDLESS);
            raw_submit(&hf.c, &e);
        }
        flipper_start(&p, k & 1 ? twist_tq_head : twist_sq_tail);
        do /* a bell makes it look at the tail, the stream at the head */
            raw_bell(&hf.c);
        while (poll(&from_daemon, 1, 1) == 0 && test_now_ms() < until);
        flipper_stop(&p);
        hostilefix_cut_off(rule[k & 1]);
    }
}
END_TEST

/* ---- memory that goes away -------------------------------------------------------------------------------
 */

static void punch_everything(struct rawclient *c, uint32_t round) {
    const size_t bytes = (size_t)c->welcome.u_bytes;

    if (round & 1)
        fallocate(c->fds[GLMW_FD_U], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    else
        madvise(c->view.u, bytes, MADV_REMOVE);
}

static void punch_slots_and_arena(struct rawclient *c, uint32_t round) {
    const off_t from = (off_t)(round & 1 ? c->welcome.sq_off : c->welcome.pay_off);

    fallocate(c->fds[GLMW_FD_U], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, 65536);
}

/* The pages of indices, entries and payloads are taken away all the time while requests are submitted. Holes
 * read as zeros: requests are refused, indices become impossible, and that is all. */
START_TEST(holes_while_it_drains) {
    for (int k = 0; k < 8; k++) {
        struct flipper p;

        open_small();
        flipper_start(&p, k & 1 ? punch_everything : punch_slots_and_arena);
        for (uint64_t tag = 1; tag <= 150; tag++) {
            struct glmw_entry e = raw_request(&hf.c, tag);
            struct glmw_rec r;

            glmw_refresh(&hf.c.sq);
            if (glmw_put(&hf.c.sq, &e) == 0)
                glmw_publish(&hf.c.sq, true);
            raw_bell(&hf.c);
            for (int n = glmw_peek(&hf.c.tq); n > 0; n--)
                glmw_take(&hf.c.tq, &r);
            glmw_give_back(&hf.c.tq, NULL);
            usleep(100);
        }
        flipper_stop(&p);
        raw_close(&hf.c);
    }
}
END_TEST

/* ---- payloads that change --------------------------------------------------------------------------------
 */

static void twist_payload(struct rawclient *c, uint32_t round) {
    struct glmw_tlv good = {.type = GLMW_TLV_TOKENS, .len = 12},
                    bad = {.type = GLMW_TLV_TOKENS, .len = UINT32_MAX - 7};
    uint64_t w;

    memcpy(&w, round & 1 ? &good : &bad, sizeof w);
    __atomic_store_n((uint64_t *)(void *)arena(c), w, __ATOMIC_RELAXED);
    __atomic_store_n((uint32_t *)(void *)(arena(c) + 8), round & 2 ? 5 : 4000000000u, __ATOMIC_RELAXED);
}

/* Structure and ids change while the payload is read and decoded: one copy was taken, so the answer is whole
 * or an error of this request, and the connection goes on. */
START_TEST(payload_changes_while_it_is_read) {
    struct flipper p;
    uint32_t tokens, n_run = 0, n_refused = 0;
    uint64_t until = test_now_ms() + 40000;

    raw_open(&hf.c, hf.f.socket, NULL);
    struct glmw_entry e = raw_request(&hf.c, 0);
    flipper_start(&p, twist_payload);
    for (e.tag = 1; n_run < 40 || n_refused < 40;
         e.tag++) { /* the other thread may have to wait for its turn */
        int status;

        ck_assert_uint_lt(test_now_ms(), until);

        raw_submit(&hf.c, &e);
        status = raw_until_end(&hf.c, e.tag, &tokens);
        ck_assert_msg(status == 0 || status == -EBADMSG || status == -EINVAL, "%d", status);
        ck_assert_uint_eq(tokens, status ? 0 : 10);
        n_run += status == 0;
        n_refused += status != 0;
    }
    flipper_stop(&p);
    raw_close(&hf.c);
}
END_TEST

/* From ACCEPTED on the payload is the client's again: what it writes there then changes nothing. */
START_TEST(payload_is_free_after_accepted) {
    struct glmw_rec r;

    raw_open(&hf.c, hf.f.socket, NULL);
    for (uint64_t tag = 1; tag <= 50; tag++) {
        struct glmw_entry e = hostilefix_request(&hf.c, tag, tag & 1 ? HOSTILE_OTHER : 5);
        uint32_t tokens = 0;

        raw_submit(&hf.c, &e);
        do {
            ck_assert(raw_record(&hf.c, &r, 10000, false));
            if (r.type == GLMW_REC_ACCEPTED)
                memset(arena(&hf.c), 0xff, 4096);
            tokens += r.type == GLMW_REC_TOKEN;
        } while (r.type != GLMW_REC_END);
        ck_assert_int_eq(r.u.end.status, 0);
        ck_assert_uint_eq(tokens, tag & 1 ? 3 : 10);
    }
    raw_close(&hf.c);
}
END_TEST

/* ---- what belongs to others ------------------------------------------------------------------------------
 */

/* The same numbers are tags of both; and one of them cancels all it can think of. */
START_TEST(cancel_reaches_only_own_tags) {
    struct glmw_entry e = {.opcode = GLMW_OP_CANCEL_ALL};

    raw_open(&hf.c, hf.f.socket, NULL);
    for (uint64_t tag = 1; tag <= 8; tag++) {
        struct glmw_entry r = raw_request(&hf.honest, tag);
        uint32_t tokens;

        raw_submit(&hf.honest, &r);
        usleep(500 * (useconds_t)tag);
        for (uint64_t k = 1; k <= 8; k++) {
            struct glmw_entry cancel = {.opcode = GLMW_OP_CANCEL, .tag = k};

            raw_submit(&hf.c, &cancel);
        }
        raw_submit(&hf.c, &e);
        ck_assert_int_eq(raw_until_end(&hf.honest, tag, &tokens), 0);
        ck_assert_uint_eq(tokens, 10);
    }
    raw_close(&hf.c);
}
END_TEST

/* Two connections of one user, one with three stalled streams: the other sees the totals, and of its own only
 * its own. */
START_TEST(status_shows_only_own_use) {
    uint64_t until = test_now_ms() + 10000;
    struct hello_msg h = raw_hello();
    struct glmw_status busy, idle;
    struct rawclient other;

    h.u.hello.tq_log2 = 6;
    raw_open(&hf.c, hf.f.socket, &h);
    raw_open(&other, hf.f.socket, NULL);
    struct glmw_entry e = hostilefix_request(&hf.c, 1, HOSTILE_ENDLESS);
    for (e.tag = 1; e.tag <= 3; e.tag++)
        raw_submit(&hf.c, &e);
    do { /* renewed once a second */
        usleep(50000);
        ck_assert_uint_lt(test_now_ms(), until);
        ck_assert_int_eq(glmw_status_read(&hf.c.view.d->status, &busy), 0);
        ck_assert_int_eq(glmw_status_read(&other.view.d->status, &idle), 0);
    } while (busy.my_live != 3 || busy.my_stalls == 0 || idle.running != 3);
    ck_assert_uint_gt(busy.my_records, 3);
    ck_assert_uint_eq(idle.connections, 3);
    ck_assert_uint_eq(idle.my_live, 0);
    ck_assert_uint_eq(idle.my_stalls, 0);
    ck_assert_uint_eq(idle.my_bells_sent, 0);
    ck_assert_uint_eq(idle.my_bells_suppressed, 0);
    ck_assert_uint_eq(idle.my_records, 0);
    ck_assert_uint_eq(idle.my_bulk_bytes, 0);
    raw_close(&other);
    raw_close(&hf.c);
}
END_TEST

static void expect_zero(const void *p, size_t from, size_t to, const char *what) {
    const uint8_t *b = p;

    while (from < to && b[from] == 0)
        from++;
    ck_assert_msg(from == to, "%s: byte %zu is not 0", what, from);
}

/* Connections come and go, each after requests and messages of others: what a new one gets is zeros, but for
 * the words that are said to be there. */
START_TEST(regions_hold_nothing_of_others) {
    const struct glmw_entry bad = {.opcode = GLMW_OP_EMBED, .payload_len = 24, .tag = 9};

    for (int k = 0; k < 4; k++) {
        raw_open(&hf.c, hf.f.socket, NULL);
        expect_zero(hf.c.view.u, 8, (size_t)hf.c.welcome.u_bytes, "region U");
        expect_zero(hf.c.view.d, 84, 128, "region D");
        expect_zero(hf.c.view.d, 128, 512, "words of region D");
        expect_zero(hf.c.view.d, 512 + sizeof(struct glmw_status), GLMW_NUMBERS_OFF, "region D");
        expect_zero(hf.c.view.d, GLMW_NUMBERS_OFF + sizeof(struct glmw_numbers), (size_t)hf.c.welcome.d_bytes,
                    "region D");
        memset(arena(&hf.c), 0x5a, (size_t)1 << hf.c.welcome.pay_log2);
        struct glmw_entry e = raw_request(&hf.c, 1);
        raw_submit(&hf.c, &e);
        ck_assert_int_eq(raw_until_end(&hf.c, 1, NULL), 0);
        raw_submit(&hf.c, &bad); /* its words lie in the text arena */
        ck_assert_int_lt(raw_until_end(&hf.c, 9, NULL), 0);
        ck_assert_uint_ne(*((const uint8_t *)hf.c.view.d + hf.c.welcome.txt_off), 0);
        raw_close(&hf.c);
        daemonfix_expect_resources(&hf.f, hf.before);
    }
}
END_TEST

/* Every byte of a record is written before it is published; what a type does not use is zero, so nothing of
 * an earlier record, or of the daemon's stack, is there. The smallest ring: slots are used many times. */
START_TEST(records_hold_no_leftovers) {
    static const struct glmw_entry bad = {.opcode = GLMW_OP_EMBED, .payload_len = 24, .tag = 500};
    struct hello_msg h = raw_hello();
    struct glmw_rec r;
    uint32_t seen[16] = {0};

    h.u.hello.tq_log2 = 6;
    raw_open(&hf.c, hf.f.socket, &h);
    for (uint64_t tag = 1; tag <= 60; tag++) {
        struct glmw_entry e = raw_request(&hf.c, tag);

        if (tag % 3 == 0) {
            e.opcode = GLMW_OP_TOKENIZE;
        } else if (tag % 7 == 0) {
            e = bad;
        }
        raw_submit(&hf.c, &e);
        do {
            ck_assert(raw_record(&hf.c, &r, 10000, false));
            seen[r.type & 15]++;
            switch (r.type) {
            case GLMW_REC_ACCEPTED:
                ck_assert_uint_eq(r.u.accepted.zero, 0);
                break;
            case GLMW_REC_PROGRESS:
                if (r.u.progress.phase != GLMW_PHASE_QUEUED)
                    ck_assert_uint_eq(r.u.progress.wait_ms, 0);
                break;
            case GLMW_REC_TOKEN:
            case GLMW_REC_TEXT:
            case GLMW_REC_ERROR:
                expect_zero(r.u.text, r.flags & GLMW_RF_INLINE ? r.text_len : 0, GLMW_INLINE_BYTES,
                            "a record");
                break;
            default:
                break;
            }
            if (r.type != GLMW_REC_TOKEN && r.type != GLMW_REC_TEXT && r.type != GLMW_REC_ERROR &&
                r.type != GLMW_REC_IDS && r.type != GLMW_REC_USAGE)
                ck_assert_uint_eq(r.text_len | r.text_off | r.n_alts | r.channel, 0);
        } while (r.type != GLMW_REC_END);
    }
    ck_assert_uint_gt(seen[GLMW_REC_TOKEN], 100);
    ck_assert_uint_gt(seen[GLMW_REC_IDS], 10);
    ck_assert_uint_gt(seen[GLMW_REC_ERROR], 3);
    raw_close(&hf.c);
}
END_TEST

/* Region D is the daemon's to write: through no descriptor, map or door in /proc. */
START_TEST(region_d_is_read_only) {
    char path[64];
    int d, again;
    void *m;

    raw_open(&hf.c, hf.f.socket, NULL);
    d = hf.c.fds[GLMW_FD_D];
    for (int k = 0; k < 2; k++) {
        const size_t bytes = (size_t)hf.c.welcome.d_bytes;

        snprintf(path, sizeof path, "/proc/self/fd/%d", d);
        again = k ? open(path, O_RDWR | O_CLOEXEC) : dup(d);
        ck_assert_int_ge(again, 0);
        ck_assert_int_lt(pwrite(again, "x", 1, 100), 0);
        ck_assert_int_lt(ftruncate(again, 0), 0);
        ck_assert_int_lt(ftruncate(again, (off_t)bytes + 4096), 0);
        ck_assert_int_lt(fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
        ck_assert_int_lt(fcntl(again, F_ADD_SEALS, F_SEAL_WRITE), 0);
        m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
        ck_assert_ptr_eq(m, MAP_FAILED);
        close(again);
    }
    ck_assert_int_lt(mprotect((void *)(uintptr_t)hf.c.view.d, 4096, PROT_READ | PROT_WRITE), 0);
    if (!getenv("GLMD_EMULATED")) /* an emulator swallows advice that it does not know */
        ck_assert_int_lt(madvise((void *)(uintptr_t)hf.c.view.d, 4096, MADV_REMOVE), 0);
    raw_close(&hf.c);
}
END_TEST

static void add_tests(TCase *tc) {
    tcase_add_test(tc, entry_changes_between_check_and_use);
    tcase_add_test(tc, entry_flips_to_nonsense);
    tcase_add_test(tc, event_and_sleeping_take_any_value);
    tcase_add_test(tc, indices_go_back_and_forth);
    tcase_add_test(tc, holes_while_it_drains);
    tcase_add_test(tc, payload_changes_while_it_is_read);
    tcase_add_test(tc, payload_is_free_after_accepted);
    tcase_add_test(tc, cancel_reaches_only_own_tags);
    tcase_add_test(tc, status_shows_only_own_use);
    tcase_add_test(tc, regions_hold_nothing_of_others);
    tcase_add_test(tc, records_hold_no_leftovers);
    tcase_add_test(tc, region_d_is_read_only);
}

int main(void) {
    Suite *s = suite_create("conn_rules");
    SRunner *sr;
    int failed;

    hostilefix_cases(s, add_tests);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
