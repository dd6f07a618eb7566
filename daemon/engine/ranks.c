/* SPDX-License-Identifier: MIT */
/* ranks.c: the ranks' memory, opening and packing, and their end. Starting thread; packing on loader threads too. */
#include "ranks.h"

#include <errno.h>
#include <string.h>

#include "ranks_priv.h"
#include "size.h"

static struct kern_config config_of(const struct kern_config *cfg, const struct ranks *g, uint32_t rank) {
    struct kern_config c = *cfg;

    c.rank = rank;
    c.comm = g && cfg->n_ranks > 1 ? g->end[rank] : NULL;
    return c;
}

static uint64_t shared_bytes(const struct kern_config *cfg) {
    if (cfg->n_ranks < 2)
        return 0;
    return comm_local_bytes(cfg->n_ranks, kern_comm_bytes(cfg)) + KERN_LANES * cfg->max_plan_bytes;
}

int ranks_query(const char *backend, const struct kern_config *cfg, uint64_t ret_bytes[KERN_MEM_N],
                uint64_t *ret_more) {
    uint64_t sum[KERN_MEM_N] = { 0 }, b[KERN_MEM_N];

    for (uint32_t i = 0; i < cfg->n_ranks; i++) {
        const struct kern_config c = config_of(cfg, NULL, i);
        int r = kern_query(backend, &c, b);

        if (r < 0)
            return r;
        for (int m = 0; m < KERN_MEM_N; m++)
            if (!size_add(sum[m], b[m], &sum[m]))
                return -EOVERFLOW;
    }
    memcpy(ret_bytes, sum, sizeof sum);
    *ret_more = shared_bytes(cfg);
    return 0;
}

int ranks_plan(struct ranks *g, struct mem_account *a, const char *backend, const struct kern_config *cfg,
               struct xerr *err) {
    int r = 0;

    g->n = cfg->n_ranks;
    g->account = a;
    if (!g->timeout_ms)
        g->timeout_ms = RANKS_TIMEOUT_MS;
    for (uint32_t i = 0; i < g->n && r >= 0; i++) {
        const struct kern_config c = config_of(cfg, NULL, i);

        g->rank[i].no = i;
        g->rank[i].group = g;
        r = mem_kern_plan(&g->rank[i].mem, a, backend, &c, err);
        for (int m = 0; m < KERN_MEM_N && r >= 0; m++)
            g->bytes[m] += g->rank[i].mem.bytes[m];
    }
    if (r < 0 || g->n < 2)
        return r;
    g->plan_bytes = cfg->max_plan_bytes;
    g->comm_bytes = comm_local_bytes(g->n, kern_comm_bytes(cfg));
    if ((r = mem_account_plan(a, MEM_WORK, g->comm_bytes)) < 0 ||
        (r = mem_account_plan(a, MEM_CONTROL, KERN_LANES * g->plan_bytes)) < 0)
        return xerr_set(err, r, "memory: the exchange of %u ranks is too large", g->n);
    return 0;
}

int ranks_alloc(struct ranks *g, struct xerr *err) {
    void *plan;
    int r = 0;

    for (uint32_t i = 0; i < g->n && r >= 0; i++)
        r = mem_kern_alloc(&g->rank[i].mem, err);
    if (r < 0 || g->n < 2)
        return r;
    if ((r = mem_map(g->account, MEM_WORK, g->comm_bytes, &g->comm_mem)) < 0)
        return xerr_set(err, r, "memory: no %llu bytes for what %u ranks exchange",
                        (unsigned long long)g->comm_bytes, g->n);
    for (int l = 0; l < KERN_LANES; l++) {
        if ((r = mem_map(g->account, MEM_CONTROL, g->plan_bytes, &plan)) < 0)
            return xerr_set(err, r, "memory: no %llu bytes for a plan of %u ranks",
                            (unsigned long long)g->plan_bytes, g->n);
        g->plan[l] = plan;
    }
    return 0;
}

void ranks_free(struct ranks *g) {
    for (uint32_t i = 0; i < g->n; i++)
        mem_kern_free(&g->rank[i].mem);
    mem_unmap(g->account, MEM_WORK, g->comm_mem, g->comm_bytes);
    g->comm_mem = NULL;
    for (int l = 0; l < KERN_LANES; l++) {
        mem_unmap(g->account, MEM_CONTROL, g->plan[l], g->plan_bytes);
        g->plan[l] = NULL;
    }
}

int ranks_open(struct ranks *g, const char *backend, const struct kern_config *cfg, struct xerr *err) {
    int r = 0;

    if (g->n > 1)
        r = comm_local_open(g->comm_mem, g->comm_bytes, g->n, kern_comm_bytes(cfg), g->timeout_ms, g->end);
    if (r < 0)
        return xerr_set(err, r, "ranks: the exchange of %u ranks cannot be opened", g->n);
    for (uint32_t i = 0; i < g->n; i++) {
        const struct kern_config c = config_of(cfg, g, i);

        if ((r = kern_open(backend, &c, g->rank[i].mem.block, &g->rank[i].k)) < 0)
            return xerr_set(err, r, "backend %s: %s", backend, kern_open_error());
    }
    return 0;
}

int ranks_pack(struct ranks *g, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
               const void *bytes, uint64_t n) {
    int r = 0;

    for (uint32_t i = 0; i < g->n && r >= 0; i++)
        r = mem_pack_window(&(struct mem_pack){ .k = g->rank[i].k }, id, t, offset, bytes, n);
    return r;
}

int ranks_pack_done(struct ranks *g, struct xerr *err) {
    int r = 0;

    for (uint32_t i = 0; i < g->n && r >= 0; i++)
        r = mem_pack_done(&(struct mem_pack){ .k = g->rank[i].k }, err);
    return r;
}

void ranks_close(struct ranks *g) {
    ranks_stop(g);
    for (uint32_t i = 0; i < g->n; i++)
        g->rank[i].k = kern_close(g->rank[i].k);
}
