/* SPDX-License-Identifier: MIT */
/* EXL3 on the CPU backend: products of every number of bits and codebook against the numbers the matrix stands for, in
 * double precision; the same bits on every instruction set, for a row alone or among others, whole or in shares. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_ops.h"
#include "host_unpack.h"
#include "kernstores.h"

static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};
enum { ROWS = 33 };

struct product {
    struct cpu_packed m;
    uint8_t *weights;
    float *w; /* [rows][cols] */
    uint32_t outputs;
};

static uint64_t align(uint64_t n) {
    return (n + 63) & ~63ull;
}

/* The layout cpu_body_exl3.h describes, written once more: tiles of 16 outputs behind each other, word i of row n of
 * a tile at [i][n]. */
static void lay_tiles(uint8_t *dst, const uint8_t *src, uint32_t rows, uint32_t cols, uint32_t bits) {
    for (uint32_t kt = 0; kt < cols / 16; kt++)
        for (uint32_t nt = 0; nt < rows / 16; nt++)
            for (uint32_t n = 0; n < 8; n++)
                for (uint32_t i = 0; i < bits; i++)
                    memcpy(dst + ((uint64_t)nt * (cols / 16) + kt) * 32 * bits + (i * 8 + n) * 4,
                           src + ((uint64_t)kt * (rows / 16) + nt) * 32 * bits + (n * bits + i) * 4, 4);
}

static void make(struct product *p, const struct kern_store *s, uint32_t rows, uint32_t cols, uint64_t seed) {
    struct km_rng rng = {seed};
    uint8_t *piece[KERN_PIECES];
    uint64_t codes = align((uint64_t)rows * cols / 8 * s->bits);
    const uint32_t whole = 1u << 30;
    ks_random(s, rows, cols, 0.5f, &rng, piece);
    p->w = ks_numbers(s, rows, cols, piece);
    p->weights = aligned_alloc(64, codes + align(2ull * cols) + align(2ull * rows));
    ck_assert_ptr_nonnull(p->weights);
    lay_tiles(p->weights, piece[KERN_PIECE_CODES], rows, cols, s->bits);
    memcpy(p->weights + codes, piece[KERN_PIECE_SUH], 2ull * cols);
    memcpy(p->weights + codes + align(2ull * cols), piece[KERN_PIECE_SVH], 2ull * rows);
    p->m = (struct cpu_packed){.s = *s,
                               .suh = codes,
                               .svh = codes + align(2ull * cols),
                               .rows = rows,
                               .cols = cols,
                               .row_bytes = cols / 8 * s->bits,
                               .k = cols,
                               .cblock = whole,
                               .cblock_pad = whole,
                               .rblock = whole,
                               .rblock_pad = whole};
    p->outputs = rows;
    for (int i = 0; i < KERN_PIECES; i++)
        free(piece[i]);
}

static void done(struct product *p) {
    free(p->weights);
    free(p->w);
}

/* What output n is of x, by the numbers alone; 0 for a padding. */
static double want(const struct product *p, uint32_t n, const float *x, double *ret_length) {
    const struct cpu_packed *m = &p->m;
    double sum = 0, length = 0;
    uint32_t i = n % m->rblock_pad, row = n / m->rblock_pad * m->rstride + m->roff + i;
    for (uint32_t k = 0; m->transposed && k < m->k; k++) {
        double w = p->w[((uint64_t)n / m->cols * m->rstride + m->roff + k) * m->cols + n % m->cols];
        sum += w * (double)x[k];
        length += w * w * (double)x[k] * (double)x[k];
    }
    for (uint32_t k = 0; !m->transposed && i < m->rblock && k < m->cols; k++) {
        double w = p->w[(uint64_t)row * m->cols + k];
        double v = x[k / m->cblock * m->cblock_pad + k % m->cblock];
        sum += w * v;
        length += w * w * v * v;
    }
    *ret_length = sqrt(length);
    return sum;
}

static void run(const struct cpu_ops *ops, const struct product *p, const float *x, const uint32_t *idx, uint32_t rows,
                uint32_t cut, float *out, float *room) {
    uint32_t panels = p->outputs / 16;
    memset(room, 0xff, CPU_PACKED_ROOM * sizeof(float));
    if (cut)
        ops->packed(&p->m, p->weights, 0, cut, x, p->m.k, idx, rows, out, 2 * p->outputs, 2, room);
    ops->packed(&p->m, p->weights, cut, panels, x, p->m.k, idx, rows, out + cut * 32, 2 * p->outputs, 2, room);
}

static void check(const struct product *p, const char *name) {
    struct km_rng rng = {p->outputs};
    uint64_t n_x = (uint64_t)ROWS * p->m.k, n_out = 2ull * ROWS * p->outputs;
    float *x = aligned_alloc(64, align(n_x * sizeof(float))), *first = aligned_alloc(64, align(n_out * sizeof(float)));
    float *out = aligned_alloc(64, align(n_out * sizeof(float)));
    float *room = aligned_alloc(64, CPU_PACKED_ROOM * sizeof(float));
    uint32_t idx[ROWS], bad = 0;
    ck_assert(x && first && out && room);
    for (uint64_t i = 0; i < n_x; i++)
        x[i] = km_normal(&rng);
    for (uint32_t r = 0; r < ROWS; r++)
        idx[r] = ROWS - 1 - r;
    memset(first, 0, n_out * sizeof(float));
    run(cpu_ops_find("scalar"), p, x, NULL, 2, 0, first, room);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t n = 0; n < p->outputs; n++) {
            double length, w = want(p, n, x + (uint64_t)r * p->m.k, &length);
            bad += !(fabs(first[2ull * r * p->outputs + n / 16 * 32 + n % 16] - w) <= 4e-6 * length + 1e-30);
        }
    ck_assert_msg(!bad, "%s: %u of %u outputs are not those of the numbers", name, bad, 2 * p->outputs);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const struct cpu_ops *ops = cpu_ops_find(isas[i]);
        if (!ops)
            continue;
        memset(out, 0, n_out * sizeof(float));
        run(ops, p, x, NULL, 2, p->outputs / 48, out, room); /* a cut inside a block */
        ck_assert_msg(!memcmp(out, first, 4ull * p->outputs * sizeof(float)), "%s: %s differs", name, isas[i]);
        if (!strcmp(isas[i], "scalar"))
            continue;
        memset(out, 0, n_out * sizeof(float));
        run(ops, p, x, idx, ROWS, 0, out, room);
        ck_assert_msg(!memcmp(out + 2ull * (ROWS - 1) * p->outputs, first, 2ull * p->outputs * sizeof(float)),
                      "%s, %s: a row among others differs", name, isas[i]);
    }
    free(room);
    free(out);
    free(first);
    free(x);
}

START_TEST(every_trellis) {
    const struct kern_store s = {
        .format = KERN_EXL3, .bits = (uint8_t)(1 + _i % 8), .codebook = (uint8_t)(KERN_CODEBOOK_3INST + _i / 8)};
    struct product p;
    char name[40];
    make(&p, &s, 256, 384, 100 + (uint64_t)_i);
    check(&p, kern_store_name(&s, name, sizeof(name)));
    done(&p);
}
END_TEST

static const struct kern_store four = {.format = KERN_EXL3, .bits = 4, .codebook = KERN_CODEBOOK_MCG};

START_TEST(padded_heads) {
    struct product p;
    make(&p, &four, 256, 384, 7);
    p.m.cblock = 24; /* 16 heads of inputs */
    p.m.cblock_pad = 32;
    p.m.k = 512;
    check(&p, "heads of inputs");
    p.m.rblock = 8; /* 32 heads of outputs */
    p.m.rblock_pad = 16;
    p.m.rstride = 8;
    p.outputs = 512;
    check(&p, "heads of outputs");
    done(&p);
}
END_TEST

/* kv_b: keys and values of a head share blocks of rows. */
START_TEST(keys_and_values) {
    struct product p;
    make(&p, &four, 384, 256, 8);
    p.m.rstride = 96; /* 4 heads of 56 keys and 40 values */
    p.m.roff = 56;
    p.m.rblock = 40;
    p.m.rblock_pad = 48;
    p.outputs = 4 * 48;
    check(&p, "values");
    p.m.transposed = 1;
    p.m.roff = 0;
    p.m.rblock = p.m.k = 56;
    p.m.rblock_pad = 64;
    p.outputs = 4 * 256;
    check(&p, "keys");
    done(&p);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cpu_exl3");
    TCase *tc = tcase_create("products");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, every_trellis, 0, 24);
    tcase_add_test(tc, padded_heads);
    tcase_add_test(tc, keys_and_values);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
