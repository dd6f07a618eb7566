/* SPDX-License-Identifier: MIT */
/* formats_gemv: one stream's step through the cpu backend on nano's shapes, two threads, with every matrix that a
 * format can hold stored in it, against the same step in BF16. Steps of both alternate in one run; the figure is the
 * ratio of the first quartiles: beside other work the slower steps are those that waited. Weights are random, packed
 * in memory: a step takes as long whatever its numbers are.
 *
 * Bar: at most 2.5 times for each format; none for F32, whose bytes are twice as many, FP8 5x7, which is there for the
 * tests, EXL3, IQ1, IQ2 and IQ3. BENCH_HANDICAP=1 computes every product with stored weights 25 times.
 * BENCH_FORMAT=WORD measures those whose line begins with gemv-WORD, BENCH_ISA=NAME with other instructions. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "benchcpu.h"
#include "benchlib.h"
#include "childcheck.h"
#include "kernstores.h"

enum { STEPS = 200, WARM = 40, SLOW_STEPS = 12, SLOW_WARM = 2, CONTEXT = 512 };

/* nano's config.json */
static void config(struct kern_config *c) {
    km_config_small(c);
    struct kern_model_desc *m = &c->model;
    c->threads = BENCH_THREADS;
    c->isa = getenv("BENCH_ISA");
    c->max_context = CONTEXT;
    m->vocab_rows = m->vocab_tokens = 4096;
    m->hidden = 256;
    m->dense_width = 384;
    m->expert_width = 128;
    m->n_experts = 8;
    m->n_top = 2;
    m->mla_heads = 4;
    m->q_rank = 128;
    m->kv_rank = 512;
    m->nope_dim = m->v_dim = 256;
    m->index_heads = 4;
    m->index_dim = 128;
    m->index_topk = 128;
    m->kda_heads = 4;
    m->kda_dim = 128;
    m->swiglu_limit = 10;
    km_layers(m, "Kd Kd Kd Fm Km Km Km Fm Km", "Fm");
}

struct side {
    struct kernmodel *m;
    struct km_inst *i;
    struct km_plan *p;
    double seconds[STEPS];
};

static void open_side(struct side *s, const struct kern_store *store) {
    struct kern_config c;
    struct kern_store *stores = NULL;
    uint32_t used;

    config(&c);
    if (store)
        c.stores = stores = ks_stores(&c.model, store, &used);
    s->m = km_new(&c, 7);
    s->i = km_open(s->m, "cpu", NULL);
    s->p = km_plan_new(s->i);
    free(stores);
}

static void close_side(struct side *s) {
    km_plan_free(s->p);
    km_close(s->i);
    km_free(s->m);
}

/* The step at this position, from the loaded plan to the drawn token. */
static void step(struct side *s, uint32_t pos, double *ret) {
    km_plan_clear(s->p, KERN_LANE_DECODE);
    uint32_t token = pos * 2654435761u >> 20;
    km_plan_seq(s->p, 0, pos, 0, KERN_SEQ_COMMIT | (pos ? 0u : KERN_SEQ_RESET), &token, 1, NULL);
    km_plan_sample(s->p, 0, KERN_SAMPLE_DRAW, KERN_SOURCE_TRUNK);
    uint64_t a = bench_now_ns();
    km_run(s->i, s->p);
    *ret = (double)(bench_now_ns() - a) / 1e9;
}

static int one_format(struct side *base, const struct kern_store *store, const char *name) {
    struct kern_counters cb, cs;
    struct side s;
    char text[40];

    const uint32_t warm = bench_handicap() ? SLOW_WARM : WARM, steps = bench_handicap() ? SLOW_STEPS : STEPS;
    open_side(&s, store);
    for (uint32_t i = 0; i < warm + steps; i++) {
        uint32_t n = i < warm ? 0 : i - warm;
        step(base, i, &base->seconds[n]);
        step(&s, i, &s.seconds[n]);
    }
    double b = bench_quartile(base->seconds, steps), f = bench_quartile(s.seconds, steps);
    if (bench_handicap()) { /* after steps so long others have their turn during most of the short ones: the least */
        b = base->seconds[0];
        f = s.seconds[0];
    }
    kern_counters(base->i->k, KERN_LANE_DECODE, &cb);
    kern_counters(s.i->k, KERN_LANE_DECODE, &cs);
    fprintf(stderr, "%s: %s, %.2f MB of weights a step in %.0f us; BF16 %.2f MB in %.0f us\n", name,
            kern_store_name(store, text, sizeof text), (double)cs.weight_bytes / 1e6, f * 1e6,
            (double)cb.weight_bytes / 1e6, b * 1e6);
    close_side(&s);
    bool no_bar = store->format == KERN_F32 || store->block_rows == 5 || store->format == KERN_EXL3 ||
                  (store->format >= KERN_IQ1_S && store->format <= KERN_IQ3_S);
    if (!no_bar)
        return bench_verdict(name, f / b, "x", 2.5, BENCH_AT_MOST);
    printf("# %s %.3f x, no bar\n", name, f / b);
    return 0;
}

static int bench(void) {
    const char *only = getenv("BENCH_FORMAT");
    struct side base;
    int worst = 0;

    bench_step_forward();
    childcheck_no_runner();
    open_side(&base, NULL);
    for (uint32_t i = 0; i < ks_count; i++) {
        const struct kern_store *s = &ks_all[i];
        char name[64];
        int n = snprintf(name, sizeof name, "gemv-%s", kern_format_word(s->format));
        if (s->format == KERN_EXL3)
            snprintf(name + n, sizeof name - (size_t)n, "-%u", s->bits);
        else if (s->block_rows != 1 && s->block_cols)
            snprintf(name + n, sizeof name - (size_t)n, "-%ux%u", s->block_rows, s->block_cols);
        else if (s->format == KERN_FP8 || s->format == KERN_INT8 || s->format == KERN_INT4)
            snprintf(name + n, sizeof name - (size_t)n, s->block_cols ? "-g%u" : s->block_rows ? "-channel" : "-tensor",
                     s->block_cols);
        else if (s->format == KERN_GGUF_NVFP4 && s->scale)
            snprintf(name + n, sizeof name - (size_t)n, "-scaled");
        for (char *p = name; *p; p++)
            *p = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
        if (only && strncmp(name + 5, only, strlen(only)) != 0)
            continue;
        int r = one_format(&base, s, name);
        worst = r > worst ? r : worst;
    }
    close_side(&base);
    return worst;
}

int main(void) {
    static const struct bench_handicap h[] = {
        {"cpu_multiplies_again",
         "gemv-f16 gemv-fp8-128x128 gemv-fp8-channel gemv-fp8-tensor gemv-int8-g128 "
         "gemv-int8-channel gemv-int4-g32 gemv-int4-g128 gemv-nvfp4 gemv-mxfp8 gemv-mxfp4 gemv-q8-0 gemv-q2-k "
         "gemv-q3-k gemv-q4-k gemv-q5-k gemv-q6-k gemv-iq4-nl gemv-iq4-xs gemv-gguf-mxfp4 gemv-gguf-nvfp4 "
         "gemv-gguf-nvfp4-scaled"},
    };

    return bench_main(bench, h, sizeof h / sizeof *h);
}
