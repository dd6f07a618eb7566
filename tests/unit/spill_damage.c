/* SPDX-License-Identifier: MIT */
/* Blocks that are not what they were: every field and area of a page and of a state is changed, the file cut off,
 * lengthened, emptied, exchanged, or forged with sound checksums. What comes out is what was put in, or nothing, and
 * nothing of it is asked for again; the rest of the tier goes on. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "leakcheck.h"
#include "spilltest.h"

static struct spilltest t;
static uint32_t ids[SPILLTEST_MAX_TOKENS], other[SPILLTEST_MAX_TOKENS];
static uint8_t image[65536], second[65536];

static void setup(void) {
    leakcheck_setup();
    spilltest_init(&t, "/dev/shm"); /* thousands of files */
    spilltest_text(1, ids, SPILLTEST_MAX_TOKENS);
    spilltest_text(100, other, SPILLTEST_MAX_TOKENS);
    ck_assert_msg(spilltest_open(&t) == 0, "%s", t.err.msg);
    ck_assert(spilltest_put(t.s, 8, SPILL_EXACT, other, 20));
}

static void teardown(void) {
    spilltest_done(&t);
    leakcheck_teardown();
}

static size_t load(const char *path, uint8_t *ret) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    ck_assert_int_ge(fd, 0);
    n = read(fd, ret, sizeof image);
    close(fd);
    ck_assert_int_gt(n, 0);
    return (size_t)n;
}

static void store(const char *path, const uint8_t *b, size_t n) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, b, n), (ssize_t)n);
    close(fd);
}

/* Puts 36 tokens of user 7 in (three pages, one state) and names a file of it: the state, or the page that ends at
 * `end`. */
static void put_fresh(const char *ending, uint32_t end, char *path, size_t cap) {
    static uint32_t serial;
    struct spill_head h;
    uint32_t start;

    ids[0] = ids[35] = 5000 + serial++; /* a prefix that was never there */
    ck_assert(spilltest_put(t.s, 7, SPILL_EXACT, ids, 36));
    for (;;) {
        ck_assert(spilltest_first(&t, ending, path, cap));
        load(path, image);
        memcpy(&h, image, sizeof h);
        start = h.kind == SPILL_STATE ? 0 : end - h.n_ids;
        if (h.domain == 7 && h.pos == end && memcmp(spill_block_ids(image), ids + start, h.ids_bytes) == 0)
            return;
        /* looked for through names that hide it */
        strcat(strcpy((char *)second, path), ".hidden");
        ck_assert_int_eq(rename(path, (char *)second), 0);
    }
}

static void unhide(void) {
    char path[400], plain[400];

    while (spilltest_first(&t, ".hidden", path, sizeof path)) {
        strcpy(plain, path);
        plain[strlen(plain) - strlen(".hidden")] = 0;
        ck_assert_int_eq(rename(path, plain), 0);
    }
}

static uint32_t known; /* first pages that the reader has */

/* Now and for the next daemon. */
static void expect_miss(const char *what, size_t at, bool reopened) {
    struct spill_stats st;
    uint32_t got;

    if (reopened) {
        spilltest_close(&t);
        ck_assert_msg(spilltest_open(&t) == 0, "%s", t.err.msg);
    }
    got = spilltest_get_from(t.s, 7, ids, 255, known); /* aborts on a wrong payload */
    ck_assert_msg(got == 0, "%s at %zu: read %u tokens", what, at, got);
    ck_assert_msg(spilltest_get(t.s, 7, ids, 255) == 0, "%s at %zu: not forgotten", what, at);
    spill_get_stats(t.s, &st);
    if (!reopened)
        ck_assert_msg(st.damaged > 0, "%s at %zu: not counted", what, at);
    ck_assert_uint_eq(spilltest_get(t.s, 8, other, 255), 20);
    ck_assert_msg(spilltest_put(t.s, 7, SPILL_EXACT, ids, 36), "%s at %zu: cannot be put in again", what, at);
    ck_assert_uint_eq(spilltest_get(t.s, 7, ids, 255), 36);
}

static const struct {
    const char *ending;
    uint32_t end;
} files[] = { { ".state", 36 }, { ".page", 16 }, { ".page", 36 } };

START_TEST(every_field_changed) {
    const char *ending = files[_i / 2].ending;
    bool reopened = _i % 2;
    size_t n, at = 0;
    char path[400];

    for (;;) {
        put_fresh(ending, files[_i / 2].end, path, sizeof path);
        n = load(path, image);
        image[at] ^= (uint8_t)(1 + at % 255);
        store(path, image, n);
        unhide();
        expect_miss("a changed byte", at, reopened);
        /* the fields one by one, then a few checksums, the end of the head, ids, payload */
        if (at < offsetof(struct spill_head, lineage))
            at += 4;
        else if (at < offsetof(struct spill_head, chunk_crc))
            at += 36;
        else if (at < SPILL_HEAD_BYTES - 8)
            at = at < 3000 ? 3000 : SPILL_HEAD_BYTES - 8;
        else if (at < SPILL_HEAD_BYTES)
            at += 4;
        else if (at < SPILL_HEAD_BYTES + SPILL_ALIGN)
            at = at == SPILL_HEAD_BYTES ? at + 12 : SPILL_HEAD_BYTES + SPILL_ALIGN;
        else if (at < SPILL_HEAD_BYTES + SPILL_ALIGN + 4999)
            at += 4999;
        else
            break;
    }
}
END_TEST

START_TEST(cut_off_lengthened_emptied_gone) {
    bool reopened = _i % 2;
    size_t n;
    char path[400];

    for (size_t f = 0; f < 3; f++)
        for (int how = 0; how < 8; how++) {
            put_fresh(files[f].ending, files[f].end, path, sizeof path);
            n = load(path, image);
            if (how == 0)
                ck_assert_int_eq(truncate(path, (off_t)n - 4096), 0);
            else if (how == 1)
                ck_assert_int_eq(truncate(path, (off_t)n + 4096), 0);
            else if (how == 2)
                ck_assert_int_eq(truncate(path, 0), 0);
            else if (how == 3)
                ck_assert_int_eq(truncate(path, 100), 0);
            else if (how == 4)
                memset(image + n - 12288 + 4096, 0, 4096), store(path, image, n); /* a torn write */
            else if (how == 5)
                ck_assert_int_eq(chmod(path, 0644), 0); /* somebody may have put it there */
            else if (how == 6)
                ck_assert_int_eq(unlink(path), 0);
            else {
                ck_assert_int_eq(unlink(path), 0);
                ck_assert_int_eq(symlink("/dev/zero", path), 0);
            }
            unhide();
            expect_miss("a changed file", (size_t)how, reopened && how < 6);
            unlink(path);
        }
}
END_TEST

/* Sound blocks in the wrong place: their checksums are right, what they say is not what the name or the chain says. */
START_TEST(forged_with_sound_checksums) {
    struct spill_head *h = (struct spill_head *)(void *)image;
    char path[400], path2[400];
    size_t n;

    known = _i < 2 ? 0 : 2;
    for (size_t f = 0; f < 3; f++)
        for (int how = 0; how < 8; how++) {
            bool reopened = _i % 2 && how != 6 && (how != 2 || f > 0);

            put_fresh(files[f].ending, files[f].end, path, sizeof path);
            n = load(path, image);
            unhide();
            switch (how) {
            case 0: /* other tokens, as a colliding hash would have it */
                spill_block_ids(image)[h->n_ids - 1]++;
                break;
            case 1:
                h->domain = 8;
                break;
            case 2: /* said of a state it is no lie that could hurt when it is read first */
                h->quality = SPILL_NEAR;
                break;
            case 3: /* a chain that is another's */
                h->parent.lo ^= 1;
                break;
            case 4:
                h->id.lo += 1000;
                break;
            case 5:
                h->version++;
                break;
            case 6: /* another block of this tier, whole */
                ck_assert(spilltest_first(&t, files[f].ending, path2, sizeof path2));
                if (strcmp(path, path2) == 0) {
                    strcat(strcpy((char *)second, path), ".hidden");
                    rename(path, (char *)second);
                    ck_assert(spilltest_first(&t, files[f].ending, path2, sizeof path2));
                    unhide();
                }
                n = load(path2, image);
                break;
            default:
                h->lineage[3] ^= 1;
            }
            if (how != 6)
                spill_block_seal(image);
            store(path, image, n);
            /* a first page has no parent, and saying otherwise is no block at all */
            expect_miss("a forged block", (size_t)how + 100 * f, reopened);
        }
    known = 0;
}
END_TEST

int main(void) {
    Suite *s = suite_create("spill_damage");
    TCase *tc = tcase_create("damage");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, every_field_changed, 0, 6);
    tcase_add_loop_test(tc, cut_off_lengthened_emptied_gone, 0, 2);
    tcase_add_loop_test(tc, forged_with_sound_checksums, 0, 4);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
