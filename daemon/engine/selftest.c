/* SPDX-License-Identifier: MIT */
/* selftest.c: before the daemon says it is ready, one real prompt goes through the real loop and must come
 * out as it should: the published next token of a known checkpoint, the script's first token, or, for a
 * checkpoint nobody has listed, the same answer from prefill and from decode. Starting thread. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine_priv.h"
#include "score.h"
#include "selftest_table.h"

/* FNV-1a over the file that names every tensor and its shard. */
static int index_digest(const char *dir, uint64_t *ret) {
    char path[560];
    unsigned char buf[4096];
    uint64_t h = 0xcbf29ce484222325u;
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while ((n = read(fd, buf, sizeof buf)) > 0)
        for (ssize_t i = 0; i < n; i++)
            h = (h ^ buf[i]) * 0x100000001b3u;
    close(fd);
    if (n < 0)
        return -EIO;
    *ret = h;
    return 0;
}

static int check_known(struct engine *e, const struct selftest_case *c, struct xerr *err) {
    uint32_t got[SELFTEST_MAX_NEXT], n = 0;
    int r = score_greedy(e, c->ids, c->n_ids, got, c->n_next, &n, err);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < c->n_next; i++)
        if (i >= n || got[i] != c->next[i])
            return xerr_set(err, -EBADMSG, "self-test of %s on %s: token %u is %lld, expected %u; the weights or "
                                           "this build are damaged", c->name, kern_name(e->k), i,
                            i < n ? (long long)got[i] : -1LL, c->next[i]);
    return 0;
}

/* Ids all over the vocabulary, the same on every run. */
static void probe_ids(uint32_t *ids, uint32_t n, uint32_t vocab) {
    uint64_t x = 0x9e3779b97f4a7c15u;

    for (uint32_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ids[i] = (uint32_t)(x % vocab);
    }
}

/* The two paths differ in the order of their sums, so they agree within rounding; a wrong state, page or
 * position is off by orders of magnitude more. */
static int check_agreement(struct engine *e, struct xerr *err) {
    enum { N = KERN_GRID + 6 };
    uint32_t ids[N], n = N < e->kc.max_context ? N : e->kc.max_context;
    struct score_query q = { .ids = ids, .n_ids = n };
    uint32_t rows = e->kc.model.vocab_rows, tokens = e->kc.model.vocab_tokens;
    void *mem = NULL;
    uint64_t bytes = 2ull * rows * sizeof(float);
    double diff = 0, norm = 0;
    float *a, *b;
    int r;

    probe_ids(ids, n, tokens);
    if ((r = mem_account_plan(&e->account, MEM_STAGING, bytes)) < 0 ||
        (r = mem_map(&e->account, MEM_STAGING, bytes, &mem)) < 0)
        return xerr_set(err, r, "self-test: no memory for two rows of logits");
    a = mem;
    b = a + rows;
    r = score_prompt(e, &q, &(struct score_out){ .logits_last = a }, err);
    q.fed_tokens = n < 6 ? n : 6;
    if (r >= 0)
        r = score_prompt(e, &q, &(struct score_out){ .logits_last = b }, err);
    for (uint32_t i = 0; r >= 0 && i < tokens; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)a[i] * (double)a[i];
    }
    mem_unmap(&e->account, MEM_STAGING, mem, bytes);
    if (r < 0)
        return r;
    if (!isfinite(diff) || !isfinite(norm) || norm <= 0 || sqrt(diff / norm) > 2e-2)
        return xerr_set(err, -EBADMSG, "self-test of %s on %s: reading a prompt at once and token by token differ "
                                       "by %.3g, expected at most 0.02", e->name, kern_name(e->k),
                        sqrt(diff / norm));
    return 0;
}

static int check_script(struct engine *e, struct xerr *err) {
    struct kern_script_info info;
    char why[200];
    uint32_t got = 0, n = 0;
    int r = kern_script_info(e->script, &info, why, sizeof why);

    if (r < 0)
        return xerr_set(err, r, "script %s: %s", e->name, why);
    if (info.probe == KERN_NONE)
        return 0; /* the script itself asks for a failure at once */
    if ((r = score_greedy(e, &info.probe, 1, &got, 1, &n, err)) < 0)
        return r;
    if (n != 1 || got != info.first_token)
        return xerr_set(err, -EBADMSG, "self-test of script %s: the first token is %lld, expected %u", e->name,
                        n ? (long long)got : -1LL, info.first_token);
    /* the request that was used up is given back */
    return engine_reopen(e, err);
}

static int check_any(struct engine *e, struct xerr *err) {
    uint64_t digest = 0;

    if (e->is_script)
        return check_script(e, err);
    if (index_digest(e->dir, &digest) == 0)
        for (uint32_t i = 0; i < selftest_n_cases; i++)
            if (selftest_cases[i].digest == digest && selftest_cases[i].n_ids < e->kc.max_context)
                return check_known(e, &selftest_cases[i], err);
    return check_agreement(e, err);
}

int engine_self_test(struct engine *e, struct xerr *err) {
    int r;

    if (!e->loaded)
        return xerr_set(err, -EINVAL, "self-test: the model is not loaded");
    r = check_any(e, err);
    /* nobody asked for these tokens, so no total and no speed counts them */
    atomic_store_explicit(&e->stats.steps, 0, memory_order_relaxed);
    atomic_store_explicit(&e->stats.prefill_tokens, 0, memory_order_relaxed);
    if (!FAULT(engine_selftest_counted))
        atomic_store_explicit(&e->stats.sampled_tokens, 0, memory_order_relaxed);
    e->numbers.now = (struct numbers){ 0 };
    /* the last round counted before its step was over: its sequence would be shown as running until the first
     * request */
    if (!FAULT(engine_selftest_stays))
        engine_count_stats(e);
    return r;
}
