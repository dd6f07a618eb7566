/* SPDX-License-Identifier: MIT */
/* Fuzz bodies of what tells formats: GGUF files, and the tensors of one module in safetensors. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "detect.h"
#include "fuzz.h"
#include "gguf.h"
#include "tokenizer.h"
#include "utf8.h"

static void refused(int r, const struct xerr *err) {
    FUZZ_NEED(r < 0);
    FUZZ_NEED(err->msg[0] != 0);
    FUZZ_NEED(strnlen(err->msg, sizeof err->msg) < sizeof err->msg);
}

/* ---- GGUF ---- */

struct mem {
    const uint8_t *p;
    size_t n;
};

static int read_mem(void *ctx, uint64_t at, void *buf, uint64_t n) {
    const struct mem *m = ctx;

    FUZZ_NEED(n <= m->n && at <= m->n - n);
    memcpy(buf, m->p + at, n);
    return 0;
}

static void check_values(const struct gguf *g) {
    for (size_t i = 0; i < gguf_keys(g); i++) {
        const struct gguf_value *v = gguf_key_at(g, i);
        uint64_t at = 0, n = 0, u;
        const char *s;
        size_t len;
        double f;

        FUZZ_NEED(gguf_find(g, v->key) == v && utf8_is_valid(v->key, strlen(v->key)));
        while (gguf_next_string(v, &at, &s, &len)) {
            FUZZ_NEED(s >= (const char *)v->p && len <= v->bytes && s + len <= (const char *)v->p + v->bytes);
            n++;
        }
        FUZZ_NEED(v->type != GGUF_STRING || n == v->n);
        if (v->n > 0) {
            gguf_uint(v, v->n - 1, &u);
            gguf_real(v, v->n - 1, &f);
        }
        FUZZ_NEED(!gguf_uint(v, v->n, &u) && !gguf_real(v, v->n, &f));
    }
}

static void check_tensors(const struct gguf *g, size_t size) {
    for (size_t i = 0; i < gguf_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        uint32_t weights = 0, bytes = 0;
        uint64_t n = 1;

        FUZZ_NEED(t->bytes <= size && t->offset <= size - t->bytes && t->bytes > 0);
        FUZZ_NEED(gguf_block(t->type, &weights, &bytes) && t->n_dims >= 1 && t->n_dims <= GGUF_MAX_DIMS);
        for (uint32_t d = 0; d < t->n_dims; d++)
            n *= t->ne[d];
        FUZZ_NEED(t->ne[0] % weights == 0 && n / weights * bytes == t->bytes);
        for (size_t k = 0; k < i; k++) { /* no byte belongs to two */
            const struct gguf_tensor *o = gguf_tensor_at(g, k);

            FUZZ_NEED(strcmp(o->name, t->name) < 0);
            FUZZ_NEED(t->offset + t->bytes <= o->offset || o->offset + o->bytes <= t->offset);
        }
    }
}

/* A whole file: its container, the configuration in it, the tokenizer in it. */
int fuzz_gguf(const uint8_t *data, size_t size) {
    static struct model_config cfg;
    struct mem m = {data, size};
    struct xerr err = {0};
    struct gguf *g = NULL;
    struct tok *t = NULL;
    char path[512];
    int r = gguf_read(read_mem, &m, size, "a.gguf", &g, &err);

    if (r < 0) {
        refused(r, &err);
        FUZZ_NEED(g == NULL);
        return 0;
    }
    check_values(g);
    check_tensors(g, size);
    gguf_free(g);
    /* what other targets left behind would be read first */
    unlink(fuzz_file("config.json", NULL, 0));
    unlink(fuzz_file("tokenizer.json", NULL, 0));
    snprintf(path, sizeof path, "%s", fuzz_file("a.gguf", data, size));
    r = model_config_read(fuzz_file("", NULL, 0), &cfg, &err);
    if (r < 0)
        refused(r, &err);
    else
        FUZZ_NEED(cfg.from_gguf && cfg.num_hidden_layers > 0 && cfg.num_hidden_layers < KERN_MAX_LAYERS);
    r = tok_open(fuzz_file("", NULL, 0), &t, &err);
    if (r < 0)
        refused(r, &err);
    else
        FUZZ_NEED(tok_count(t) <= tok_size(t) && tok_size(t) <= TOK_MAX_IDS);
    tok_free(t);
    unlink(path);
    return 0;
}

/* ---- one module ---- */

enum { MAX_DATA = 1 << 20 };

static const char *const SUFFIX[] = {
    "weight",
    "weight_packed",
    "trellis",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_shape",
    "suh",
    "svh",
    "su",
    "sv",
    "mcg",
    "mul1",
    "input_scale",
    "qweight",
};
static const struct {
    const char *name;
    uint32_t bytes;
} DTYPE[] = {{"BF16", 2},    {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"U8", 1},
             {"F8_E8M0", 1}, {"I32", 4}, {"I16", 2}, {"I64", 8}};
static const uint32_t DIM[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 192, 256};

/* The header of a file with the tensors the input names; 0: more bytes than are worth writing. */
static uint64_t header_of(struct fuzz_in *in, char *text, size_t cap) {
    uint64_t at = 0;
    size_t n = (size_t)snprintf(text, cap, "{");
    uint32_t used = 0;

    for (int i = 0; i < 8 && in->n > 0; i++) {
        uint8_t s = fuzz_u8(in) % (sizeof SUFFIX / sizeof *SUFFIX),
                d = fuzz_u8(in) % (sizeof DTYPE / sizeof *DTYPE);
        uint8_t dims = fuzz_u8(in) % 5;
        uint64_t bytes = DTYPE[d].bytes;

        n += (size_t)snprintf(text + n, cap - n, "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[", used ? "," : "",
                              SUFFIX[s], DTYPE[d].name);
        for (uint8_t k = 0; k < dims; k++) {
            uint32_t v = DIM[fuzz_u8(in) % (sizeof DIM / sizeof *DIM)];

            bytes *= v;
            n += (size_t)snprintf(text + n, cap - n, "%s%u", k ? "," : "", v);
        }
        if (used >> s & 1 || bytes > MAX_DATA - at)
            return 0;
        used |= 1u << s;
        n += (size_t)snprintf(text + n, cap - n, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                              (unsigned long long)(at + bytes));
        at += bytes;
    }
    snprintf(text + n, cap - n, "}");
    return at ? at : 1;
}

static void check_module(const struct model_module *m, uint64_t rows, uint64_t cols) {
    uint32_t pieces = 0;

    for (uint32_t i = 0; i < m->n; i++) {
        const struct model_piece *p = &m->piece[i];
        struct kern_piece_info info = {0};
        uint64_t bytes = p->en->t->bytes * (p->conv == MODEL_CONV_SIGNS ? 16 : 1);

        if (p->piece == MODEL_PIECE_NONE)
            continue;
        FUZZ_NEED(!(pieces >> p->piece & 1));
        pieces |= 1u << p->piece;
        FUZZ_NEED(kern_store_piece(&m->store, rows, cols, p->piece, &info) == 0);
        FUZZ_NEED(info.rows * info.row_bytes == bytes);
    }
    for (uint32_t p = 0; p < KERN_PIECES; p++) {
        struct kern_piece_info info = {0};

        FUZZ_NEED(kern_store_piece(&m->store, rows, cols, p, &info) == 0);
        FUZZ_NEED((info.rows > 0) == (pieces >> p & 1));
    }
}

/* What is accepted has every piece that kernels want of such a store, of exactly their sizes. */
int fuzz_detect(const uint8_t *data, size_t size) {
    static char text[4096];
    struct fuzz_in in = {data, size};
    uint64_t rows, cols, bytes;
    struct model_module m;
    struct model_index *x = NULL;
    struct xerr err = {0};
    uint8_t *file;
    char path[512];
    size_t len;
    int r;

    if (size < 5)
        return 0;
    rows = DIM[1 + fuzz_u8(&in) % (sizeof DIM / sizeof *DIM - 1)];
    cols = DIM[1 + fuzz_u8(&in) % (sizeof DIM / sizeof *DIM - 1)];
    bytes = header_of(&in, text, sizeof text);
    if (bytes == 0)
        return 0;
    len = strlen(text);
    bytes = strstr(text, ",0]}") && bytes == 1 ? 0 : bytes;
    file = calloc(1, 8 + len + bytes);
    FUZZ_NEED(file != NULL);
    memcpy(file, &(uint64_t){len}, 8);
    memcpy(file + 8, text, len);
    snprintf(path, sizeof path, "%s", fuzz_file("model.safetensors", file, 8 + len + bytes));
    free(file);
    r = model_index_open(&x, fuzz_file("", NULL, 0), NULL, &err);
    if (r == 0) {
        r = model_detect(x, "m.weight", rows, cols, &m, &err);
        if (r == 0)
            check_module(&m, rows, cols);
        else
            FUZZ_NEED(r == -ENODATA || err.msg[0]);
    } else {
        refused(r, &err);
    }
    model_index_close(x);
    unlink(path);
    return 0;
}
