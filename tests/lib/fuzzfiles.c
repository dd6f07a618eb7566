/* SPDX-License-Identifier: MIT */
/* Fuzz bodies of the readers of files: configuration, checkpoint headers, model settings, tokenizer, chat
 * template. What they accept must keep the promises of their headers; what they refuse must say why. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chattmpl.h"
#include "conf.h"
#include "config.h"
#include "fuzz.h"
#include "safetensors.h"
#include "tokenizer.h"
#include "utf8.h"

static void refused(int r, const struct xerr *err) {
    FUZZ_NEED(r < 0);
    FUZZ_NEED(err->msg[0] != 0);
    FUZZ_NEED(strnlen(err->msg, sizeof err->msg) < sizeof err->msg);
}

/* ---- configuration ------------------------------------------------------------------------------------- */

static void same_values(const struct conf *a, const struct conf *b) {
    struct conf x = *a, y = *b;
    char restart[1024];

    FUZZ_NEED(conf_reload(&x, &y, restart, sizeof restart) == 0);
    FUZZ_NEED(restart[0] == 0);
}

/* What is accepted survives being printed and read again. */
int fuzz_conf(const uint8_t *data, size_t size) {
    struct conf c, again;
    struct xerr err = {0};
    char *text = NULL;
    size_t n = 0;
    FILE *f;
    int r;

    conf_init(&c);
    r = conf_read_file(&c, fuzz_file("glmd.conf", data, size), &err);
    if (r < 0) {
        refused(r, &err);
        conf_done(&c);
        return 0;
    }
    FUZZ_NEED(r == 0);
    r = conf_check(&c, &err);
    if (r < 0)
        refused(r, &err);
    f = open_memstream(&text, &n);
    FUZZ_NEED(f != NULL);
    conf_print_merged(&c, f);
    FUZZ_NEED(fclose(f) == 0);
    conf_init(&again);
    r = conf_read_file(&again, fuzz_file("glmd.conf", (const uint8_t *)text, n), &err);
    if (r < 0)
        fprintf(stderr, "%s\n%s\n", err.msg, text);
    FUZZ_NEED(r == 0);
    same_values(&c, &again);
    conf_done(&again);
    conf_done(&c);
    free(text);
    return 0;
}

/* ---- safetensors --------------------------------------------------------------------------------------- */

static void check_tensor(const struct st_file *f, const struct st_tensor *t, uint64_t file_bytes) {
    uint64_t elements = 1;
    uint8_t one;
    struct xerr err;

    FUZZ_NEED(t->bytes <= file_bytes && t->offset <= file_bytes - t->bytes);
    FUZZ_NEED(t->n_dims <= ST_MAX_DIMS && t->name && utf8_is_valid(t->name, strlen(t->name)));
    for (uint32_t i = 0; i < t->n_dims; i++) {
        FUZZ_NEED(t->shape[i] == 0 || elements <= UINT64_MAX / t->shape[i]);
        elements *= t->shape[i];
    }
    FUZZ_NEED(elements <= UINT64_MAX / 64);
    FUZZ_NEED(elements * st_dtype_bits(t->dtype) == t->bytes * 8);
    FUZZ_NEED(st_find(f, t->name) == t);
    if (t->bytes > 0)
        FUZZ_NEED(st_read(f, t, t->bytes - 1, &one, 1, &err) == 0);
    FUZZ_NEED(st_read(f, t, t->bytes, &one, 1, &err) == -ERANGE);
}

/* The first byte says whether the rest is a whole file or a header, to which the target puts its length in
 * front and up to 255 bytes of data (the second byte) behind. */
int fuzz_safetensors_header(const uint8_t *data, size_t size) {
    static uint8_t file[8 + 4096 + 256];
    const uint8_t *all = data + 1;
    struct xerr err = {0};
    struct st_file *f = NULL;
    size_t n = size - 1;
    int r;

    if (size < 2 || size > 4096)
        return 0;
    if (!(data[0] & 1)) {
        uint64_t len = size - 2;

        memcpy(file, &len, 8);
        memcpy(file + 8, data + 2, size - 2);
        memset(file + 8 + size - 2, 0x5a, data[1]);
        all = file;
        n = 8 + size - 2 + data[1];
    }
    r = st_open(&f, fuzz_file("a.safetensors", all, n), NULL, &err);
    if (r < 0) {
        refused(r, &err);
        FUZZ_NEED(f == NULL);
        return 0;
    }
    for (size_t i = 0; i < st_count(f); i++) {
        check_tensor(f, st_at(f, i), n);
        for (size_t j = 0; j < i; j++) { /* no byte belongs to two */
            const struct st_tensor *a = st_at(f, i), *b = st_at(f, j);

            FUZZ_NEED(a->bytes == 0 || b->bytes == 0 || a->offset + a->bytes <= b->offset ||
                      b->offset + b->bytes <= a->offset);
        }
    }
    st_close(f);
    return 0;
}

/* ---- config.json --------------------------------------------------------------------------------------- */

/* First byte: 1 generation_config.json beside a small model, else config.json. */
int fuzz_config_json(const uint8_t *data, size_t size) {
    static struct model_config cfg;
    struct model_generation gen;
    struct kern_model_desc desc;
    struct xerr err = {0};
    const char *dir;
    int r;

    if (size < 1)
        return 0;
    if (data[0] == 1) {
        memset(&cfg, 0, sizeof cfg);
        cfg.vocab_size = 100;
        cfg.n_eos = 2;
        cfg.eos_token_id[0] = 3;
        cfg.eos_token_id[1] = 7;
        fuzz_file("generation_config.json", data + 1, size - 1);
        r = model_generation_read(fuzz_file("", NULL, 0), &cfg, &gen, &err);
        if (r < 0)
            refused(r, &err);
        return 0;
    }
    fuzz_file("config.json", data + 1, size - 1);
    dir = fuzz_file("", NULL, 0);
    r = model_config_read(dir, &cfg, &err);
    if (r < 0) {
        refused(r, &err);
        return 0;
    }
    FUZZ_NEED(cfg.vocab_size > 0 && cfg.num_hidden_layers <= KERN_MAX_LAYERS && cfg.n_eos <= MODEL_MAX_EOS);
    for (uint32_t i = 0; i < cfg.n_eos; i++)
        FUZZ_NEED(cfg.eos_token_id[i] < cfg.vocab_size &&
                  (i == 0 || cfg.eos_token_id[i] > cfg.eos_token_id[i - 1]));
    r = model_config_describe(&cfg, cfg.vocab_size, true, &desc, &err);
    if (r < 0)
        refused(r, &err);
    FUZZ_NEED(model_config_describe(&cfg, cfg.vocab_size + 1, true, &desc, &err) == -EINVAL);
    return 0;
}

/* ---- tokenizer.json ------------------------------------------------------------------------------------ */

static void round_trip(const struct tok *t, struct tok_scratch *s, const char *text) {
    uint32_t ids[128];
    size_t n = 0, len = strlen(text), at = 0, part;
    const uint8_t *bytes;

    FUZZ_NEED(tok_encode(t, s, text, len, 0, ids, 128, &n) == 0 && n <= len);
    for (size_t i = 0; i < n; i++) {
        FUZZ_NEED(ids[i] < tok_size(t) && tok_bytes(t, ids[i], &bytes, &part) >= 0);
        FUZZ_NEED(part <= tok_max_bytes(t) && part <= len - at && memcmp(bytes, text + at, part) == 0);
        at += part;
    }
    FUZZ_NEED(at == len);
}

int fuzz_tokenizer_json(const uint8_t *data, size_t size) {
    struct tok_scratch *s;
    struct tok *t = NULL;
    struct xerr err = {0};
    const uint8_t *bytes;
    size_t len;
    int r;

    fuzz_file("tokenizer.json", data, size);
    r = tok_open(fuzz_file("", NULL, 0), &t, &err);
    if (r < 0) {
        refused(r, &err);
        FUZZ_NEED(t == NULL);
        return 0;
    }
    FUZZ_NEED(tok_size(t) <= TOK_MAX_IDS && tok_count(t) <= tok_size(t));
    for (uint32_t id = 0; id < tok_size(t) && id < 4096; id++)
        if (tok_bytes(t, id, &bytes, &len) >= 0)
            FUZZ_NEED(len <= tok_max_bytes(t));
    FUZZ_NEED(tok_bytes(t, tok_size(t), &bytes, &len) == -ENOENT);
    FUZZ_NEED(tok_scratch_new(0, &s) == 0);
    round_trip(t, s, "Hello  world's 1234\n\n\xc3\xa4\xe2\x82\xac<|user|>!");
    tok_scratch_free(s);
    tok_free(t);
    return 0;
}

/* ---- chat template ------------------------------------------------------------------------------------- */

int fuzz_template_literals(const uint8_t *data, size_t size) {
    struct chattmpl t;
    char *copy = malloc(size ? size : 1); /* of exactly its size: the address sanitizer sees one byte more */

    FUZZ_NEED(copy != NULL);
    memcpy(copy, data, size);
    FUZZ_NEED(chattmpl_read(copy, size, &t) == 0);
    free(copy);
    FUZZ_NEED((t.head.n == 0) == (t.tail.n == 0));
    if (t.head.n > 0) {
        FUZZ_NEED(t.head.n >= 19 && memcmp(t.head.p, "<|system|>\n", 11) == 0);
        FUZZ_NEED(memcmp(t.head.p + t.head.n - 8, "<tools>\n", 8) == 0);
        FUZZ_NEED(t.tail.n >= 8 && memcmp(t.tail.p, "</tools>", 8) == 0);
        FUZZ_NEED(utf8_is_valid(t.head.p, t.head.n) && utf8_is_valid(t.tail.p, t.tail.n));
    }
    FUZZ_NEED(t.warn.n == 0 || utf8_is_valid(t.warn.p, t.warn.n));
    chattmpl_done(&t);
    return 0;
}
