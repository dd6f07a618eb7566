/* SPDX-License-Identifier: MIT */
/* The loader thread: reads tokenizer, template and checkpoint, tests the engine, hands everything over and
 * then is the engine thread. It allocates until engine_run and not afterwards. What it finds is read by the
 * io thread after `phase` says so. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "config.h"
#include "daemon.h"
#include "grammar.h"
#include "log.h"
#include "seal.h"
#include "size.h"
#include "synthetic.h"
#include "tokenizer.h"

static void set_phase(struct daemon *d, enum load_phase phase) {
    atomic_store_explicit(&d->phase, phase, memory_order_release);
    loop_kick(d->loop);
}

static void on_progress(void *ctx, uint64_t done, uint64_t total) {
    struct daemon *d = ctx;

    atomic_store_explicit(&d->load_permille, total ? (uint32_t)((double)done / (double)total * 1000.0) : 0,
                          memory_order_relaxed);
}

static int open_text(struct daemon *d, const char *dir, struct xerr *err) {
    int r = tok_open(dir, &d->tok, err);

    if (r == 0)
        r = chat_open(dir, d->tok, &d->chat, err);
    if (r < 0)
        return r;
    d->has_text = true;
    if (chat_warning(d->chat))
        log_warning("%s: %s", dir, chat_warning(d->chat));
    return 0;
}

static uint64_t others_bytes(const struct daemon *d) {
    uint64_t all;

    /* `glmd --plan` has nobody to send text to */
    if (!size_add(d->emit ? emit_text_bytes(d->emit, d->tok) : 0, d->conf.remember_bytes, &all) ||
        !size_add(all, d->tok ? GRAMMAR_VOCAB_BYTES * (uint64_t)tok_size(d->tok) + GRAMMAR_ALL_BYTES : 0, &all))
        return UINT64_MAX;
    return all;
}

static int open_engine(struct daemon *d, struct engine **ret, struct xerr *err) {
    const struct conf *c = &d->conf;
    struct engine_options opt = {
        .model = c->model_path,
        .backend = c->backend == CONF_BACKEND_REF ? "ref" : c->backend == CONF_BACKEND_CUDA ? "cuda" : "cpu",
        .threads = c->threads,
        .ranks = FAULT(ranks_unheard) ? 1 : c->ranks,
        .vocab_tokens = d->tok ? tok_size(d->tok) : 0,
        .context_tokens = c->context_tokens,
        .max_seqs = c->max_sequences,
        .max_streams = c->max_requests,
        .prefill_tokens = c->prefill_tokens,
        .target_gap_ms = c->target_gap_ms,
        .max_queued = c->max_queued,
        .cache_slots = c->cache_slots,
        .cache_bytes = c->cache_bytes,
        .spill_dir = c->spill_dir,
        .spill_bytes = c->spill_bytes,
        .spill_keep_free = c->spill_keep_free,
        .spill_min_tokens = c->spill_min_tokens,
        .spill_survive = c->spill_survive,
        .spill_plain = c->io_backend == CONF_IO_EPOLL,
        .patience_ms = c->background_wait_sec * 1000,
        .park_ms = c->park_timeout_sec * 1000,
        .keep_free_bytes = c->keep_free_bytes,
        .cache = c->cache_format == CONF_CACHE_FP8    ? ENGINE_CACHE_FP8
                 : c->cache_format == CONF_CACHE_BF16 ? ENGINE_CACHE_BF16
                                                      : ENGINE_CACHE_F32,
        .others_bytes = others_bytes(d),
        .plan_only = d->plan,
        .allow_four_bit = c->allow_four_bit_dense == 1,
        .allow_low = c->allow_low_precision,
        .convert = c->convert,
    };

    return engine_open(&opt, ret, err);
}

static uint32_t marker(const struct tok *t, const char *text) {
    int64_t id = tok_id(t, text);

    return id < 0 ? UINT32_MAX : (uint32_t)id;
}

/* The engine decides over stop strings on bytes; it gets them as one table, because it does not know the
 * tokenizer. */
static int make_vocab(struct daemon *d, const struct model_config *cfg, struct xerr *err) {
    uint32_t n = tok_size(d->tok), n_marks = 0, assistant = marker(d->tok, "<|assistant|>");
    const uint8_t *bytes;
    uint64_t total = 0;
    size_t len;

    for (uint32_t i = 0; i < n; i++)
        if (tok_bytes(d->tok, i, &bytes, &len) >= 0)
            total += len;
    d->vocab_offsets = calloc((size_t)n + 1, sizeof *d->vocab_offsets);
    d->vocab_bytes = malloc(total ? total : 1);
    d->vocab_marks = calloc(n ? n : 1, sizeof *d->vocab_marks);
    if (total > UINT32_MAX || !d->vocab_offsets || !d->vocab_bytes || !d->vocab_marks)
        return xerr_set(err, -ENOMEM, "no memory for the bytes of %u tokens", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = d->vocab_offsets[i];

        int kind = tok_bytes(d->tok, i, &bytes, &len);

        /* what the output parser never shows has no bytes: a stop string must not be found in it */
        if (kind >= 0 && (!(kind & TOK_SPECIAL) || FAULT(special_has_bytes)))
            memcpy(d->vocab_bytes + at, bytes, len);
        else
            len = 0;
        if (kind >= 0 && kind & TOK_ADDED)
            d->vocab_marks[n_marks++] = i;
        d->vocab_offsets[i + 1] = at + (uint32_t)len;
    }
    for (uint32_t i = 0; i < cfg->n_eos; i++)
        d->eos[d->n_eos++] = cfg->eos_token_id[i];
    /* the model sometimes begins a second answer instead of ending the first */
    if (assistant != UINT32_MAX)
        d->eos[d->n_eos++] = assistant;
    d->vocab = (struct vocab_view){
        .bytes = d->vocab_bytes,
        .offsets = d->vocab_offsets,
        .n_tokens = n,
        .stop_ids = d->eos,
        .n_stop_ids = d->n_eos,
        .mark_ids = d->vocab_marks,
        .n_mark_ids = n_marks,
        .think_open = marker(d->tok, "<think>"),
        .think_close = marker(d->tok, "</think>"),
        .tool_open = marker(d->tok, "<tool_call>"),
        .tool_close = marker(d->tok, "</tool_call>"),
        .key_open = marker(d->tok, "<arg_key>"),
        .key_close = marker(d->tok, "</arg_key>"),
        .value_open = marker(d->tok, "<arg_value>"),
        .value_close = marker(d->tok, "</arg_value>"),
        .text_end = marker(d->tok, "<|endoftext|>"),
    };
    return 0;
}

/* What stands between reasoning that is closed and the mark that closes it. */
static int make_close(struct daemon *d, struct xerr *err) {
    const char *text = d->conf.thinking_close;
    char line[sizeof d->conf.thinking_close + 3];
    struct tok_scratch *s = NULL;
    size_t len, n = 0;
    int r;

    len = (size_t)snprintf(line, sizeof line, "\n%s%s", text, *text ? "\n" : "");
    d->close_ids = calloc(len, sizeof *d->close_ids);
    r = d->close_ids ? tok_scratch_new(0, &s) : -ENOMEM;
    if (r == 0)
        r = tok_encode(d->tok, s, line, len, 0, d->close_ids, len, &n);
    tok_scratch_free(s);
    if (r == 0 && n > SCHED_MAX_CLOSE_IDS)
        r = -E2BIG;
    if (r < 0)
        return xerr_set(err, r, "[Text] ThinkingCloseText: found %zu bytes in %zu tokens: %s; expected UTF-8 text "
                                "of at most %d tokens",
                        strlen(text), n, strerror(-r), SCHED_MAX_CLOSE_IDS);
    d->n_close = (uint32_t)n;
    return 0;
}

static void set_defaults(struct sched_sampling *s, const struct model_generation *g) {
    *s = (struct sched_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition = 1.0f};
    if (!g)
        return;
    if (g->has_temperature)
        s->temperature = (float)g->temperature;
    if (g->has_do_sample && !g->do_sample)
        s->temperature = 0.0f;
    if (g->has_top_p)
        s->top_p = (float)g->top_p;
    if (g->has_top_k)
        s->top_k = g->top_k;
    if (g->has_min_p)
        s->min_p = (float)g->min_p;
    if (g->has_repetition_penalty)
        s->repetition = (float)g->repetition_penalty;
}

int loader_open(struct daemon *d, struct engine **ret, struct xerr *err) {
    const char *path = d->conf.model_path;
    bool bare = strncmp(path, "script:", 7) == 0 || model_is_synthetic(path);
    int r = bare ? 0 : open_text(d, path, err);

    return r < 0 ? r : open_engine(d, ret, err);
}

/* Everything before the engine runs. */
static int load(struct daemon *d, struct engine **ret, struct xerr *err) {
    bool is_script = strncmp(d->conf.model_path, "script:", 7) == 0;
    struct model_generation gen;
    struct prep_model pm = {.think_open = UINT32_MAX, .think_close = UINT32_MAX, .tool_open = UINT32_MAX};
    struct model_config *cfg = calloc(1, sizeof *cfg);
    struct stream_sink sink;
    int r = cfg ? 0 : xerr_set(err, -ENOMEM, "no memory to read the configuration of the model");

    if (r == 0)
        r = loader_open(d, ret, err);
    if (r < 0)
        goto out;
    engine_get_info(*ret, &d->info);
    plan_log(*ret);
    if (is_script && d->info.model_dir[0])
        r = open_text(d, d->info.model_dir, err);
    set_defaults(&pm.defaults, NULL);
    if (r == 0 && d->has_text) {
        r = model_config_read(d->info.model_dir, cfg, err);
        if (r == 0)
            r = model_generation_read(d->info.model_dir, cfg, &gen, err);
        if (r == 0)
            r = make_vocab(d, cfg, err);
        if (r == 0)
            r = make_close(d, err);
        if (r == 0)
            r = grammar_vocab_new(&d->vocab, &d->grammar, err);
        if (r < 0)
            goto out;
        set_defaults(&pm.defaults, &gen);
        engine_set_vocab(*ret, &d->vocab);
        pm.think_open = d->vocab.think_open;
        pm.think_close = d->vocab.think_close;
        pm.tool_open = d->vocab.tool_open;
        pm.grammar = d->grammar;
        pm.close = d->close_ids;
        pm.n_close = d->n_close;
    }
    if (r == 0)
        r = engine_load(*ret, on_progress, d, err);
    if (r == 0)
        plan_log_findings(*ret);
    if (r == 0)
        r = engine_self_test(*ret, err);
    if (r == 0)
        r = emit_set_text(d->emit, d->tok, d->eos, d->n_eos, err);
    if (r < 0)
        goto out;
    emit_get_sink(d->emit, &sink);
    engine_set_sink(*ret, &sink);
    engine_get_info(*ret, &d->info);
    pm.tok = d->tok;
    pm.chat = d->chat;
    pm.eos = d->eos;
    pm.n_eos = d->n_eos;
    pm.vocab_tokens = d->info.vocab_tokens;
    pm.context_tokens = d->info.context_tokens;
    pm.max_prompt_bytes = d->first_max_prompt_bytes;
    pm.thinking_budget = d->conf.thinking_budget;
    pm.loop_guard = d->conf.loop_guard == 1;
    atomic_store_explicit(&d->engine, *ret, memory_order_release);
    prep_set_model(d->prep, &pm);
out:
    free(cfg);
    return r;
}

static void *engine_main(void *ctx) {
    struct daemon *d = ctx;
    struct engine *e = NULL;

    pthread_setname_np(pthread_self(), "glmd-engine");
    if (load(d, &e, &d->load_error) < 0) {
        engine_close(e);
        set_phase(d, LOAD_FAILED);
        return NULL;
    }
    set_phase(d, LOAD_DONE);
    seal_this_thread();
    d->engine_result = engine_run(e);
    set_phase(d, ENGINE_ENDED);
    return NULL;
}

int loader_start(struct daemon *d) {
    sigset_t all, old;
    int r;

    d->first_max_prompt_bytes = d->conf.max_prompt_bytes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(&d->engine_thread, NULL, engine_main, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    d->has_thread = r == 0;
    return -r;
}

void loader_done(struct daemon *d) {
    struct engine *e = atomic_load(&d->engine);

    atomic_store(&d->engine, NULL);
    engine_close(e);
    chat_free(d->chat);
    tok_free(d->tok);
    grammar_vocab_free(d->grammar);
    free(d->vocab_bytes);
    free(d->vocab_offsets);
    free(d->close_ids);
    free(d->vocab_marks);
}
