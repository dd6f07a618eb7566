/* SPDX-License-Identifier: MIT */
/* load.c: takes all memory, reads and packs the weights, records the programs. Starting thread. After
 * engine_load the engine allocates nothing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "engine_priv.h"
#include "grammar.h"
#include "loader.h"
#include "synthetic.h"

enum { STAGING_BYTES = 8 << 20 };

struct watch {
    engine_progress_fn fn;
    void *ctx;
};

static int on_window(void *ctx, uint64_t done, uint64_t total) {
    struct watch *w = ctx;

    w->fn(w->ctx, done, total);
    return 0;
}

struct weight_sink {
    struct ranks *ranks;
    struct convert convert;
    const struct kern_config *kc;
    bool digested; /* somebody wants to know which weights these are */
    _Atomic uint64_t digest;
    uint32_t n_layers; /* with the draft layer only when it was asked for */
};

static int keep_window(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                       const void *bytes, uint64_t n) {
    struct weight_sink *s = ctx;

    /* a sum: windows come in any order */
    if (s->digested)
        atomic_fetch_add_explicit(
            &s->digest, espill_mix(id->part | id->piece << 16, id->layer, id->expert, offset, bytes, n),
            memory_order_relaxed);
    return ranks_pack(s->ranks, id, t, offset, bytes, n);
}

/* A checkpoint holds its draft layer whether it is wanted or not. */
static int take_window(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                       const void *bytes, uint64_t n) {
    struct weight_sink *s = ctx;

    if (id->layer >= s->n_layers)
        return 0;
    const struct kern_store *to = &s->kc->stores[kern_part_slot(&s->kc->model, id)];
    /* of a vector nothing is said */
    if (t->store.format == KERN_BF16 && to->format && to->format != KERN_BF16)
        return convert_window(&s->convert, id, t, to, offset, bytes, n);
    return keep_window(ctx, id, t, offset, bytes, n);
}

static int load_weights(struct engine *e, engine_progress_fn progress, void *ctx, struct xerr *err) {
    struct weight_sink sink = { .ranks = &e->ranks, .kc = &e->kc, .convert = { .sink = keep_window },
                                .digested = espill_is_wanted(e),
                                .n_layers = e->kc.model.n_layers + e->kc.model.n_draft };
    struct watch watch = { .fn = progress, .ctx = ctx };
    struct model_load l = { .staging_bytes = STAGING_BYTES, .sink = take_window, .sink_ctx = &sink,
                            .findings = &e->findings };
    uint64_t room = STAGING_BYTES + convert_bytes(&e->directory, &e->kc.model, e->stores);
    int r;

    sink.convert.sink_ctx = &sink;
    if (progress) {
        l.progress = on_window;
        l.progress_ctx = &watch;
    }
    if ((r = mem_account_plan(&e->account, MEM_STAGING, room)) < 0 ||
        (r = mem_map(&e->account, MEM_STAGING, room, &l.staging)) < 0)
        return xerr_set(err, r, "memory: no %llu MiB for reading the weights", (unsigned long long)room >> 20);
    convert_begin(&sink.convert, &e->directory, &e->kc.model, e->stores, (char *)l.staging + STAGING_BYTES);
    r = e->index ? model_load(e->index, &e->directory, &l, err) : model_synthetic_load(&e->directory, &l, err);
    if (r >= 0)
        r = ranks_pack_done(&e->ranks, err);
    mem_unmap(&e->account, MEM_STAGING, l.staging, room);
    e->spill.weights = sink.digest;
    return r;
}

static int open_backend(struct engine *e, struct xerr *err) {
    int r = ranks_open(&e->ranks, e->backend, &e->kc, err);

    e->k = e->ranks.rank[0].k;
    return r;
}

static int record_programs(struct engine *e, struct xerr *err) {
    /* the same on every rank: programs go by their numbers */
    for (uint32_t i = e->ranks.n; i-- > 0;) {
        struct kern *k = e->ranks.rank[i].k;
        int r = progs_capture(k, &e->kc.model, e->opt.draft, &e->progs);

        if (r < 0)
            return xerr_set(err, r, "backend %s: %s", e->backend, kern_last_error(k));
    }
    return ranks_start(&e->ranks, err);
}

int engine_reopen(struct engine *e, struct xerr *err) {
    int r;

    ranks_close(&e->ranks);
    if ((r = open_backend(e, err)) < 0 || (r = ranks_pack_done(&e->ranks, err)) < 0)
        return r;
    return record_programs(e, err);
}

int engine_load(struct engine *e, engine_progress_fn progress, void *ctx, struct xerr *err) {
    int r;

    if (e->loaded)
        return xerr_set(err, -EBUSY, "model %s: found it loaded already", e->name);
    if (e->opt.plan_only)
        return xerr_set(err, -EINVAL, "model %s: it was opened to be planned, not loaded", e->name);
    if ((r = ranks_alloc(&e->ranks, err)) < 0)
        return r;
    if ((r = mem_map(&e->account, MEM_OTHER, e->arena_bytes, &e->arena)) < 0)
        return xerr_set(err, r, "memory: no %llu bytes for the engine's tables",
                        (unsigned long long)e->arena_bytes);
    if ((r = grammar_work_new(&e->grammar_work)) < 0)
        return xerr_set(err, r, "memory: none for the work on grammars");
    if (arena_layout(e, e->arena) == UINT64_MAX)
        return xerr_set(err, -EINVAL, "engine: its tables cannot be laid out");
    if ((r = mem_page_pool_init(&e->pages, &e->account, e->kc.n_pages)) < 0)
        return xerr_set(err, r, "memory: no table of %u pages", e->kc.n_pages);
    if ((r = mem_slot_pool_init(&e->slots, &e->account, e->kc.n_slots)) < 0) {
        mem_page_pool_done(&e->pages);
        return xerr_set(err, r, "memory: no table of %u slots", e->kc.n_slots);
    }
    e->has_pools = true;
    if ((r = open_backend(e, err)) < 0)
        return r;
    if (e->is_script)
        r = ranks_pack_done(&e->ranks, err);
    else
        r = load_weights(e, progress, ctx, err);
    if (r < 0 || (r = record_programs(e, err)) < 0)
        return r;
    espill_open(e);
    e->loaded = true;
    return 0;
}

struct engine *engine_close(struct engine *e) {
    if (!e)
        return NULL;
    espill_close(e);
    ranks_close(&e->ranks);
    e->k = NULL;
    if (e->has_pools) {
        mem_page_pool_done(&e->pages);
        mem_slot_pool_done(&e->slots);
    }
    mem_unmap(&e->account, MEM_OTHER, e->arena, e->arena_bytes);
    grammar_work_free(e->grammar_work);
    ranks_free(&e->ranks);
    if (e->has_directory)
        model_directory_done(&e->directory);
    model_index_close(e->index);
    free(e->stores);
    free(e->script);
    free(e);
    return NULL;
}
