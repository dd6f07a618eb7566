/* SPDX-License-Identifier: MIT */
/* ringops.h alone: predicates, a property test against a list model, and the three barrier litmus tests. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ipctest.h"
#include "leakcheck.h"
#include "ringops.h"

/* ---- predicates ---------------------------------------------------------------------------------------- */

START_TEST(need_bell_is_membership) {
    /* event in [old, new) modulo 2^32, also across the wrap, also for the empty range */
    static const uint32_t base[] = {0, 1, 5, 0x7ffffffe, 0x80000000, 0xfffffffd, 0xffffffff};
    for (size_t b = 0; b < sizeof(base) / sizeof(base[0]); b++) {
        for (uint32_t n = 0; n < 5; n++) {
            for (int d = -6; d < 7; d++) {
                uint32_t event = base[b] + (uint32_t)d;
                bool in = d >= 0 && (uint32_t)d < n;
                ck_assert_int_eq(glmw_need_bell(event, base[b], base[b] + n), in);
                ck_assert_int_eq(glmw_need_bell_urgent(event, base[b]), d >= 0);
            }
        }
    }
}
END_TEST

START_TEST(zero_filled_memory_is_armed) {
    uint32_t words[3] = {0};
    uint8_t slots[64 * 4] = {0}, rec[64] = {0};
    struct glmw_producer p;
    glmw_producer_init(&p, slots, 2, &words[0], &words[1], &words[2], 0);
    ck_assert_int_eq(glmw_publish(&p, true), 0); /* nothing was put */
    ck_assert_int_eq(glmw_put(&p, rec), 0);
    ck_assert_int_eq(glmw_publish(&p, false), 1);
    ck_assert_int_eq(glmw_put(&p, rec), 0);
    ck_assert_int_eq(glmw_publish(&p, true), 0); /* not armed again: silence, even when urgent */
}
END_TEST

START_TEST(impossible_indices_are_refused) {
    static const uint32_t start[] = {0, 0xfffffffe};
    for (size_t s = 0; s < 2; s++) {
        uint32_t tail, head, event = 0, b = start[s];
        uint8_t slots[64 * 4], rec[64] = {0};
        struct glmw_producer p;
        struct glmw_consumer c;
        tail = head = b;
        glmw_producer_init(&p, slots, 2, &tail, &head, &event, b);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(glmw_put(&p, rec), 0);
        glmw_publish(&p, false);
        /* past the tail, a published slot short of a lap, backwards */
        const uint32_t bad_head[] = {b + 4, b + 0x80000000u, b - 1};
        for (size_t i = 0; i < 3; i++) {
            head = bad_head[i];
            ck_assert_int_eq(glmw_refresh(&p), -EPROTO);
            ck_assert_uint_eq(p.head, b); /* nothing is taken over */
        }
        head = b + 2;
        ck_assert_int_eq(glmw_refresh(&p), 0);
        ck_assert_uint_eq(glmw_free_slots(&p), 3);
        head = b + 1;
        ck_assert_int_eq(glmw_refresh(&p), -EPROTO);
        /* a head may not pass what is put but not published either */
        ck_assert_int_eq(glmw_put(&p, rec), 0);
        head = b + 4;
        ck_assert_int_eq(glmw_refresh(&p), -EPROTO);

        uint32_t own_head = b, own_event = b;
        tail = b;
        glmw_consumer_init(&c, slots, 2, &tail, &own_head, &own_event, b);
        const uint32_t bad_tail[] = {b + 5, b - 1, b + 0x80000000u};
        for (size_t i = 0; i < 3; i++) {
            tail = bad_tail[i];
            ck_assert_int_eq(glmw_peek(&c), -EPROTO);
            ck_assert_int_eq(glmw_arm(&c, 1), -EPROTO);
            ck_assert_uint_eq(c.tail, b);
        }
        tail = b + 4;
        ck_assert_int_eq(glmw_peek(&c), 4);
        glmw_take(&c, rec);
        glmw_take(&c, rec);
        tail = b + 5; /* two are taken, none is given back: still full */
        ck_assert_int_eq(glmw_peek(&c), -EPROTO);
        tail = b + 3; /* backwards */
        ck_assert_int_eq(glmw_peek(&c), -EPROTO);
        tail = b + 4;
        ck_assert_int_eq(glmw_give_back(&c, NULL), 0);
        tail = b + 6;
        ck_assert_int_eq(glmw_peek(&c), 4);
    }
}
END_TEST

/* ---- property: random schedules against a list --------------------------------------------------------- */

struct model {
    uint64_t *list; /* values published and not yet taken, as a plain array with two cursors */
    size_t n_put, n_pub, n_taken, n_given;
};

static void property_run(uint64_t seed, unsigned log2, uint32_t start, unsigned steps) {
    struct ipc_rng r = {.s = seed};
    uint32_t size = 1u << log2, tail = start, head = start, event = start - 1;
    uint8_t *slots = aligned_alloc(64, 64 * (size_t)size);
    struct model m = {.list = calloc(steps + 1, sizeof(uint64_t))};
    struct glmw_producer p;
    struct glmw_consumer c;
    bool armed = false;
    uint32_t armed_at = 0;
    uint64_t rec[8];

    ck_assert(slots && m.list);
    glmw_producer_init(&p, slots, log2, &tail, &head, &event, start);
    glmw_consumer_init(&c, slots, log2, &tail, &head, &event, start);
    for (unsigned i = 0; i < steps; i++) {
        switch (ipc_below(&r, 6)) {
        case 0:
        case 1: { /* put: succeeds exactly when fewer than size are outstanding after the last refresh */
            ck_assert_int_eq(glmw_refresh(&p), 0);
            int want = m.n_put - m.n_given < size ? 0 : -ENOBUFS;
            for (unsigned k = 0; k < 8; k++)
                rec[k] = ipc_rand(&r);
            ck_assert_int_eq(glmw_put(&p, rec), want);
            if (want == 0)
                m.list[m.n_put++] = rec[7];
            ck_assert_uint_eq(glmw_free_slots(&p), size - (m.n_put - m.n_given));
            break;
        }
        case 2: { /* publish: rings exactly when the armed index is among the new ones */
            bool urgent = ipc_below(&r, 4) == 0;
            uint32_t first = start + (uint32_t)m.n_pub, n = (uint32_t)(m.n_put - m.n_pub);
            bool want = false;
            for (uint32_t k = 0; k < n; k++)
                want |= armed && first + k == armed_at;
            if (urgent && n > 0 && armed)
                want = true;
            ck_assert_int_eq(glmw_publish(&p, urgent), want);
            m.n_pub = m.n_put;
            if (armed && (int32_t)(armed_at - (start + (uint32_t)m.n_pub)) < 0)
                armed = false;
            break;
        }
        case 3: /* take some */
            ck_assert_int_eq(glmw_peek(&c), (int)(m.n_pub - m.n_taken));
            for (uint32_t n = ipc_below(&r, size + 1); n > 0 && m.n_taken < m.n_pub; n--) {
                glmw_take(&c, rec);
                ck_assert_uint_eq(rec[7], m.list[m.n_taken]);
                m.n_taken++;
            }
            break;
        case 4:
            glmw_give_back(&c, NULL);
            m.n_given = m.n_taken;
            ck_assert_uint_eq(head, start + (uint32_t)m.n_given);
            break;
        default: {
            uint32_t ahead = 1 + ipc_below(&r, 3);
            ck_assert_int_eq(glmw_arm(&c, ahead), (int)(m.n_pub - m.n_taken));
            armed_at = start + (uint32_t)m.n_taken + ahead - 1;
            armed = (int32_t)(armed_at - (start + (uint32_t)m.n_pub)) >= 0;
            break;
        }
        }
    }
    free(slots);
    free(m.list);
}

START_TEST(random_schedules_match_a_list) {
    for (uint64_t seed = 1; seed <= 60; seed++) {
        /* every third run crosses 2^32 early, another third crosses 2^31 */
        uint32_t start = seed % 3 == 0 ? 0u : seed % 3 == 1 ? 0xffffffffu - 20 : 0x7fffffffu - 20;
        property_run(seed, (unsigned)(seed % 5), start, 4000);
    }
}
END_TEST

/* ---- litmus: each barrier by itself -------------------------------------------------------------------- */

/* Two threads run the two halves of a protocol at the same time, each over the same row of independent rings.
 * Both "I may sleep" and "nobody needs waking" on one ring is a lost wake-up. Before each race every thread
 * reads the word it will read in the race, so that its load is quick and its store slow: the case in which a
 * processor lets the load pass the store unless there is a barrier. */
#define CELLS 48
struct cell {
    _Alignas(64) struct glmw_producer p;
    bool bell;
    _Alignas(64) struct glmw_consumer c;
    int result;
    _Alignas(64) uint32_t tail;
    _Alignas(64) uint32_t head;
    _Alignas(64) uint32_t event;
    _Alignas(64) uint32_t want;
    _Alignas(64) uint8_t slots[64];
};
struct duel {
    _Alignas(128) uint32_t ready; /* round for which the second thread is warm */
    _Alignas(128) uint32_t go;
    _Alignas(128) uint32_t done;
    bool stop;
    int (*second)(struct cell *);
    _Alignas(128) struct cell cell[CELLS];
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void await(const uint32_t *word, uint32_t value, const bool *stop) {
    for (unsigned i = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; i++) {
        if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
            return;
        if (i > 2000)
            sched_yield(); /* one core, or the other thread is not running */
    }
}

/* Shifts the two threads against each other, by another amount every round. */
static void jitter(uint32_t n) {
    for (volatile uint32_t i = 0; i < n; i++)
        ;
}

static void *duel_second(void *arg) {
    struct duel *d = arg;
    for (uint32_t round = 1;; round++) {
        await(&d->ready, 2 * round - 1, &d->stop); /* the first thread has reset the cells */
        if (__atomic_load_n(&d->stop, __ATOMIC_RELAXED))
            return NULL;
        for (unsigned i = 0; i < CELLS; i++) {
            d->cell[i].result = (int)glmw_fetch32(&d->cell[i].tail);
            d->cell[i].result += (int)glmw_fetch32(&d->cell[i].want);
        }
        __atomic_store_n(&d->ready, 2 * round, __ATOMIC_RELEASE);
        await(&d->go, round, NULL);
        jitter(round * 7 % 61);
        for (unsigned i = 0; i < CELLS; i++)
            d->cell[i].result = d->second(&d->cell[i]);
        __atomic_store_n(&d->done, round, __ATOMIC_RELEASE);
    }
}

/* The first thread's halves return true when the other side need not be woken. */
static bool publish_half(struct cell *x) {
    return !glmw_publish(&x->p, false);
}
static int arm_half(struct cell *x) {
    return glmw_arm(&x->c, 1) == 0;
}
static bool ask_half(struct cell *x) {
    return glmw_credit_ask(&x->p, &x->want) == 0 && glmw_free_slots(&x->p) == 0; /* leaves it skipped */
}
static int give_half(struct cell *x) {
    return !glmw_give_back(&x->c, &x->want); /* tells nobody */
}

/* Runs until the two threads have met (both orders in one round) so often that a missing barrier would have
 * shown: one to ten times are enough as a rule, in one of some ten runs it took more than twenty. That takes
 * milliseconds on an idle machine; on a busy one it takes what it takes until both threads run at the same
 * time. */
#define MEETINGS 150
static uint32_t duel(bool (*first)(struct cell *), int (*second)(struct cell *), bool full) {
    struct duel *d = aligned_alloc(128, sizeof(*d));
    struct ipc_rng r = {.s = 77};
    uint8_t rec[64] = {0};
    pthread_t th;
    uint32_t lost = 0, met = 0;
    bool one_cpu = sysconf(_SC_NPROCESSORS_ONLN) < 2;
    uint64_t end = now_ns() + (one_cpu ? 2000000000u : 30000000000u);

    ck_assert_ptr_nonnull(d);
    memset(d, 0, sizeof(*d));
    d->second = second;
    ck_assert_int_eq(pthread_create(&th, NULL, duel_second, d), 0);
    for (uint32_t round = 1; lost == 0 && met < MEETINGS && now_ns() < end; round++) {
        for (unsigned i = 0; i < CELLS; i++) {
            struct cell *x = &d->cell[i];
            x->tail = x->head = 0;
            x->event = 0xffffffffu;
            x->want = 0;
            glmw_producer_init(&x->p, x->slots, 0, &x->tail, &x->head, &x->event, 0);
            glmw_consumer_init(&x->c, x->slots, 0, &x->tail, &x->head, &x->event, 0);
            ck_assert_int_eq(glmw_put(&x->p, rec), 0);
            if (full) { /* published and taken, about to be given back while the producer asks for credit */
                glmw_publish(&x->p, false);
                ck_assert_int_eq(glmw_peek(&x->c), 1);
                glmw_take(&x->c, rec);
            }
        }
        __atomic_store_n(&d->ready, 2 * round - 1, __ATOMIC_RELEASE);
        await(&d->ready, 2 * round, NULL);
        for (unsigned i = 0; i < CELLS; i++)
            d->cell[i].bell = (glmw_fetch32(&d->cell[i].event) | glmw_fetch32(&d->cell[i].head)) == 1;
        __atomic_store_n(&d->go, round, __ATOMIC_RELEASE);
        jitter(ipc_below(&r, 120));
        for (unsigned i = 0; i < CELLS; i++)
            d->cell[i].bell = first(&d->cell[i]);
        await(&d->done, round, NULL);
        unsigned slept = 0;
        for (unsigned i = 0; i < CELLS; i++) {
            lost += d->cell[i].bell && d->cell[i].result;
            slept += d->cell[i].result != 0;
        }
        met += slept > 0 && slept < CELLS;
    }
    __atomic_store_n(&d->stop, true, __ATOMIC_RELAXED);
    pthread_join(th, NULL);
    free(d);
    ck_assert_msg(lost > 0 || met > 0 || one_cpu, "the two threads never ran at the same time");
    return lost;
}

START_TEST(no_wakeup_is_lost) {
    ck_assert_msg(duel(publish_half, arm_half, false) == 0, "a consumer sleeps beside a record");
}
END_TEST

START_TEST(no_credit_is_lost) {
    ck_assert_msg(duel(ask_half, give_half, true) == 0, "a stream with a free slot is skipped for ever");
}
END_TEST

/* ---- single fetch -------------------------------------------------------------------------------------- */

/* A peer that changes a word while we look must be seen with one of its values, and checks must hold for the
 * value used. A word fetched twice would pass the check with one and index with another. */
struct liar {
    _Alignas(128) uint32_t tail;
    _Alignas(8) uint64_t wide;
    bool stop;
};

static void *lie(void *arg) {
    struct liar *l = arg;
    for (uint32_t i = 0; !__atomic_load_n(&l->stop, __ATOMIC_RELAXED); i++) {
        __atomic_store_n(&l->tail, i & 1 ? 4u : 1000000u, __ATOMIC_RELAXED);
        uint64_t half = i & 1 ? 0xffffffffu : 0;
        __atomic_store_n(&l->wide, half << 32 | half, __ATOMIC_RELAXED);
    }
    return NULL;
}

START_TEST(shared_words_are_fetched_once) {
    struct liar l = {0};
    uint32_t head, event;
    uint8_t slots[64 * 8] = {0};
    pthread_t th;
    int good = 0, bad = 0;
    uint64_t end = now_ns() + 5000000000u;

    ck_assert_int_eq(pthread_create(&th, NULL, lie, &l), 0);
    for (unsigned i = 0; (i < 50000 || good == 0 || bad == 0) && now_ns() < end; i++) {
        struct glmw_consumer c;
        glmw_consumer_init(&c, slots, 3, &l.tail, &head, &event, 0);
        int n = glmw_peek(&c);
        ck_assert_msg(n == 0 || n == 4 || n == -EPROTO, "impossible count %d", n);
        ck_assert_uint_eq(c.tail, n > 0 ? 4 : 0);
        good += n == 4;
        bad += n == -EPROTO;
        uint64_t w = glmw_fetch64(&l.wide);
        ck_assert_uint_eq(w >> 32, w & 0xffffffffu);
    }
    __atomic_store_n(&l.stop, true, __ATOMIC_RELAXED);
    pthread_join(th, NULL);
    ck_assert(good > 0 && bad > 0);
}
END_TEST

/* ---- status block -------------------------------------------------------------------------------------- */

struct status_pair {
    struct glmw_status shared;
    bool stop;
};

static void *status_writer(void *arg) {
    struct status_pair *s = arg;
    struct glmw_status st = {0};
    for (uint32_t i = 1; !__atomic_load_n(&s->stop, __ATOMIC_RELAXED); i++) {
        st.state = st.queued = i;
        st.heartbeat_ns = st.my_records = ((uint64_t)i << 32) + i;
        glmw_status_write(&s->shared, &st);
        jitter(50);
        if (i % 64 == 0) /* or a reader that is much slower never gets between two writes */
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return NULL;
}

START_TEST(status_is_never_torn) {
    struct status_pair s = {0};
    struct glmw_status st;
    pthread_t th;
    unsigned good = 0;
    uint64_t begin = now_ns();

    ck_assert_int_eq(pthread_create(&th, NULL, status_writer, &s), 0);
    /* ten seconds, and longer where instrumented code seldom gets between two writes */
    while (good < 20000 && now_ns() < begin + (good < 2000 ? 60000000000u : 10000000000u)) {
        int r = glmw_status_read(&s.shared, &st);
        ck_assert(r == 0 || r == -EAGAIN);
        if (r < 0)
            continue;
        good++;
        ck_assert_uint_eq(st.state, st.queued);
        ck_assert_uint_eq(st.heartbeat_ns, ((uint64_t)st.state << 32) + st.state);
        ck_assert_uint_eq(st.my_records, st.heartbeat_ns);
    }
    __atomic_store_n(&s.stop, true, __ATOMIC_RELAXED);
    pthread_join(th, NULL);
    ck_assert_uint_gt(good, 1000);

    /* a writer that died in the middle */
    s.shared.seq |= 1;
    memset(&st, 0x5a, sizeof(st));
    ck_assert_int_eq(glmw_status_read(&s.shared, &st), -EAGAIN);
    ck_assert_uint_eq(st.state, 0x5a5a5a5a);
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_ringops");
    TCase *tc = tcase_create("rings");
    tcase_set_timeout(tc, 180);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, need_bell_is_membership);
    tcase_add_test(tc, zero_filled_memory_is_armed);
    tcase_add_test(tc, impossible_indices_are_refused);
    tcase_add_test(tc, random_schedules_match_a_list);
    tcase_add_test(tc, no_wakeup_is_lost);
    tcase_add_test(tc, no_credit_is_lost);
    tcase_add_test(tc, shared_words_are_fetched_once);
    tcase_add_test(tc, status_is_never_torn);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
