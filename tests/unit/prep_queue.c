/* SPDX-License-Identifier: MIT */
/* Whose text is worked on next: fair by user and bytes, and large ones never on all workers. */
#include <check.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clienttest.h"
#include "prep.h"
#include "prep_queue.h"

enum { LARGE = 64 << 20, SMALL = 1000 };

static struct prep_req reqs[64];
static unsigned n_reqs;

static struct prep_req *req(uint32_t uid, uint32_t bytes) {
    struct prep_req *r = &reqs[n_reqs++ % 64];

    *r = (struct prep_req){.uid = uid, .payload_len = bytes, .op = PREP_COUNT};
    return r;
}

/* Users in the order in which one worker takes everything. */
static const char *order(struct prep_queue *q) {
    static char said[65];
    struct prep_turn turn;
    struct prep_req *r;
    size_t n = 0;

    while (n < 64 && (r = prep_queue_take(q, &turn))) {
        said[n++] = (char)r->uid;
        prep_queue_done(q, &turn);
    }
    said[n] = 0;
    return said;
}

START_TEST(one_user_is_served_in_order) {
    struct prep_queue q;
    struct prep_req *r[5];
    struct prep_turn turn;

    prep_queue_init(&q, 1);
    for (int i = 0; i < 5; i++)
        prep_queue_push(&q, r[i] = req('a', i % 2 ? LARGE : SMALL));
    ck_assert(prep_queue_remove(&q, r[2]));
    ck_assert(!prep_queue_remove(&q, r[2]));
    for (int i = 0; i < 5; i++)
        if (i != 2) {
            ck_assert_ptr_eq(prep_queue_take(&q, &turn), r[i]);
            prep_queue_done(&q, &turn);
        }
    ck_assert(!prep_queue_ready(&q));
    ck_assert_ptr_null(prep_queue_take(&q, &turn));
}
END_TEST

/* Four counts of 64 MB do not come before what others ask later, not even the second; users with as much to say take
 * turns; nobody saves up what he did not use. */
START_TEST(users_take_turns) {
    struct prep_queue q;

    prep_queue_init(&q, 1);
    for (int i = 0; i < 4; i++)
        prep_queue_push(&q, req('a', LARGE));
    for (int i = 0; i < 3; i++)
        prep_queue_push(&q, req('b', SMALL));
    prep_queue_push(&q, req('c', LARGE));
    ck_assert_str_eq(order(&q), "abcbbaaa");
    for (int i = 0; i < 3; i++)
        prep_queue_push(&q, req('a', SMALL));
    for (int i = 0; i < 3; i++)
        prep_queue_push(&q, req('b', SMALL));
    ck_assert_str_eq(order(&q), "ababab");
    /* one in work counts like one in the queue */
    struct prep_turn turn;
    prep_queue_push(&q, req('a', LARGE));
    ck_assert_ptr_nonnull(prep_queue_take(&q, &turn));
    prep_queue_push(&q, req('a', SMALL));
    prep_queue_push(&q, req('b', SMALL));
    ck_assert_str_eq(order(&q), "ba");
    prep_queue_done(&q, &turn);
}
END_TEST

START_TEST(large_ones_leave_a_worker) {
    struct prep_turn turn[4];
    struct prep_req *r;
    struct prep_queue q;

    prep_queue_init(&q, 3);
    for (int i = 0; i < 3; i++)
        prep_queue_push(&q, req('a' + (uint32_t)i, LARGE));
    ck_assert_ptr_nonnull(prep_queue_take(&q, &turn[0]));
    ck_assert_ptr_nonnull(prep_queue_take(&q, &turn[1]));
    ck_assert(!prep_queue_ready(&q));
    ck_assert_ptr_null(prep_queue_take(&q, &turn[2]));
    prep_queue_push(&q, req('a', SMALL)); /* of one who has a large one in work */
    ck_assert(prep_queue_ready(&q));
    r = prep_queue_take(&q, &turn[2]);
    ck_assert_uint_eq(r->payload_len, SMALL);
    prep_queue_done(&q, &turn[2]);
    prep_queue_done(&q, &turn[0]);
    r = prep_queue_take(&q, &turn[0]);
    ck_assert_uint_eq(r->payload_len, LARGE);
    prep_queue_done(&q, &turn[0]);
    prep_queue_done(&q, &turn[1]);
}
END_TEST

static sem_t go_on, small_done;
static atomic_uint large_in_work;

static void on_done(void *ctx, struct prep_req *r, enum prep_outcome outcome) {
    (void)ctx;
    (void)outcome;
    if (r->payload_len == SMALL) {
        sem_post(&small_done);
        return;
    }
    atomic_fetch_add(&large_in_work, 1);
    sem_wait(&go_on);
}

/* The workers themselves: two large ones are there and one is held up; what is small gets by, again and again. */
START_TEST(workers_leave_room) {
    struct prep_options o = {.workers = 2, .hooks = {.done = on_done}};
    struct prep_model m = {.vocab_tokens = 100, .context_tokens = 100};
    struct timespec until;
    struct prep *p;

    sem_init(&go_on, 0, 0);
    sem_init(&small_done, 0, 0);
    ck_assert_int_eq(prep_new(&o, &p), 0);
    prep_set_model(p, &m);
    for (int i = 0; i < 3; i++)
        prep_push(p, req('a', LARGE));
    for (int i = 0; i < 20; i++) {
        prep_push(p, req('b', SMALL));
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 30;
        ck_assert_msg(sem_timedwait(&small_done, &until) == 0, "number %d waits for the large ones", i);
        ck_assert_uint_le(atomic_load(&large_in_work), 1);
    }
    for (int i = 0; i < 3; i++)
        sem_post(&go_on);
    while (atomic_load(&large_in_work) < 3)
        usleep(1000);
    ck_assert_ptr_null(prep_free(p));
    sem_destroy(&go_on);
    sem_destroy(&small_done);
}
END_TEST

int main(void) {
    Suite *s = suite_create("prep_queue");
    TCase *t = ct_case(s, "queue", 120);

    tcase_add_test(t, one_user_is_served_in_order);
    tcase_add_test(t, users_take_turns);
    tcase_add_test(t, large_ones_leave_a_worker);
    tcase_add_test(t, workers_leave_room);
    return ct_main(s);
}
