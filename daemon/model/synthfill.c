/* SPDX-License-Identifier: MIT */
/* synthfill.c: the numbers of a model without files, window by window. Codes are random bits, kept away from those that
 * stand for no number; factors are such that a matrix has about the norm of a trained one. Random bits are two blocks'
 * exclusive or, whose lengths have no common factor, so that no two rows are equal: to draw hundreds of gigabytes would
 * take longer than to load them. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "synthetic.h"

enum { POOL_WORDS = 1 << 14, OTHER_WORDS = 16381 }; /* 256 KiB together: they stay in a core's cache */

struct source {
    uint64_t pool[POOL_WORDS], other[OTHER_WORDS];
    uint64_t done, total;
};

static uint64_t next(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static uint64_t repeat16(uint32_t v) {
    return (v & 0xffffull) * 0x0001000100010001ull;
}

static uint64_t repeat8(uint32_t v) {
    return (v & 0xffull) * 0x0101010101010101ull;
}

/* 16-bit words of a float with the exponent of `size` and `mantissa` bits of it. */
static void pattern16(float size, uint32_t bias, uint32_t mantissa, uint64_t *ret_keep, uint64_t *ret_set) {
    int exponent = (int)floorf(log2f(size)) + (int)bias;

    *ret_keep = repeat16(0x8000u | ((1u << mantissa) - 1));
    *ret_set = repeat16((uint32_t)(exponent < 1 ? 1 : exponent) << mantissa);
}

static uint32_t bits_of(float v) {
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    return u;
}

/* Which of a piece's random bits stay, and which are set: eight bytes' worth. The sizes in the denominators are the
 * roots of the mean squares of what the codes then stand for. */
static int pattern(const struct kern_tensor *t, uint32_t piece, uint64_t *keep, uint64_t *set) {
    const float size = 1.0f / sqrtf((float)t->cols);
    float code = 1.0f; /* root of the mean square of a code's number */

    switch (t->store.format) {
    case KERN_BF16:
        pattern16(size / 1.53f, 127, 7, keep, set);
        return 0;
    case KERN_FP8:
    case KERN_MXFP8:
        code = 1.1f;
        if (piece == KERN_PIECE_CODES) {
            *keep = repeat8(0x8f);
            *set = repeat8(0x30); /* 0.5 to 1.9 */
            return 0;
        }
        break;
    case KERN_NVFP4:
        code = 3.0f * 1.4f;
        if (piece == KERN_PIECE_SCALE) {
            *keep = repeat8(0x07);
            *set = repeat8(0x38); /* 1 to 1.9 */
            return 0;
        }
        break;
    case KERN_MXFP4:
        code = 3.0f;
        break;
    case KERN_INT8:
        code = 74.0f;
        break;
    case KERN_INT4:
        code = 4.6f;
        break;
    case KERN_EXL3:
        if (piece == KERN_PIECE_SUH || piece == KERN_PIECE_SVH) {
            pattern16(piece == KERN_PIECE_SUH ? 1.0f : size / 1.24f, 15, 10, keep, set);
            *keep = repeat16(0x8000);
            return 0;
        }
        break;
    default:
        return -ENOTSUP;
    }
    *keep = 0;
    if (piece == KERN_PIECE_CODES) {
        *keep = ~0ull;
        *set = 0;
    } else if (piece == KERN_PIECE_GLOBAL || t->store.scale == KERN_SCALE_F32) {
        *set = bits_of(size / code) * 0x0000000100000001ull;
    } else if (t->store.scale == KERN_SCALE_BF16) {
        *set = repeat16(bits_of(size / code) >> 16);
    } else if (t->store.scale == KERN_SCALE_E8M0) {
        *set = repeat8((uint32_t)(127 + (int)floorf(log2f(size / code))));
    } else {
        return -ENOTSUP;
    }
    return 0;
}

/* A vector's numbers lie around `middle`, at most `reach` from it: what keeps a random model's gates half open and its
 * streams apart. */
static void around(uint32_t part, float *middle, float *reach) {
    *middle = 1.0f;
    *reach = 0.2f;
    switch (part) {
    case KERN_ROUTER_BIAS:
        *middle = 0.0f;
        *reach = 0.02f;
        break;
    case KERN_IDX_KNORM_B:
    case KERN_IDX_APE:
    case KERN_HC_ATTN_BASE:
    case KERN_HC_FFN_BASE:
    case KERN_KDA_QCONV:
    case KERN_KDA_KCONV:
    case KERN_KDA_VCONV:
        *middle = 0.0f;
        *reach = 0.5f;
        break;
    case KERN_KDA_DT_BIAS:
        *middle = -1.0f;
        *reach = 1.0f;
        break;
    default:
        break;
    }
}

static void fill_vector(struct source *f, const struct model_tensor *t, uint64_t at, uint8_t *out, uint64_t n) {
    const uint64_t first = at / sizeof(float), seed = t->id.part * 7919u + t->id.layer * 104729u;
    float middle, reach;

    around(t->id.part, &middle, &reach);
    for (uint64_t i = 0; i < n / sizeof(float); i++) {
        uint32_t r = (uint32_t)(f->pool[(first + i + seed) % POOL_WORDS] >> 40);
        float v = middle + reach * ((float)r / 8388608.0f - 1.0f);

        memcpy(out + i * sizeof v, &v, sizeof v);
    }
}

static void fill_piece(struct source *f, const struct model_tensor *t, uint64_t at, uint64_t keep, uint64_t set,
                       uint8_t *out, uint64_t n) {
    /* where a tensor begins in the sequence of both; windows begin at multiples of eight bytes */
    const uint64_t first = (t->id.part * 31ull + t->id.layer * 1009ull + t->id.expert * 65537ull) * 7919 + at / 8;
    uint32_t a = (uint32_t)(first % POOL_WORDS), b = (uint32_t)(first % OTHER_WORDS);

    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t w = ((f->pool[a] ^ f->other[b]) & keep) | set;

        memcpy(out + i, &w, n - i < 8 ? n - i : 8);
        a = a + 1 == POOL_WORDS ? 0 : a + 1;
        b = b + 1 == OTHER_WORDS ? 0 : b + 1;
    }
}

static int load_piece(struct source *f, const struct model_tensor *t, uint32_t piece, const struct model_load *l,
                      struct xerr *e) {
    const uint64_t step = l->staging_bytes & ~63ull;
    struct kern_tensor_id id = t->id;
    struct kern_piece_info info;
    uint64_t keep = 0, set = 0;
    int r = kern_store_piece(&t->k.store, t->k.rows, t->k.cols, (enum kern_piece)piece, &info);

    if (r == 0 && t->is_matrix && info.rows)
        r = pattern(&t->k, piece, &keep, &set);
    if (r < 0)
        return xerr_set(e, r, "model synthetic: %s of layer %u has a format it cannot make", kern_part_name(t->id.part),
                        t->id.layer);
    id.piece = piece;
    for (uint64_t at = 0, all = info.rows * info.row_bytes, n; at < all; at += n) {
        n = all - at < step ? all - at : step;
        if (t->is_matrix)
            fill_piece(f, t, at, keep, set, l->staging, n); /* staging has room for whole words */
        else
            fill_vector(f, t, at, l->staging, n);
        if ((r = l->sink(l->sink_ctx, &id, &t->k, at, l->staging, n)) < 0)
            return xerr_set(e, r, "model synthetic: %s of layer %u was not taken: %s", kern_part_name(t->id.part),
                            t->id.layer, strerror(-r));
        f->done += n;
        if (l->progress && l->progress(l->progress_ctx, f->done, f->total))
            return xerr_set(e, -ECANCELED, "model synthetic: stopped");
    }
    return 0;
}

int model_synthetic_load(const struct model_directory *d, const struct model_load *l, struct xerr *e) {
    struct source f = {.total = d->resident};
    uint64_t x = 0x9e3779b97f4a7c15ull;
    int r = 0;

    for (uint32_t i = 0; i < POOL_WORDS; i++)
        f.pool[i] = next(&x);
    for (uint32_t i = 0; i < OTHER_WORDS; i++)
        f.other[i] = next(&x);
    for (size_t i = 0; i < d->n_tensors && r == 0; i++)
        for (uint32_t piece = 0; piece < KERN_PIECES && r == 0; piece++)
            r = load_piece(&f, &d->tensor[i], piece, l, e);
    return r;
}
