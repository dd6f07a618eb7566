/* SPDX-License-Identifier: MIT */
/* What glm-pack writes as GGUF, read by the book: header, keys, names, shapes, experts stacked, kv_b in
 * halves. */
#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host_unpack.h"
#include "packtest.h"
#include "twin53.h"

struct book {
    unsigned char *p;
    size_t n, at;
};

static uint64_t take(struct book *g, int bytes) {
    uint64_t v = 0;
    ck_assert_uint_le(g->at + (size_t)bytes, g->n);
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)g->p[g->at++] << (8 * i);
    return v;
}

static void take_string(struct book *g, char *ret, size_t cap) {
    uint64_t n = take(g, 8);
    ck_assert_uint_le(g->at + n, g->n);
    if (ret)
        snprintf(ret, cap, "%.*s", (int)n, (char *)g->p + g->at);
    g->at += n;
}

static void skip_value(struct book *g, uint64_t type) {
    static const int width[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    if (type == 9) {
        uint64_t of = take(g, 4), n = take(g, 8);
        while (n--)
            skip_value(g, of);
    } else if (type == 8) {
        take_string(g, NULL, 0);
    } else {
        ck_assert_uint_lt(type, 13);
        take(g, width[type]);
    }
}

static struct book_tensor {
    char name[64];
    uint64_t ne[4], type, offset;
} gt[400];

/* Reads header, keys and tensors; offsets become those of the file. */
static uint64_t read_gguf(struct book *g) {
    ck_assert_uint_eq(take(g, 4), 0x46554747);
    ck_assert_uint_eq(take(g, 4), 3);
    uint64_t n = take(g, 8), n_kv = take(g, 8);
    bool arch = false, tokens = false;
    ck_assert_uint_le(n, 400);
    while (n_kv--) {
        char key[80], value[40];
        take_string(g, key, sizeof key);
        uint64_t type = take(g, 4);
        size_t before = g->at;
        skip_value(g, type);
        if (strcmp(key, "general.architecture") == 0) {
            struct book v = { g->p, g->n, before };
            take_string(&v, value, sizeof value);
            arch = strcmp(value, "glm5next") == 0;
        }
        if (strcmp(key, "tokenizer.ggml.tokens") == 0)
            tokens = memcmp(g->p + before, "\10\0\0\0\0\20\0\0\0\0\0\0", 12) == 0; /* 4096 strings */
    }
    ck_assert(arch && tokens);
    for (uint64_t i = 0; i < n; i++) {
        take_string(g, gt[i].name, sizeof gt[i].name);
        uint64_t dims = take(g, 4);
        for (uint64_t d = 0; d < 4; d++)
            gt[i].ne[d] = d < dims ? take(g, 8) : 1;
        gt[i].type = take(g, 4);
        gt[i].offset = take(g, 8);
        ck_assert_uint_eq(gt[i].offset % 32, 0);
    }
    g->at = (g->at + 31) & ~(size_t)31;
    for (uint64_t i = 0; i < n; i++)
        gt[i].offset += g->at;
    return n;
}

static const struct book_tensor *tensor_named(const char *name, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (strcmp(gt[i].name, name) == 0)
            return &gt[i];
    ck_abort_msg("%s is not there", name);
}

START_TEST(gguf_by_the_book) {
    struct book g = { .at = 0 };
    struct model_index *from;
    struct xerr err = { 0 };
    uint64_t bytes;
    char in[256];
    snprintf(in, sizeof in, "%s", ckpt_model("nano"));
    ck_assert_msg(packtest(in, packtest_out("o"), "q8_0", NULL) == 0, "%s", packtest_prog.err_text);
    ck_assert(strstr(packtest_prog.err_text, "glm-pack: model.gguf: 50 %\n") != NULL);
    ck_assert(strstr(packtest_prog.err_text, "100 %") == NULL); /* then the table is told */
    ck_assert_int_eq(model_index_open(&from, in, NULL, &err), 0);
    g.p = ckpt_read(&packtest_dir, "o/model.gguf", &g.n);
    uint64_t n = read_gguf(&g);
    const char *check[] = { TEST_BUILD "/glm-pack", "--check", packtest_out("o"), NULL };
    ck_assert_msg(runprog(&packtest_prog, check, NULL, false, NULL) == 0, "%s", packtest_prog.err_text);
    /* experts 0 to 7 of layer 4, one behind the other */
    const struct book_tensor *t = tensor_named("blk.4.ffn_up_exps.weight", n);
    ck_assert(t->type == 8 && t->ne[0] == 256 && t->ne[1] == 128 && t->ne[2] == 8);
    uint16_t *source =
        packtest_load(from, "model.language_model.layers.4.mlp.experts.5.up_proj", "weight", &bytes);
    double diff = 0, norm = 0;
    for (uint32_t b = 0; b < 128 * 256 / 32; b++) {
        float v[32];
        host_unpack_block(KERN_Q8_0, g.p + t->offset + (5 * 128 * 256 / 32 + b) * 34, v);
        for (uint32_t i = 0; i < 32; i++) {
            double a = (double)host_f32(source[b * 32 + i]), d = (double)v[i] - a;
            diff += d * d;
            norm += a * a;
        }
    }
    ck_assert_msg(sqrt(diff / norm) < 0.007, "expert 5: %.4f", sqrt(diff / norm));
    free(source);
    /* keys of head 3 transposed, values not: kv_b is [4 heads][256 + 256][512] */
    source = packtest_load(from, "model.language_model.layers.3.self_attn.kv_b_proj", "weight", &bytes);
    t = tensor_named("blk.3.attn_k_b.weight", n);
    ck_assert(t->type == 30 && t->ne[0] == 256 && t->ne[1] == 512 && t->ne[2] == 4);
    ck_assert_uint_eq(host_le16(g.p + t->offset + 2 * (3 * 512 * 256 + 77 * 256 + 21)),
                      source[(3 * 512 + 21) * 512 + 77]);
    t = tensor_named("blk.3.attn_v_b.weight", n);
    ck_assert(t->type == 30 && t->ne[0] == 512 && t->ne[1] == 256 && t->ne[2] == 4);
    ck_assert_uint_eq(host_le16(g.p + t->offset + 2 * (2 * 256 * 512 + 9 * 512 + 300)),
                      source[(2 * 512 + 256 + 9) * 512 + 300]);
    free(source);
    float *a_log = packtest_load(from, "model.language_model.layers.0.self_attn", "A_log", &bytes), a;
    t = tensor_named("blk.0.ssm_a", n);
    memcpy(&a, g.p + t->offset + 4, 4);
    ck_assert(t->type == 0 && a == -expf(a_log[1]));
    free(a_log);
    t = tensor_named("blk.9.nextn.eh_proj.weight", n);
    ck_assert(t->type == 30 && t->ne[0] == 512 && t->ne[1] == 256);
    tensor_named("blk.9.ffn_down_exps.weight", n);
    ck_assert(tensor_named("token_embd.weight", n)->type == 30 &&
              tensor_named("output_norm.weight", n)->type == 0);
    ck_assert_uint_eq(tensor_named("blk.0.ssm_conv1d_q.weight", n)->ne[0], 4);
    free(g.p);
    model_index_close(from);
}
END_TEST

/* ---- interrupted ---- */

static void shell(const char *fmt, ...) {
    char cmd[1600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    ck_assert_msg(system(cmd) == 0, "%s", cmd);
}

static unsigned finished(void) {
    const char *at = strstr(packtest_prog.err_text, " tensors were finished and are as they were written");
    unsigned n = 0;
    if (!at)
        return 0;
    for (at -= strlen("000 of 000"); *at && sscanf(at, "%u of", &n) != 1; at++)
        ;
    return n;
}

/* Ended in the middle of the file, and once more with a byte of what was there changed: the same directory as without
 * an end, and what is there as it was written is not made again. */
START_TEST(gguf_goes_on) {
    char a[200], b[200], in[256];
    unsigned n, damaged;
    snprintf(in, sizeof in, "%s", ckpt_model("nano"));
    snprintf(a, sizeof a, "%s", packtest_out("a"));
    snprintf(b, sizeof b, "%s", packtest_out("b"));
    ck_assert_int_eq(packtest(in, a, "q8_0", NULL), 0);
    ck_assert_uint_eq(finished(), 0);
    struct rlimit before, few = { .rlim_cur = 16000000 };
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    few.rlim_max = before.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &few), 0);
    ck_assert_int_ne(packtest(in, b, "q8_0", NULL), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_int_eq(access(packtest_out("b/.model.gguf.part"), F_OK), 0);
    ck_assert_int_lt(access(packtest_out("b/model.gguf"), F_OK), 0);
    shell("cp -r %s %s-c && cp -r %s %s-d", b, b, b, b);
    ck_assert_int_eq(packtest(in, b, "q4_k", NULL), 2);
    PACKTEST_SAYS("other options");
    ck_assert_msg(packtest(in, b, "q8_0", NULL) == 0, "%s", packtest_prog.err_text);
    n = finished();
    ck_assert_uint_gt(n, 100);
    shell("diff -r %s %s", a, b);
    /* as when the end came between its name and its record */
    shell("cd %s-c && mv .model.gguf.part model.gguf && printf x | dd of=model.gguf bs=1 seek=9000000 conv=notrunc "
          "2>/dev/null", b);
    snprintf(b, sizeof b, "%s", packtest_out("b-c"));
    ck_assert_msg(packtest(in, b, "q8_0", NULL) == 0, "%s", packtest_prog.err_text);
    damaged = finished();
    ck_assert(damaged > 10 && damaged < n);
    shell("diff -r %s %s", a, b);
    /* another head: nothing of it is kept */
    snprintf(b, sizeof b, "%s", packtest_out("b-d"));
    shell("printf x | dd of=%s/.model.gguf.part bs=1 seek=2000 conv=notrunc 2>/dev/null", b);
    ck_assert_msg(packtest(in, b, "q8_0", NULL) == 0, "%s", packtest_prog.err_text);
    ck_assert_uint_eq(finished(), 0);
    shell("diff -r %s %s", a, b);
}
END_TEST

/* Experts of one layer are one tensor: a rule that would tell them apart is refused. */
START_TEST(gguf_stacks) {
    static const char *const rule[] = { "--part", "*.layers.2.mlp.experts.1.*=bf16", NULL };
    static const char *const other[] = { "--part", "mla=int8", NULL };
    ck_assert_int_eq(packtest(ckpt_model("twin-a"), packtest_out("o"), "q8_0", rule), 2);
    PACKTEST_SAYS("GGUF stacks the experts");
    ck_assert_int_eq(packtest(ckpt_model("twin-a"), packtest_out("p"), "q8_0", other), 2);
    PACKTEST_SAYS("no configuration describes");
    ck_assert(access(packtest_out("o/model.gguf"), F_OK) < 0);
}
END_TEST

/* No program agrees with us about its names: said before anything is written. Other formats are. */
START_TEST(glm53_only_as_safetensors) {
    const struct o53_dims d = twin53_dims();
    struct o53_model m;
    struct ckpt in;
    ckpt_empty(&in);
    twin53_make(&m, &d, 5390, "bf16");
    twin53_write(&m, &in, "bf16");
    twin53_done(&m);
    ck_assert_int_eq(packtest(in.dir, packtest_out("a"), "q8_0", NULL), 2);
    PACKTEST_SAYS("found GLM-5.3, expected GLM-5.3-Flash");
    ck_assert_int_ne(access(packtest_out("a"), F_OK), 0);
    ck_assert_int_eq(packtest(in.dir, packtest_out("b"), "nvfp4", NULL), 0);
    ckpt_remove(&in);
}
END_TEST

int main(void) {
    Suite *s = suite_create("pack_gguf");
    TCase *t = tcase_create("gguf");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, packtest_setup, packtest_teardown);
    tcase_add_test(t, gguf_by_the_book);
    tcase_add_test(t, gguf_goes_on);
    tcase_add_test(t, gguf_stacks);
    tcase_add_test(t, glm53_only_as_safetensors);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
