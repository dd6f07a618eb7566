/* SPDX-License-Identifier: MIT */
/* packformat.c: the formats glm-pack writes, the tensors they consist of on disk, and one matrix into them.
 * Pure but for the memory it allocates. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host_quant.h"
#include "pack.h"
#include "size.h"

#define FP8(br, bc)                                                                                          \
    { .format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = br, .block_cols = bc }
#define INTS(f)                                                                                              \
    { .format = f, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128 }
#define EXL3(b, book)                                                                                        \
    { .format = KERN_EXL3, .bits = b, .codebook = book }
#define BLOCKS(f, kind, width)                                                                               \
    { .format = f, .scale = kind, .block_rows = 1, .block_cols = width }

static const struct pack_format FORMATS[] = {
    { "bf16", { .format = KERN_BF16 }, PACK_PLAIN, false },
    { "fp8", FP8(128, 128), PACK_FP8, false },
    { "fp8-channel", FP8(1, 0), PACK_COMPRESSED, false },
    { "fp8-tensor", FP8(0, 0), PACK_COMPRESSED, false },
    { "int8", INTS(KERN_INT8), PACK_COMPRESSED, false },
    { "mxfp8", BLOCKS(KERN_MXFP8, KERN_SCALE_E8M0, 32), PACK_COMPRESSED, false },
    { "nvfp4", BLOCKS(KERN_NVFP4, KERN_SCALE_E4M3, 16), PACK_MODELOPT, true },
    { "nvfp4-ct", BLOCKS(KERN_NVFP4, KERN_SCALE_E4M3, 16), PACK_COMPRESSED, true },
    { "mxfp4", BLOCKS(KERN_MXFP4, KERN_SCALE_E8M0, 32), PACK_COMPRESSED, true },
    { "int4", INTS(KERN_INT4), PACK_COMPRESSED, true },
    { "exl3-2", EXL3(2, KERN_CODEBOOK_MCG), PACK_EXL3, true },
    { "exl3-3", EXL3(3, KERN_CODEBOOK_MCG), PACK_EXL3, true },
    { "exl3-4", EXL3(4, KERN_CODEBOOK_MCG), PACK_EXL3, true },
    { "exl3-5", EXL3(5, KERN_CODEBOOK_MCG), PACK_EXL3, true },
    { "exl3-6", EXL3(6, KERN_CODEBOOK_MCG), PACK_EXL3, true },
    { "exl3-8", EXL3(8, KERN_CODEBOOK_MCG), PACK_EXL3, false },
    { "q8_0", { .format = KERN_Q8_0 }, PACK_GGUF, false },
    { "q6_k", { .format = KERN_Q6_K }, PACK_GGUF, true },
    { "q5_k", { .format = KERN_Q5_K }, PACK_GGUF, true },
    { "q4_k", { .format = KERN_Q4_K }, PACK_GGUF, true },
    { "q3_k", { .format = KERN_Q3_K }, PACK_GGUF, true },
    { "q2_k", { .format = KERN_Q2_K }, PACK_GGUF, true },
    { "iq4_xs", { .format = KERN_IQ4_XS }, PACK_GGUF, true },
    { "iq4_nl", { .format = KERN_IQ4_NL }, PACK_GGUF, true },
    { "iq3_s", { .format = KERN_IQ3_S }, PACK_GGUF, true },
    { "iq3_xxs", { .format = KERN_IQ3_XXS }, PACK_GGUF, true },
    { "iq2_s", { .format = KERN_IQ2_S }, PACK_GGUF, true },
    { "iq2_xs", { .format = KERN_IQ2_XS }, PACK_GGUF, true },
    { "iq2_xxs", { .format = KERN_IQ2_XXS }, PACK_GGUF, true },
    { "iq1_m", { .format = KERN_IQ1_M }, PACK_GGUF, true },
    { "iq1_s", { .format = KERN_IQ1_S }, PACK_GGUF, true },
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

const struct pack_format *pack_format_find(const char *word) {
    for (size_t i = 0; i < N_FORMATS; i++)
        if (strcmp(FORMATS[i].word, word) == 0)
            return &FORMATS[i];
    return NULL;
}

const char *pack_format_words(void) {
    static char words[600];
    size_t column = 0;

    if (words[0])
        return words;
    for (size_t i = 0; i < N_FORMATS; i++) {
        const char *between = !i ? "" : column > 80 ? ",\n                      " : ", ";

        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", between, FORMATS[i].word);
        column = strlen(FORMATS[i].word) + (between[0] && between[1] == '\n' ? 0 : column + 2);
    }
    return words;
}

/* ---- tensors ---- */

static void tensor(struct pack_tensor *t, const char *module, const char *suffix, enum st_dtype dtype,
                   uint32_t n_dims, uint64_t a, uint64_t b, uint64_t c) {
    snprintf(t->name, sizeof t->name, "%s.%s", module, suffix);
    t->dtype = dtype;
    t->n_dims = n_dims;
    t->shape[0] = a;
    t->shape[1] = b;
    t->shape[2] = c;
    t->bytes = st_dtype_bits(dtype) / 8;
    for (uint32_t i = 0; i < n_dims; i++)
        t->bytes *= t->shape[i];
}

static uint64_t blocks(uint64_t n, uint64_t width) {
    return width ? (n + width - 1) / width : 1;
}

int pack_tensors(const struct pack_format *f, enum pack_family family, const char *module, uint64_t rows,
                 uint64_t cols, struct pack_tensor ret[PACK_MAX_TENSORS], uint32_t *ret_n) {
    const struct kern_store *s = &f->store;
    uint64_t bytes, across = blocks(cols, s->block_cols), down = blocks(rows, s->block_rows);
    bool compressed = family == PACK_COMPRESSED;
    struct pack_tensor *t = ret;
    int r = kern_store_bytes(s, rows, cols, &bytes);

    if (r < 0)
        return r;
    if (strlen(module) + 32 > sizeof t->name)
        return -ENAMETOOLONG;
    if (family == PACK_PLAIN && s->format != KERN_BF16) {
        tensor(t, module, "weight", ST_F32, 2, rows, cols, 0);
        *ret_n = 1;
        return 0;
    }
    if (s->format >= KERN_Q8_0) { /* has no tensors of its own: packgguf.c */
        *ret_n = 0;
        return 0;
    }
    switch (s->format) {
    case KERN_FP8:
        tensor(t++, module, "weight", ST_F8_E4M3, 2, rows, cols, 0);
        if (!s->block_rows)
            tensor(t++, module, "weight_scale", ST_F32, 1, 1, 0, 0);
        else
            tensor(t++, module, family == PACK_FP8 ? "weight_scale_inv" : "weight_scale", ST_F32, 2, down,
                   across, 0);
        break;
    case KERN_NVFP4:
        tensor(t++, module, compressed ? "weight_packed" : "weight", ST_U8, 2, rows, cols / 2, 0);
        tensor(t++, module, "weight_scale", ST_F8_E4M3, 2, rows, across, 0);
        if (compressed)
            tensor(t++, module, "weight_global_scale", ST_F32, 1, 1, 0, 0);
        else
            tensor(t++, module, "weight_scale_2", ST_F32, 0, 0, 0, 0);
        break;
    case KERN_MXFP8:
        tensor(t++, module, "weight", ST_F8_E4M3, 2, rows, cols, 0);
        tensor(t++, module, "weight_scale", ST_U8, 2, rows, across, 0);
        break;
    case KERN_MXFP4:
        tensor(t++, module, compressed ? "weight_packed" : "weight", ST_U8, 2, rows, cols / 2, 0);
        tensor(t++, module, "weight_scale", ST_U8, 2, rows, across, 0);
        break;
    case KERN_INT8:
    case KERN_INT4:
        if (cols % s->block_cols) /* programs that read this form want whole groups */
            return -EINVAL;
        tensor(t++, module, "weight_packed", ST_I32, 2, rows, cols / (s->format == KERN_INT8 ? 4 : 8), 0);
        tensor(t++, module, "weight_scale", ST_BF16, 2, rows, across, 0);
        tensor(t++, module, "weight_shape", ST_I64, 1, 2, 0, 0);
        break;
    case KERN_EXL3:
        tensor(t++, module, "trellis", ST_I16, 3, cols / 16, rows / 16, 16u * s->bits);
        tensor(t++, module, "suh", ST_F16, 1, cols, 0, 0);
        tensor(t++, module, "svh", ST_F16, 1, rows, 0, 0);
        tensor(t++, module, "mcg", ST_I32, 0, 0, 0, 0);
        break;
    default:
        tensor(t++, module, "weight", ST_BF16, 2, rows, cols, 0);
    }
    *ret_n = (uint32_t)(t - ret);
    return 0;
}

/* ---- numbers ---- */

static void widen(enum st_dtype from, const uint8_t *p, uint64_t n, float *out) {
    for (uint64_t i = 0; i < n; i++)
        if (from == ST_F32)
            out[i] = host_bits_f32(host_le32(p + 4 * i));
        else
            out[i] = from == ST_BF16 ? host_f32(host_le16(p + 2 * i)) : host_f16_f32(host_le16(p + 2 * i));
}

static void put64(uint8_t *p, uint64_t v) {
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void put_f32(uint8_t *p, float v) {
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(u >> (8 * i));
}

/* What is not a piece, or is written in another way than it is kept. */
static void finish(const struct pack_format *f, enum pack_family family, uint64_t rows, uint64_t cols,
                   uint8_t **bytes) {
    static const uint8_t mcg[4] = { 0xed, 0x1f, 0xac, 0xcb };

    if (f->store.format == KERN_NVFP4 && family == PACK_COMPRESSED && !FAULT(pack_factor_as_divisor))
        put_f32(bytes[2], 1 / host_bits_f32(host_le32(bytes[2])));
    if (f->store.format == KERN_INT8 || f->store.format == KERN_INT4) {
        put64(bytes[2], rows);
        put64(bytes[2] + 8, cols);
    }
    if (f->store.format == KERN_EXL3)
        memcpy(bytes[3], mcg, sizeof mcg);
}

enum { MOST_HANDS = 64, SQUARE = 128 };

struct hand;

/* What all threads of one conversion share. */
struct work {
    const struct pack_format *f;
    enum st_dtype from;
    const uint8_t *source;
    uint64_t rows, cols, unit;
    float amax;
    void *piece[KERN_PIECES];
    uint8_t *numbers; /* where what the codes mean goes in F32, or NULL */
    double *diff, *norm; /* of each group of rows, so that their sum does not depend on who did what */
    int (*step)(struct hand *h, uint64_t item); /* what is done now, for every item below `items` */
    uint64_t items;
    pthread_mutex_t lock; /* of the rest */
    uint64_t next;        /* item */
    int error;
};

/* A thread's own memory. */
struct hand {
    struct work *w;
    float *a, *b;
    void *scratch;
};

static int hand_init(struct hand *h, struct work *w) {
    uint64_t floats;

    if (!size_mul(w->unit, w->cols, &floats) || !size_mul(floats, sizeof *h->a, &floats))
        return -EOVERFLOW;
    h->w = w;
    h->a = malloc(floats);
    h->b = malloc(floats);
    h->scratch = calloc(1, HOST_QUANT_SCRATCH);
    return h->a && h->b && h->scratch ? 0 : -ENOMEM;
}

static void hand_done(struct hand *h) {
    free(h->a);
    free(h->b);
    free(h->scratch);
}

/* Reads a group of rows; returns how many. */
static uint64_t take(struct hand *h, uint64_t group) {
    struct work *w = h->w;
    uint64_t row = group * w->unit, n = w->rows - row < w->unit ? w->rows - row : w->unit;

    widen(w->from, w->source + row * w->cols * (st_dtype_bits(w->from) / 8), n * w->cols, h->a);
    return n;
}

/* What the codes of the group in h->a mean, and how far off that is. */
static int measure(struct hand *h, uint64_t group, uint64_t n) {
    struct work *w = h->w;
    uint64_t row = group * w->unit;
    const void *piece[KERN_PIECES];
    double diff = 0, norm = 0;

    memcpy(piece, w->piece, sizeof piece);
    host_unpack_rows(&w->f->store, w->rows, w->cols, piece, row, n, h->b);
    for (uint64_t i = 0; i < n * w->cols; i++) {
        double d = (double)h->b[i] - (double)h->a[i];

        diff += d * d;
        norm += (double)h->a[i] * (double)h->a[i];
        if (w->numbers)
            put_f32(w->numbers + 4 * (row * w->cols + i), FAULT(pack_numbers_of_source) ? h->a[i] : h->b[i]);
    }
    w->diff[group] = diff;
    w->norm[group] = norm;
    return 0;
}

static int encode_group(struct hand *h, uint64_t group) {
    struct work *w = h->w;
    uint64_t n = take(h, group);
    int r = host_quant_rows(&w->f->store, w->rows, w->cols, h->a, group * w->unit, n, w->amax, w->piece, h->scratch);

    return r < 0 ? r : measure(h, group, n);
}

static int exl3_scales(struct hand *h, uint64_t group) {
    take(h, group);
    return host_quant_exl3_scales(&h->w->f->store, h->w->cols, h->a, group * SQUARE, h->w->piece);
}

static int exl3_square(struct hand *h, uint64_t item) {
    struct work *w = h->w;
    uint64_t across = w->cols / SQUARE, row = item / across * SQUARE, col = item % across * SQUARE;

    for (uint64_t i = 0; i < SQUARE; i++)
        widen(w->from, w->source + ((row + i) * w->cols + col) * (st_dtype_bits(w->from) / 8), SQUARE,
              h->a + i * SQUARE);
    host_quant_exl3_square(&w->f->store, w->rows, h->a, SQUARE, row, col, w->piece, h->scratch);
    return 0;
}

static int exl3_measure(struct hand *h, uint64_t group) {
    return measure(h, group, take(h, group));
}

/* Takes items until there are none or somebody failed. */
static void *hand_run(void *ctx) {
    struct hand *h = ctx;
    struct work *w = h->w;

    for (;;) {
        uint64_t item;
        int r;

        pthread_mutex_lock(&w->lock);
        item = w->error < 0 ? w->items : w->next;
        w->next = item < w->items ? item + 1 : item;
        pthread_mutex_unlock(&w->lock);
        if (item >= w->items)
            return NULL;
        r = w->step(h, item);
        if (r < 0) {
            pthread_mutex_lock(&w->lock);
            w->error = r;
            pthread_mutex_unlock(&w->lock);
        }
    }
}

/* Items [first, items), by as many of the hands as threads can be started for; the first is the caller's. */
static int by_all(struct work *w, struct hand *hand, uint32_t n, int (*step)(struct hand *, uint64_t), uint64_t first,
                  uint64_t items) {
    pthread_t thread[MOST_HANDS];
    uint32_t started = 1;

    w->step = step;
    w->next = first;
    w->items = items;
    while (started < n && started < items - first &&
           pthread_create(&thread[started], NULL, hand_run, &hand[started]) == 0)
        started++;
    hand_run(&hand[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(thread[i], NULL);
    return w->error;
}

/* The first group alone where it also writes the factor of the whole matrix, which the others read. An EXL3 group is
 * too much for a thread: few matrices have as many of 128 rows as machines have processors. */
static int encode_all(struct work *w, struct hand *own, uint64_t groups) {
    bool exl3 = w->f->store.format == KERN_EXL3;
    uint64_t items = exl3 ? groups * (w->cols / SQUARE) : groups;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct hand hand[MOST_HANDS] = { *own };
    uint32_t n = 1;
    int r;

    while (n < MOST_HANDS && (long)n < cpus && n < items) {
        hand[n] = (struct hand){ .w = NULL };
        if (hand_init(&hand[n], w) < 0) {
            hand_done(&hand[n]); /* fewer, then */
            break;
        }
        n++;
    }
    if (!exl3) {
        r = by_all(w, hand, 1, encode_group, 0, 1);
        if (r == 0)
            r = by_all(w, hand, n, encode_group, 1, groups);
    } else {
        r = by_all(w, hand, n, exl3_scales, 0, groups);
        if (r == 0)
            r = by_all(w, hand, n, exl3_square, 0, items);
        if (r == 0)
            r = by_all(w, hand, n, exl3_measure, 0, groups);
    }
    for (uint32_t i = 1; i < n; i++)
        hand_done(&hand[i]);
    return r;
}

static int scan(struct work *w, struct hand *h) {
    uint64_t width = st_dtype_bits(w->from) / 8;
    int r = 0;

    for (uint64_t row = 0, n; r == 0 && row < w->rows; row += n) {
        n = w->rows - row < w->unit ? w->rows - row : w->unit;
        widen(w->from, w->source + row * w->cols * width, n * w->cols, h->a);
        r = host_quant_scan(h->a, n * w->cols, &w->amax);
    }
    return r;
}

/* The pieces are the tensors of the output, or memory of their own when only their meaning is written. */
static int give_pieces(struct work *w, bool numbers, uint32_t n, uint8_t **bytes) {
    static const uint8_t order[] = { KERN_PIECE_CODES, KERN_PIECE_SCALE, KERN_PIECE_GLOBAL };
    const struct kern_store *s = &w->f->store;
    struct kern_piece_info info;

    if (numbers) {
        w->numbers = bytes[0];
        for (uint32_t i = 0; i < KERN_PIECES; i++) {
            int r = kern_store_piece(s, w->rows, w->cols, (enum kern_piece)i, &info);

            if (r < 0)
                return r;
            if (info.rows && !(w->piece[i] = calloc(info.rows, info.row_bytes)))
                return -ENOMEM;
        }
        return 0;
    }
    for (uint32_t i = 0; i < n && i < 3; i++)
        w->piece[s->format == KERN_EXL3 && i ? KERN_PIECE_SUH + i - 1 : order[i]] = bytes[i];
    if (s->format == KERN_INT8 || s->format == KERN_INT4)
        w->piece[KERN_PIECE_GLOBAL] = NULL;
    return 0;
}

int pack_encode(const struct pack_format *f, enum pack_family family, enum st_dtype from, const void *source,
                uint64_t rows, uint64_t cols, const struct pack_tensor *t, uint32_t n, uint8_t **ret_bytes,
                double *ret_diff, double *ret_norm) {
    bool numbers = family == PACK_PLAIN && f->store.format != KERN_BF16;
    struct work w = {
        .f = f, .from = from, .source = source, .rows = rows, .cols = cols, .lock = PTHREAD_MUTEX_INITIALIZER
    };
    struct hand h = { .w = &w };
    uint64_t groups;
    int r;

    if (!rows || !cols)
        return -EINVAL;
    w.unit = host_quant_unit(&f->store, rows);
    if (w.unit < 16)
        w.unit = 16;
    groups = (rows + w.unit - 1) / w.unit;
    for (uint32_t i = 0; i < n; i++)
        if (!(ret_bytes[i] = calloc(1, t[i].bytes ? t[i].bytes : 1)))
            return -ENOMEM;
    w.diff = calloc(groups, sizeof *w.diff);
    w.norm = calloc(groups, sizeof *w.norm);
    r = w.diff && w.norm ? give_pieces(&w, numbers, n, ret_bytes) : -ENOMEM;
    if (r == 0)
        r = hand_init(&h, &w);
    if (r == 0)
        r = scan(&w, &h);
    if (r == 0)
        r = encode_all(&w, &h, groups);
    if (r == 0 && !numbers)
        finish(f, family, rows, cols, ret_bytes);
    *ret_diff = *ret_norm = 0;
    for (uint64_t i = 0; i < groups && r == 0; i++) {
        *ret_diff += w.diff[i];
        *ret_norm += w.norm[i];
    }
    for (uint32_t i = 0; numbers && i < KERN_PIECES; i++)
        free(w.piece[i]);
    hand_done(&h);
    free(w.diff);
    free(w.norm);
    return r;
}
