/* SPDX-License-Identifier: MIT */
/* formats_load: the cpu backend's packing of weights as they come from the loader, eight megabytes at a time on one
 * thread, wherever that cuts a tensor, against copies of the same windows to other memory. Windows of both alternate in
 * one run; the figure is the ratio of the sums of each window's first quartile over all rounds, in percent. Rows are as
 * long as those of the release.
 *
 * Bar: at least 60 % for each format. BENCH_HANDICAP=1 packs every window four times. BENCH_ISA=NAME
 * packs with other instructions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "benchcpu.h"
#include "benchlib.h"
#include "childcheck.h"
#include "kernstores.h"

enum { ROUNDS = 15, WINDOW = 8 << 20, MAX_WINDOWS = 512 };

/* Bytes of one piece that the loader hands over at once. */
struct window {
    struct kern_tensor_id id;
    struct kern_tensor t;
    uint64_t at, offset, n;                /* at: of the piece, in the file */
    double packed[ROUNDS], copied[ROUNDS]; /* seconds */
};

struct load {
    struct kern_config cfg;
    struct kern_block mem[KERN_MEM_N];
    struct kern *k;
    const char *from;
    char *to;
    uint64_t bytes;
    uint32_t n;
    struct window w[MAX_WINDOWS];
};

static void config(struct kern_config *c) {
    km_config_small(c);
    c->isa = getenv("BENCH_ISA");
    c->model.hidden = 4096;
    c->model.dense_width = 4096;
    c->model.kda_heads = 8;
    c->model.kda_dim = 128;
    c->model.vocab_rows = c->model.vocab_tokens = 1024;
    km_layers(&c->model, "Kd", NULL);
}

/* Every piece in the order of the parts, cut wherever the loader's buffer is full. */
static int plan(struct load *l) {
    uint64_t at = 0, left = WINDOW;

    for (uint32_t part = 1; part < KERN_PART_END; part++) {
        struct kern_part_info info;
        if (!kern_part_info(&l->cfg.model, part, 0, &info))
            continue;
        for (uint32_t p = 0; p < KERN_PIECES; p++) {
            const struct kern_tensor_id id = {.part = part, .piece = p};
            const struct kern_tensor t = {
                .store = info.matrix ? kern_matrix_store(&l->cfg, &id) : kern_store_plain(KERN_F32),
                .rows = info.rows,
                .cols = info.cols};
            struct kern_piece_info pi;
            if (kern_store_piece(&t.store, info.rows, info.cols, (enum kern_piece)p, &pi) < 0)
                return -1;
            uint64_t n = pi.rows * pi.row_bytes;
            for (uint64_t o = 0, run; o < n; o += run, left = left > run ? left - run : WINDOW) {
                run = n - o < left ? n - o : left;
                if (l->n == MAX_WINDOWS)
                    return -1;
                l->w[l->n++] = (struct window){.id = id, .t = t, .at = at, .offset = o, .n = run};
            }
            at = (at + n + 63) & ~63ull;
        }
    }
    l->bytes = at;
    return 0;
}

/* After each window another one is copied, which has left the caches meanwhile. */
static int one_round(struct load *l, uint32_t round) {
    int r = kern_open("cpu", &l->cfg, l->mem, &l->k);

    if (r < 0)
        return -1;
    for (uint32_t i = 0; i < l->n && r == 0; i++) {
        struct window *w = &l->w[i], *c = &l->w[(i + l->n / 2) % l->n];
        uint64_t a = bench_now_ns();
        r = kern_pack(l->k, &w->id, &w->t, w->offset, l->from + w->at + w->offset, w->n);
        uint64_t b = bench_now_ns();
        memcpy(l->to + c->at + c->offset, l->from + c->at + c->offset, c->n);
        w->packed[round] = (double)(b - a) / 1e9;
        c->copied[round] = (double)(bench_now_ns() - b) / 1e9;
    }
    if (r == 0)
        r = kern_pack_done(l->k);
    kern_close(l->k);
    return r;
}

static int open_load(struct load *l) {
    uint64_t bytes[KERN_MEM_N];

    if (plan(l) < 0 || kern_query("cpu", &l->cfg, bytes) < 0)
        return -1;
    for (int i = 0; i < KERN_MEM_N; i++) {
        if (!(l->mem[i].base = bench_map(bytes[i])))
            return -1;
        l->mem[i].bytes = bytes[i];
    }
    l->from = bench_map(l->bytes);
    l->to = bench_map(l->bytes);
    return l->from && l->to ? 0 : -1;
}

static void close_load(struct load *l) {
    for (int i = 0; i < KERN_MEM_N; i++)
        bench_unmap(l->mem[i].base, l->mem[i].bytes);
    bench_unmap((void *)(uintptr_t)l->from, l->bytes);
    bench_unmap(l->to, l->bytes);
}

static int one_format(const char *name, const struct kern_store *s) {
    static struct load l;
    uint32_t used;
    int r = -1;

    memset(&l, 0, sizeof l);
    config(&l.cfg);
    struct kern_store *stores = s->format == KERN_BF16 ? NULL : ks_stores(&l.cfg.model, s, &used);
    l.cfg.stores = stores;
    if (open_load(&l) == 0)
        for (int i = -1; i < ROUNDS; i++) /* one round to warm up */
            if ((r = one_round(&l, i < 0 ? 0 : (uint32_t)i)) < 0)
                break;
    close_load(&l);
    free(stores);
    if (r < 0) {
        fprintf(stderr, "%s: %s\n", name, kern_open_error());
        return 2;
    }
    double p = 0, c = 0;
    for (uint32_t i = 0; i < l.n; i++) {
        p += bench_quartile(l.w[i].packed, ROUNDS);
        c += bench_quartile(l.w[i].copied, ROUNDS);
    }
    fprintf(stderr, "%s: %.1f MB packed at %.2f GB/s, copied at %.2f GB/s\n", name, (double)l.bytes / 1e6,
            (double)l.bytes / p / 1e9, (double)l.bytes / c / 1e9);
    return bench_verdict(name, c / p * 100, "%", 60.0, BENCH_AT_LEAST);
}

static int bench(void) {
    static const struct {
        const char *name;
        struct kern_store s;
    } formats[] = {
        {"load-pack-bf16", {.format = KERN_BF16}},
        {"load-pack-fp8", {.format = KERN_FP8, .scale = KERN_SCALE_F32, .block_rows = 128, .block_cols = 128}},
        {"load-pack-nvfp4", {.format = KERN_NVFP4, .scale = KERN_SCALE_E4M3, .block_rows = 1, .block_cols = 16}},
        {"load-pack-int8", {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128}},
    };
    int worst = 0;

    bench_step_forward();
    childcheck_no_runner();
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        int r = one_format(formats[i].name, &formats[i].s);
        worst = r > worst ? r : worst;
    }
    return worst;
}

int main(void) {
    static const struct bench_handicap h[] = {
        {"cpu_packs_again", "load-pack-bf16 load-pack-fp8 load-pack-nvfp4 load-pack-int8"},
    };

    return bench_main(bench, h, sizeof h / sizeof *h);
}
