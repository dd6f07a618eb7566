/* SPDX-License-Identifier: MIT */
/* The safetensors container: what a good file gives, every refusal with its own words, and random damage. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt.h"
#include "leakcheck.h"
#include "safetensors.h"
#include "stheader.h"

static struct ckpt dir;
static struct xerr err;

static void setup(void) {
    leakcheck_setup();
    ckpt_empty(&dir);
    memset(&err, 0, sizeof err);
}

static void teardown(void) {
    ckpt_remove(&dir);
    leakcheck_teardown();
}

START_TEST(good_file) {
    static const unsigned char data[18] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
    unsigned char buf[18];
    struct st_file *f;
    const struct st_tensor *t;
    char shape[32];

    /* Out of order, escapes in names, an empty tensor, a scalar, metadata, padding, white space. */
    ckpt_write_st(&dir, "a.safetensors",
                  "{ \"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},\n"
                  "\"__metadata__\":{\"format\":\"pt\",\"\\u00e9\":\"\\ud83d\\ude00\"},"
                  "\"a\\u017a\\n\\\"\":{\"shape\":[],\"data_offsets\":[0,4],\"dtype\":\"F32\"} ,"
                  "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[16,16]},"
                  "\"f4\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[16,18]}}      ",
                  data, sizeof data);
    ck_assert_msg(st_open(&f, ckpt_path(&dir, "a.safetensors"), NULL, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(st_count(f), 4);
    ck_assert_uint_eq(st_data_bytes(f), 18);
    ck_assert_str_eq(st_path(f), ckpt_path(&dir, "a.safetensors"));
    ck_assert_str_eq(st_at(f, 0)->name, "a\xc5\xba\n\"");
    ck_assert_str_eq(st_at(f, 1)->name, "b");
    ck_assert_ptr_null(st_at(f, 4));
    ck_assert_ptr_null(st_find(f, "c"));
    ck_assert_ptr_null(st_find(f, ""));

    t = st_find(f, "b");
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(t->dtype, ST_BF16);
    ck_assert_str_eq(st_shape_text(t, shape, sizeof shape), "[2,3]");
    ck_assert_uint_eq(t->bytes, 12);
    memset(buf, 0xee, sizeof buf);
    ck_assert_int_eq(st_read(f, t, 0, buf, 12, &err), 0);
    ck_assert_int_eq(memcmp(buf, data + 4, 12), 0);
    ck_assert_int_eq(st_read(f, t, 5, buf, 7, &err), 0);
    ck_assert_int_eq(memcmp(buf, data + 9, 7), 0);
    ckpt_expect("read beyond", st_read(f, t, 6, buf, 7, &err), -ERANGE, &err,
                (const char *const[]){"a.safetensors", "tensor b", "6+7", "12", NULL});
    ckpt_expect("read wrapping", st_read(f, t, UINT64_MAX, buf, 2, &err), -ERANGE, &err,
                (const char *const[]){"tensor b", NULL});

    t = st_find(f, "a\xc5\xba\n\"");
    ck_assert_uint_eq(t->n_dims, 0);
    ck_assert_str_eq(st_shape_text(t, shape, sizeof shape), "[]");
    ck_assert_uint_eq(st_find(f, "e")->bytes, 0);
    ck_assert_uint_eq(st_find(f, "f4")->bytes, 2);
    ck_assert_int_eq(st_unchanged(f, &err), 0);
    ck_assert_ptr_null(st_close(f));
    ck_assert_ptr_null(st_close(NULL));
}
END_TEST

START_TEST(empty_file_of_no_tensors) {
    struct st_file *f;

    ckpt_write_st(&dir, "a.safetensors", "{}", NULL, 0);
    ck_assert_int_eq(st_open(&f, ckpt_path(&dir, "a.safetensors"), NULL, &err), 0);
    ck_assert_uint_eq(st_count(f), 0);
    ck_assert_ptr_null(st_find(f, "x"));
    st_close(f);
}
END_TEST

#define T(name, dt, shape, off)                                                                              \
    "\"" name "\":{\"dtype\":\"" dt "\",\"shape\":" shape ",\"data_offsets\":" off "}"

static const struct {
    const char *label, *header;
    size_t data;
    const char *has[4];
} BAD[] = {
    /* 2: not one JSON object */
    {"not an object", "[1]", 0, {"byte 0", "0x5b", "'{' as the first byte"}},
    {"space before", " {}", 0, {"byte 0", "0x20", "'{' as the first byte"}},
    {"empty header", "", 0, {"byte 0", "the end", "'{' as the first byte"}},
    {"cut object", "{" T("a", "U8", "[1]", "[0,1]"), 1, {"the end", "',' or '}'"}},
    {"cut string", "{\"abc", 0, {"the end", "closing quote"}},
    {"trailing bytes", "{}x", 0, {"byte 2", "0x78", "only spaces"}},
    {"trailing newline", "{}\n", 0, {"byte 2", "0x0a", "only spaces"}},
    {"two objects", "{}{}", 0, {"byte 2", "0x7b", "only spaces"}},
    {"trailing comma", "{" T("a", "U8", "[1]", "[0,1]") ",}", 1, {"0x7d", "a tensor name"}},
    {"not UTF-8", "{\"\xff\":1}", 0, {"byte 2", "0xff", "UTF-8"}},
    {"overlong UTF-8", "{\"\xc0\xaf\":1}", 0, {"0xc0", "UTF-8"}},
    {"UTF-8 surrogate", "{\"\xed\xa0\x80\":1}", 0, {"0xed", "UTF-8"}},
    {"UTF-8 too large", "{\"\xf4\x90\x80\x80\":1}", 0, {"0xf4", "UTF-8"}},
    {"UTF-8 cut", "{\"\xe2\x82\":1}", 0, {"0xe2", "UTF-8"}},
    {"control character", "{\"a\001\":1}", 0, {"0x01", "no control character"}},
    {"bad escape", "{\"a\\x\":1}", 0, {"0x78", "a JSON escape"}},
    {"bad hex", "{\"a\\u12g4\":1}", 0, {"0x67", "four hexadecimal digits"}},
    {"lone high surrogate", "{\"a\\ud83d\":1}", 0, {"second half of a surrogate pair"}},
    {"lone low surrogate", "{\"a\\ude00\":1}", 0, {"no lone surrogate"}},
    {"high then not low", "{\"a\\ud83d\\u0041\":1}", 0, {"second half of a surrogate pair"}},
    {"NUL in a name", "{\"a\\u0000\":1}", 0, {"no NUL"}},
    {"no colon", "{\"a\" 1}", 0, {"0x31", "':' after a tensor name"}},
    {"entry no object", "{\"a\":1}", 0, {"tensor a", "0x31", "'{' of a tensor's entry"}},
    {"deep nesting", "{\"a\":[[[[[[[[[[", 0, {"tensor a", "0x5b", "'{' of a tensor's entry"}},
    /* 3: duplicates */
    {"name twice",
     "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[1,2]") "," T("a", "U8", "[1]", "[2,3]") "}",
     3,
     {"tensor a", "twice", "each name once"}},
    {"name twice through an escape",
     "{" T("a", "U8", "[1]", "[0,1]") "," T("\\u0061", "U8", "[1]", "[1,2]") "}",
     2,
     {"tensor a", "twice"}},
    {"metadata twice",
     "{\"__metadata__\":{},\"__metadata__\":{}}",
     0,
     {"__metadata__", "twice", "at most once"}},
    /* 4: fields */
    {"no dtype",
     "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}",
     1,
     {"tensor a", "no such field", "the field dtype"}},
    {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, {"tensor a", "the field shape"}},
    {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, {"tensor a", "the field data_offsets"}},
    {"no fields", "{\"a\":{}}", 0, {"tensor a", "the field dtype"}},
    {"extra field",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}",
     1,
     {"tensor a", "found more", "only the fields"}},
    {"field twice",
     "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1,
     {"tensor a", "found dtype", "once, not twice"}},
    {"unknown dtype",
     "{" T("a", "F8", "[1]", "[0,1]") "}",
     1,
     {"tensor a", "found F8", "a dtype of the safetensors"}},
    {"dtype no string",
     "{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}",
     1,
     {"tensor a", "a dtype string"}},
    {"negative shape",
     "{" T("a", "U8", "[-1]", "[0,1]") "}",
     1,
     {"tensor a", "0x2d", "non-negative integer"}},
    {"fractional shape",
     "{" T("a", "U8", "[1.0]", "[0,1]") "}",
     1,
     {"tensor a", "0x2e", "non-negative integer"}},
    {"exponent shape",
     "{" T("a", "U8", "[1e0]", "[0,1]") "}",
     1,
     {"tensor a", "0x65", "non-negative integer"}},
    {"leading zero", "{" T("a", "U8", "[01]", "[0,1]") "}", 1, {"tensor a", "non-negative integer"}},
    {"shape beyond 2^63",
     "{" T("a", "U8", "[9223372036854775809]", "[0,1]") "}",
     1,
     {"tensor a", "at most 2^63"}},
    {"shape beyond 2^64",
     "{" T("a", "U8", "[99999999999999999999999]", "[0,1]") "}",
     1,
     {"tensor a", "at most 2^63"}},
    {"shape no list", "{" T("a", "U8", "1", "[0,1]") "}", 1, {"tensor a", "0x31", "'[' of the shape"}},
    {"shape of strings",
     "{" T("a", "U8", "[\"1\"]", "[0,1]") "}",
     1,
     {"tensor a", "0x22", "non-negative integer"}},
    {"shape trailing comma",
     "{" T("a", "U8", "[1,]", "[0,1]") "}",
     1,
     {"tensor a", "0x5d", "non-negative integer"}},
    {"nine dimensions", "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, {"tensor a", "at most 8"}},
    {"one offset", "{" T("a", "U8", "[1]", "[1]") "}", 1, {"tensor a", "exactly two"}},
    {"three offsets", "{" T("a", "U8", "[1]", "[0,1,2]") "}", 1, {"tensor a", "exactly two"}},
    {"offsets no list", "{" T("a", "U8", "[1]", "0") "}", 1, {"tensor a", "exactly two"}},
    {"negative offset", "{" T("a", "U8", "[1]", "[-1,0]") "}", 1, {"tensor a", "exactly two"}},
    /* 5: order of the data */
    {"first not at 0",
     "{" T("a", "U8", "[1]", "[1,2]") "}",
     2,
     {"tensor a", "data offset 1", "expected 0", "hole"}},
    {"hole",
     "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}",
     3,
     {"tensor b", "data offset 2", "expected 1", "hole"}},
    {"overlap",
     "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}",
     3,
     {"tensor b", "data offset 1", "expected 2", "overlaps"}},
    {"same place twice",
     "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[0,2]") "}",
     2,
     {"overlaps"}},
    {"end before begin",
     "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,1]") "}",
     1,
     {"tensor b", "[2,1]", "not before the beginning"}},
    /* 6: sizes */
    {"bits overflow",
     "{" T("a", "F64", "[4294967296,4294967296]", "[0,1]") "}",
     1,
     {"tensor a", "2^64 bits"}},
    {"half a byte", "{" T("a", "F4", "[3]", "[0,2]") "}", 2, {"tensor a", "12 bits", "whole bytes"}},
    {"size differs",
     "{" T("a", "F32", "[2,2]", "[0,12]") "}",
     12,
     {"tensor a", "12 bytes", "16 from dtype and shape"}},
    {"scalar size", "{" T("a", "F32", "[]", "[0,8]") "}", 8, {"tensor a", "8 bytes", "4 from"}},
    /* 7: length of the file */
    {"truncated data", "{" T("a", "U8", "[4]", "[0,4]") "}", 3, {"found 3 bytes", "expected 4", "truncated"}},
    {"trailing data",
     "{" T("a", "U8", "[4]", "[0,4]") "}",
     5,
     {"found 5 bytes", "expected 4", "trailing bytes"}},
    {"data of nothing", "{}", 1, {"found 1 bytes", "expected 0", "trailing bytes"}},
    {"huge extent",
     "{" T("a", "U8", "[1152921504606846976]", "[0,1152921504606846976]") "}",
     8,
     {"found 8 bytes", "1152921504606846976", "truncated"}},
    /* 8: metadata */
    {"metadata number", "{\"__metadata__\":{\"k\":1}}", 0, {"0x31", "every value of __metadata__"}},
    {"metadata null", "{\"__metadata__\":{\"k\":null}}", 0, {"every value of __metadata__"}},
    {"metadata list", "{\"__metadata__\":[]}", 0, {"'{' of __metadata__"}},
};

START_TEST(refusals) {
    struct st_file *f = (struct st_file *)&dir;
    const char *has[8] = {"x.safetensors", "found ", "expected "};

    memcpy(has + 3, BAD[_i].has, sizeof BAD[_i].has);
    ckpt_write_st(&dir, "x.safetensors", BAD[_i].header, NULL, BAD[_i].data);
    ckpt_expect(BAD[_i].label, st_open(&f, ckpt_path(&dir, "x.safetensors"), NULL, &err), -EBADMSG, &err,
                has);
    ck_assert_ptr_eq(f, (struct st_file *)&dir); /* outputs stay untouched on failure */
}
END_TEST

START_TEST(lengths) {
    struct st_file *f;
    unsigned char b[16] = {0};
    const char *p;

    for (size_t n = 0; n < 8; n++) {
        char found[16];

        snprintf(found, sizeof found, "found %zu", n);
        ckpt_write(&dir, "s.safetensors", b, n);
        ckpt_expect("short file", st_open(&f, ckpt_path(&dir, "s.safetensors"), NULL, &err), -EBADMSG, &err,
                    (const char *const[]){"s.safetensors", found, "at least 8", NULL});
    }
    b[0] = 9; /* header longer than the file */
    ckpt_write(&dir, "s.safetensors", b, sizeof b);
    ckpt_expect("long header", st_open(&f, ckpt_path(&dir, "s.safetensors"), NULL, &err), -EBADMSG, &err,
                (const char *const[]){"s.safetensors", "header length", "found 9", "8 bytes left",
                                      "truncated", NULL});
    memcpy(b, "version https://", sizeof b);
    ckpt_write(&dir, "s.safetensors", b, sizeof b);
    ckpt_expect("LFS pointer", st_open(&f, ckpt_path(&dir, "s.safetensors"), NULL, &err), -EBADMSG, &err,
                (const char *const[]){"s.safetensors", "expected tensors", "git lfs pull", NULL});
    memset(b, 0xff, 8);
    ckpt_write(&dir, "s.safetensors", b, sizeof b);
    ckpt_expect(
        "absurd header", st_open(&f, ckpt_path(&dir, "s.safetensors"), NULL, &err), -EBADMSG, &err,
        (const char *const[]){"header length", "found 18446744073709551615", "at most 100000000", NULL});
    /* 100,000,001 in a sparse file that is long enough */
    memcpy(b, "\x01\xe1\xf5\x05\0\0\0\0", 8);
    ckpt_write(&dir, "s.safetensors", b, 8);
    p = ckpt_path(&dir, "s.safetensors");
    ck_assert_int_eq(truncate(p, 200000000), 0);
    ckpt_expect("header over the cap", st_open(&f, p, NULL, &err), -EBADMSG, &err,
                (const char *const[]){"found 100000001", "at most 100000000", NULL});
}
END_TEST

START_TEST(not_a_file) {
    struct st_file *f;

    ckpt_expect("missing", st_open(&f, ckpt_path(&dir, "none"), NULL, &err), -ENOENT, &err,
                (const char *const[]){"none", "cannot open", NULL});
    ckpt_expect("directory", st_open(&f, dir.dir, NULL, &err), -EINVAL, &err,
                (const char *const[]){"glmd-ckpt-", "not a regular file", NULL});
    ck_assert_int_eq(mkfifo(ckpt_path(&dir, "fifo"), 0600), 0);
    ckpt_expect("fifo", st_open(&f, ckpt_path(&dir, "fifo"), NULL, &err), -EINVAL, &err,
                (const char *const[]){"fifo", "not a regular file", NULL});
}
END_TEST

/* Names come from strangers: a message must not carry their escape sequences to the terminal. */
START_TEST(messages_are_printable) {
    struct st_file *f;

    ckpt_write_st(&dir, "x.safetensors", "{\"\\u001b[2J\\u009b1m\":{}}", NULL, 0);
    ck_assert_int_eq(st_open(&f, ckpt_path(&dir, "x.safetensors"), NULL, &err), -EBADMSG);
    for (const char *c = err.msg; *c; c++)
        ck_assert_msg((unsigned char)*c >= 0x20 && (unsigned char)*c != 0x9b, "%s", err.msg);
}
END_TEST

START_TEST(symbolic_link) {
    struct st_file *f;

    ckpt_write_st(&dir, "blob", "{}", NULL, 0);
    ck_assert_int_eq(symlink("blob", ckpt_path(&dir, "x.safetensors")), 0);
    ck_assert_int_eq(st_open(&f, ckpt_path(&dir, "x.safetensors"), NULL, &err), 0);
    st_close(f);
}
END_TEST

START_TEST(changes_are_noticed) {
    unsigned char b[4];
    struct st_file *f;

    ckpt_write_st(&dir, "x.safetensors", "{" T("a", "U8", "[4]", "[0,4]") "}", NULL, 4);
    ck_assert_int_eq(st_open(&f, ckpt_path(&dir, "x.safetensors"), NULL, &err), 0);
    ck_assert_int_eq(truncate(ckpt_path(&dir, "x.safetensors"), 60), 0);
    ckpt_expect("shrunk", st_read(f, st_at(f, 0), 0, b, 4, &err), -EIO, &err,
                (const char *const[]){"x.safetensors", "tensor a", "end of the file", "shrank", NULL});
    ckpt_expect("changed", st_unchanged(f, &err), -ESTALE, &err,
                (const char *const[]){"x.safetensors", NULL});
    st_close(f);
}
END_TEST

/* A header as large as the real release's: 76,108 tensors. */
START_TEST(large_header) {
    enum { COUNT = 76108 };
    char *h = malloc(COUNT * 160 + 16), *o = h;
    struct st_file *f;
    struct timespec a, b;
    double s;

    *o++ = '{';
    for (int i = 0; i < COUNT; i++) {
        /* not in order of name */
        int k = (int)((unsigned)i * 48271u % COUNT);

        o += sprintf(o,
                     "%s\"model.language_model.layers.%d.mlp.experts.%d.gate_proj.weight_scale_inv\":{"
                     "\"dtype\":\"F32\","
                     "\"shape\":[1,1],\"data_offsets\":[%d,%d]}",
                     i ? "," : "", k / 2000, k % 2000, 4 * i, 4 * i + 4);
    }
    strcpy(o, "}");
    ckpt_write_st(&dir, "x.safetensors", h, NULL, 4 * COUNT);
    free(h);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    ck_assert_msg(st_open(&f, ckpt_path(&dir, "x.safetensors"), NULL, &err) == 0, "%s", err.msg);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    ck_assert_uint_eq(st_count(f), COUNT);
    ck_assert_ptr_nonnull(
        st_find(f, "model.language_model.layers.38.mlp.experts.107.gate_proj.weight_scale_inv"));
    st_close(f);
    s = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const double MUCH = 10;
#else
    const double MUCH = getenv("GLMD_EMULATED") ? 10 : 1;
#endif
    /* about 0.05 s in a plain build */
    ck_assert_msg(s < MUCH, "%.3f s of CPU time", s);
}
END_TEST

START_TEST(real_shards) {
    static const struct {
        const char *model, *file;
        size_t n;
    } REAL[] = {
        {"nano", "model-00001-of-00003.safetensors", 138},
        {"nano", "model-00002-of-00003.safetensors", 179},
        {"nano", "model-00003-of-00003.safetensors", 123},
        {"twin-a", "model-00001-of-00001.safetensors", 254},
    };
    struct st_file *f;
    char path[4200];

    for (size_t i = 0; i < sizeof REAL / sizeof *REAL; i++) {
        snprintf(path, sizeof path, "%s/%s", ckpt_model(REAL[i].model), REAL[i].file);
        ck_assert_msg(st_open(&f, path, NULL, &err) == 0, "%s", err.msg);
        ck_assert_uint_eq(st_count(f), REAL[i].n);
        st_close(f);
    }
}
END_TEST

/* The same reader opens evaluation outputs. */
START_TEST(golden_file) {
    const struct st_tensor *ids, *logits;
    struct st_file *f;
    int32_t id[4];

    ck_assert_msg(st_open(&f, "tests/golden/golden-nano.safetensors", NULL, &err) == 0, "%s", err.msg);
    ids = st_find(f, "count.ids");
    logits = st_find(f, "count.logits_last");
    ck_assert_ptr_nonnull(ids);
    ck_assert_ptr_nonnull(logits);
    ck_assert_int_eq(ids->dtype, ST_I32);
    ck_assert_uint_eq(ids->n_dims, 1);
    ck_assert_int_eq(logits->dtype, ST_F32);
    ck_assert_uint_eq(logits->bytes, 4096 * 4);
    ck_assert_int_eq(st_read(f, ids, 0, id, sizeof id, &err), 0);
    for (int i = 0; i < 4; i++)
        ck_assert(id[i] >= 0 && id[i] < 4096);
    st_close(f);
}
END_TEST

static const char SEED_HEADER[] =
    "{\"__metadata__\":{\"format\":\"pt\"}," T("model.a", "BF16", "[2,3]", "[0,12]") "," T(
        "b\\u00e9", "F32", "[]", "[12,16]") "," T("c", "F8_E4M3", "[16,1]", "[16,32]") "}   ";

/* Seeded damage to a small header: any outcome but a crash, a leak, or a tensor outside the data. */
START_TEST(random_damage) {
    struct ckpt_rng g = {.s = 20};
    static const char TOKENS[] = "{}[]\",:0123456789eE+-.\\u/ \n\tdstypefalunr_";
    unsigned opened = 0;

    for (int round = 0; round < 60000; round++) {
        size_t n = sizeof SEED_HEADER - 1, edits = 1 + ckpt_rand(&g) % 4;
        char *h = malloc(2 * n + 8);
        struct st_tensor *t;
        size_t count;
        int r;

        memcpy(h, SEED_HEADER, n);
        for (size_t k = 0; k < edits && n > 0; k++) {
            size_t at = ckpt_rand(&g) % n, len = ckpt_rand(&g) % 16;

            switch (ckpt_rand(&g) % 5) {
            case 0: /* any byte */
                h[at] = (char)ckpt_rand(&g);
                break;
            case 1: /* a byte of the grammar */
                h[at] = TOKENS[ckpt_rand(&g) % (sizeof TOKENS - 1)];
                break;
            case 2: /* cut */
                n = at;
                break;
            case 3: /* remove */
                len = len < n - at ? len : n - at;
                memmove(h + at, h + at + len, n - at - len);
                n -= len;
                break;
            case 4: /* repeat */
                len = len < n - at ? len : n - at;
                if (n + len < 2 * sizeof SEED_HEADER) {
                    memmove(h + at + len, h + at, n - at);
                    n += len;
                }
                break;
            }
        }
        h = realloc(h, n + 1); /* exactly: a read past the end is seen by the sanitizer */
        h[n] = 'x';
        r = stheader_parse("fuzz", h, n, 1000, 32, &t, &count, &err);
        if (r == 0) {
            opened++;
            for (size_t i = 0; i < count; i++)
                ck_assert(t[i].offset >= 1000 && t[i].bytes <= 32 && t[i].offset + t[i].bytes <= 1032);
            free(t);
        } else {
            ck_assert_int_eq(r, -EBADMSG);
            ck_assert_int_eq(strncmp(err.msg, "fuzz: ", 6), 0);
        }
        free(h);
    }
    /* Some edits hit padding or metadata; if none opened, the seed itself is broken. */
    ck_assert_uint_gt(opened, 100);
}
END_TEST

/* Damage to a whole real shard's first bytes, through the file. */
START_TEST(random_damage_in_files) {
    struct ckpt_rng g = {.s = 21};
    struct ckpt real;
    unsigned char *all;
    size_t n, header;

    ckpt_copy(&real, "twin-a");
    all = ckpt_read(&real, "model-00001-of-00001.safetensors", &n);
    header = 8 + (size_t)all[0] + ((size_t)all[1] << 8);
    for (int round = 0; round < 300; round++) {
        size_t at = round % 3 ? ckpt_rand(&g) % header : ckpt_rand(&g) % 8;
        unsigned char old = all[at];
        struct st_file *f;
        int r;

        all[at] ^= (unsigned char)(1u << ckpt_rand(&g) % 8);
        /* The data area is left sparse: only its length matters here. */
        ckpt_write(&real, "x.safetensors", all, header);
        ck_assert_int_eq(truncate(ckpt_path(&real, "x.safetensors"), (off_t)n), 0);
        r = st_open(&f, ckpt_path(&real, "x.safetensors"), NULL, &err);
        if (r == 0)
            st_close(f);
        else
            ck_assert_int_eq(r, -EBADMSG);
        all[at] = old;
    }
    free(all);
    ckpt_remove(&real);
}
END_TEST

int main(void) {
    Suite *s = suite_create("model_safetensors");
    TCase *tc = tcase_create("container");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, good_file);
    tcase_add_test(tc, empty_file_of_no_tensors);
    tcase_add_loop_test(tc, refusals, 0, (int)(sizeof BAD / sizeof *BAD));
    tcase_add_test(tc, lengths);
    tcase_add_test(tc, not_a_file);
    tcase_add_test(tc, messages_are_printable);
    tcase_add_test(tc, symbolic_link);
    tcase_add_test(tc, changes_are_noticed);
    tcase_add_test(tc, large_header);
    tcase_add_test(tc, real_shards);
    tcase_add_test(tc, golden_file);
    tcase_add_test(tc, random_damage);
    tcase_add_test(tc, random_damage_in_files);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
