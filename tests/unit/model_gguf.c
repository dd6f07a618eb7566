/* SPDX-License-Identifier: MIT */
/* The GGUF container: what a file says is found again, and every way to lie about counts, types, places and
 * sizes is refused. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptgguf.h"
#include "gguf.h"
#include "index.h"
#include "leakcheck.h"

static struct ckpt dir;
static struct ckpt_gguf g;
static struct xerr err;
static struct gguf *r;
static struct model_index *x;

static void setup(void) {
    leakcheck_setup();
    memset(&err, 0, sizeof err);
    ckpt_gguf_init(&g);
    ckpt_empty(&dir);
    r = NULL;
    x = NULL;
}

static void teardown(void) {
    r = gguf_free(r);
    x = model_index_close(x);
    ckpt_gguf_done(&g);
    ckpt_remove(&dir);
    leakcheck_teardown();
}

struct mem {
    const unsigned char *p;
    size_t n;
    uint64_t most; /* read at once */
};

static int read_mem(void *ctx, uint64_t at, void *buf, uint64_t n) {
    struct mem *m = ctx;

    ck_assert(at <= m->n && n <= m->n - at);
    m->most = n > m->most ? n : m->most;
    memcpy(buf, m->p + at, n);
    return 0;
}

static int parse(const unsigned char *p, size_t n) {
    struct mem m = {p, n, 0};

    return gguf_read(read_mem, &m, n, "x.gguf", &r, &err);
}

static void small(void) {
    static const uint32_t three[] = {7, 0, 4294967295u};
    static const float two[] = {0.5f, -1};
    static const char *const words[] = {"a", "", "\xc3\xa4"};

    ckpt_gguf_text(&g, "general.architecture", "glm5next");
    ckpt_gguf_uint(&g, "z.uint", 12);
    ckpt_gguf_u16(&g, "z.u16", 65535);
    ckpt_gguf_i32(&g, "z.minus", -3);
    ckpt_gguf_real(&g, "z.real", 2.5f);
    ckpt_gguf_bool(&g, "z.yes", 1);
    ckpt_gguf_uints(&g, "z.uints", three, 3);
    ckpt_gguf_reals(&g, "z.reals", two, 2);
    ckpt_gguf_texts(&g, "z.words", words, 3);
    ckpt_gguf_put(&g, "b.weight", 0, NULL, 24, 2, (uint64_t)3, (uint64_t)2);
    ckpt_gguf_put(&g, "a.weight", 12, NULL, 3 * 144, 2, (uint64_t)256, (uint64_t)3);
    ckpt_gguf_put(&g, "c", 39, NULL, 17, 1, (uint64_t)32);
    for (size_t i = 0; i < g.n_t; i++)
        for (size_t k = 0; k < g.t[i].n; k++)
            g.t[i].bytes[k] = (unsigned char)(i * 100 + k);
}

START_TEST(what_is_written_is_found) {
    const struct gguf_tensor *t;
    unsigned char *all;
    const char *s;
    uint64_t u, at = 0;
    double f;
    size_t n;
    bool b;

    small();
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    ck_assert_msg(parse(all, n) == 0, "%s", err.msg);
    ck_assert_uint_eq(gguf_keys(r), 9);
    ck_assert_uint_eq(gguf_tensors(r), 3);
    ck_assert(gguf_uint(gguf_find(r, "z.uint"), 0, &u) && u == 12);
    ck_assert(gguf_uint(gguf_find(r, "z.u16"), 0, &u) && u == 65535);
    ck_assert(!gguf_uint(gguf_find(r, "z.minus"), 0, &u));
    ck_assert(!gguf_uint(gguf_find(r, "z.real"), 0, &u));
    ck_assert(!gguf_uint(gguf_find(r, "nothing"), 0, &u));
    ck_assert(gguf_real(gguf_find(r, "z.real"), 0, &f) && f == 2.5);
    ck_assert(gguf_real(gguf_find(r, "z.uint"), 0, &f) && f == 12);
    ck_assert(gguf_bool(gguf_find(r, "z.yes"), &b) && b);
    ck_assert(!gguf_bool(gguf_find(r, "z.uint"), &b));
    ck_assert(gguf_uint(gguf_find(r, "z.uints"), 2, &u) && u == 4294967295u);
    ck_assert(!gguf_uint(gguf_find(r, "z.uints"), 3, &u));
    ck_assert(gguf_real(gguf_find(r, "z.reals"), 1, &f) && f == -1);
    ck_assert(gguf_string(gguf_find(r, "general.architecture"), &s, &n) && n == 8 &&
              memcmp(s, "glm5next", 8) == 0);
    ck_assert(!gguf_string(gguf_find(r, "z.words"), &s, &n));
    ck_assert(gguf_next_string(gguf_find(r, "z.words"), &at, &s, &n) && n == 1 && *s == 'a');
    ck_assert(gguf_next_string(gguf_find(r, "z.words"), &at, &s, &n) && n == 0);
    ck_assert(gguf_next_string(gguf_find(r, "z.words"), &at, &s, &n) && n == 2);
    ck_assert(!gguf_next_string(gguf_find(r, "z.words"), &at, &s, &n));
    t = gguf_tensor_at(r, 0);
    ck_assert_str_eq(t->name, "a.weight");
    ck_assert(t->type == 12 && t->n_dims == 2 && t->ne[0] == 256 && t->ne[1] == 3 && t->bytes == 432);
    ck_assert_uint_eq(all[t->offset], 100);
    t = gguf_tensor_at(r, 2);
    ck_assert_str_eq(t->name, "c");
    ck_assert(t->bytes == 17 && all[t->offset] == 200 && all[t->offset + 16] == 216);
    free(all);
}
END_TEST

/* A header longer than what is read of it first. */
START_TEST(long_headers) {
    const char **words = calloc(50000, sizeof *words);
    unsigned char *all;
    uint64_t at = 0, count = 0;
    const char *s;
    size_t n;

    for (int i = 0; i < 50000; i++)
        words[i] = i % 2 ? "merge of" : "x";
    ckpt_gguf_texts(&g, "long", words, 50000);
    small();
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    ck_assert_msg(parse(all, n) == 0, "%s", err.msg);
    while (gguf_next_string(gguf_find(r, "long"), &at, &s, &n))
        ck_assert_uint_eq(n, count++ % 2 ? 8 : 1);
    ck_assert_uint_eq(count, 50000);
    free(all);
    free(words);
}
END_TEST

/* Every cut of a good file is refused and says where. */
START_TEST(every_cut) {
    unsigned char *all;
    size_t n, end;

    small();
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    end = n - 15; /* padding behind the last 17 bytes may be missing */
    for (size_t cut = 0; cut < end; cut++) {
        unsigned char *copy = malloc(cut ? cut : 1); /* of exactly its size, for the sanitizer */

        memcpy(copy, all, cut);
        ck_assert_msg(parse(copy, cut) == -EBADMSG, "cut at %zu of %zu", cut, n);
        ck_assert_ptr_nonnull(strstr(err.msg, "x.gguf"));
        free(copy);
    }
    ck_assert_msg(parse(all, end) == 0, "%s", err.msg);
    free(all);
}
END_TEST

static void put_at(unsigned char *p, uint64_t v, int n) {
    for (int i = 0; i < n; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}

/* Where a string of the file begins. */
static size_t find(const unsigned char *all, size_t n, const char *s) {
    for (size_t i = 0; i + strlen(s) <= n; i++)
        if (memcmp(all + i, s, strlen(s)) == 0)
            return i;
    ck_abort_msg("%s: not in the file", s);
}

static const struct {
    const char *label, *near; /* NULL: the file's beginning */
    size_t off;
    int n;
    uint64_t v;
    int code;
    const char *has;
} LIES[] = {
    {"no magic", NULL, 0, 1, 'g', -EBADMSG, "GGUF"},
    {"version 1", NULL, 4, 4, 1, -ENOTSUP, "version 1"},
    {"version 4", NULL, 4, 4, 4, -ENOTSUP, "version 4"},
    {"turned around", NULL, 4, 4, 0x03000000, -ENOTSUP, "big-endian"},
    {"too many tensors", NULL, 8, 8, 1 << 21, -EBADMSG, "at most"},
    {"negative tensors", NULL, 8, 8, UINT64_MAX, -EBADMSG, "at most"},
    {"one tensor more", NULL, 8, 8, 4, -EBADMSG, NULL},
    {"negative keys", NULL, 16, 8, UINT64_MAX, -EBADMSG, "at most"},
    {"endless key", "z.uint", (size_t)-8, 8, UINT64_MAX, -EBADMSG, "name of"},
    {"empty key", "z.uint", (size_t)-8, 8, 0, -EBADMSG, "name of 0"},
    {"key behind the end", "z.uint", (size_t)-8, 8, 60000, -EBADMSG, "left in the file"},
    {"zero in a key", "z.uint", 2, 1, 0, -EBADMSG, "UTF-8"},
    {"bytes in a key", "z.uint", 2, 1, 0xff, -EBADMSG, "UTF-8"},
    {"value type 13", "z.uint", 6, 4, 13, -EBADMSG, "type 13"},
    {"truth of 2", "z.yes", 9, 1, 2, -EBADMSG, "z.yes"},
    {"array of arrays", "z.uints", 11, 4, 9, -EBADMSG, "array of arrays"},
    {"endless array", "z.uints", 15, 8, UINT64_MAX / 4, -EBADMSG, "z.uints"},
    {"array whose bytes overflow", "z.uints", 15, 8, UINT64_MAX / 2, -EBADMSG, "z.uints"},
    {"endless strings", "z.words", 15, 8, UINT64_MAX, -EBADMSG, "z.words"},
    {"a string behind the end", "z.words", 23, 8, UINT64_MAX - 8, -EBADMSG, "z.words"},
    {"a long text", "general.architecture", 24, 8, UINT64_MAX, -EBADMSG, "general.architecture"},
    {"name of 64", "b.weight", (size_t)-8, 8, 64, -EBADMSG, "1 to 63"},
    {"no dimensions", "b.weight", 8, 4, 0, -EBADMSG, "b.weight"},
    {"five dimensions", "b.weight", 8, 4, 5, -EBADMSG, "5 dimensions"},
    {"a dimension of 0", "b.weight", 12, 8, 0, -EBADMSG, "dimension of 0"},
    {"a negative dimension", "b.weight", 12, 8, UINT64_MAX, -EBADMSG, "b.weight"},
    {"an absurd dimension", "b.weight", 12, 8, UINT64_C(1) << 62, -EBADMSG, "b.weight"},
    {"a type that is gone", "b.weight", 28, 4, 4, -ENOTSUP, "type 4"},
    {"Q4_0", "b.weight", 28, 4, 2, -ENOTSUP, "type 2"},
    {"a type of the future", "b.weight", 28, 4, 99, -ENOTSUP, "type 99"},
    {"rows that are no blocks", "a.weight", 12, 8, 255, -EBADMSG, "multiple of 256"},
    {"more weights than bytes", "a.weight", 20, 8, 300, -EBADMSG, "a.weight"},
    {"fewer weights than place", "a.weight", 20, 8, 1, -EBADMSG, "behind the tensor before it"},
    {"over the tensor before", "a.weight", 32, 8, 0, -EBADMSG, "expected 32"},
    {"a gap before", "a.weight", 32, 8, 64, -EBADMSG, "expected 32"},
    {"an odd place", "a.weight", 32, 8, 33, -EBADMSG, "expected 32"},
    {"the end of numbers", "a.weight", 32, 8, UINT64_MAX - 16, -EBADMSG, "expected 32"},
};

START_TEST(lies) {
    unsigned char *all;
    size_t n, at;

    small();
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    at = (LIES[_i].near ? find(all, n, LIES[_i].near) : 0) + LIES[_i].off;
    put_at(all + at, LIES[_i].v, LIES[_i].n);
    ckpt_expect(LIES[_i].label, parse(all, n), LIES[_i].code, &err,
                (const char *const[]){"x.gguf", "found ", "expected ", LIES[_i].has, NULL});
    ck_assert_ptr_null(r);
    free(all);
}
END_TEST

START_TEST(twice_and_trailing) {
    unsigned char *all;
    size_t n;

    small();
    ckpt_gguf_uint(&g, "z.uint", 12);
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    ckpt_expect("key", parse(all, n), -EBADMSG, &err, (const char *const[]){"z.uint", "twice", NULL});
    free(all);
    ckpt_gguf_done(&g);
    ckpt_gguf_init(&g);
    small();
    snprintf(g.t[2].name, sizeof g.t[2].name, "b.weight");
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    ckpt_expect("tensor", parse(all, n), -EBADMSG, &err, (const char *const[]){"b.weight", "twice", NULL});
    free(all);
    snprintf(g.t[2].name, sizeof g.t[2].name, "c");
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    all = realloc(all, n + 64);
    memset(all + n, 0, 64);
    ckpt_expect("behind", parse(all, n + 64), -EBADMSG, &err,
                (const char *const[]){"behind the last tensor", NULL});
    free(all);
}
END_TEST

START_TEST(alignments) {
    static const uint32_t bad[] = {0, 3, 48, 1u << 31};
    unsigned char *all;
    size_t n;

    for (size_t i = 0; i < 4; i++) {
        ckpt_gguf_uint(&g, "general.alignment", bad[i]);
        all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
        ckpt_expect("alignment", parse(all, n), -EBADMSG, &err,
                    (const char *const[]){"general.alignment", "power of two", NULL});
        free(all);
        ckpt_gguf_done(&g);
        ckpt_gguf_init(&g);
    }
    ckpt_gguf_uint(&g, "general.alignment", 256);
    g.alignment = 256;
    small();
    all = ckpt_gguf_bytes(&g, 0, SIZE_MAX, &n);
    ck_assert_msg(parse(all, n) == 0, "%s", err.msg);
    ck_assert_uint_eq(gguf_tensor_at(r, 0)->offset % 256, 0);
    free(all);
}
END_TEST

/* ---- files of a directory ---- */

static int open_dir(void) {
    x = model_index_close(x);
    return model_index_open(&x, dir.dir, NULL, &err);
}

static void part(const char *file, unsigned no, unsigned count, int total, size_t from, size_t to) {
    struct ckpt_gguf h = g;
    unsigned char *all;
    size_t n;

    memset(&h.kv, 0, sizeof h.kv);
    h.n_keys = 0;
    ckpt_gguf_u16(&h, "split.no", no);
    ckpt_gguf_u16(&h, "split.count", count);
    ckpt_gguf_i32(&h, "split.tensors.count", total);
    all = ckpt_gguf_bytes(&h, from, to, &n);
    ckpt_write(&dir, file, all, n);
    free(all);
    free(h.kv.p);
}

START_TEST(one_file) {
    const struct model_entry *en;
    unsigned char byte;

    small();
    ckpt_gguf_write(&g, &dir, "model-Q4_K_M.gguf");
    ckpt_write(&dir, "mmproj-F16.gguf", "no", 2);
    ck_assert_msg(open_dir() == 0, "%s", err.msg);
    ck_assert_uint_eq(model_index_count(x), 3);
    ck_assert_ptr_nonnull(model_index_gguf(x));
    en = model_index_find(x, "b.weight");
    ck_assert(en && en->t->dtype == ST_F32 && en->t->n_dims == 2 && en->t->shape[0] == 2 &&
              en->t->shape[1] == 3);
    en = model_index_find(x, "a.weight");
    ck_assert(en && en->t->dtype == ST_GGUF_Q4_K && en->t->shape[0] == 3 && en->t->shape[1] == 256);
    ck_assert_int_eq(st_read(model_index_file(x, 0), en->t, 5, &byte, 1, &err), 0);
    ck_assert_uint_eq(byte, 105);
}
END_TEST

START_TEST(several_files) {
    small();
    part("m-00001-of-00002.gguf", 0, 2, 3, 0, 1);
    part("m-00002-of-00002.gguf", 1, 2, 3, 1, 3);
    ck_assert_msg(open_dir() == 0, "%s", err.msg);
    ck_assert_uint_eq(model_index_files(x), 2);
    ck_assert_uint_eq(model_index_count(x), 3);
    ck_assert_uint_eq(model_index_find(x, "c")->file, 1);
    part("m-00002-of-00002.gguf", 0, 2, 3, 1, 3);
    ckpt_expect("number", open_dir(), -EINVAL, &err,
                (const char *const[]){"m-00002", "split.no", "expected 1", NULL});
    part("m-00002-of-00002.gguf", 1, 3, 3, 1, 3);
    ckpt_expect("count", open_dir(), -EINVAL, &err, (const char *const[]){"m-00002", "split.count", NULL});
    part("m-00002-of-00002.gguf", 1, 2, 4, 1, 3);
    ckpt_expect("total", open_dir(), -EINVAL, &err,
                (const char *const[]){"split.tensors.count", "expected 3", NULL});
    part("m-00002-of-00002.gguf", 1, 2, 3, 0, 3);
    ckpt_expect("in two", open_dir(), -EINVAL, &err, (const char *const[]){"split.tensors.count", NULL});
    part("m-00001-of-00002.gguf", 0, 2, 4, 0, 1);
    part("m-00002-of-00002.gguf", 1, 2, 4, 0, 3);
    ckpt_expect("in two, counted", open_dir(), -EBADMSG, &err,
                (const char *const[]){"b.weight", "too", NULL});
    remove(ckpt_path(&dir, "m-00001-of-00002.gguf"));
    ckpt_expect("first missing", open_dir(), -ENOENT, &err,
                (const char *const[]){"part 2 of 2", "part 1", NULL});
    part("m-00001-of-00002.gguf", 0, 2, 3, 0, 1);
    remove(ckpt_path(&dir, "m-00002-of-00002.gguf"));
    ckpt_expect("last missing", open_dir(), -ENOENT, &err,
                (const char *const[]){"1 parts", "expected 2", NULL});
}
END_TEST

START_TEST(more_than_one_model) {
    small();
    ckpt_gguf_write(&g, &dir, "a.gguf");
    ckpt_gguf_write(&g, &dir, "b.gguf");
    ckpt_expect("two", open_dir(), -EINVAL, &err,
                (const char *const[]){"a.gguf", "b.gguf", "one model", NULL});
    remove(ckpt_path(&dir, "b.gguf"));
    ckpt_write_st(&dir, "model.safetensors", "{}", NULL, 0);
    ckpt_expect("both", open_dir(), -EINVAL, &err,
                (const char *const[]){"a.gguf", "model.safetensors", NULL});
    remove(ckpt_path(&dir, "model.safetensors"));
    ck_assert_int_eq(open_dir(), 0);
    ckpt_write(&dir, "a.gguf", "GGUF", 4);
    ckpt_expect("cut", open_dir(), -EBADMSG, &err, (const char *const[]){"a.gguf", "truncated", NULL});
}
END_TEST

int main(void) {
    Suite *s = suite_create("model_gguf");
    TCase *tc = tcase_create("gguf");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_is_written_is_found);
    tcase_add_test(tc, long_headers);
    tcase_add_test(tc, every_cut);
    tcase_add_loop_test(tc, lies, 0, (int)(sizeof LIES / sizeof *LIES));
    tcase_add_test(tc, twice_and_trailing);
    tcase_add_test(tc, alignments);
    tcase_add_test(tc, one_file);
    tcase_add_test(tc, several_files);
    tcase_add_test(tc, more_than_one_model);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
