/* SPDX-License-Identifier: MIT */
/* The indexer's choice on CUDA against host_topk(), id for id: scores that are all different, mostly equal, all equal,
 * close together, infinite and not a number; rows of all lengths beside each other, more rows than a group has, and
 * more pools than one range of the last block's bits.
 *
 * Two heads with weights 4 and -4 read the first and the second number of a key, which are BF16, so every score is
 * exact. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_dev.h"
#include "host.h"
#include "kernmodel.h"

#define OK(call) ck_assert_msg((call) == cudaSuccess, "%s", #call)

enum { HEADS = 2, DIM = 2, MAX_ROWS = 18, KEY_BYTES = DIM * 4 };

struct fixture {
    struct cuda_dims d;
    struct cuda_z z;
    struct cuda_mid mid;
    struct cuda_lane lane;
    struct cuda_layer layer;
    struct kern_layer_desc desc;
    struct cuda_run run;
    float *keys, *score; /* [max_pools][DIM], [max_pools] */
    uint32_t n_pages;
};

static void *device(uint64_t bytes) {
    void *p;
    OK(cudaMalloc(&p, bytes));
    OK(cudaMemset(p, 0, bytes));
    return p;
}

static void *host(uint64_t bytes) {
    void *p = calloc(1, bytes);
    ck_assert_ptr_nonnull(p);
    return p;
}

static void open_fixture(struct fixture *f, uint32_t pools, uint32_t choose) {
    static const float query[HEADS * DIM] = {1, 0, 0, 1}, omega[HEADS] = {4, -4};
    memset(f, 0, sizeof(*f));
    f->n_pages = (pools + KERN_PAGE_TOKENS - 1) / KERN_PAGE_TOKENS;
    f->d = (struct cuda_dims){.index_heads = HEADS,
                              .index_dim = DIM,
                              .index_kpool = 1,
                              .sel_pools = choose,
                              .max_pools = pools,
                              .cache = KERN_CACHE_F32,
                              .page_bytes = KERN_PAGE_TOKENS * KEY_BYTES};
    f->desc.index = KERN_INDEX_FULL;
    f->layer.idx_w.store.format = KERN_F32;
    f->lane.scores = device(CUDA_GROUP * (uint64_t)pools * sizeof(float));
    f->lane.cand = device(CUDA_GROUP * (uint64_t)pools * sizeof(uint32_t));
    f->lane.hist = device(CUDA_GROUP * (uint64_t)CUDA_HIST * sizeof(uint32_t));
    f->lane.sel = device(MAX_ROWS * (uint64_t)choose * sizeof(uint32_t));
    f->lane.wide = device(MAX_ROWS * sizeof(query));
    f->lane.omega = device(MAX_ROWS * sizeof(omega));
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        OK(cudaMemcpy(f->lane.wide + i * HEADS * DIM, query, sizeof(query), cudaMemcpyHostToDevice));
        OK(cudaMemcpy(f->lane.omega + i * HEADS, omega, sizeof(omega), cudaMemcpyHostToDevice));
    }
    f->keys = host(f->n_pages * (uint64_t)f->d.page_bytes);
    f->score = host(pools * sizeof(float));
    f->run = (struct cuda_run){.d = &f->d,
                               .z = &f->z,
                               .mid = &f->mid,
                               .lane = &f->lane,
                               .layer = &f->layer,
                               .desc = &f->desc,
                               .wide_ld = HEADS * DIM,
                               .pages = device(f->n_pages * (uint64_t)f->d.page_bytes)};
}

static void close_fixture(struct fixture *f) {
    OK(cudaFree(f->lane.scores));
    OK(cudaFree(f->lane.cand));
    OK(cudaFree(f->lane.hist));
    OK(cudaFree(f->lane.sel));
    OK(cudaFree(f->lane.wide));
    OK(cudaFree(f->lane.omega));
    OK(cudaFree(f->run.pages));
    free(f->keys);
    free(f->score);
}

/* A step of one sequence whose rows have the positions given; its pages in reverse. */
static void load_step(struct fixture *f, const uint32_t *pos, uint32_t n) {
    const uint32_t rows = sizeof(struct cuda_step), seqs = rows + n * (uint32_t)sizeof(struct cuda_row),
                   pages = seqs + (uint32_t)sizeof(struct cuda_seq), bytes = pages + f->n_pages * 4;
    char *h = host(bytes);
    struct cuda_step s = {.n_rows = {n, 0}, .n_seqs = {1, 0}, .rows = {rows, 0}, .seqs = {seqs, 0}, .pages = pages};
    const struct cuda_seq q = {.n_rows = n, .n_pages = f->n_pages};
    memcpy(h, &s, sizeof(s));
    memcpy(h + seqs, &q, sizeof(q));
    for (uint32_t i = 0; i < n; i++) {
        const struct cuda_row r = {.pos = pos[i]};
        memcpy(h + rows + i * sizeof(r), &r, sizeof(r));
    }
    for (uint32_t i = 0; i < f->n_pages; i++) {
        const uint32_t page = f->n_pages - 1 - i;
        memcpy(h + pages + 4 * i, &page, 4);
    }
    f->lane.step = device(bytes);
    OK(cudaMemcpy(f->lane.step, h, bytes, cudaMemcpyHostToDevice));
    free(h);
}

static void set_key(struct fixture *f, uint32_t pool, float a, float b) {
    const uint32_t page = f->n_pages - 1 - pool / KERN_PAGE_TOKENS;
    float *key = f->keys + ((uint64_t)page * KERN_PAGE_TOKENS + pool % KERN_PAGE_TOKENS) * DIM;
    key[0] = a;
    key[1] = b;
    f->score[pool] = b > 0 ? fmaf(-4, b, a > 0 ? 4 * a : 0) : a > 0 ? 4 * a : 0;
}

enum kind { SPREAD, FEW, EQUAL, CLOSE, EXTREME, RISING, FALLING, KINDS };

static void set_keys(struct fixture *f, enum kind kind, struct km_rng *rng) {
    const uint32_t n = f->d.max_pools;
    for (uint32_t i = 0; i < n; i++) {
        const float x = host_f32(host_bf16(km_normal(rng))), step = (float)(i % 256) / 128;
        const uint32_t odd = km_below(rng, 50);
        if (kind == SPREAD)
            set_key(f, i, x, host_f32(host_bf16(km_normal(rng))));
        else if (kind == FEW)
            set_key(f, i, (float)km_below(rng, 3), (float)km_below(rng, 3));
        else if (kind == EQUAL)
            set_key(f, i, 1, 0);
        else if (kind == CLOSE)
            set_key(f, i, 1 + (float)km_below(rng, 8) / 128, (float)km_below(rng, 200) * 0x1p-20f);
        else if (kind == EXTREME) /* infinite, its negative, and both at once: not a number */
            set_key(f, i, odd % 3 ? x : 3e38f, odd % 7 ? 0.0f : odd % 2 ? 3e38f : 1.0f);
        else
            set_key(f, i, kind == RISING ? step : 0, kind == FALLING ? step : 0);
    }
    OK(cudaMemcpy(f->run.pages, f->keys, f->n_pages * (uint64_t)f->d.page_bytes, cudaMemcpyHostToDevice));
}

static void check_rows(struct fixture *f, const uint32_t *pos, uint32_t n, uint32_t bound) {
    const uint32_t want = f->d.sel_pools;
    uint32_t *got = host(MAX_ROWS * (uint64_t)want * 4), *ids = host(want * 4ull);
    uint32_t *hist = host(CUDA_GROUP * (uint64_t)CUDA_HIST * 4);
    uint64_t *scratch = host(f->d.max_pools * 8ull);
    load_step(f, pos, n);
    f->run.rows = bound;
    OK(cuda_index(&f->run));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(got, f->lane.sel, MAX_ROWS * (uint64_t)want * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(hist, f->lane.hist, CUDA_GROUP * (uint64_t)CUDA_HIST * 4, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < n; i++) {
        if (pos[i] + 1 <= want)
            continue;
        host_topk(f->score, pos[i] + 1, want, scratch, ids);
        for (uint32_t j = 0; j < want; j++)
            ck_assert_msg(got[i * want + j] == ids[j], "row %u of %u pools, place %u: %u, not %u (%g)", i, pos[i] + 1,
                          j, got[i * want + j], ids[j], (double)f->score[ids[j]]);
    }
    for (uint32_t i = 0; i < CUDA_GROUP * CUDA_HIST; i++)
        ck_assert_uint_eq(hist[i], 0);
    OK(cudaFree(f->lane.step));
    free(got);
    free(ids);
    free(hist);
    free(scratch);
}

/* _i: the kind of scores. */
START_TEST(rows_of_all_lengths) {
    struct fixture f;
    struct km_rng rng = {(uint64_t)_i + 1};
    uint32_t pos[MAX_ROWS];
    open_fixture(&f, 9000, 37);
    set_keys(&f, (enum kind)_i, &rng);
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        pos[i] = i < 4 ? 35 + i : i < 8 ? 4091 + i : km_below(&rng, i < 16 ? 600 : 9000);
    pos[9] = 8999;
    check_rows(&f, pos, MAX_ROWS, MAX_ROWS);
    check_rows(&f, pos + 5, 5, 8); /* fewer than the graph is made for */
    close_fixture(&f);
}
END_TEST

/* Candidates beyond what is kept at hand, and pools beyond one range of bits. */
START_TEST(many_pools) {
    struct fixture f;
    struct km_rng rng = {70};
    const uint32_t pos[2] = {269999, 262200};
    open_fixture(&f, 270000, 2048);
    set_keys(&f, _i ? FEW : CLOSE, &rng);
    check_rows(&f, pos, _i ? 1 : 2, 2);
    close_fixture(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cuda_index");
    TCase *t = tcase_create("choice");
    tcase_add_loop_test(t, rows_of_all_lengths, 0, KINDS);
    tcase_add_loop_test(t, many_pools, 0, 2);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
