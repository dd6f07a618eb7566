/* SPDX-License-Identifier: MIT */
/* size.c: how long a context, how many pages, and every byte of it, decided before anything is allocated.
 * Starting thread. The backend's bytes come from kern_query, the engine's own tables are laid out by the same
 * function that later places them. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "engine_priv.h"
#include "grammar.h"
#include "meminfo.h"
#include "size.h"

/* ---- the engine's own tables, one block ---- */

struct carve {
    char *base; /* NULL: counting */
    uint64_t at;
};

static void *carve(struct carve *c, uint64_t n, uint64_t size) {
    char *p = c->base ? c->base + c->at : NULL;

    c->at += (n * size + 63) & ~(uint64_t)63;
    return p;
}

static uint32_t at_least_1(uint32_t n) {
    return n ? n : 1;
}

/* Sequences that can be there at once: with a seat, paused, or without a slot until their readers come back. A third
 * can have seats, so that of those that stand still one user's never take more than half of all. */
enum { SEQS_PER_SEAT = 3 };

static uint32_t seqs_of(const struct engine *e) {
    return SEQS_PER_SEAT * e->opt.max_seqs;
}

static struct sched_config sched_config_of(const struct engine *e) {
    return (struct sched_config){ .max_jobs = e->opt.max_streams, .max_running = e->opt.max_seqs,
                                  .n_pages = at_least_1(e->kc.n_pages), .n_slots = at_least_1(e->kc.n_slots),
                                  .n_places = seqs_of(e), .page_tokens = KERN_PAGE_TOKENS,
                                  .aging_ns = 10 * CLOCK_NS_PER_SEC,
                                  .max_queued = e->opt.max_queued,
                                  .park_ns = e->opt.park_ms * CLOCK_NS_PER_MS,
                                  .patience_ns = e->opt.patience_ms * CLOCK_NS_PER_MS };
}

/* A script has no state that could be kept: its answers are written down. */
static bool has_prefix(const struct engine *e) {
    return e->opt.cache_slots && !e->is_script;
}

static struct prefix_config prefix_config_of(const struct engine *e) {
    return (struct prefix_config){ .max_checkpoints = e->opt.cache_slots, .max_pages = at_least_1(e->kc.n_pages),
                                   .slot_bytes = e->ranks.bytes[KERN_MEM_SLOTS] / e->kc.n_slots,
                                   .page_bytes = e->ranks.bytes[KERN_MEM_PAGES] / at_least_1(e->kc.n_pages),
                                   .max_bytes = e->opt.cache_bytes };
}

uint64_t arena_layout(struct engine *e, char *base) {
    struct carve c = { .base = base };
    const struct sched_config sc = sched_config_of(e);
    const struct prefix_config pc = prefix_config_of(e);
    uint32_t vocab = e->kc.model.vocab_rows, seqs = e->opt.max_seqs;
    uint64_t sched_n = 0, plan_n = 0, prefix_n = 0;
    void *sched_mem, *plan_mem, *prefix_mem, *cells;

    if (has_prefix(e) && prefix_bytes(&pc, &prefix_n) < 0)
        return UINT64_MAX;
    if (sched_bytes(&sc, &sched_n) < 0 || plan_mem_bytes(&e->kc, &e->limits, &plan_n) < 0)
        return UINT64_MAX;
    sched_mem = carve(&c, 1, sched_n);
    plan_mem = carve(&c, 1, plan_n);
    prefix_mem = carve(&c, 1, prefix_n);
    if (espill_is_wanted(e)) {
        e->spill.offered = carve(&c, e->opt.cache_slots, sizeof *e->spill.offered);
        e->spill.ids = carve(&c, e->kc.max_context, sizeof *e->spill.ids);
        e->spill.out_pages = carve(&c, e->pages_per_seq, sizeof *e->spill.out_pages);
        e->spill.in_pages = carve(&c, e->pages_per_seq, sizeof *e->spill.in_pages);
    }
    cells = carve(&c, e->opt.max_streams, sizeof(_Atomic uint32_t));
    e->streams = carve(&c, e->opt.max_streams, sizeof *e->streams);
    e->n_seqs = seqs_of(e);
    e->seqs = carve(&c, e->n_seqs, sizeof *e->seqs);
    e->twins = carve(&c, has_prefix(e) ? (uint64_t)e->opt.max_streams * e->n_seqs : 0, sizeof *e->twins);
    e->batch = carve(&c, seqs, sizeof *e->batch);
    e->max_events = e->opt.max_streams + 4 * seqs + 16;
    e->events = carve(&c, e->max_events, sizeof *e->events);
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        void *pages = carve(&c, e->pages_per_seq, sizeof(struct mem_page));
        void *seen = carve(&c, 1, seen_bytes(vocab));
        void *state = carve(&c, 1, grammar_state_bytes());
        void *answer = carve(&c, e->is_script ? 0 : e->kc.max_context, sizeof(uint32_t));

        if (!base)
            continue;
        e->seqs[i].pages = pages;
        e->seqs[i].control.state = state;
        e->seqs[i].control.work = e->grammar_work;
        e->seqs[i].cache.answer = e->is_script ? NULL : answer;
        seen_init(&e->seqs[i].seen, seen, vocab);
    }
    if (!base)
        return c.at;
    governor_init(&e->governor, e->opt.target_gap_ms * CLOCK_NS_PER_MS);
    inbox_init(&e->inbox, cells, e->opt.max_streams);
    if (sched_init(&sc, sched_mem, sched_n, &e->sched) < 0 ||
        plan_init(&e->plan, &e->kc, &e->limits, plan_mem, plan_n) < 0 ||
        (has_prefix(e) && prefix_init(&pc, prefix_mem, prefix_n, &e->pages, &e->slots, &e->prefix) < 0))
        return UINT64_MAX;
    return c.at;
}

/* ---- the configuration for a context and a pool ---- */

/* Of each rank: together they have those of one. */
static uint32_t threads_of(const struct engine *e) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t all = e->opt.threads ? e->opt.threads : online > 0 ? (uint32_t)online : 1;

    return e->kc.n_ranks > 1 ? at_least_1(all / e->kc.n_ranks) : e->opt.threads;
}

static int configure(struct engine *e, uint32_t context, uint32_t n_pages) {
    struct kern_config *k = &e->kc;
    struct plan_limits *l = &e->limits;
    uint32_t seqs = e->opt.max_seqs, distinct = context < k->model.vocab_rows ? context : k->model.vocab_rows;

    k->threads = threads_of(e);
    k->cache = e->opt.cache == ENGINE_CACHE_FP8    ? KERN_CACHE_FP8
               : e->opt.cache == ENGINE_CACHE_BF16 ? KERN_CACHE_BF16
                                                   : KERN_CACHE_F32;
    k->isa = e->opt.isa;
    k->n_pages = n_pages;
    k->max_seqs = seqs;
    k->n_slots = seqs + e->opt.cache_slots;
    k->max_rows[KERN_LANE_DECODE] = seqs;
    k->max_rows[KERN_LANE_PREFILL] = e->opt.prefill_tokens;
    k->max_samples = seqs;
    if (e->opt.score && k->max_samples < 2 * e->opt.prefill_tokens)
        k->max_samples = 2 * e->opt.prefill_tokens; /* every row, trunk and draft */
    k->max_context = context;
    e->pages_per_seq = mem_pages_for(context);
    *l = (struct plan_limits){ .rows = e->opt.prefill_tokens > seqs ? e->opt.prefill_tokens : seqs,
                               .seqs = seqs,
                               .samples = k->max_samples,
                               .pages = seqs * e->pages_per_seq,
                               .bias = seqs * SCHED_MAX_BIAS,
                               .seen = seqs * distinct,
                               .ban = seqs * CONTROL_MAX_BANS,
                               .mask_words = seqs * plan_mask_words(k) };
    k->max_plan_bytes = plan_max_bytes(k, l);
    if (!k->max_plan_bytes)
        return -EOVERFLOW;
    e->arena_bytes = arena_layout(e, NULL);
    return e->arena_bytes == UINT64_MAX ? -EOVERFLOW : 0;
}

/* Bytes in the machine's memory and in devices' own; of a need, or of what there is for it. */
struct room {
    uint64_t machine, device;
};

enum { HALF = 2, QUARTER = 4 };

static bool is_device(const struct engine *e, int cls) {
    return e->device_classes >> cls & 1;
}

/* Everything with this context and pool; false when it cannot be. */
static bool need(struct engine *e, uint32_t context, uint32_t n_pages, struct room *ret) {
    struct room sum = { 0 };
    uint64_t b[KERN_MEM_N], more;

    if (configure(e, context, n_pages) < 0 || ranks_query(e->backend, &e->kc, b, &more) < 0)
        return false;
    sum.machine = e->arena_bytes + 8ull * n_pages + more;
    for (int i = 0; i < KERN_MEM_N; i++)
        *(is_device(e, i) ? &sum.device : &sum.machine) += b[i];
    *ret = sum;
    return size_add(sum.machine,
                    espill_bytes(e, b[KERN_MEM_PAGES] / at_least_1(n_pages), b[KERN_MEM_SLOTS] / e->kc.n_slots),
                    &ret->machine);
}

static bool within(const struct room *n, const struct room *budget) {
    return n->machine <= budget->machine && n->device <= budget->device;
}

static bool fits(struct engine *e, uint32_t context, uint32_t n_pages, const struct room *budget) {
    struct room n;

    return need(e, context, n_pages, &n) && within(&n, budget);
}

/* How often one more of something, which makes `with` of `without`, goes into a share of what without leaves. */
static uint64_t times(const struct room *without, const struct room *with, const struct room *budget, uint32_t share) {
    uint64_t a = UINT64_MAX, b = UINT64_MAX;

    if (!within(without, budget))
        return 0;
    if (with->machine > without->machine)
        a = (budget->machine - without->machine) / (with->machine - without->machine) / share;
    if (with->device > without->device)
        b = (budget->device - without->device) / (with->device - without->device) / share;
    return a < b ? a : b;
}

/* The longest context of which one sequence fits; 0 when not even the shortest does. */
static uint32_t largest_context(struct engine *e, uint32_t below, const struct room *budget) {
    uint32_t lo = 0, hi = mem_pages_for(below);

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;

        if (fits(e, mid * KERN_PAGE_TOKENS, mid, budget))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo * KERN_PAGE_TOKENS;
}

/* Bytes of what is available that are not for the engine. */
static uint64_t kept_bytes(const struct engine *e) {
    uint64_t kept = 0;

    return size_add(e->opt.keep_free_bytes, e->opt.others_bytes, &kept) ? kept : UINT64_MAX;
}

static unsigned long long mib(uint64_t bytes) {
    return bytes >> 20;
}

static int refuse_device(struct engine *e, uint32_t context, uint32_t n_pages, const struct room *n,
                         const struct room *one, uint32_t longest, struct xerr *err) {
    if (!longest)
        return xerr_set(err, -ENOMEM, "device memory: found %llu MiB free; model %s needs %llu MiB for any context",
                        mib(e->device_free), e->name, mib(one->device));
    return xerr_set(err, -ENOMEM, "device memory: %u pages and a context of %u tokens need %llu MiB; found %llu MiB "
                                  "free; the largest context that fits is %u tokens", n_pages, context, mib(n->device),
                    mib(e->device_free), longest);
}

static int refuse(struct engine *e, uint32_t context, uint32_t n_pages, const struct room *budget, struct xerr *err) {
    unsigned long long available = mib(e->available_bytes), kept = mib(kept_bytes(e)), own = mib(e->opt.others_bytes);
    struct room n = { UINT64_MAX, UINT64_MAX }, one = n;
    uint32_t longest = largest_context(e, context, budget);

    need(e, KERN_PAGE_TOKENS, 1, &one);
    need(e, context, n_pages, &n);
    if (n.machine <= budget->machine)
        return refuse_device(e, context, n_pages, &n, &one, longest, err);
    if (!longest)
        return xerr_set(err, -ENOMEM, "memory: found %llu MiB available, of which %llu MiB must stay free (%llu MiB of "
                                      "them for the text of requests); model %s needs %llu MiB for any context",
                        available, kept, own, e->name, mib(one.machine));
    return xerr_set(err, -ENOMEM, "memory: %u pages and a context of %u tokens need %llu MiB; found %llu MiB "
                                  "available, of which %llu MiB must stay free (%llu MiB of them for the text of "
                                  "requests); the largest context that fits is %u tokens",
                    n_pages, context, mib(n.machine), available, kept, own, longest);
}

/* Pages when the options leave the number open: max_seqs whole contexts, but at most half of what is left,
 * unless one context needs more. */
static uint32_t choose_pages(struct engine *e, uint32_t context, const struct room *budget) {
    uint32_t one = mem_pages_for(context);
    struct room without, with;
    uint64_t want = (uint64_t)one * e->opt.max_seqs, fit;

    if (!need(e, context, 1, &without) || !need(e, context, 2, &with) || !within(&without, budget))
        return one;
    fit = times(&without, &with, budget, HALF);
    if (fit < want)
        want = fit > one ? fit : one;
    return want > 1u << 24 ? 1u << 24 : (uint32_t)want;
}

/* Slots beyond the seats: those that were asked for, in at most a quarter of what the rest leaves. */
static void choose_slots(struct engine *e, const struct room *budget) {
    uint32_t want = e->opt.cache_slots;
    struct room without, with;
    uint64_t fit = 0;

    if (!want)
        return;
    e->opt.cache_slots = 0;
    bool known = need(e, KERN_PAGE_TOKENS, 1, &without);
    e->opt.cache_slots = 1;
    if (known && need(e, KERN_PAGE_TOKENS, 1, &with))
        fit = times(&without, &with, budget, QUARTER);
    e->opt.cache_slots = fit < want ? (uint32_t)fit : want;
}

static int check_context(struct engine *e, uint32_t *context, struct xerr *err) {
    uint64_t pool = (uint64_t)e->opt.n_pages * KERN_PAGE_TOKENS;

    if (e->opt.n_pages > 1u << 24)
        return xerr_set(err, -EINVAL, "pages: found %u, expected at most %u", e->opt.n_pages, 1u << 24);
    if (*context > e->model_context)
        return xerr_set(err, -EINVAL, "context: found %u tokens, expected at most %u, the model's maximum",
                        *context, e->model_context);
    if (*context && pool && *context > pool)
        return xerr_set(err, -EINVAL, "context: found %u tokens, expected at most the %llu of the page pool",
                        *context, (unsigned long long)pool);
    if (!*context)
        *context = pool && pool < e->model_context ? (uint32_t)pool : e->model_context;
    return 0;
}

int engine_fits(const struct engine *e, struct xerr *err) {
    return e->lack.code ? xerr_set(err, e->lack.code, "%s", e->lack.msg) : 0;
}

/* What the machine and its devices have, and which classes lie where. */
static int find_room(struct engine *e, struct room *ret_budget, struct xerr *err) {
    uint64_t kept = kept_bytes(e), n = 0;
    struct mem_info mi;
    int r = mem_info_read(NULL, &mi, err);

    if (r < 0)
        return r;
    for (int i = 0; i < KERN_MEM_N; i++) {
        if ((r = kern_mem_where(e->backend, (enum kern_mem)i, &n)) < 0)
            return xerr_set(err, r, "backend %s: %s", e->backend, kern_open_error());
        if (r) {
            e->device_classes |= 1u << i;
            e->device_free = n;
        }
    }
    e->available_bytes = mi.available_bytes;
    *ret_budget = (struct room){ mi.available_bytes > kept ? mi.available_bytes - kept : 0, e->device_free };
    return 0;
}

int engine_size(struct engine *e, struct xerr *err) {
    uint32_t context = e->opt.context_tokens, n_pages = e->opt.n_pages;
    struct room budget = { 0 };
    int r;

    if ((r = check_context(e, &context, err)) < 0)
        return r;
    /* a shape the backend cannot compute is said as such, not as a lack of memory */
    if (configure(e, context, 1) < 0)
        return xerr_set(err, -EOVERFLOW, "context: found %u tokens, expected fewer: a step's plan would exceed "
                                         "4 GiB", context);
    if ((r = ranks_query(e->backend, &e->kc, (uint64_t[KERN_MEM_N]){ 0 }, &(uint64_t){ 0 })) < 0)
        return xerr_set(err, r, "backend %s: %s%s", e->backend, kern_open_error(),
                        e->kc.n_ranks > 1 && e->opt.convert && *e->opt.convert
                            ? ", or make less smaller with [Model] Convert"
                            : "");
    if ((r = find_room(e, &budget, err)) < 0)
        return r;
    choose_slots(e, &budget);
    if (!n_pages) {
        if (!e->opt.context_tokens && !fits(e, context, mem_pages_for(context), &budget)) {
            const struct room half = { budget.machine / 2, e->device_classes ? budget.device / 2 : 0 };

            context = largest_context(e, context, &half);
            /* weights may take more than half of a device: then what is left of it is the measure */
            if (!context && e->device_classes)
                context = largest_context(e, e->model_context, &budget) / 2 / KERN_PAGE_TOKENS * KERN_PAGE_TOKENS;
            context = context ? context : KERN_PAGE_TOKENS;
        }
        n_pages = choose_pages(e, context, &budget);
    }
    if (!fits(e, context, n_pages, &budget)) {
        r = refuse(e, context, n_pages, &budget, e->opt.plan_only ? &e->lack : err);
        if (!e->opt.plan_only)
            return r;
    }
    if ((r = configure(e, context, n_pages)) < 0)
        return xerr_set(err, r, "context: %u tokens cannot be planned", context);
    if ((r = mem_account_plan(&e->account, MEM_OTHER, e->arena_bytes)) < 0)
        return xerr_set(err, r, "memory: the engine's tables are too large");
    return ranks_plan(&e->ranks, &e->account, e->backend, &e->kc, err);
}
