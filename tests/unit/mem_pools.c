/* SPDX-License-Identifier: MIT */
/* Page and slot ids, and the slab of request arenas. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "idpool.h"
#include "leakcheck.h"
#include "slab.h"

static struct mem_account a;

static void setup(void) {
    leakcheck_setup();
    mem_account_init(&a);
}

static void teardown(void) {
    leakcheck_teardown();
}

START_TEST(units) {
    ck_assert_uint_eq(mem_pages_for(0), 0);
    ck_assert_uint_eq(mem_pages_for(1), 1);
    ck_assert_uint_eq(mem_pages_for(256), 1);
    ck_assert_uint_eq(mem_pages_for(257), 2);
    ck_assert_uint_eq(mem_pages_for(UINT32_MAX), 1u << 24);
    ck_assert_uint_eq(mem_row_table_index((struct mem_row){255}), 0);
    ck_assert_uint_eq(mem_row_table_index((struct mem_row){256}), 1);
    ck_assert_uint_eq(mem_row_in_page((struct mem_row){257}), 1);
    ck_assert_uint_eq(mem_row_in_page((struct mem_row){255}), 255);
}
END_TEST

START_TEST(pages) {
    struct mem_page_pool p;
    struct mem_page got[8], more[8];
    struct mem_pool_usage u;

    ck_assert_int_eq(mem_page_pool_init(&p, &a, 0), -EINVAL);
    ck_assert_int_eq(mem_page_pool_init(&p, &a, 5), 0);
    ck_assert_uint_eq(mem_account_read(&a, MEM_OTHER).used, mem_account_read(&a, MEM_OTHER).planned);
    ck_assert_int_eq(mem_pages_take(&p, 0, NULL), 0);
    ck_assert_int_eq(mem_pages_take(&p, 3, got), 0);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(got[i].id, i);
    more[0].id = 77;
    ck_assert_int_eq(mem_pages_take(&p, 3, more), -ENOBUFS); /* all or none */
    ck_assert_uint_eq(more[0].id, 77);
    ck_assert_int_eq(mem_pages_take(&p, 2, more), 0);
    ck_assert_uint_eq(more[0].id, 3);
    ck_assert_uint_eq(more[1].id, 4);
    ck_assert_int_eq(mem_pages_take(&p, 1, got + 3), -ENOBUFS);
    u = mem_page_pool_read(&p);
    ck_assert_uint_eq(u.n, 5);
    ck_assert_uint_eq(u.used, 5);
    ck_assert_uint_eq(u.high, 5);
    mem_pages_give(&p, 0, NULL);
    mem_pages_give(&p, 2, got);
    ck_assert_int_eq(mem_pages_take(&p, 1, more + 2), 0);
    ck_assert_uint_eq(more[2].id, 1); /* last given, first taken */
    u = mem_page_pool_read(&p);
    ck_assert_uint_eq(u.used, 4);
    ck_assert_uint_eq(u.high, 5);
    mem_page_pool_done(&p);
    ck_assert_uint_eq(mem_account_read(&a, MEM_OTHER).used, 0);
}
END_TEST

START_TEST(slots) {
    struct mem_slot_pool p;
    struct mem_slot s[3];

    ck_assert_int_eq(mem_slot_pool_init(&p, &a, 2), 0);
    ck_assert_int_eq(mem_slot_take(&p, &s[0]), 0);
    ck_assert_int_eq(mem_slot_take(&p, &s[1]), 0);
    ck_assert_uint_ne(s[0].id, s[1].id);
    ck_assert_int_eq(mem_slot_take(&p, &s[2]), -ENOBUFS);
    mem_slot_give(&p, s[0]);
    ck_assert_int_eq(mem_slot_take(&p, &s[2]), 0);
    ck_assert_uint_eq(s[2].id, s[0].id);
    ck_assert_uint_eq(mem_slot_pool_read(&p).high, 2);
    mem_slot_pool_done(&p);
}
END_TEST

/* Against a plain set, for thousands of random takes and gives. */
START_TEST(random_pages) {
    enum { N = 97 };
    struct mem_page_pool p;
    struct ckpt_rng g = {.s = 3};
    struct mem_page held[N];
    uint32_t n = 0, high = 0;
    bool have[N] = {false};

    ck_assert_int_eq(mem_page_pool_init(&p, &a, N), 0);
    for (int round = 0; round < 20000; round++) {
        uint32_t k = (uint32_t)(ckpt_rand(&g) % 9);

        if (ckpt_rand(&g) % 2) {
            int r = mem_pages_take(&p, k, held + n);

            ck_assert_int_eq(r, n + k > N ? -ENOBUFS : 0);
            for (uint32_t i = 0; r == 0 && i < k; i++) {
                ck_assert_uint_lt(held[n].id, N);
                ck_assert_msg(!have[held[n].id], "page %u handed out twice", held[n].id);
                have[held[n++].id] = true;
            }
        } else {
            k = k < n ? k : n;
            /* from the front: another order than they came */
            for (uint32_t i = 0; i < k; i++)
                have[held[i].id] = false;
            mem_pages_give(&p, k, held);
            memmove(held, held + k, (n - k) * sizeof *held);
            n -= k;
        }
        high = n > high ? n : high;
        ck_assert_uint_eq(mem_page_pool_read(&p).used, n);
        ck_assert_uint_eq(mem_page_pool_read(&p).high, high);
    }
    ck_assert_uint_gt(high, N / 2);
    mem_page_pool_done(&p);
}
END_TEST

/* Holders and the cache's mark, against counts of our own. */
START_TEST(random_holders) {
    enum { N = 23 };
    struct mem_page_pool p;
    struct ckpt_rng g = {.s = 5};
    uint32_t refs[N] = {0}, used = 0, idle, most_idle = 0;
    bool kept[N] = {false};

    ck_assert_int_eq(mem_page_pool_init(&p, &a, N), 0);
    for (int round = 0; round < 20000; round++) {
        struct mem_page page = {(uint32_t)(ckpt_rand(&g) % N)};
        uint32_t id = page.id;

        switch (ckpt_rand(&g) % 5) {
        case 0:
            if (used < N) {
                ck_assert_int_eq(mem_pages_take(&p, 1, &page), 0);
                ck_assert_uint_eq(refs[page.id], 0);
                refs[page.id] = 1;
                used++;
            }
            break;
        case 1:
            if (refs[id] && refs[id] < 4) {
                mem_pages_ref(&p, 1, &page);
                refs[id]++;
            }
            break;
        case 2:
            if (refs[id] && !kept[id]) {
                mem_page_keep(&p, page);
                kept[id] = true;
                refs[id]++;
            }
            break;
        case 3:
            if (kept[id]) {
                mem_page_unkeep(&p, page);
                kept[id] = false;
                used -= --refs[id] == 0;
            }
            break;
        default:
            if (refs[id] > kept[id]) {
                mem_pages_give(&p, 1, &page);
                used -= --refs[id] == 0;
            }
        }
        idle = 0;
        for (uint32_t i = 0; i < N; i++) {
            idle += kept[i] && refs[i] == 1;
            ck_assert_uint_eq(mem_page_refs(&p, (struct mem_page){i}), refs[i]);
            ck_assert_int_eq(mem_page_idle(&p, (struct mem_page){i}), kept[i] && refs[i] == 1);
        }
        most_idle = idle > most_idle ? idle : most_idle;
        ck_assert_uint_eq(mem_page_pool_read(&p).used, used);
        ck_assert_uint_eq(mem_page_pool_read(&p).idle, idle);
    }
    ck_assert_uint_gt(most_idle, 2);
    mem_page_pool_done(&p);
}
END_TEST

START_TEST(given_by_the_cache_alone) {
    struct mem_page_pool p;
    struct mem_page got;

    ck_assert_int_eq(mem_page_pool_init(&p, &a, 2), 0);
    ck_assert_int_eq(mem_pages_take(&p, 1, &got), 0);
    mem_page_keep(&p, got);
    mem_pages_give(&p, 1, &got);
    mem_pages_give(&p, 1, &got); /* aborts: the cache still holds it */
}
END_TEST

static void give_wrong(uint32_t second) {
    struct mem_page_pool p;
    struct mem_page got[2];

    ck_assert_int_eq(mem_page_pool_init(&p, &a, 4), 0);
    ck_assert_int_eq(mem_pages_take(&p, 2, got), 0);
    got[1].id = second;
    mem_pages_give(&p, 2, got); /* aborts */
}

START_TEST(given_twice) {
    give_wrong(0);
}
END_TEST

START_TEST(given_untaken) {
    give_wrong(3);
}
END_TEST

START_TEST(given_unknown) {
    give_wrong(4);
}
END_TEST

START_TEST(arenas) {
    struct mem_slab s;
    struct mem_arena r;
    void *p, *q;
    char *big;

    ck_assert_int_eq(mem_slab_init(&s, &a, 0), -EINVAL);
    ck_assert_int_eq(mem_slab_init(&s, &a, UINT64_MAX), -EINVAL);
    ck_assert_int_eq(mem_slab_init(&s, &a, 10 * MEM_CHUNK_BYTES - 1), 0);
    ck_assert_uint_eq(mem_slab_read(&s).chunks, 10);
    mem_arena_init(&r, &s, 6 * MEM_CHUNK_BYTES);
    ck_assert_uint_eq(mem_slab_read(&s).used, 0);

    ck_assert_int_eq(mem_arena_alloc(&r, 1, 1, &p), 0);
    ck_assert_int_eq(mem_arena_alloc(&r, 8, 8, &q), 0);
    ck_assert_int_eq((char *)q - (char *)p, 8);
    ck_assert_int_eq(mem_arena_alloc(&r, 64, 64, &q), 0);
    ck_assert_uint_eq((uintptr_t)q % 64, 0);
    ck_assert_int_eq(mem_arena_alloc(&r, 0, 1, &q), 0);
    ck_assert_ptr_nonnull(q);
    ck_assert_uint_eq(mem_slab_read(&s).used, 1);
    ck_assert_int_eq(mem_arena_alloc(&r, 1, 3, &q), -EINVAL);
    ck_assert_int_eq(mem_arena_alloc(&r, 1, 128, &q), -EINVAL);
    ck_assert_int_eq(mem_arena_alloc(&r, 1, 0, &q), -EINVAL);

    /* one that spans three chunks, contiguous */
    ck_assert_int_eq(mem_arena_alloc(&r, 3 * MEM_CHUNK_BYTES - 64, 8, (void **)&big), 0);
    memset(big, 0x5a, 3 * MEM_CHUNK_BYTES - 64);
    ck_assert_uint_eq(mem_slab_read(&s).used, 4);
    ck_assert_int_eq(mem_arena_copy(&r, "copied", 7, &q), 0);
    ck_assert_str_eq(q, "copied");
    ck_assert_uint_eq(mem_slab_read(&s).used, 5);
    ck_assert_int_eq(mem_arena_alloc(&r, MEM_CHUNK_BYTES, 8, &q), -EMSGSIZE); /* two more: over six */
    ck_assert_int_eq(mem_arena_alloc(&r, UINT64_MAX, 8, &q), -EMSGSIZE);
    ck_assert_int_eq(mem_arena_alloc(&r, UINT64_MAX - 63, 8, &q), -EMSGSIZE);
    ck_assert_int_eq(mem_arena_copy(&r, "still", 6, &q), 0); /* the arena lives on */

    mem_arena_done(&r);
    ck_assert_uint_eq(mem_slab_read(&s).used, 0);
    ck_assert_uint_eq(mem_slab_read(&s).high, 5);
    mem_arena_done(&r);
    ck_assert_int_eq(mem_arena_copy(&r, "again", 6, &q), 0);
    mem_arena_done(&r);
    mem_slab_done(&s);
    mem_slab_done(&s);
    ck_assert_uint_eq(mem_account_read(&a, MEM_REQUESTS).used, 0);
}
END_TEST

START_TEST(slab_full) {
    struct mem_slab s;
    struct mem_arena r[3];
    void *p;

    ck_assert_int_eq(mem_slab_init(&s, &a, 4 * MEM_CHUNK_BYTES), 0);
    for (int i = 0; i < 3; i++)
        mem_arena_init(&r[i], &s, UINT64_MAX);
    ck_assert_int_eq(mem_arena_alloc(&r[0], 5 * MEM_CHUNK_BYTES, 8, &p), -ENOBUFS);
    ck_assert_int_eq(mem_arena_alloc(&r[0], 1, 8, &p), 0);
    ck_assert_int_eq(mem_arena_alloc(&r[1], 1, 8, &p), 0);
    ck_assert_int_eq(mem_arena_alloc(&r[2], 1, 8, &p), 0);
    mem_arena_done(&r[1]);
    /* two chunks are free but not together */
    ck_assert_int_eq(mem_arena_alloc(&r[1], MEM_CHUNK_BYTES, 8, &p), -ENOBUFS);
    mem_arena_done(&r[2]);
    ck_assert_int_eq(mem_arena_alloc(&r[1], 2 * MEM_CHUNK_BYTES, 8, &p), 0);
    ck_assert_int_eq(mem_arena_alloc(&r[2], 1, 8, &p), -ENOBUFS);
    for (int i = 0; i < 3; i++)
        mem_arena_done(&r[i]);
    mem_slab_done(&s);
}
END_TEST

START_TEST(slab_done_too_early) {
    struct mem_slab s;
    struct mem_arena r;
    void *p;

    ck_assert_int_eq(mem_slab_init(&s, &a, MEM_CHUNK_BYTES), 0);
    mem_arena_init(&r, &s, MEM_CHUNK_BYTES);
    ck_assert_int_eq(mem_arena_alloc(&r, 1, 8, &p), 0);
    mem_slab_done(&s); /* aborts */
}
END_TEST

/* Four threads, each checking that nobody writes into its memory. */
struct worker {
    struct mem_slab *s;
    unsigned char mark;
    int failures;
};

static void *work(void *arg) {
    struct worker *w = arg;
    struct ckpt_rng g = {.s = w->mark};

    for (int round = 0; round < 300; round++) {
        struct mem_arena r;
        unsigned char *p[6];
        uint64_t n[6];
        int k = 0;

        mem_arena_init(&r, w->s, 4 * MEM_CHUNK_BYTES);
        while (k < 6) {
            n[k] = ckpt_rand(&g) % (ckpt_rand(&g) % 8 ? 5000 : 2 * MEM_CHUNK_BYTES);
            if (mem_arena_alloc(&r, n[k], 8, (void **)&p[k]) < 0)
                break;
            memset(p[k], w->mark + k, n[k]);
            k++;
        }
        for (int i = 0; i < k; i++)
            for (uint64_t b = 0; b < n[i]; b++)
                w->failures += p[i][b] != (unsigned char)(w->mark + i);
        mem_arena_done(&r);
    }
    return NULL;
}

START_TEST(slab_threads) {
    struct mem_slab s;
    struct worker w[4];
    pthread_t t[4];

    ck_assert_int_eq(mem_slab_init(&s, &a, 12 * MEM_CHUNK_BYTES), 0);
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){&s, (unsigned char)(1 + 16 * i), 0};
        ck_assert_int_eq(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
        ck_assert_int_eq(w[i].failures, 0);
    }
    ck_assert_uint_eq(mem_slab_read(&s).used, 0);
    ck_assert_uint_gt(mem_slab_read(&s).high, 1);
    mem_slab_done(&s);
}
END_TEST

int main(void) {
    Suite *s = suite_create("mem_pools");
    TCase *tc = tcase_create("pools"), *ab = tcase_create("aborts");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, units);
    tcase_add_test(tc, pages);
    tcase_add_test(tc, slots);
    tcase_add_test(tc, random_pages);
    tcase_add_test(tc, random_holders);
    tcase_add_test(tc, arenas);
    tcase_add_test(tc, slab_full);
    tcase_add_test(tc, slab_threads);
    suite_add_tcase(s, tc);
    tcase_add_checked_fixture(ab, setup, NULL);
    tcase_add_test_raise_signal(ab, given_twice, SIGABRT);
    tcase_add_test_raise_signal(ab, given_untaken, SIGABRT);
    tcase_add_test_raise_signal(ab, given_unknown, SIGABRT);
    tcase_add_test_raise_signal(ab, given_by_the_cache_alone, SIGABRT);
    tcase_add_test_raise_signal(ab, slab_done_too_early, SIGABRT);
    suite_add_tcase(s, ab);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
