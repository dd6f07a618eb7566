/* SPDX-License-Identifier: MIT */
/* open.c: what is to be loaded: options, configuration or script, tensor directory. Starting thread; may
 * allocate. Nothing large is allocated here: engine_size() refuses first. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_priv.h"
#include "smaller.h"
#include "synthetic.h"
#include "quantconf.h"
#include "textfile.h"
#include "traps.h"

static void last_component(const char *path, char *ret, size_t n) {
    size_t len = strlen(path), at;

    while (len > 1 && path[len - 1] == '/')
        len--;
    for (at = len; at && path[at - 1] != '/'; at--)
        ;
    snprintf(ret, n, "%.*s", (int)(len - at), path + at);
}

static int read_script(const char *path, char **ret, struct xerr *err) {
    FILE *f = NULL;
    char *text;
    size_t n;
    int r = textfile_open(path, "script ", &f, err);

    if (r < 0)
        return r;
    text = malloc(KERN_SCRIPT_MAX_BYTES + 1);
    if (!text) {
        fclose(f);
        return xerr_set(err, -ENOMEM, "script %s: no memory to read it", path);
    }
    n = fread(text, 1, KERN_SCRIPT_MAX_BYTES + 1, f);
    if (ferror(f))
        r = xerr_set(err, -EIO, "script %s: cannot read: %s", path, strerror(errno));
    else if (n > KERN_SCRIPT_MAX_BYTES)
        r = xerr_set(err, -E2BIG, "script %s: found more than %d bytes, expected at most that", path,
                     KERN_SCRIPT_MAX_BYTES);
    else if (memchr(text, 0, n))
        r = xerr_set(err, -EINVAL, "script %s: found a zero byte, expected text", path);
    fclose(f);
    if (r < 0) {
        free(text);
        return r;
    }
    text[n] = 0;
    *ret = text;
    return 0;
}

/* A directory a script names is meant from where the script lies. */
static int script_model_dir(struct engine *e, const char *path, const char *model, struct xerr *err) {
    const char *slash = strrchr(path, '/');
    int n;

    if (model[0] == '/' || !slash)
        n = snprintf(e->dir, sizeof e->dir, "%s", model);
    else
        n = snprintf(e->dir, sizeof e->dir, "%.*s/%s", (int)(slash - path), path, model);
    return n < (int)sizeof e->dir ? 0 : xerr_set(err, -ENAMETOOLONG, "script %s: model: path too long", path);
}

/* A script's requests walk through this many layers that compute nothing. */
static void script_shape(struct kern_model_desc *m, uint32_t layers) {
    m->n_layers = layers;
    m->n_draft = 0;
    m->hidden = m->hc_mult = 1;
    for (uint32_t i = 0; i < layers; i++)
        m->layer[i] = (struct kern_layer_desc){ .mix = KERN_MIX_KDA, .resid = KERN_RESID_PLAIN,
                                                .mlp = KERN_MLP_DENSE };
}

static int open_script(struct engine *e, const char *path, struct xerr *err) {
    struct kern_script_info info;
    char why[200];
    int r = read_script(path, &e->script, err);

    if (r < 0)
        return r;
    if ((r = kern_script_info(e->script, &info, why, sizeof why)) < 0)
        return xerr_set(err, r, "script %s: %s", path, why);
    e->is_script = true;
    snprintf(e->backend, sizeof e->backend, "script");
    last_component(path, e->name, sizeof e->name);
    e->kc.script = e->script;
    if (info.model[0]) {
        if ((r = script_model_dir(e, path, info.model, err)) < 0 ||
            (r = model_config_read(e->dir, &e->cfg, err)) < 0)
            return r;
        e->has_cfg = true;
        e->kc.model.vocab_rows = e->cfg.vocab_size;
    } else {
        e->kc.model.vocab_rows = info.vocab_tokens;
        e->n_stop_ids = info.n_stops;
        memcpy(e->stop_ids, info.stops, sizeof e->stop_ids);
    }
    e->kc.model.vocab_tokens = e->opt.vocab_tokens ? e->opt.vocab_tokens : e->kc.model.vocab_rows;
    if (e->kc.model.vocab_tokens > e->kc.model.vocab_rows)
        return xerr_set(err, -EINVAL, "script %s: found a tokenizer of %u tokens, expected at most %u", path,
                        e->kc.model.vocab_tokens, e->kc.model.vocab_rows);
    script_shape(&e->kc.model, info.layers);
    e->model_context = info.context_tokens ? info.context_tokens
                       : e->has_cfg        ? e->cfg.max_position_embeddings
                                           : 4096;
    return 0;
}

/* Every matrix in the format that the files have it in, or the smaller one that was asked for: nothing is widened. */
static int make_stores(struct engine *e, struct xerr *err) {
    uint32_t layers = e->kc.model.n_layers + e->kc.model.n_draft;

    e->stores = calloc(kern_part_count(&e->kc.model), sizeof *e->stores);
    if (!e->stores)
        return xerr_set(err, -ENOMEM, "model: no memory to describe its matrices");
    for (size_t i = 0; i < e->directory.n_tensors; i++) {
        const struct model_tensor *t = &e->directory.tensor[i];

        if (t->id.layer < layers)
            e->stores[kern_part_slot(&e->kc.model, &t->id)] = t->k.store;
    }
    e->kc.stores = e->stores;
    return 0;
}

static int open_checkpoint(struct engine *e, const char *dir, struct xerr *err) {
    uint32_t vocab;
    int r;

    if (snprintf(e->dir, sizeof e->dir, "%s", dir) >= (int)sizeof e->dir)
        return xerr_set(err, -ENAMETOOLONG, "model: found a path of %zu bytes, expected under %zu", strlen(dir),
                        sizeof e->dir);
    snprintf(e->backend, sizeof e->backend, "%s", e->opt.backend ? e->opt.backend : "cpu");
    if (strcmp(e->backend, "script") == 0)
        return xerr_set(err, -EINVAL, "backend: found \"script\" with a checkpoint; a script is loaded by naming "
                                      "it as the model: script:FILE");
    last_component(dir, e->name, sizeof e->name);
    if ((r = model_config_read(dir, &e->cfg, err)) < 0)
        return r;
    e->has_cfg = true;
    if ((r = model_index_open(&e->index, dir, NULL, err)) < 0 ||
        (r = model_directory_build(&e->directory, &e->cfg, e->index, err)) < 0)
        return r;
    e->has_directory = true;
    if ((r = model_quant_check(dir, &e->directory, err)) < 0)
        return r;
    if (e->opt.draft && !e->directory.has_draft)
        return xerr_set(err, -ENODATA, "%s: found no tensors of an MTP layer, expected them because drafts were "
                                       "asked for", dir);
    vocab = e->opt.vocab_tokens ? e->opt.vocab_tokens : e->cfg.vocab_size;
    e->model_context = e->cfg.max_position_embeddings;
    if ((r = model_config_describe(&e->cfg, vocab, e->opt.draft, &e->kc.model, err)) < 0)
        return r;
    if ((r = model_smaller(&e->directory, e->opt.convert, err)) < 0)
        return r;
    r = model_allowed(dir, &e->cfg, &e->directory, e->kc.model.n_layers + e->kc.model.n_draft,
                      &(struct model_allow){ e->opt.allow_four_bit, e->opt.allow_low }, err);
    return r < 0 ? r : make_stores(e, err);
}

static int open_synthetic(struct engine *e, const char *spec, struct xerr *err) {
    int r;

    snprintf(e->backend, sizeof e->backend, "%s", e->opt.backend ? e->opt.backend : "cpu");
    if (e->opt.convert && *e->opt.convert)
        return xerr_set(err, -EINVAL,
                        "[Model] Convert: found \"%s\" with a synthetic model, whose formats stand in its name: "
                        "experts= and dense=",
                        e->opt.convert);
    if ((r = model_synthetic_open(spec, &e->cfg, &e->directory, err)) < 0)
        return r;
    e->has_cfg = e->has_directory = true;
    snprintf(e->name, sizeof e->name, "%s", model_synthetic_name(&e->cfg));
    e->model_context = e->cfg.max_position_embeddings;
    r = model_config_describe(&e->cfg, e->cfg.vocab_size, e->opt.draft, &e->kc.model, err);
    return r < 0 ? r : make_stores(e, err);
}

static int check_options(struct engine *e, struct xerr *err) {
    struct engine_options *o = &e->opt;

    if (!o->max_seqs)
        o->max_seqs = 8;
    if (!o->max_streams)
        o->max_streams = 256;
    if (!o->target_gap_ms)
        o->target_gap_ms = 200;
    if (!o->prefill_tokens)
        o->prefill_tokens = 512;
    if (o->ranks > RANKS_MAX)
        return xerr_set(err, -EINVAL, "ranks: found %u, expected 1 to %d", o->ranks, RANKS_MAX);
    if (o->max_seqs > 1024)
        return xerr_set(err, -EINVAL, "sequences at once: found %u, expected 1 to 1024", o->max_seqs);
    if (o->cache_slots > 65536)
        return xerr_set(err, -EINVAL, "cache slots: found %u, expected at most 65536", o->cache_slots);
    if (o->max_streams > 65536)
        return xerr_set(err, -EINVAL, "requests at once: found %u, expected 1 to 65536", o->max_streams);
    if (o->prefill_tokens % KERN_GRID || o->prefill_tokens > 8192)
        return xerr_set(err, -EINVAL, "prefill chunk: found %u tokens, expected a multiple of %d up to 8192",
                        o->prefill_tokens, KERN_GRID);
    return 0;
}

int engine_open(const struct engine_options *opt, struct engine **ret, struct xerr *err) {
    struct engine *e = aligned_alloc(_Alignof(struct engine), sizeof *e);
    int r;

    if (!e)
        return xerr_set(err, -ENOMEM, "engine: no memory");
    memset(e, 0, sizeof *e);
    e->opt = *opt;
    e->kc.n_ranks = opt->ranks ? opt->ranks : 1;
    e->ranks.timeout_ms = opt->rank_timeout_ms;
    e->long_tokens = ECACHE_LONG;
    mem_account_init(&e->account);
    if (!opt->model || !opt->model[0])
        r = xerr_set(err, -EINVAL,
                     "model: found nothing, expected a checkpoint directory, script:FILE or synthetic:SHAPE");
    else if ((r = check_options(e, err)) < 0)
        ;
    else if (strncmp(opt->model, "script:", 7) == 0)
        r = open_script(e, opt->model + 7, err);
    else if (model_is_synthetic(opt->model))
        r = open_synthetic(e, opt->model + strlen(MODEL_SYNTHETIC), err);
    else
        r = open_checkpoint(e, opt->model, err);
    if (r >= 0 && e->has_cfg) {
        e->n_stop_ids = e->cfg.n_eos;
        memcpy(e->stop_ids, e->cfg.eos_token_id, e->n_stop_ids * sizeof *e->stop_ids);
    }
    if (r >= 0)
        r = engine_size(e, err);
    if (r < 0) {
        engine_close(e);
        return r;
    }
    e->vocab = (struct vocab_view){ .stop_ids = e->stop_ids, .n_stop_ids = e->n_stop_ids,
                                    .think_open = UINT32_MAX, .think_close = UINT32_MAX,
                                    .tool_open = UINT32_MAX, .tool_close = UINT32_MAX,
                                    .key_open = UINT32_MAX, .key_close = UINT32_MAX,
                                    .value_open = UINT32_MAX, .value_close = UINT32_MAX,
                                    .text_end = UINT32_MAX };
    *ret = e;
    return 0;
}

void engine_set_vocab(struct engine *e, const struct vocab_view *v) {
    e->vocab = *v;
    if (e->vocab.n_stop_ids > ENGINE_MAX_STOP_IDS)
        e->vocab.n_stop_ids = ENGINE_MAX_STOP_IDS;
}

void engine_set_sink(struct engine *e, const struct stream_sink *s) {
    e->sink = *s;
}

struct mem_account *engine_account(struct engine *e) {
    return &e->account;
}

_Static_assert(sizeof((struct engine_info){ .ranks = 0 }.rank_bytes) == RANKS_MAX * sizeof(uint64_t),
               "every rank has its place in engine_info");

/* Everything one rank has for itself. */
static uint64_t rank_bytes(const struct mem_kern *m) {
    uint64_t sum = 0;

    for (int i = 0; i < KERN_MEM_N; i++)
        sum += m->bytes[i];
    return sum;
}

void engine_get_info(const struct engine *e, struct engine_info *ret) {
    struct engine_info i = { .vocab_tokens = e->kc.model.vocab_tokens, .context_tokens = e->kc.max_context,
                             .max_seqs = e->opt.max_seqs, .n_pages = e->kc.n_pages, .n_slots = e->kc.n_slots,
                             .cache_slots = e->opt.cache_slots, .ranks = e->kc.n_ranks };

    snprintf(i.model_name, sizeof i.model_name, "%.63s", e->name);
    snprintf(i.model_dir, sizeof i.model_dir, "%s", e->dir);
    snprintf(i.backend, sizeof i.backend, "%s", e->k ? kern_name(e->k) : e->backend);
    snprintf(i.cache, sizeof i.cache, "%s",
             e->kc.cache == KERN_CACHE_FP8 ? "fp8" : e->kc.cache == KERN_CACHE_BF16 ? "bf16" : "f32");
    for (uint32_t r = 0; r < e->ranks.n; r++)
        i.rank_bytes[r] = rank_bytes(&e->ranks.rank[r].mem);
    i.weight_bytes = e->ranks.bytes[KERN_MEM_WEIGHTS];
    i.page_bytes = e->ranks.bytes[KERN_MEM_PAGES] / e->kc.n_pages;
    i.slot_bytes = e->ranks.bytes[KERN_MEM_SLOTS] / e->kc.n_slots;
    i.available_bytes = e->available_bytes;
    i.device_free = e->device_free;
    for (int m = 0; m < KERN_MEM_N; m++)
        i.device_bytes += e->device_classes >> m & 1 ? e->ranks.bytes[m] : 0;
    i.work_bytes = e->ranks.bytes[KERN_MEM_WORK] + e->ranks.bytes[KERN_MEM_CTL] + e->arena_bytes + e->ranks.comm_bytes +
                   KERN_LANES * e->ranks.plan_bytes;
    *ret = i;
}

const struct model_directory *engine_directory(const struct engine *e, const struct model_config **ret_cfg,
                                               uint32_t *ret_layers, const struct model_findings **ret_findings) {
    if (!e->has_directory)
        return NULL;
    *ret_cfg = &e->cfg;
    *ret_layers = e->kc.model.n_layers + e->kc.model.n_draft;
    *ret_findings = &e->findings;
    return &e->directory;
}

void engine_get_stats(const struct engine *e, struct engine_stats *ret) {
    struct engine_stats s = {
        .steps = atomic_load_explicit(&e->stats.steps, memory_order_relaxed),
        .prefill_tokens = atomic_load_explicit(&e->stats.prefill_tokens, memory_order_relaxed),
        .sampled_tokens = atomic_load_explicit(&e->stats.sampled_tokens, memory_order_relaxed),
        .running = atomic_load_explicit(&e->stats.running, memory_order_relaxed),
        .queued = atomic_load_explicit(&e->stats.queued, memory_order_relaxed),
        .free_slots = atomic_load_explicit(&e->stats.free_slots, memory_order_relaxed),
        .free_pages = atomic_load_explicit(&e->stats.free_pages, memory_order_relaxed),
        .heartbeat_ns = atomic_load_explicit(&e->stats.heartbeat_ns, memory_order_relaxed),
        .retry_ms = atomic_load_explicit(&e->stats.retry_ms, memory_order_relaxed),
        .asleep = atomic_load_explicit(&e->stats.asleep, memory_order_acquire), /* the engine's side: run.c */
        .skips = atomic_load_explicit(&e->stats.skips, memory_order_relaxed),
        .safety_wakes = atomic_load_explicit(&e->stats.safety_wakes, memory_order_relaxed),
        .sleeps = atomic_load_explicit(&e->stats.sleeps, memory_order_relaxed),
        .budget_closes = atomic_load_explicit(&e->stats.budget_closes, memory_order_relaxed),
        .loop_closes = atomic_load_explicit(&e->stats.loop_closes, memory_order_relaxed),
    };

    *ret = s;
}
