/* SPDX-License-Identifier: MIT */
/* Exchanges between ranks that are threads: everybody reads everybody's part of this exchange and of no other, in any
 * timing; sums in rank order have the same bits everywhere; who is missing, has failed or runs another step is named
 * within the time set, and nobody waits for ever. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"
#include "kernmodel.h"

enum { N = 5, FLOATS = 37, SLOT = FLOATS * 4, ROUNDS = 3000 };

struct group {
    void *mem;
    struct comm *end[COMM_MAX_RANKS];
    _Atomic uint64_t wrong;
    uint64_t bits[N]; /* of all sums a rank made */
};

static void open_group(struct group *g, uint32_t n, uint64_t slot, uint32_t timeout_ms) {
    uint64_t bytes = comm_local_bytes(n, slot);
    memset(g, 0, sizeof(*g));
    ck_assert_uint_gt(bytes, 0);
    g->mem = aligned_alloc(64, (bytes + 63) & ~63ull);
    ck_assert_ptr_nonnull(g->mem);
    memset(g->mem, 0xa5, bytes);
    ck_assert_int_eq(comm_local_open(g->mem, bytes, n, slot, timeout_ms, g->end), 0);
}

static float part_of(uint32_t rank, uint32_t round, uint32_t i) {
    struct km_rng r = {rank * 1000003ull + round * 7919ull + i};
    return km_normal(&r);
}

struct member {
    struct group *g;
    uint32_t rank;
};

static void *run_member(void *arg) {
    struct member *m = arg;
    struct comm *c = m->g->end[m->rank];
    struct km_rng rng = {m->rank};
    uint64_t h = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const void *part[N];
        float *mine = c->ops->slot(c);
        for (uint32_t i = 0; i < FLOATS; i++)
            mine[i] = part_of(m->rank, round, i);
        if (c->ops->send(c, round, SLOT))
            break;
        if (km_below(&rng, 50) == 0) { /* somebody is always late */
            const struct timespec t = {.tv_nsec = km_below(&rng, 200000)};
            nanosleep(&t, NULL);
        }
        if (c->ops->wait(c, part))
            break;
        for (uint32_t i = 0; i < FLOATS; i++) {
            float sum = 0;
            for (uint32_t r = 0; r < N; r++) {
                const float *p = part[r];
                m->g->wrong += p[i] != part_of(r, round, i);
                sum += p[i];
            }
            uint32_t u;
            memcpy(&u, &sum, sizeof(u));
            h = (h ^ u) * 0x100000001b3ull;
        }
        if (round == ROUNDS - 1)
            m->g->bits[m->rank] = h;
    }
    return NULL;
}

START_TEST(everybodys_part_of_every_exchange) {
    struct group g;
    pthread_t t[N];
    struct member m[N];
    open_group(&g, N, SLOT, 20000);
    for (uint32_t r = 0; r < N; r++) {
        m[r] = (struct member){&g, r};
        ck_assert_int_eq(pthread_create(&t[r], NULL, run_member, &m[r]), 0);
    }
    for (uint32_t r = 0; r < N; r++)
        pthread_join(t[r], NULL);
    ck_assert_uint_eq(g.wrong, 0);
    for (uint32_t r = 0; r < N; r++) {
        ck_assert_msg(g.bits[r], "rank %u: %s", r, g.end[r]->error);
        ck_assert_uint_eq(g.bits[r], g.bits[0]);
    }
    free(g.mem);
}
END_TEST

/* Slots lie inside the memory that was asked for, aligned, and no two in one place. */
START_TEST(slots_lie_apart) {
    static const uint32_t counts[] = {1, 3, COMM_MAX_RANKS};
    static const uint64_t lengths[] = {1, 64, 65, 4096};
    for (uint32_t i = 0; i < 12; i++) {
        const uint32_t n = counts[i % 3];
        const uint64_t size = lengths[i / 3], bytes = comm_local_bytes(n, size);
        const void *part[COMM_MAX_RANKS];
        struct group g;
        open_group(&g, n, size, 1000);
        for (uint32_t round = 0; round < 2; round++) {
            for (uint32_t r = 0; r < n; r++) {
                char *slot = g.end[r]->ops->slot(g.end[r]);
                ck_assert_uint_eq((uintptr_t)slot & 63, 0);
                ck_assert(slot >= (char *)g.mem && slot + size <= (char *)g.mem + bytes);
                memset(slot, (int)(2 * r + round + 1), size);
            }
            for (uint32_t r = 0; r < n; r++)
                ck_assert_int_eq(g.end[r]->ops->send(g.end[r], round, size), 0);
            for (uint32_t r = 0; r < n; r++)
                ck_assert_int_eq(g.end[r]->ops->wait(g.end[r], part), 0);
            for (uint32_t r = 0; r < n; r++)
                for (uint64_t at = 0; at < size; at++)
                    ck_assert_int_eq(((const unsigned char *)part[r])[at], (unsigned char)(2 * r + round + 1));
        }
        free(g.mem);
    }
    ck_assert_uint_gt(comm_local_bytes(2, 1ull << 48), 1ull << 50);
    ck_assert_uint_eq(comm_local_bytes(2, (1ull << 48) + 1), 0);
}
END_TEST

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void says(const struct comm *c, const char *words) {
    ck_assert_msg(strstr(c->error, words) != NULL, "\"%s\" lacks \"%s\"", c->error, words);
}

START_TEST(missing_rank_is_named) {
    struct group g;
    const void *part[4];
    open_group(&g, 4, 64, 150);
    for (uint32_t r = 0; r < 4; r++)
        if (r != 2)
            ck_assert_int_eq(g.end[r]->ops->send(g.end[r], 9, 64), 0);
    double began = seconds();
    ck_assert_int_eq(g.end[0]->ops->wait(g.end[0], part), -ETIMEDOUT);
    double took = seconds() - began;
    ck_assert_msg(took > 0.14 && took < 5, "%g s", took);
    says(g.end[0], "rank 2 is missing");
    says(g.end[0], "150 ms");
    /* the others need not wait as long again, and learn the same */
    began = seconds();
    ck_assert_int_eq(g.end[3]->ops->wait(g.end[3], part), -EPIPE);
    ck_assert(seconds() - began < 0.1);
    says(g.end[3], "rank 2 is missing");
    /* the late one, too */
    ck_assert_int_eq(g.end[2]->ops->send(g.end[2], 9, 64), 0);
    ck_assert_int_eq(g.end[2]->ops->wait(g.end[2], part), -EPIPE);
    free(g.mem);
}
END_TEST

static void *fail_later(void *arg) {
    struct comm *c = arg;
    const struct timespec t = {.tv_nsec = 50000000};
    nanosleep(&t, NULL);
    c->ops->give_up(c, "rank 1 failed: its memory is gone");
    c->ops->give_up(c, "later words");
    return NULL;
}

START_TEST(death_of_a_rank_wakes_the_others) {
    struct group g;
    const void *part[2];
    pthread_t t;
    open_group(&g, 2, 64, 60000);
    ck_assert_int_eq(pthread_create(&t, NULL, fail_later, g.end[1]), 0);
    ck_assert_int_eq(g.end[0]->ops->send(g.end[0], 0, 1), 0);
    double began = seconds();
    ck_assert_int_eq(g.end[0]->ops->wait(g.end[0], part), -EPIPE);
    ck_assert(seconds() - began < 10);
    pthread_join(t, NULL);
    says(g.end[0], "rank 1 failed: its memory is gone");
    free(g.mem);
}
END_TEST

START_TEST(another_step_is_named) {
    struct group g;
    const void *part[3];
    open_group(&g, 3, 64, 5000);
    for (uint32_t r = 0; r < 3; r++)
        ck_assert_int_eq(g.end[r]->ops->send(g.end[r], r == 1 ? 0xbad : 0x900d, 0), 0);
    ck_assert_int_eq(g.end[0]->ops->wait(g.end[0], part), -EBADMSG);
    says(g.end[0], "ranks 0 and 1");
    says(g.end[0], "0000000000000bad");
    ck_assert_int_eq(g.end[2]->ops->wait(g.end[2], part), -EBADMSG);
    free(g.mem);
}
END_TEST

START_TEST(sizes) {
    struct comm *end[COMM_MAX_RANKS];
    struct group g;
    ck_assert_uint_eq(comm_local_bytes(0, 64), 0);
    ck_assert_uint_eq(comm_local_bytes(COMM_MAX_RANKS + 1, 64), 0);
    ck_assert_uint_eq(comm_local_bytes(2, UINT64_MAX), 0);
    open_group(&g, 2, 100, 10);
    ck_assert_int_eq(comm_local_open(g.mem, comm_local_bytes(2, 100) - 1, 2, 100, 10, end), -EINVAL);
    ck_assert_int_eq(comm_local_open((char *)g.mem + 8, comm_local_bytes(2, 100), 2, 100, 10, end), -EINVAL);
    ck_assert_int_eq(comm_local_open(g.mem, comm_local_bytes(2, 100), 2, 100, 0, end), -EINVAL);
    const void *part[2] = {NULL};
    ck_assert_int_eq(g.end[0]->ops->wait(g.end[0], part), -EINVAL); /* nothing was sent yet */
    ck_assert(!part[0] && !part[1]);
    ck_assert_uint_eq((uintptr_t)g.end[1]->ops->slot(g.end[1]) % 64, 0);
    ck_assert_int_eq(g.end[1]->ops->send(g.end[1], 0, 101), -EMSGSIZE);
    says(g.end[1], "101 bytes");
    free(g.mem);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("kern_comm");
    TCase *tc = tcase_create("comm");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, everybodys_part_of_every_exchange);
    tcase_add_test(tc, slots_lie_apart);
    tcase_add_test(tc, missing_rank_is_named);
    tcase_add_test(tc, death_of_a_rank_wakes_the_others);
    tcase_add_test(tc, another_step_is_named);
    tcase_add_test(tc, sizes);
    suite_add_tcase(s, tc);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
