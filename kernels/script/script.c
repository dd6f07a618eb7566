/* SPDX-License-Identifier: MIT */
/* script.c: the backend "script": a device that computes nothing and answers from a text. Everything above
 * kern.h runs as it does over a model: plans are checked, prompts go layer by layer, tokens come out of the
 * host's own sampler over logits that the script dictates. Device time is simulated: a launch books time
 * behind what is already booked, a wait sleeps until then.
 *
 * One thread calls; memory is the blocks kern.c was given. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "host.h"
#include "script.h"

#define PEAK  20.0f
#define FLOOR (-20.0f)

struct slot {
    uint32_t block;
    uint32_t out;   /* tokens drawn so far */
    uint32_t first; /* id its text begins with */
    uint32_t taken; /* 1: copied or written, and not run since: whoever runs it is another request */
};

struct device {
    struct script s;
    struct slot *slots;
    float *logits; /* one row */
    void *scratch;
    uint32_t arrivals; /* requests begun that took a block by order */
    uint64_t steps;    /* decode steps begun */
    uint64_t free_ns;  /* when everything launched so far will be done */
    uint64_t done_ns[KERN_LANES];
    /* Heads launched and not yet computed: that happens in the wait, because a launch must cost the engine
     * nothing, as on a real device. One per lane: a plan is loaded only after a wait. */
    bool head[KERN_LANES], head_nan[KERN_LANES];
    bool lost;
    char why[96];
};

static uint64_t up64(uint64_t n) {
    return (n + 63) & ~63ull;
}

static uint64_t object_bytes(const struct script *s) {
    return up64(sizeof(struct device)) + up64(s->n_blocks * (uint64_t)sizeof(struct script_block)) +
           up64(s->n_toks * (uint64_t)sizeof(uint32_t)) + up64(s->n_logits * (uint64_t)sizeof(struct script_logit));
}

static int read_text(const struct kern_config *cfg, struct script *s, char *err, size_t err_len) {
    if (!cfg->script) {
        snprintf(err, err_len, "the script backend was opened without a script");
        return -EINVAL;
    }
    return script_parse(cfg->script, cfg->model.vocab_tokens, s, err, err_len);
}

static int script_query(const struct kern_config *cfg, uint32_t vocab_rows, uint64_t bytes[KERN_MEM_N], char *err,
                        size_t err_len) {
    struct script s = { .blocks = NULL };
    int r = read_text(cfg, &s, err, err_len);

    if (r < 0)
        return r;
    bytes[KERN_MEM_CTL] = up64(kern_ctl_bytes(cfg)) + object_bytes(&s);
    bytes[KERN_MEM_SLOTS] = cfg->n_slots * (uint64_t)sizeof(struct slot);
    bytes[KERN_MEM_WORK] = up64(vocab_rows * (uint64_t)sizeof(float)) + host_sample_scratch(vocab_rows);
    return 0;
}

static int script_open(struct kern *k, char *err, size_t err_len) {
    struct script counts = { .blocks = NULL };
    int r = read_text(&k->cfg, &counts, err, err_len);
    char *at = (char *)k->mem[KERN_MEM_CTL].base + up64(kern_ctl_bytes(&k->cfg));
    struct device *d = (struct device *)(void *)at;

    if (r < 0)
        return r;
    memset(at, 0, object_bytes(&counts));
    at += up64(sizeof *d);
    d->s.blocks = (struct script_block *)(void *)at;
    at += up64(counts.n_blocks * (uint64_t)sizeof(struct script_block));
    d->s.toks = (uint32_t *)(void *)at;
    at += up64(counts.n_toks * (uint64_t)sizeof(uint32_t));
    d->s.logits = (struct script_logit *)(void *)at;
    r = read_text(&k->cfg, &d->s, err, err_len);
    if (r < 0)
        return r;
    d->slots = k->mem[KERN_MEM_SLOTS].base;
    memset(d->slots, 0, k->cfg.n_slots * sizeof *d->slots);
    d->logits = k->mem[KERN_MEM_WORK].base;
    d->scratch = (char *)k->mem[KERN_MEM_WORK].base + up64(k->cfg.model.vocab_rows * (uint64_t)sizeof(float));
    k->impl = d;
    return 0;
}

static void script_close(struct kern *k) {
    (void)k;
}

static uint64_t now_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- what a request answers ---- */

/* The block of a request that begins: by its prompt's first id, else the next in order; after the last one
 * the last again, or with `loop` the first. */
static uint32_t block_of(struct device *d, uint32_t first_token) {
    uint32_t n = 0, last = 0, want;

    for (uint32_t i = 0; i < d->s.n_blocks; i++) {
        if (d->s.blocks[i].first == first_token)
            return i;
        n += d->s.blocks[i].first == KERN_NONE;
    }
    want = d->arrivals++;
    if (want >= n)
        want = d->s.loop ? want % n : n - 1;
    for (uint32_t i = 0; i < d->s.n_blocks; i++) {
        if (d->s.blocks[i].first != KERN_NONE)
            continue;
        last = i;
        if (want-- == 0)
            break;
    }
    return last;
}

/* The token of output `out`; what follows the last one is the first stop id, or the last token for ever. */
static uint32_t token_of(const struct device *d, const struct script_block *b, uint32_t out) {
    if (b->n_tok && b->repeat)
        return d->s.toks[b->tok0 + out % b->n_tok];
    if (out < b->n_tok)
        return d->s.toks[b->tok0 + out];
    if (d->s.info.n_stops)
        return d->s.info.stops[0];
    return b->n_tok ? d->s.toks[b->tok0 + b->n_tok - 1] : 0;
}

static void logits_of(const struct kern *k, struct device *d, const struct slot *s, float *z) {
    const struct script_block *b = &d->s.blocks[s->block];
    uint32_t rows = k->cfg.model.vocab_rows;
    bool given = false;

    for (uint32_t i = 0; i < rows; i++)
        z[i] = FLOOR;
    for (uint32_t i = 0; i < b->n_logit; i++) {
        const struct script_logit *l = &d->s.logits[b->logit0 + i];

        if (l->at == s->out) {
            z[l->token] = l->z;
            given = true;
        }
    }
    if (!given)
        z[token_of(d, b, s->out)] = PEAK;
}

static void device_lose(struct device *d, const char *what, unsigned long long n) {
    d->lost = true;
    snprintf(d->why, sizeof d->why, "the script ends the device at %s %llu", what, n);
}

static void head(struct kern *k, struct device *d, uint32_t lane, bool step_nan) {
    const struct kern_plan *p = k->plan[lane];

    for (uint32_t i = 0; i < p->n_samples; i++) {
        const struct kern_sample *w = &plan_samples(p)[i];
        const struct kern_seq *q = &plan_seqs(p)[plan_rows(p)[w->row].seq];
        struct slot *s = &d->slots[q->slot];
        const struct script_block *b = &d->s.blocks[s->block];
        bool nan = step_nan;

        if (w->source != KERN_SOURCE_TRUNK)
            continue;
        if (b->fail && b->fail_at == s->out) {
            if (b->fail == SCRIPT_FAIL_LOST)
                device_lose(d, "output", s->out);
            else
                nan = true;
        }
        logits_of(k, d, s, d->logits);
        for (uint32_t t = 0; nan && t < k->cfg.model.vocab_rows; t++)
            d->logits[t] = NAN;
        host_sample(&k->cfg.model, p, i, d->logits, d->scratch, &k->results[lane][i]);
        host_sample_keep(k, p, i, &k->results[lane][i]);
        if (w->mode == KERN_SAMPLE_DRAW)
            s->out++;
    }
}

/* ---- the device ---- */

static int script_plan_load(struct kern *k, uint32_t lane) {
    struct device *d = k->impl;
    const struct kern_plan *p = k->plan[lane];

    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kern_seq *q = &plan_seqs(p)[i];

        struct slot *s = &d->slots[q->slot];

        if (q->flags & KERN_SEQ_RESET)
            *s = (struct slot){ .first = q->n_rows ? plan_rows(p)[q->row0].token : KERN_NONE, .taken = 1 };
        if (s->taken)
            *s = (struct slot){ .block = block_of(d, s->first), .first = s->first };
    }
    return 0;
}

static int script_launch(struct kern *k, const struct kern_prog *prog) {
    struct device *d = k->impl;
    bool fills = prog->lane == KERN_LANE_PREFILL, step_nan = false;
    uint64_t layer_ns = (fills ? d->s.fill_ns * k->plan[prog->lane]->n_rows : d->s.step_ns) /
                        k->cfg.model.n_layers;
    uint64_t now = now_ns();

    if (!fills && ++d->steps == d->s.fail_step) {
        step_nan = d->s.fail == SCRIPT_FAIL_NAN;
        if (!step_nan)
            device_lose(d, "step", (unsigned long long)d->steps);
    }
    if (d->free_ns < now)
        d->free_ns = now;
    for (uint32_t i = 0; i < prog->n; i++) {
        const struct kern_stage *s = &k->stages[prog->first + i];

        if (s->op == KERN_OP_MIX && s->layer < k->cfg.model.n_layers)
            d->free_ns += layer_ns;
        if (s->op == KERN_OP_HEAD && s->arg == KERN_SOURCE_TRUNK) {
            d->head[prog->lane] = true;
            d->head_nan[prog->lane] = step_nan;
        }
    }
    d->done_ns[prog->lane] = d->free_ns;
    return 0;
}

static int script_wait(struct kern *k, uint32_t lane) {
    struct device *d = k->impl;
    struct timespec ts = { .tv_sec = (time_t)(d->done_ns[lane] / 1000000000u),
                           .tv_nsec = (long)(d->done_ns[lane] % 1000000000u) };

    if (d->head[lane])
        head(k, d, lane, d->head_nan[lane]);
    d->head[lane] = false;
    if (d->done_ns[lane] > now_ns())
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
            ;
    if (!d->lost)
        return 0;
    kern_error(k, "%s", d->why);
    return -EIO;
}

static uint64_t script_slot_bytes(const struct kern *k) {
    (void)k;
    return sizeof(struct slot);
}

static int script_slot_read(struct kern *k, uint32_t slot, void *dst) {
    memcpy(dst, &((struct device *)k->impl)->slots[slot], sizeof(struct slot));
    return 0;
}

/* The bytes may come from a file: a block this script does not have is not taken. */
static int script_slot_write(struct kern *k, uint32_t slot, const void *src) {
    struct device *d = k->impl;
    struct slot s;

    memcpy(&s, src, sizeof s);
    if (s.block >= d->s.n_blocks || s.taken > 1)
        return -EBADMSG;
    s.taken = 1;
    d->slots[slot] = s;
    return 0;
}

static int script_slot_copy(struct kern *k, uint32_t dst, uint32_t src) {
    struct device *d = k->impl;

    d->slots[dst] = d->slots[src];
    d->slots[dst].taken = 1;
    return 0;
}

/* Pages hold nothing. */
static uint64_t script_page_bytes(const struct kern *k) {
    (void)k;
    return 0;
}
static int script_page_copy(struct kern *k, uint32_t dst, uint32_t src) {
    (void)k;
    (void)dst;
    (void)src;
    return 0;
}
static int script_page_read(struct kern *k, uint32_t page, void *dst) {
    (void)k;
    (void)page;
    (void)dst;
    return 0;
}
static int script_page_write(struct kern *k, uint32_t page, const void *src) {
    (void)k;
    (void)page;
    (void)src;
    return 0;
}

const struct kern_backend kern_script_backend = {
    .name = "script",
    .weightless = true,
    .query = script_query,
    .open = script_open,
    .close = script_close,
    .plan_load = script_plan_load,
    .launch = script_launch,
    .wait = script_wait,
    .slot_bytes = script_slot_bytes,
    .slot_read = script_slot_read,
    .slot_write = script_slot_write,
    .slot_copy = script_slot_copy,
    .page_copy = script_page_copy,
    .page_bytes = script_page_bytes,
    .page_read = script_page_read,
    .page_write = script_page_write,
};
