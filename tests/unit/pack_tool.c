/* SPDX-License-Identifier: MIT */
/* glm-pack: every format it writes is read back from its tensors by their names, and is near the source; what
 * stays is the same; nothing is overwritten; a kill costs the file that was being written and nothing else.
 */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt.h"
#include "host_unpack.h"
#include "index.h"
#include "pack.h"
#include "packtest.h"
#include "runprog.h"

/* How each format is found in a file, written down once more. */
static const struct format {
    const char *word;
    struct kern_store s;
    const char *suffix[KERN_PIECES];
    bool divisor, all; /* all: attention, too */
    double error;
} FORMATS[] = {
    { "fp8",
      { .format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128 },
      { "weight", "weight_scale_inv" },
      false,
      true,
      0.028 },
    { "fp8-channel",
      { .format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 1 },
      { "weight", "weight_scale" },
      false,
      true,
      0.028 },
    { "fp8-tensor",
      { .format = KERN_FP8, .scale = KERN_SCALE_F32 },
      { "weight", "weight_scale" },
      false,
      true,
      0.028 },
    { "int8",
      { .format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128 },
      { "weight_packed", "weight_scale" },
      false,
      true,
      0.0075 },
    { "mxfp8",
      { .format = KERN_MXFP8, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32 },
      { "weight", "weight_scale" },
      false,
      true,
      0.03 },
    { "nvfp4",
      { .format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1, .block_cols = 16 },
      { "weight", "weight_scale", "weight_scale_2" },
      false,
      false,
      0.11 },
    { "nvfp4-ct",
      { .format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1, .block_cols = 16 },
      { "weight_packed", "weight_scale", "weight_global_scale" },
      true,
      false,
      0.11 },
    { "mxfp4",
      { .format = KERN_MXFP4, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32 },
      { "weight_packed", "weight_scale" },
      false,
      false,
      0.13 },
    { "int4",
      { .format = KERN_INT4, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128 },
      { "weight_packed", "weight_scale" },
      false,
      false,
      0.12 },
    { "exl3-2",
      { .format = KERN_EXL3, .bits = 2, .codebook = KERN_CODEBOOK_MCG },
      { [KERN_PIECE_CODES] = "trellis", [KERN_PIECE_SUH] = "suh", [KERN_PIECE_SVH] = "svh" },
      false,
      false,
      0.35 },
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

/* The relative error of one module; -1: it is not there in this format. */
static double error_of(const struct format *f, const struct model_index *from, const struct model_index *to,
                       const char *module) {
    void *piece[KERN_PIECES] = { NULL };
    uint64_t n, bytes;
    char name[320];
    snprintf(name, sizeof name, "%s.weight", module);
    const struct st_tensor *t = model_index_find(from, name)->t;
    uint64_t rows = t->shape[0], cols = t->shape[1];
    uint16_t *source = packtest_load(from, module, "weight", &bytes);
    float *w = malloc(rows * cols * sizeof *w);
    double diff = 0, norm = 0;
    for (int i = 0; i < KERN_PIECES; i++)
        if (f->suffix[i] && !(piece[i] = packtest_load(to, module, f->suffix[i], &n)))
            return -1;
    if (f->divisor) {
        float g;
        memcpy(&g, piece[KERN_PIECE_GLOBAL], 4);
        ck_assert_float_gt(g, 1);
        g = 1 / g;
        memcpy(piece[KERN_PIECE_GLOBAL], &g, 4);
    }
    host_unpack_rows(&f->s, rows, cols, (const void *const *)piece, 0, rows, w);
    for (uint64_t i = 0; i < rows * cols; i++) {
        double a = (double)host_f32(source[i]), d = (double)w[i] - a;
        diff += d * d;
        norm += a * a;
    }
    for (int i = 0; i < KERN_PIECES; i++)
        free(piece[i]);
    free(source);
    free(w);
    return sqrt(diff / norm);
}

static bool same_tensor(const struct model_index *a, const struct model_index *b, const char *name) {
    const struct model_entry *x = model_index_find(a, name), *y = model_index_find(b, name);
    uint64_t n, m;
    if (!x || !y || x->t->dtype != y->t->dtype || x->t->n_dims != y->t->n_dims ||
        x->t->bytes != y->t->bytes || memcmp(x->t->shape, y->t->shape, x->t->n_dims * sizeof x->t->shape[0]))
        return false;
    char stem[300];
    const char *dot = strrchr(name, '.');
    snprintf(stem, sizeof stem, "%.*s", (int)(dot - name), name);
    void *p = packtest_load(a, stem, dot + 1, &n), *q = packtest_load(b, stem, dot + 1, &m);
    bool same = n == m && memcmp(p, q, n) == 0;
    free(p);
    free(q);
    return same;
}

START_TEST(every_format) {
    static const char *const rule[] = { "--part", "experts=bf16", "--part",
                                        "*.layers.2.mlp.experts.1.*=exl3-2", NULL };
    const struct format *f = &FORMATS[_i];
    struct model_index *from, *to;
    struct xerr err = { 0 };
    uint32_t converted = 0, kept = 0;
    bool exl3 = f->s.format == KERN_EXL3; /* few of them: the search takes its time */
    char in[256];
    snprintf(in, sizeof in, "%s", ckpt_model("twin-a"));
    ck_assert_msg(packtest(in, packtest_out("o"), f->word, exl3 ? rule : NULL) == 0, "%s",
                  packtest_prog.err_text);
    ck_assert_int_eq(model_index_open(&from, in, NULL, &err), 0);
    ck_assert_msg(model_index_open(&to, packtest_out("o"), NULL, &err) == 0, "%s", err.msg);
    for (size_t i = 0; i < model_index_count(from); i++) {
        const struct st_tensor *t = model_index_at(from, i)->t;
        char module[300];
        snprintf(module, sizeof module, "%.*s", (int)strlen(t->name) - 7, t->name);
        bool expert = strstr(t->name, ".mlp.experts.");
        bool large = expert || strstr(t->name, ".shared_experts.") || strstr(t->name, ".self_attn.o_proj.") ||
                     strstr(t->name, ".self_attn.v_proj.") || strstr(t->name, ".q_b_proj.");
        bool wanted =
            exl3 ? strstr(t->name, ".layers.2.mlp.experts.1.") != NULL : expert || (f->all && large);
        if (!wanted) {
            if (!f->all)
                ck_assert_msg(same_tensor(from, to, t->name), "%s changed", t->name);
            kept += !f->all;
            continue;
        }
        double e = error_of(f, from, to, module);
        ck_assert_msg(e >= 0 && e <= f->error, "%s as %s: relative error %.4f", t->name, f->word, e);
        converted++;
    }
    ck_assert_uint_ge(converted, exl3 ? 3 : 72);
    ck_assert(f->all || kept > 60);
    ck_assert(same_tensor(from, to, "model.language_model.embed_tokens.weight") &&
              same_tensor(from, to, "model.visual.patch_embed.proj.weight") &&
              same_tensor(from, to, "model.language_model.layers.1.mlp.gate.weight"));
    ck_assert(access(packtest_out("o/tokenizer.json"), F_OK) == 0 &&
              access(packtest_out("o/glm-pack.json"), F_OK) == 0);
    ck_assert(access(packtest_out("o/glm-pack.partial"), F_OK) < 0);
    const char *check[] = { TEST_BUILD "/glm-pack", "--check", packtest_out("o"), NULL };
    ck_assert_msg(runprog(&packtest_prog, check, NULL, false, NULL) == 0, "%s", packtest_prog.err_text);
    PACKTEST_SAYS("1 files are as they were written");
    json_t *config = json_load_file(packtest_out("o/config.json"), 0, NULL);
    ck_assert_ptr_nonnull(json_object_get(json_object_get(config, "quantization_config"), "quant_method"));
    json_decref(config);
    model_index_close(from);
    model_index_close(to);
}
END_TEST

/* What a table says it must be, is: bytes of the parts, and errors in the JSON. */
START_TEST(told_in_json) {
    static const char *const json[] = { "--json", NULL };
    ck_assert_int_eq(packtest(ckpt_model("twin-a"), packtest_out("o"), "nvfp4", json), 0);
    json_t *doc = json_loads(packtest_prog.out_text, 0, NULL),
           *experts = json_object_get(json_object_get(doc, "parts"), "experts");
    ck_assert_int_eq(json_integer_value(json_object_get(doc, "converted")), 72);
    ck_assert_int_eq(json_integer_value(json_object_get(experts, "bytes_before")), 72 * 128 * 128 * 2);
    ck_assert_int_eq(json_integer_value(json_object_get(experts, "bytes_after")),
                     72 * (128 * 64 + 128 * 8 + 4));
    double e = json_real_value(json_object_get(experts, "relative_error"));
    ck_assert(e > 0.08 && e < 0.11);
    ck_assert(json_real_value(json_object_get(json_object_get(json_object_get(doc, "parts"), "mla"),
                                              "relative_error")) == 0);
    json_decref(doc);
}
END_TEST

/* A file may take hours, so its tenths are told on the way. */
START_TEST(progress_in_a_file) {
    ck_assert_int_eq(packtest(ckpt_model("twin-a"), packtest_out("o"), "nvfp4", NULL), 0);
    ck_assert_msg(strstr(packtest_prog.err_text, "glm-pack: model-00001-of-00001.safetensors: 50 %\n") != NULL, "%s",
                  packtest_prog.err_text);
    ck_assert(strstr(packtest_prog.err_text, "100 %") == NULL); /* then it is written */
    PACKTEST_SAYS("1 of 1: written");
}
END_TEST

static bool same_files(const char *a, const char *b) {
    char cmd[600];
    snprintf(cmd, sizeof cmd, "diff -r %s %s >/dev/null", a, b);
    return system(cmd) == 0;
}

static void dirs(char a[200], char b[200]) {
    snprintf(a, 200, "%s", packtest_out("a"));
    snprintf(b, 200, "%s", packtest_out("b"));
}

START_TEST(never_overwrites) {
    const char *in = ckpt_model("twin-a");
    char a[200], b[200];
    dirs(a, b);
    ck_assert_int_eq(mkdir(a, 0755), 0);
    ckpt_write(&packtest_dir, "a/config.json", "{}", 2);
    ck_assert_int_eq(packtest(in, a, "nvfp4", NULL), 2);
    PACKTEST_SAYS("nothing is overwritten");
    size_t n;
    char *left = ckpt_read(&packtest_dir, "a/config.json", &n);
    ck_assert(n == 2 && strcmp(left, "{}") == 0);
    free(left);
    /* its own finished work neither, nor the source itself */
    ck_assert_int_eq(packtest(in, b, "nvfp4", NULL), 0);
    ck_assert_int_eq(packtest(in, b, "nvfp4", NULL), 2);
    PACKTEST_SAYS("nothing is overwritten");
    ck_assert_int_eq(packtest(b, b, "nvfp4", NULL), 2);
}
END_TEST

/* Killed anywhere, then called again: the same bytes as without a kill, and what was finished is not written
 * again. */
START_TEST(goes_on_after_a_kill) {
    const char *argv[] = { TEST_BUILD "/glm-pack", NULL, NULL, "--format", "nvfp4", NULL };
    char a[200], b[200], in[256];
    dirs(a, b);
    snprintf(in, sizeof in, "%s", ckpt_model("nano"));
    argv[1] = in;
    argv[2] = b;
    ck_assert_int_eq(packtest(in, a, "nvfp4", NULL), 0);
    bool whole = false; /* it was quicker than the kill */
    for (int i = 0; i < 6 && !whole; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout))
                _exit(9);
            execv(argv[0], (char *const *)argv);
            _exit(9);
        }
        usleep((useconds_t)(20000 + 30000 * i));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        whole = access(packtest_out("b/glm-pack.json"), F_OK) == 0 &&
                access(packtest_out("b/glm-pack.partial"), F_OK) < 0;
    }
    ck_assert_msg(whole || packtest(in, b, "nvfp4", NULL) == 0, "%s", packtest_prog.err_text);
    ck_assert_msg(same_files(a, b), "another result after kills");
}
END_TEST

/* The record, a missing and a damaged file: what is as it was written stays, the rest is written again. */
START_TEST(finished_files_are_verified) {
    char a[200], b[200], in[256], cmd[1000];
    dirs(a, b);
    snprintf(in, sizeof in, "%s", ckpt_model("nano"));
    ck_assert_int_eq(packtest(in, a, "mxfp4", NULL), 0);
    snprintf(
        cmd, sizeof cmd,
        "cp -r %s %s && cd %s && mv glm-pack.json glm-pack.partial && rm model-00002-of-00003.safetensors && "
        "printf x | dd of=model-00003-of-00003.safetensors bs=1 seek=9000000 conv=notrunc 2>/dev/null",
        a, b, b);
    ck_assert_int_eq(system(cmd), 0);
    /* other options, another source: not continued */
    ck_assert_int_eq(packtest(in, b, "mxfp8", NULL), 2);
    PACKTEST_SAYS("other options");
    ck_assert_int_eq(packtest(ckpt_model("twin-a"), b, "mxfp4", NULL), 2);
    PACKTEST_SAYS("another source");
    ck_assert_int_eq(packtest(in, b, "mxfp4", NULL), 0);
    PACKTEST_SAYS("1 of 3: was finished");
    PACKTEST_SAYS("2 of 3: written");
    PACKTEST_SAYS("3 of 3: written");
    ck_assert(same_files(a, b));
}
END_TEST

START_TEST(refusals) {
    const char *in = ckpt_model("twin-a");
    static const char *const none[] = { "--part", "no.such.*=fp8", NULL };
    static const char *const word[] = { "--part", "mla=fp9", NULL };
    static const char *const mixed[] = { "--part", "mla=nvfp4", NULL };
    static const char *const good[] = { "--part", "mla=int8", "--part", "*.layers.1.mlp.experts.*=mxfp8",
                                        NULL };
    ck_assert_int_eq(packtest(in, packtest_out("o"), "nvfp4", none), 2);
    PACKTEST_SAYS("no.such.*: found no matrix");
    ck_assert_int_eq(packtest(in, packtest_out("o"), "nvfp4", word), 2);
    PACKTEST_SAYS("unknown format, \"fp9\"");
    ck_assert_int_eq(packtest(in, packtest_out("o"), "exl3-4", mixed), 2);
    PACKTEST_SAYS("which no configuration describes");
    ck_assert_int_eq(packtest(in, packtest_out("o"), "fp7", NULL), 2);
    ck_assert_int_eq(packtest("/nonexistent", packtest_out("o"), "fp8", NULL), 2);
    ck_assert_msg(access(packtest_out("o"), F_OK) < 0, "a refusal left something behind");
    ck_assert_msg(packtest(in, packtest_out("o"), "nvfp4-ct", good) == 0, "%s", packtest_prog.err_text);
    json_t *config = json_load_file(packtest_out("o/config.json"), 0, NULL);
    const json_t *q = json_object_get(config, "quantization_config");
    ck_assert_str_eq(json_string_value(json_object_get(q, "format")), "mixed-precision");
    ck_assert_uint_eq(json_object_size(json_object_get(q, "config_groups")), 3);
    json_decref(config);
}
END_TEST

/* Several formats in one checkpoint, in each of the two families that have it: the daemon's reader takes
 * them, and finds a bit that changed afterwards. */
START_TEST(mixtures_are_read) {
    static const char *const modelopt[] = { "--part", "shared=fp8",  "--part", "kda=mxfp8",
                                            "--part", "dense=mxfp4", NULL };
    static const char *const compressed[] = {
        "--part", "mla=int8",    "--part", "dense=fp8",           "--part", "kda=mxfp8",
        "--part", "shared=int4", "--part", "lm_head=fp8-channel", NULL
    };
    const char *check[] = { TEST_BUILD "/glm-pack", "--check", packtest_out("o"), NULL };
    const char *in = ckpt_model("twin-a");
    char shard[300];
    ck_assert_msg(packtest(in, packtest_out("o"), _i ? "nvfp4-ct" : "nvfp4", _i ? compressed : modelopt) == 0,
                  "%s", packtest_prog.err_text);
    ck_assert_msg(runprog(&packtest_prog, check, NULL, false, NULL) == 0, "%s", packtest_prog.err_text);
    snprintf(shard, sizeof shard, "%s", packtest_out("o/model-00001-of-00001.safetensors"));
    FILE *f = fopen(shard, "r+");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, -1000000, SEEK_END), 0);
    int c = fgetc(f);
    ck_assert_int_eq(fseek(f, -1000000, SEEK_END), 0);
    fputc(c ^ 1, f);
    fclose(f);
    ck_assert_int_eq(runprog(&packtest_prog, check, NULL, false, NULL), 1);
    PACKTEST_SAYS("which were written");
}
END_TEST

/* The answers of a pack, by the oracle: near those of the source, and nearer in eight bits than in four. */
START_TEST(answers_of_packs) {
    static const char *const experts[] = { "--part",   "shared=bf16", "--part",   "dense=bf16", "--part",
                                           "mla=bf16", "--part",      "kda=bf16", NULL };
    struct pack_options o = { .backend = "ref" };
    struct pack_kl k[2];
    struct xerr err = { 0 };
    char in[256], to[256], text[256], line[] = "Numbers: 0001 one, two 2, three?! ";
    snprintf(in, sizeof in, "%s", ckpt_model("twin-a"));
    for (int i = 0; i < 2; i++) {
        snprintf(to, sizeof to, "%s", packtest_out(i ? "four" : "eight"));
        snprintf(text, sizeof text, "%s", packtest_out("text"));
        ckpt_write(&packtest_dir, "text", line, sizeof line - 1);
        o.in = in;
        o.out = to;
        o.text = text;
        ck_assert_msg(packtest(in, to, i ? "nvfp4" : "int8", i ? NULL : experts) == 0, "%s",
                      packtest_prog.err_text);
        ck_assert_msg(pack_compare(&o, &k[i], &err) == 0, "%s", err.msg);
        ck_assert(k[i].n > 8 && k[i].kl > 0 && k[i].kl < 1);
    }
    ck_assert_msg(2 * k[0].kl < k[1].kl, "KL %g in eight bits, %g in four", k[0].kl, k[1].kl);
}
END_TEST

/* A weight that is no number is refused by name, and nothing that looks finished is left. */
START_TEST(weights_that_are_none) {
    struct ckpt spoilt;
    size_t n;
    ckpt_copy(&spoilt, "twin-a");
    unsigned char *bytes = ckpt_read(&spoilt, "model-00001-of-00001.safetensors", &n);
    uint64_t head = 0;
    memcpy(&head, bytes, 8);
    json_t *h = json_loadb((char *)bytes + 8, head, 0, NULL);
    json_t *t = json_object_get(h, "model.language_model.layers.1.mlp.experts.3.up_proj.weight");
    uint64_t at =
        8 + head + (uint64_t)json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0)) + 100;
    bytes[at] = 0xc0;
    bytes[at + 1] = 0x7f;
    ckpt_write(&spoilt, "model-00001-of-00001.safetensors", bytes, n);
    ck_assert_int_eq(packtest(spoilt.dir, packtest_out("o"), "nvfp4", NULL), 2);
    PACKTEST_SAYS("layers.1.mlp.experts.3.up_proj.weight: found a number that is infinite or none");
    ck_assert(access(packtest_out("o/model-00001-of-00001.safetensors"), F_OK) < 0);
    ck_assert(access(packtest_out("o/glm-pack.json"), F_OK) < 0);
    json_decref(h);
    free(bytes);
    ckpt_remove(&spoilt);
}
END_TEST

/* Answers of a checkpoint are those of its copy, and not those of one with other weights. */
START_TEST(answers_compared) {
    struct pack_options o = { .backend = "cpu", .text = "README.md" };
    struct pack_kl k = { .n = 0 };
    struct xerr err = { 0 };
    struct ckpt c;
    char in[256];
    size_t n;
    snprintf(in, sizeof in, "%s", ckpt_model("nano"));
    ckpt_copy(&c, "nano");
    o.in = in;
    o.out = c.dir;
    ck_assert_msg(pack_compare(&o, &k, &err) == 0, "%s", err.msg);
    ck_assert_uint_gt(k.n, 500);
    ck_assert(k.kl == 0 && k.worst == 0 && k.same == 1 && k.loss_in == k.loss_out);
    ck_assert(k.loss_in > 0 && k.loss_in < 12);
    unsigned char *bytes = ckpt_read(&c, "model-00002-of-00003.safetensors", &n);
    for (size_t i = n - 200001; i > n - 300001; i -= 2)
        bytes[i] ^= 0x80; /* fifty thousand signs */
    ckpt_write(&c, "model-00002-of-00003.safetensors", bytes, n);
    ck_assert_msg(pack_compare(&o, &k, &err) == 0, "%s", err.msg);
    ck_assert(k.kl > 1e-4 && k.worst > k.kl && k.same < 1 && k.loss_in != k.loss_out);
    free(bytes);
    ckpt_remove(&c);
}
END_TEST

/* However help is asked for, and of which program: on standard output, with every option it takes. */
START_TEST(help_is_given) {
    static const char *const program[] = { TEST_BUILD "/glm-pack", TEST_BUILD "/glm-eval", TEST_BUILD "/test/glmd" };
    static const char *const how[] = { "-h", "--help" };

    for (int i = 0; i < 6; i++) {
        const char *const argv[] = { program[i / 2], how[i % 2], NULL };

        ck_assert_int_eq(runprog(&packtest_prog, argv, NULL, false, NULL), 0);
        ck_assert(strcasestr(packtest_prog.out_text, "usage: glm") == packtest_prog.out_text);
        ck_assert(strstr(packtest_prog.out_text, "\n  --backend ") != NULL);
        ck_assert_str_eq(packtest_prog.err_text, "");
    }
}
END_TEST

/* A good checkpoint, one that was not finished, one that was changed, none at all. */
START_TEST(checked) {
    const char *argv[] = { TEST_BUILD "/glm-pack", "--check", NULL, NULL };
    struct ckpt c;
    ckpt_copy(&c, "twin-a");
    argv[2] = c.dir;
    ck_assert_int_eq(runprog(&packtest_prog, argv, NULL, false, NULL), 0);
    PACKTEST_SAYS(": good: ");
    PACKTEST_SAYS("no glm-pack.json tells what was written");
    ckpt_write(&c, "glm-pack.partial", "{}", 2);
    ck_assert_int_eq(runprog(&packtest_prog, argv, NULL, false, NULL), 1);
    PACKTEST_SAYS("unfinished");
    ck_assert_int_eq(unlink(ckpt_path(&c, "glm-pack.partial")), 0);
    ckpt_write(&c, "glm-pack.json", "{\"shards\":{\"model-00001-of-00001.safetensors\":{\"digest\":\"00\"}}}",
               63);
    ck_assert_int_eq(runprog(&packtest_prog, argv, NULL, false, NULL), 1);
    PACKTEST_SAYS("expected 00, which were written");
    ckpt_remove(&c);
    ck_assert_int_eq(runprog(&packtest_prog, argv, NULL, false, NULL), 2);
    PACKTEST_SAYS("No such file or directory; expected the directory of a checkpoint");
}
END_TEST

int main(void) {
    Suite *s = suite_create("pack_tool");
    TCase *t = tcase_create("pack");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, packtest_setup, packtest_teardown);
    tcase_add_loop_test(t, every_format, 0, N_FORMATS);
    tcase_add_test(t, told_in_json);
    tcase_add_test(t, progress_in_a_file);
    tcase_add_test(t, help_is_given);
    tcase_add_test(t, never_overwrites);
    tcase_add_test(t, goes_on_after_a_kill);
    tcase_add_test(t, finished_files_are_verified);
    tcase_add_test(t, refusals);
    tcase_add_loop_test(t, mixtures_are_read, 0, 2);
    tcase_add_test(t, answers_of_packs);
    tcase_add_test(t, weights_that_are_none);
    tcase_add_test(t, answers_compared);
    tcase_add_test(t, checked);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
