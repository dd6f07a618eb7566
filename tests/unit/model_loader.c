/* SPDX-License-Identifier: MIT */
/* Every byte of every tensor arrives once and in its place, whatever the window, and no read error is lost.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt.h"
#include "leakcheck.h"
#include "loader.h"

static struct ckpt dir;
static struct xerr err;
static struct model_config cfg;
static struct model_index *x;
static struct model_directory d;
static void *staging;

/* The sink: one buffer per item, and how much of it has come. */
static unsigned char **got;
static uint64_t *got_bytes;
static int sink_result;
static size_t sink_calls;

static int sink(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                const void *bytes, uint64_t n) {
    size_t i;

    ck_assert_ptr_eq(ctx, &d);
    ck_assert_uint_eq((uintptr_t)bytes % 64, 0);
    ck_assert_uint_gt(n, 0);
    sink_calls++;
    if (sink_result < 0)
        return sink_result;
    for (i = 0; i < d.n_items && memcmp(&d.item[i].id, id, sizeof *id) != 0; i++)
        ;
    ck_assert_uint_lt(i, d.n_items);
    ck_assert_uint_eq(t->rows, d.item[i].k.rows);
    ck_assert_uint_eq(offset, got_bytes[i]); /* in order, no gap, no repeat */
    ck_assert_uint_le(offset + n, d.item[i].t->bytes);
    memcpy(got[i] + offset, bytes, n);
    got_bytes[i] += n;
    return 0;
}

static uint64_t last_done, last_total;
static uint64_t stop_at;

static int progress(void *ctx, uint64_t done, uint64_t total) {
    ck_assert_ptr_eq(ctx, &cfg);
    ck_assert_uint_gt(done, last_done);
    last_done = done;
    last_total = total;
    return done >= stop_at;
}

static void open_model(const char *path, const struct st_io *io) {
    ck_assert_msg(model_config_read(path, &cfg, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_index_open(&x, path, io, &err) == 0, "%s", err.msg);
    ck_assert_msg(model_directory_build(&d, &cfg, x, &err) == 0, "%s", err.msg);
    got = calloc(d.n_items, sizeof *got);
    got_bytes = calloc(d.n_items, sizeof *got_bytes);
    for (size_t i = 0; i < d.n_items; i++)
        got[i] = malloc(d.item[i].t->bytes);
}

static void close_model(void) {
    for (size_t i = 0; got && i < d.n_items; i++)
        free(got[i]);
    free(got);
    free(got_bytes);
    got = NULL;
    got_bytes = NULL;
    model_directory_done(&d);
    x = model_index_close(x);
}

static int load(uint64_t staging_bytes) {
    struct model_load l = {.staging = staging,
                           .staging_bytes = staging_bytes,
                           .sink = sink,
                           .sink_ctx = &d,
                           .progress = progress,
                           .progress_ctx = &cfg};

    last_done = last_total = 0;
    return model_load(x, &d, &l, &err);
}

/* Against a plain read of each tensor. */
static void check_all(void) {
    for (size_t i = 0; i < d.n_items; i++) {
        const struct st_tensor *t = d.item[i].t;
        unsigned char *want = malloc(t->bytes);

        ck_assert_uint_eq(got_bytes[i], t->bytes);
        ck_assert_int_eq(st_read(model_index_file(x, d.item[i].file), t, 0, want, t->bytes, &err), 0);
        ck_assert_msg(memcmp(want, got[i], t->bytes) == 0, "%s differs", t->name);
        free(want);
    }
    ck_assert_uint_eq(last_done, d.bytes);
    ck_assert_uint_eq(last_total, d.bytes);
}

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    sink_result = 0;
    sink_calls = 0;
    stop_at = UINT64_MAX;
    ck_assert_int_eq(posix_memalign(&staging, 4096, 1 << 20), 0);
}

static void teardown(void) {
    close_model();
    free(staging);
    if (dir.dir[0])
        ckpt_remove(&dir);
    leakcheck_teardown();
}

static const uint64_t WINDOWS[] = {4096, 4097, 5000, 65536, 100001, 1 << 20};

START_TEST(whole_twin) {
    open_model(ckpt_model("twin-a"), NULL);
    ck_assert_msg(load(WINDOWS[_i]) == 0, "%s", err.msg);
    check_all();
}
END_TEST

START_TEST(whole_nano) {
    open_model(ckpt_model("nano"), NULL);
    ck_assert_msg(load(1 << 20) == 0, "%s", err.msg);
    check_all();
    /* Small neighbours share a read: far fewer windows than tensors would need one by one is not asserted,
     * only that each tensor was cut no more often than the buffer demands. */
    ck_assert_uint_le(sink_calls, 3 * d.n_items);
}
END_TEST

/* ---- reads that misbehave ---- */

struct bad_io {
    uint64_t fail_at; /* a read that covers this byte of a file ... */
    int error;        /* ... fails with this errno, 0 = says end of file */
    size_t max_bytes; /* at most so much per call */
    unsigned eintr;   /* every n-th call is interrupted */
    unsigned calls;
};

static ssize_t bad_readv(void *ctx, int fd, const struct iovec *iov, int n_iov, off_t at) {
    struct bad_io *b = ctx;
    size_t room = b->max_bytes, total = 0;
    struct iovec cut[64];
    int n = 0;

    b->calls++;
    if (b->eintr && b->calls % b->eintr == 0) {
        errno = EINTR;
        return -1;
    }
    for (; n < n_iov && room > 0; n++) {
        cut[n] = iov[n];
        if (cut[n].iov_len > room)
            cut[n].iov_len = room;
        room -= cut[n].iov_len;
        total += cut[n].iov_len;
    }
    if (b->fail_at && (uint64_t)at + total > b->fail_at) {
        if ((uint64_t)at >= b->fail_at || b->error) {
            errno = b->error;
            return b->error ? -1 : 0;
        }
    }
    return preadv(fd, cut, n, at);
}

START_TEST(short_and_interrupted_reads) {
    struct bad_io b = {.max_bytes = 1000, .eintr = 3};

    open_model(ckpt_model("twin-a"), &(struct st_io){bad_readv, &b});
    b.max_bytes = 7919; /* prime: cuts inside every kind of tensor */
    ck_assert_msg(load(65536) == 0, "%s", err.msg);
    check_all();
    ck_assert_uint_gt(b.calls, 1000);
}
END_TEST

START_TEST(read_error) {
    struct bad_io b = {.max_bytes = 1 << 20};

    open_model(ckpt_model("twin-a"), &(struct st_io){bad_readv, &b});
    b.fail_at = 5000000;
    b.error = EIO;
    ckpt_expect("EIO", load(65536), -EIO, &err,
                (const char *const[]){"model-00001-of-00001.safetensors",
                                      "tensor model.language_model.layers.2.", "reading at byte",
                                      "Input/output error", NULL});
    ck_assert_uint_lt(last_done, d.bytes);
}
END_TEST

START_TEST(end_of_file_in_the_middle) {
    struct bad_io b = {.max_bytes = 1 << 20};

    open_model(ckpt_model("twin-a"), &(struct st_io){bad_readv, &b});
    b.fail_at = 5000000;
    ckpt_expect("EOF", load(65536), -EIO, &err,
                (const char *const[]){"model-00001-of-00001.safetensors",
                                      "tensor model.language_model.layers.2.", "end of the file", "shrank",
                                      NULL});
}
END_TEST

START_TEST(header_read_error) {
    struct bad_io b = {.max_bytes = 100, .fail_at = 200, .error = EIO};

    ckpt_expect("EIO", model_index_open(&x, ckpt_model("twin-a"), &(struct st_io){bad_readv, &b}, &err), -EIO,
                &err, (const char *const[]){"model-00001-of-00001.safetensors", "header", "at byte", NULL});
    b.error = 0;
    ckpt_expect("EOF", model_index_open(&x, ckpt_model("twin-a"), &(struct st_io){bad_readv, &b}, &err), -EIO,
                &err, (const char *const[]){"model-00001-of-00001.safetensors", "header", NULL});
}
END_TEST

/* A private copy of the shard, so that it may be spoilt while it is open. */
static void own_copy(void) {
    size_t n;
    char *all;

    ckpt_copy(&dir, "twin-a");
    all = ckpt_read(&dir, "model-00001-of-00001.safetensors", &n);
    ckpt_write(&dir, "model-00001-of-00001.safetensors", all, n);
    free(all);
}

START_TEST(file_shrinks) {
    own_copy();
    open_model(dir.dir, NULL);
    ck_assert_int_eq(truncate(ckpt_path(&dir, "model-00001-of-00001.safetensors"), 9000000), 0);
    ckpt_expect("shrunk", load(65536), -EIO, &err,
                (const char *const[]){"model-00001-of-00001.safetensors", "byte 9000000", "shrank", NULL});
}
END_TEST

START_TEST(file_changes) {
    FILE *f;

    own_copy();
    open_model(dir.dir, NULL);
    f = fopen(ckpt_path(&dir, "model-00001-of-00001.safetensors"), "a");
    ck_assert_int_eq(fputc('x', f), 'x');
    fclose(f);
    ckpt_expect("changed", load(65536), -ESTALE, &err,
                (const char *const[]){"model-00001-of-00001.safetensors", "changes while", NULL});
}
END_TEST

/* Reads as the file is, but for `n` bytes from `at` on. */
struct planted {
    uint64_t at, n;
    unsigned char bytes[4];
};

static ssize_t planted_readv(void *ctx, int fd, const struct iovec *iov, int n_iov, off_t at) {
    const struct planted *p = ctx;
    ssize_t r = preadv(fd, iov, n_iov, at);
    uint64_t from = (uint64_t)at;

    for (int i = 0; i < n_iov && r > 0; from += iov[i++].iov_len)
        for (uint64_t k = 0; k < p->n; k++)
            if (p->at + k >= from && p->at + k - from < iov[i].iov_len)
                ((unsigned char *)iov[i].iov_base)[p->at + k - from] = p->bytes[k];
    return r;
}

/* One number that is none, anywhere in a tensor of either format. The largest finite ones are fine. */
START_TEST(numbers_that_are_none) {
    static const struct {
        const char *tensor;
        unsigned char bytes[4];
        bool fine;
    } cases[] = {
        {"lm_head.weight", {0xc0, 0x7f}, false},      {"lm_head.weight", {0xc0, 0xff}, false},
        {"lm_head.weight", {0x80, 0x7f}, false},      {"lm_head.weight", {0x80, 0xff}, false},
        {"lm_head.weight", {0x81, 0x7f}, false},      {"lm_head.weight", {0x7f, 0x7f}, true},
        {"lm_head.weight", {0x7f, 0xff}, true},       {"A_log", {0, 0, 0xc0, 0x7f}, false},
        {"A_log", {1, 0, 0x80, 0xff}, false},         {"A_log", {0, 0, 0x80, 0x7f}, false},
        {"A_log", {0xff, 0xff, 0x7f, 0x7f}, true},    {"A_log", {0xc0, 0x7f, 0xc0, 0x3f}, true},
        {"hc_attn_scale", {0, 0, 0x80, 0xff}, false}, {"dt_bias", {0xff, 0xff, 0xff, 0xff}, false},
    };
    struct planted p = {0};
    const struct st_io io = {planted_readv, &p};
    struct ckpt_rng rng = {1};

    open_model(ckpt_model("twin-a"), &io);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct model_item *it = NULL;
        uint64_t n;
        char number[32];

        for (size_t i = 0; i < d.n_items && !it; i++)
            if (strstr(d.item[i].t->name, cases[c].tensor))
                it = &d.item[i];
        ck_assert_ptr_nonnull(it);
        p.n = it->k.store.format == KERN_F32 ? 4 : 2;
        memcpy(p.bytes, cases[c].bytes, 4);
        for (int round = 0; round < 3; round++) {
            n = round == 0 ? 0 : round == 1 ? it->t->bytes / p.n - 1 : ckpt_rand(&rng) % (it->t->bytes / p.n);
            p.at = it->t->offset + n * p.n;
            memset(got_bytes, 0, d.n_items * sizeof *got_bytes);
            snprintf(number, sizeof number, "number %llu,", (unsigned long long)n);
            if (cases[c].fine)
                ck_assert_msg(load(65536) == 0, "%s", err.msg);
            else
                ckpt_expect(cases[c].tensor, load(65536), -EBADMSG, &err,
                            (const char *const[]){"model-00001-of-00001.safetensors", it->t->name, number,
                                                  "finite numbers", NULL});
        }
    }
}
END_TEST

START_TEST(sink_refuses) {
    open_model(ckpt_model("twin-a"), NULL);
    sink_result = -ENOSPC;
    ckpt_expect("sink", load(65536), -ENOSPC, &err,
                (const char *const[]){"embed_tokens.weight", "bytes 0+65536", "No space", NULL});
    ck_assert_uint_eq(sink_calls, 1);
}
END_TEST

START_TEST(stopped) {
    open_model(ckpt_model("twin-a"), NULL);
    stop_at = 3000000;
    ckpt_expect("stopped", load(65536), -ECANCELED, &err, (const char *const[]){"stopped after", NULL});
    ck_assert(last_done >= 3000000 && last_done < 3100000);
}
END_TEST

START_TEST(small_buffer) {
    open_model(ckpt_model("twin-a"), NULL);
    ckpt_expect("small", load(4095), -EINVAL, &err, (const char *const[]){"4095", "4096", NULL});
}
END_TEST

int main(void) {
    Suite *s = suite_create("model_loader");
    TCase *tc = tcase_create("loader");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, whole_twin, 0, (int)(sizeof WINDOWS / sizeof *WINDOWS));
    tcase_add_test(tc, whole_nano);
    tcase_add_test(tc, short_and_interrupted_reads);
    tcase_add_test(tc, read_error);
    tcase_add_test(tc, end_of_file_in_the_middle);
    tcase_add_test(tc, header_read_error);
    tcase_add_test(tc, file_shrinks);
    tcase_add_test(tc, file_changes);
    tcase_add_test(tc, numbers_that_are_none);
    tcase_add_test(tc, sink_refuses);
    tcase_add_test(tc, stopped);
    tcase_add_test(tc, small_buffer);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
