/* SPDX-License-Identifier: MIT */
/* The tables of the spill tier: what refers to something keeps it, what nothing needs goes, what is worth least goes
 * first, and after any sequence of calls the tables agree with a count of everything. CRC-32C and the block's head. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "crc32c.h"
#include "spill_index.h"
#include "ipctest.h"
#include "leakcheck.h"

static struct spill_index ix;
static void *mem;

static void setup(void) {
    leakcheck_setup();
    mem = calloc(1, spill_index_bytes(256));
    spill_index_init(&ix, mem, 256);
}

static void teardown(void) {
    free(mem);
    leakcheck_teardown();
}

static uint32_t add(uint8_t kind, uint32_t pos, uint32_t parent, uint64_t hash) {
    static uint64_t serial;
    struct spill_entry e = { .kind = kind, .state = SPILL_E_READY, .pos = pos, .parent = parent, .domain = 7,
                             .hash = hash, .bytes = 8192, .id = { 1, ++serial } };

    return spill_index_add(&ix, &e);
}

START_TEST(pages_go_with_their_last_state) {
    uint32_t a = add(SPILL_PAGE, 16, SPILL_NONE, 1), b = add(SPILL_PAGE, 32, a, 2);
    uint32_t s = add(SPILL_STATE, 32, b, 2), t = add(SPILL_STATE, 16, a, 1);
    struct spill_entry e;
    uint32_t gone = 0;

    spill_index_drop(&ix, a); /* referred to: stays */
    ck_assert_int_eq(spill_index_audit(&ix), 0);
    ck_assert_uint_eq(ix.doomed, SPILL_NONE);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_PAGE, 7, 32, 2, a, 0), b);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_PAGE, 7, 32, 2, SPILL_NONE, 0), SPILL_NONE);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_STATE, 7, 32, 2, SPILL_NONE, 0), s);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_STATE, 8, 32, 2, SPILL_NONE, 0), SPILL_NONE);
    spill_index_drop(&ix, s);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_PAGE, 7, 32, 2, a, 0), SPILL_NONE);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_PAGE, 7, 16, 1, SPILL_NONE, 0), a);
    spill_index_drop(&ix, t);
    ck_assert_int_eq(spill_index_audit(&ix), 0);
    while (spill_index_reap(&ix, &e))
        gone++;
    ck_assert_uint_eq(gone, 4);
    ck_assert_uint_eq(ix.n_used, 0);
    ck_assert_uint_eq(ix.bytes, 0);
}
END_TEST

START_TEST(the_least_worth_goes_first_and_never_what_is_held) {
    uint32_t a = add(SPILL_PAGE, 16, SPILL_NONE, 1), small = add(SPILL_STATE, 16, a, 1);
    uint32_t b = add(SPILL_PAGE, 32, a, 2), large = add(SPILL_STATE, 32, b, 2);
    uint32_t f = add(SPILL_FOREIGN, 0, SPILL_NONE, 0);

    ck_assert_uint_eq(spill_index_victim(&ix), f);
    spill_index_drop(&ix, f);
    ck_assert_uint_eq(spill_index_victim(&ix), small);
    spill_index_hold(&ix, small);
    ck_assert_uint_eq(spill_index_victim(&ix), large);
    spill_index_release(&ix, small);
    ix.floor = ix.e[large].value; /* as if more valuable ones had been thrown out since */
    spill_index_used(&ix, small);
    ck_assert_uint_eq(spill_index_victim(&ix), large);
}
END_TEST

START_TEST(a_damaged_page_takes_all_behind_it) {
    uint32_t a = add(SPILL_PAGE, 16, SPILL_NONE, 1), b = add(SPILL_PAGE, 32, a, 2), c = add(SPILL_PAGE, 48, b, 3);
    uint32_t s1 = add(SPILL_STATE, 16, a, 1), s3 = add(SPILL_STATE, 48, c, 3);

    spill_index_hold(&ix, b); /* by a put on its way */
    spill_index_condemn(&ix, b);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_PAGE, 7, 32, 2, a, 0), SPILL_NONE);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_STATE, 7, 48, 3, SPILL_NONE, 0), SPILL_NONE);
    ck_assert_uint_eq(spill_index_find(&ix, SPILL_STATE, 7, 16, 1, SPILL_NONE, 0), s1);
    ck_assert_uint_eq(ix.e[s3].state, SPILL_E_DOOMED);
    ck_assert_uint_eq(ix.e[b].state, SPILL_E_READY);
    spill_index_release(&ix, b);
    ck_assert_uint_eq(ix.e[b].state, SPILL_E_DOOMED);
    ck_assert_int_eq(spill_index_audit(&ix), 0);
}
END_TEST

START_TEST(any_sequence) {
    struct ipc_rng r = { .s = (uint64_t)_i + 1 };
    uint32_t held[8], n_held = 0;
    struct spill_entry e;

    for (int step = 0; step < 1500; step++) {
        uint32_t at = ipc_below(&r, 256), state = ix.e[at].state;
        bool live = state == SPILL_E_READY;

        switch (ipc_below(&r, 8)) {
        case 0:
        case 1:
            if (live && ix.e[at].kind == SPILL_PAGE)
                add(SPILL_PAGE, ix.e[at].pos + 16, at, ipc_rand(&r) % 50);
            else
                add(SPILL_PAGE, 16, SPILL_NONE, ipc_rand(&r) % 50);
            break;
        case 2:
            if (live && ix.e[at].kind == SPILL_PAGE)
                add(SPILL_STATE, ix.e[at].pos, at, ix.e[at].hash);
            break;
        case 3:
            if (spill_index_victim(&ix) != SPILL_NONE)
                spill_index_drop(&ix, spill_index_victim(&ix));
            break;
        case 4:
            if (live && n_held < 8)
                spill_index_hold(&ix, held[n_held++] = at);
            break;
        case 5:
            if (n_held)
                spill_index_release(&ix, held[--n_held]);
            break;
        case 6:
            if (live && ipc_below(&r, 8) == 0)
                spill_index_condemn(&ix, at);
            break;
        default:
            spill_index_reap(&ix, &e);
        }
        if (step % 50 == 0)
            ck_assert_int_eq(spill_index_audit(&ix), 0);
        for (uint32_t i = 0; i < n_held; i++)
            ck_assert_uint_eq(ix.e[held[i]].state, SPILL_E_READY);
    }
    while (n_held)
        spill_index_release(&ix, held[--n_held]);
    ck_assert_int_eq(spill_index_audit(&ix), 0);
}
END_TEST

START_TEST(crc_of_known_texts) {
    static uint8_t b[1000];

    /* the check value of the polynomial's definition, and the two of RFC 3720 B.4 that are easily typed */
    ck_assert_uint_eq(spill_crc32c(0, "123456789", 9), 0xe3069283u);
    ck_assert_uint_eq(spill_crc32c(0, b, 32), 0x8a9136aau);
    memset(b, 0xff, 32);
    ck_assert_uint_eq(spill_crc32c(0, b, 32), 0x62a8ab43u);
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (uint8_t)(i * i >> 3);
    for (size_t n = 0; n < sizeof b; n += 7)
        for (size_t at = 0; at < 9; at++) {
            uint32_t whole = spill_crc32c(0, b + at, n - (n > at ? at : 0));

            ck_assert_uint_eq(whole, spill_crc32c_plain(0, b + at, n - (n > at ? at : 0)));
            if (n > 40)
                ck_assert_uint_eq(spill_crc32c(spill_crc32c(0, b, 33), b + 33, n - 33), spill_crc32c(0, b, n));
        }
}
END_TEST

START_TEST(sizes_that_cannot_be) {
    ck_assert_uint_eq(spill_block_bytes(1, 1), 3 * 4096);
    ck_assert_uint_eq(spill_block_bytes(1024, 4096), 3 * 4096);
    ck_assert_uint_eq(spill_block_bytes(1025, 4097), 5 * 4096);
    ck_assert_uint_eq(spill_block_bytes(1, 0), 0);
    ck_assert_uint_eq(spill_block_bytes(1, UINT64_MAX), 0);
    ck_assert_uint_eq(spill_block_bytes(UINT32_MAX, 1), 0);
    ck_assert_uint_eq(spill_block_bytes(1, (uint64_t)SPILL_MAX_CHUNKS * SPILL_CHUNK_BYTES + 1), 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("spill_index");
    TCase *tc = tcase_create("index");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, pages_go_with_their_last_state);
    tcase_add_test(tc, the_least_worth_goes_first_and_never_what_is_held);
    tcase_add_test(tc, a_damaged_page_takes_all_behind_it);
    tcase_add_loop_test(tc, any_sequence, 0, 20);
    tcase_add_test(tc, crc_of_known_texts);
    tcase_add_test(tc, sizes_that_cannot_be);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
