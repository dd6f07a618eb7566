/* SPDX-License-Identifier: MIT */
/* tokenizer.json that is wrong in one place each: refused with the place named, nothing leaked; variants
 * that are right; a file of the real model's size. */
#include "texttest.h"
#include "tokenizer.h"
#include "utf8.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], file[96];
static char *original;
static size_t original_n;

static void setup(void) {
    char path[4200];

    snprintf(path, sizeof path, "%s/tokenizer.json", texttest_model("nano"));
    original = texttest_file(path, &original_n);
    strcpy(dir, "/tmp/glmd-tokload-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/tokenizer.json", dir);
}

static void teardown(void) {
    free(original);
    unlink(file);
    rmdir(file);
    ck_assert_int_eq(rmdir(dir), 0);
}

static void write_file(const char *text, size_t n) {
    FILE *f = fopen(file, "w");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* Follows a path of keys and indices and replaces (value) or removes (NULL) what is there. */
static void set_path(json_t *root, const char *path, const char *value) {
    char buf[256], *save = NULL, *part, *next;
    json_t *at = root, *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;

    ck_assert_msg(!value || v, "test value %s", value);
    snprintf(buf, sizeof buf, "%s", path);
    for (part = strtok_r(buf, "/", &save); (next = strtok_r(NULL, "/", &save)); part = next)
        at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10)) : json_object_get(at, part);
    ck_assert_msg(at != NULL, "test path %s", path);
    if (strcmp(part, "@") == 0) /* the empty key */
        part = buf + strlen(path);
    if (json_is_array(at))
        ck_assert_int_eq(v ? json_array_set_new(at, strtoul(part, NULL, 10), v)
                           : json_array_remove(at, strtoul(part, NULL, 10)),
                         0);
    else
        ck_assert_int_eq(v ? json_object_set_new(at, part, v) : json_object_del(at, part), 0);
}

static void write_mutated(const char *path, const char *value) {
    json_t *root = json_loadb(original, original_n, 0, NULL);

    ck_assert_ptr_nonnull(root);
    set_path(root, path, value);
    ck_assert_int_eq(json_dump_file(root, file, 0), 0);
    json_decref(root);
}

static const struct {
    const char *path, *value, *says;
} mutations[] = {
    {"version", "\"2.0\"", "version: found \"2.0\"; expected \"1.0\""},
    {"truncation", "{\"max_length\": 512}", "truncation: found an object; expected null"},
    {"padding", "{}", "padding"},
    {"normalizer", "{\"type\": \"NFC\"}", "normalizer: found an object"},
    {"surprise", "1", "surprise: unknown setting"},
    {"post_processor", "{\"type\": \"TemplateProcessing\"}",
     "post_processor.type: found \"TemplateProcessing\""},
    {"decoder", "null", "decoder.type: found nothing"},
    {"decoder/type", "\"WordPiece\"", "decoder.type"},
    {"added_tokens", "{}", "added_tokens: found an object"},
    {"model", "[]", "model: found an array"},
    {"model/type", "\"Unigram\"", "model.type: found \"Unigram\"; expected \"BPE\""},
    {"model/type", NULL, "model.type: found nothing"},
    {"model/dropout", "0.1", "model.dropout: found a number; expected null"},
    {"model/unk_token", "\"<unk>\"", "model.unk_token"},
    {"model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
    {"model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
    {"model/fuse_unk", "true", "model.fuse_unk: found true"},
    {"model/byte_fallback", "true", "model.byte_fallback"},
    {"model/ignore_merges", "\"yes\"", "model.ignore_merges: found \"yes\"; expected true or false"},
    {"model/vocab", "[]", "model.vocab: found an array"},
    {"model/merges", "{}", "model.merges: found an object"},
    {"model/weird", "0", "model.weird: unknown setting"},
    {"pre_tokenizer", "null", "pre_tokenizer: found null"},
    {"pre_tokenizer/type", "\"ByteLevel\"", "pre_tokenizer.type"},
    {"pre_tokenizer/pretokenizers/1", NULL, "found an array with 1 entries"},
    {"pre_tokenizer/pretokenizers", "7", "found a whole number"},
    {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\w+\"", "pattern.Regex: found \\w+; expected (?i:"},
    {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", "pattern.Regex: found nothing"},
    {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "behavior: found \"Removed\""},
    {"pre_tokenizer/pretokenizers/0/invert", "true", "invert: found true"},
    {"pre_tokenizer/pretokenizers/0/extra", "true", "extra: unknown setting"},
    {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space"},
    {"pre_tokenizer/pretokenizers/1/use_regex", "true", "use_regex"},
    {"model/vocab/!", NULL, "no token for the single byte 0x21"},
    {"model/vocab/new one", "9999", "entry \"new one\" (id 9999) is not written in the byte-level alphabet"},
    {"model/vocab/newone", "5", "id 5 is given twice"},
    {"model/vocab/newone", "-1", "model.vocab.newone: found -1; expected an id"},
    {"model/vocab/newone", "2097152", "model.vocab.newone: found 2097152; expected an id"},
    {"model/vocab/newone", "9223372036854775807", "expected an id"},
    {"model/vocab/newone", "1.5", "found a number; expected an id"},
    {"model/vocab/newone", "\"5\"", "found \"5\"; expected an id"},
    {"model/vocab/newone", "null", "found null; expected an id"},
    {"model/vocab/@", "5000", "entry \"\" (id 5000)"},
    {"model/merges/10", "[\"a\"]", "model.merges[10]: found an array; expected a pair"},
    {"model/merges/10", "[\"a\", 5]", "model.merges[10]"},
    {"model/merges/10", "[\"a\", \"\"]", "model.merges[10]"},
    {"model/merges/10", "\"ab\"", "model.merges[10]: found a string; expected a pair"},
    {"model/merges/10", "\" b\"", "model.merges[10]"},
    {"model/merges/10", "[\"a\", \"zzzzqqqq\"]",
     "model.merges[10]: operand \"zzzzqqqq\" is not in model.vocab"},
    {"model/merges/10", "[\"a b\", \"c\"]", "model.merges[10]: operand"},
    {"model/merges/10", "[\"~\", \"Q\"]", "model.merges[10]: the result of joining"},
    {"model/merges/0", NULL, "tokenizer.json"}, /* replaced below: a missing vocabulary entry */
    {"model/merges/10", "[\"i\", \"n\"]", "the same pair is already merge"},
    {"added_tokens/3/id", "\"x\"", "added_tokens[3].id: found \"x\""},
    {"added_tokens/3/id", "99999999", "added_tokens[3].id: found 99999999"},
    {"added_tokens/3/id", "-5", "added_tokens[3].id: found -5"},
    {"added_tokens/3/id", "4060", "added_tokens[3].id: 4060 is already the id of another token"},
    {"added_tokens/3/id", "5", "added_tokens[3].id: 5 is already"},
    {"added_tokens/3/content", "\"[MASK]\"", "ids 4061 and 4063 have the same content"},
    {"added_tokens/3/content", "\"\"", "added_tokens[3].content"},
    {"added_tokens/3/content", "8", "added_tokens[3].content"},
    {"added_tokens/3/special", NULL, "added_tokens[3].special: found nothing"},
    {"added_tokens/3/lstrip", "true", "added_tokens[3].lstrip: found true; expected false"},
    {"added_tokens/3/rstrip", "true", "added_tokens[3].rstrip"},
    {"added_tokens/3/single_word", "true", "added_tokens[3].single_word"},
    {"added_tokens/3/normalized", NULL, "added_tokens[3].normalized: found nothing"},
    {"added_tokens/3/more", "1", "added_tokens.more: unknown setting"},
    {"added_tokens/3", "\"<x>\"", "added_tokens[3].id: found nothing"},
};

START_TEST(wrong_in_one_place) {
    struct tok *t = (struct tok *)&t;
    struct xerr err = {0};
    const char *path = mutations[_i].path;

    /* the vocabulary entry that merge 0 makes */
    if (strcmp(path, "model/merges/0") == 0)
        path = "model/vocab/\xc4\xa0\xc4\xa0";
    write_mutated(path, mutations[_i].value);
    ck_assert_int_eq(tok_open(dir, &t, &err), -EINVAL);
    ck_assert_ptr_eq(t, &t); /* untouched */
    ck_assert_int_eq(err.code, -EINVAL);
    ck_assert_msg(strstr(err.msg, mutations[_i].says) && strstr(err.msg, file), "%s -> message: %s", path,
                  err.msg);
    ck_assert(utf8_is_valid(err.msg, strlen(err.msg)));
}
END_TEST

static void refused(int code, const char *says) {
    struct tok *t;
    struct xerr err = {0};

    ck_assert_int_eq(tok_open(dir, &t, &err), code);
    ck_assert_msg(strstr(err.msg, says) && strstr(err.msg, file), "%s", err.msg);
}

START_TEST(broken_files) {
    size_t n = 400000;
    char *deep = malloc(n), *dup;

    refused(-ENOENT, "cannot be opened: No such file or directory");
    ck_assert_int_eq(mkdir(file, 0700), 0);
    refused(-EINVAL, "not a regular file");
    rmdir(file);
    write_file("", 0);
    refused(-EINVAL, "not valid JSON");
    for (unsigned i = 1; i < 20; i++) { /* cut anywhere */
        write_file(original, original_n * i / 20);
        refused(-EINVAL, "not valid JSON");
    }
    memset(deep, '[', n);
    write_file(deep, n);
    refused(-EINVAL, "not valid JSON");
    free(deep);
    write_file("[1, 2]", 6);
    refused(-EINVAL, "the whole file: found an array");
    write_file("{\"version\": \"1.0\", \"version\": \"1.0\"}", 36);
    refused(-EINVAL, "duplicate");
    ck_assert_ptr_nonnull(dup = memmem(original, original_n, "\"vocab\": {", 10));
    dup += 10;
    ck_assert_int_eq(dup - original < (long)original_n, 1);
    {
        char *text = malloc(original_n + 32);
        size_t at = (size_t)(dup - original);

        memcpy(text, original, at);
        memcpy(text + at, "\"!\": 1000000, ", 14);
        memcpy(text + at + 14, dup, original_n - at);
        write_file(text, original_n + 14);
        free(text);
    }
    refused(-EINVAL, "duplicate");
}
END_TEST

START_TEST(no_permission) {
    if (geteuid() == 0) { /* root may read everything: take a path that is a loop instead */
        ck_assert_int_eq(symlink(file, file), 0);
        refused(-ELOOP, "cannot be opened");
        return;
    }
    write_file(original, original_n);
    ck_assert_int_eq(chmod(file, 0), 0);
    refused(-EACCES, "cannot be opened: Permission denied");
}
END_TEST

/* Bytes flipped at random places of the file: opened or refused, never more than that. */
START_TEST(random_damage) {
    struct texttest_rng rng = {11};
    char *text = malloc(original_n);
    unsigned opened = 0;

    for (unsigned i = 0; i < 120; i++) {
        struct tok *t = NULL;
        struct xerr err = {0};

        memcpy(text, original, original_n);
        for (unsigned k = 0; k < 1 + i % 3; k++) /* half of the damage into the head with its settings */
            text[texttest_below(&rng, i & 1 ? 9000 : (uint32_t)original_n)] =
                (char)(0x20 + texttest_below(&rng, 95));
        write_file(text, original_n);
        if (tok_open(dir, &t, &err) == 0)
            opened++;
        else
            ck_assert(err.msg[0]);
        tok_free(t);
    }
    ck_assert_uint_lt(opened, 119);
    free(text);
}
END_TEST

static void encode(const struct tok *t, const char *text, uint32_t *ids, size_t *n) {
    struct tok_scratch *s;

    ck_assert_int_eq(tok_scratch_new(0, &s), 0);
    ck_assert_int_eq(tok_encode(t, s, text, strlen(text), TOK_MARKERS, ids, 256, n), 0);
    tok_scratch_free(s);
}

START_TEST(merges_as_texts) {
    json_t *root = json_loadb(original, original_n, 0, NULL), *m, *merges;
    static const char text[] = "These functions can help with the answer, \xc5\x82\xc3\xb3\xc5\xbb.  1234";
    uint32_t a[256], b[256];
    size_t na, nb, i;
    struct tok *t, *t2;
    struct xerr err = {0};

    merges = json_object_get(json_object_get(root, "model"), "merges");
    json_array_foreach(merges, i, m) {
        char pair[512];

        snprintf(pair, sizeof pair, "%s %s", json_string_value(json_array_get(m, 0)),
                 json_string_value(json_array_get(m, 1)));
        json_array_set_new(merges, i, json_string(pair));
    }
    ck_assert_int_eq(json_dump_file(root, file, 0), 0);
    json_decref(root);
    ck_assert_msg(tok_open(dir, &t, &err) == 0, "%s", err.msg);
    ck_assert_msg(tok_open(texttest_model("nano"), &t2, &err) == 0, "%s", err.msg);
    encode(t, text, a, &na);
    encode(t2, text, b, &nb);
    ck_assert(na == nb && na > 5 && memcmp(a, b, na * sizeof *a) == 0);
    tok_free(t);
    tok_free(t2);
}
END_TEST

/* Adds two entries and their merges: "qi", and "qin" out of it. The merge of "i" and "n" goes first, so that
 * the merges alone never lead to "qin". */
static json_t *with_unreached_entry(void) {
    json_t *root = json_loadb(original, original_n, 0, NULL), *merges;

    set_path(root, "model/vocab/qi", "4100");
    set_path(root, "model/vocab/qin", "4101");
    merges = json_object_get(json_object_get(root, "model"), "merges");
    ck_assert_int_eq(json_array_append_new(merges, json_pack("[s,s]", "q", "i")), 0);
    ck_assert_int_eq(json_array_append_new(merges, json_pack("[s,s]", "qi", "n")), 0);
    return root;
}

/* A piece that is an entry of the vocabulary: whole with ignore_merges only. */
START_TEST(ignore_merges) {
    for (unsigned on = 0; on < 2; on++) {
        json_t *root = with_unreached_entry();
        struct xerr err = {0};
        struct tok *t;
        uint32_t ids[256];
        size_t n;

        set_path(root, "model/ignore_merges", on ? "true" : "false");
        ck_assert_int_eq(json_dump_file(root, file, 0), 0);
        json_decref(root);
        ck_assert_msg(tok_open(dir, &t, &err) == 0, "%s", err.msg);
        ck_assert_int_eq(tok_ignores_merges(t), on);
        encode(t, "qin", ids, &n);
        if (on)
            ck_assert(n == 1 && ids[0] == 4101);
        else
            ck_assert_uint_eq(n, 2);
        encode(t, "qinz", ids, &n); /* another piece */
        ck_assert_uint_ne(ids[0], 4101);
        tok_free(t);
    }
}
END_TEST

/* Any merge that is taken out of the list is missed, also where its result may be emitted whole. */
START_TEST(missing_merge) {
    json_t *root = json_loadb(original, original_n, 0, NULL), *merges, *gone;
    struct texttest_rng rng = {7};
    size_t n;

    merges = json_object_get(json_object_get(root, "model"), "merges");
    n = json_array_size(merges);
    for (unsigned i = 0; i < 40; i++) {
        size_t at = i == 0 ? 0 : i == 1 ? n - 1 : texttest_below(&rng, (uint32_t)n);
        struct xerr err = {0};
        struct tok *t;

        gone = json_incref(json_array_get(merges, at));
        json_array_remove(merges, at);
        set_path(root, "model/ignore_merges", i % 2 ? "true" : "false");
        ck_assert_int_eq(json_dump_file(root, file, 0), 0);
        ck_assert_int_eq(tok_open(dir, &t, &err), -EINVAL);
        ck_assert_msg(strstr(err.msg, "model.merges: found no merge") && strstr(err.msg, file) &&
                          strstr(err.msg, "expected it"),
                      "%s", err.msg);
        ck_assert_int_eq(json_array_insert_new(merges, at, gone), 0);
    }
    json_decref(root);
}
END_TEST

/* The other kind of list: every way to make an entry out of two others is a merge. One less is missed too;
 * an entry that cannot be cut is fine where pieces may be emitted whole. */
START_TEST(missing_merge_of_many) {
    for (unsigned variant = 0; variant < 3; variant++) {
        json_t *root = json_loadb(original, original_n, 0, NULL), *model, *vocab, *merges, *v;
        struct xerr err = {0};
        struct tok *t = NULL;
        const char *key;

        model = json_object_get(root, "model");
        vocab = json_object_get(model, "vocab");
        json_object_set_new(model, "merges", merges = json_array());
        json_object_foreach(vocab, key, v) {
            for (size_t cut = 1; cut < strlen(key); cut++) {
                char left[512];

                if (((unsigned char)key[cut] & 0xc0) == 0x80)
                    continue;
                snprintf(left, sizeof left, "%.*s", (int)cut, key);
                if (json_object_get(vocab, left) && json_object_get(vocab, key + cut))
                    json_array_append_new(merges, json_pack("[s,s]", left, key + cut));
            }
        }
        ck_assert_uint_gt(json_array_size(merges), 5000);
        if (variant == 1)
            json_array_remove(merges, 2500);
        if (variant == 2) {
            set_path(root, "model/vocab/zqzqx", "4100");
            set_path(root, "model/ignore_merges", "true");
        }
        ck_assert_int_eq(json_dump_file(root, file, 0), 0);
        ck_assert_msg(tok_open(dir, &t, &err) == (variant == 1 ? -EINVAL : 0), "%u: %s", variant, err.msg);
        if (variant == 1)
            ck_assert_msg(strstr(err.msg, "model.merges: found no merge"), "%s", err.msg);
        tok_free(t);
        json_decref(root);
    }
}
END_TEST

/* Streams have room for the longest text of one token: a file cannot ask for gigabytes. */
START_TEST(long_entries) {
    static const size_t sizes[] = {4096, 4097, 100000};
    char *text = malloc(100001);

    for (unsigned i = 0; i < 6; i++) {
        json_t *root = json_loadb(original, original_n, 0, NULL);
        size_t n = sizes[i / 2];
        struct xerr err = {0};
        struct tok *t = NULL;

        memset(text, 'q', n);
        text[n] = 0;
        if (i % 2)
            json_object_set_new(json_array_get(json_object_get(root, "added_tokens"), 3), "content",
                                json_string(text));
        else
            json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), text,
                                json_integer(5000));
        set_path(root, "model/ignore_merges", "true");
        ck_assert_int_eq(json_dump_file(root, file, 0), 0);
        json_decref(root);
        ck_assert_msg(tok_open(dir, &t, &err) == (n > 4096 ? -EINVAL : 0), "%u: %s", i, err.msg);
        if (n > 4096)
            ck_assert_msg(strstr(err.msg, "bytes; expected at most 4096") &&
                              strstr(err.msg, i % 2 ? "added_tokens: token 4063" : "model.vocab: token 5000"),
                          "%s", err.msg);
        else
            ck_assert_uint_eq(tok_max_bytes(t), 4096);
        tok_free(t);
    }
    free(text);
}
END_TEST

/* A pipe in a file's place must not hang the start. */
START_TEST(pipe_in_place) {
    ck_assert_int_eq(mkfifo(file, 0600), 0);
    refused(-EINVAL, "not a regular file");
}
END_TEST

START_TEST(ids_with_holes) {
    struct xerr err = {0};
    struct tok *t;
    const uint8_t *b;
    size_t n;

    write_mutated("added_tokens/35/id", "5000");
    ck_assert_msg(tok_open(dir, &t, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(tok_size(t), 5001);
    ck_assert_uint_eq(tok_count(t), 4096);
    ck_assert_int_eq(tok_bytes(t, 4095, &b, &n), -ENOENT);
    ck_assert_int_eq(tok_bytes(t, 5000, &b, &n), TOK_ADDED | TOK_SPECIAL);
    ck_assert_uint_eq(n, 9);
    ck_assert_int_eq(tok_bytes(t, 5001, &b, &n), -ENOENT);
    tok_free(t);
}
END_TEST

#define REAL_BASE   154820u
#define REAL_MERGES 321649u

/* The real model's sizes: all strings of two and three letters and random ones of four; every way to cut
 * one into known parts is a merge, as in vocabularies converted from rank files. */
static void write_real_size(void) {
    FILE *f = fopen(file, "w");
    const char *head_end = strstr(original, "\"model\"");
    struct texttest_rng rng = {5};
    uint8_t *seen = calloc(26 * 26 * 26 * 26 / 8 + 1, 1);
    char(*four)[5] = malloc((REAL_BASE + 1) * sizeof *four);
    unsigned id = 0, n_four = 0, merges = 0;
    int next = 0x100;

    ck_assert(f && seen && four && head_end);
    /* nano's head with the added tokens behind the base vocabulary */
    for (const char *p = original; p < head_end;) {
        const char *at = strstr(p, "\"id\": ");

        if (!at || at > head_end) {
            fwrite(p, 1, (size_t)(head_end - p), f);
            break;
        }
        fwrite(p, 1, (size_t)(at - p), f);
        fprintf(f, "\"id\": %lu", strtoul(at + 6, NULL, 10) - 4060 + REAL_BASE);
        p = at + 6 + strspn(at + 6, "0123456789");
    }
    fprintf(f, "\"model\": {\"type\": \"BPE\", \"fuse_unk\": false, \"byte_fallback\": false, "
               "\"ignore_merges\": true, "
               "\"vocab\": {");
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        char s[5] = {0};

        s[utf8_put((uint32_t)(itself ? b : next++), s)] = 0;
        fprintf(f, "%s\"%s%s\": %u", b ? ", " : "", b == '"' || b == '\\' ? "\\" : "", s, id++);
    }
    for (unsigned i = 0; i < 26 * 26; i++)
        fprintf(f, ", \"%c%c\": %u", 'a' + i / 26, 'a' + i % 26, id++);
    for (unsigned i = 0; i < 26 * 26 * 26; i++)
        fprintf(f, ", \"%c%c%c\": %u", 'a' + i / 676, 'a' + i / 26 % 26, 'a' + i % 26, id++);
    while (id < REAL_BASE) {
        unsigned v = texttest_below(&rng, 26 * 26 * 26 * 26);

        if (seen[v / 8] >> v % 8 & 1)
            continue;
        seen[v / 8] |= (uint8_t)(1u << v % 8);
        snprintf(four[n_four], 5, "%c%c%c%c", 'a' + v / 17576, 'a' + v / 676 % 26, 'a' + v / 26 % 26,
                 'a' + v % 26);
        fprintf(f, ", \"%s\": %u", four[n_four++], id++);
    }
    fprintf(f, "}, \"merges\": [[\"a\", \"a\"]");
    for (merges = 1; merges < 676; merges++)
        fprintf(f, ", [\"%c\", \"%c\"]", 'a' + merges / 26, 'a' + merges % 26);
    for (unsigned i = 0; i < 26 * 26 * 26; i++, merges += 2) {
        char s[4] = {(char)('a' + i / 676), (char)('a' + i / 26 % 26), (char)('a' + i % 26), 0};

        fprintf(f, ", [\"%c\", \"%s\"], [\"%.2s\", \"%c\"]", s[0], s + 1, s, s[2]);
    }
    for (unsigned i = 0; i < n_four && merges < REAL_MERGES; i++, merges += 2)
        fprintf(f, ", [\"%.2s\", \"%s\"], [\"%.3s\", \"%c\"]", four[i], four[i] + 2, four[i], four[i][3]);
    for (unsigned i = 0; i < n_four && merges < REAL_MERGES; i++, merges++)
        fprintf(f, ", [\"%c\", \"%s\"]", four[i][0], four[i] + 1);
    fprintf(f, "]}}\n");
    ck_assert_uint_eq(merges, REAL_MERGES);
    ck_assert_int_eq(fclose(f), 0);
    free(seen);
    free(four);
}

START_TEST(real_size_opens_fast) {
    struct xerr err = {0};
    struct tok *t;
    uint32_t ids[256];
    size_t n;
    double took;

    write_real_size();
    took = texttest_now();
    ck_assert_msg(tok_open(dir, &t, &err) == 0, "%s", err.msg);
    took = texttest_now() - took;
    ck_assert_uint_eq(tok_size(t), 154856);
    ck_assert_uint_eq(tok_count(t), 154856);
    ck_assert_int_eq(tok_id(t, "<|video|>"), 154855);
    encode(t, "abc<|user|>", ids, &n);
    ck_assert(n == 2 && ids[0] == 256 + 676 + 1 * 26 + 2 && ids[1] == 154827);
    tok_free(t);
    printf("a file of the real size opens in %.2f s\n", took);
    ck_assert_msg(took < 2 * texttest_slow(), "opening took %.2f s", took);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_tokload");
    TCase *tc = tcase_create("tokload");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60 * texttest_slow());
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, wrong_in_one_place, 0, (int)(sizeof mutations / sizeof *mutations));
    tcase_add_test(tc, broken_files);
    tcase_add_test(tc, no_permission);
    tcase_add_test(tc, random_damage);
    tcase_add_test(tc, merges_as_texts);
    tcase_add_test(tc, ignore_merges);
    tcase_add_test(tc, missing_merge);
    tcase_add_test(tc, missing_merge_of_many);
    tcase_add_test(tc, long_entries);
    tcase_add_test(tc, pipe_in_place);
    tcase_add_test(tc, ids_with_holes);
    tcase_add_test(tc, real_size_opens_fast);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
