/* SPDX-License-Identifier: MIT */
/* Ranks of a random model; see kernranks.h. The calling thread, and one for each rank inside kr_wait(). */
#include "kernranks.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct kern_ranks *kr_open(const struct kernmodel *m, const char *backend, const struct kern_config *cfg, uint32_t n,
                           uint32_t timeout_ms) {
    struct kern_ranks *r = calloc(1, sizeof(*r));
    struct kern_config c = cfg ? *cfg : m->cfg;
    ck_assert(r && n >= 1 && n <= KR_MAX);
    c.model = m->cfg.model;
    c.stores = m->cfg.stores;
    c.n_ranks = r->n = n;
    uint64_t slot = kern_comm_bytes(&c), bytes = comm_local_bytes(n, slot);
    ck_assert(n == 1 || slot);
    r->mem = aligned_alloc(64, (bytes + 63) & ~63ull);
    ck_assert_ptr_nonnull(r->mem);
    memset(r->mem, 0xff, bytes); /* NaN */
    ck_assert_int_eq(comm_local_open(r->mem, bytes, n, slot, timeout_ms, r->end), 0);
    for (uint32_t i = 0; i < n; i++) {
        c.rank = i;
        c.comm = n > 1 ? r->end[i] : NULL;
        r->rank[i] = km_open(m, backend, &c);
    }
    return r;
}

void kr_close(struct kern_ranks *r) {
    for (uint32_t i = 0; i < r->n; i++)
        km_close(r->rank[i]);
    free(r->mem);
    free(r);
}

void kr_launch(struct kern_ranks *r, struct km_plan *p) {
    struct kern_plan *b = km_plan_build(p);
    for (uint32_t i = 0; i < r->n; i++) {
        struct km_inst *k = r->rank[i];
        int rc = kern_plan_load(k->k, b, b->bytes);
        bool drafts = false, heads = false;
        ck_assert_msg(rc == 0, "rank %u: kern_plan_load: %d %s", i, rc, kern_last_error(k->k));
        for (uint32_t j = 0; j < b->n_seqs; j++)
            drafts |= (p->seq[j].flags & KERN_SEQ_DRAFT) != 0;
        for (uint32_t j = 0; j < b->n_samples; j++)
            heads |= p->sample[j].source == KERN_SOURCE_TRUNK;
        ck_assert_int_eq(kern_launch(k->k, k->trunk[b->lane]), 0);
        if (heads)
            ck_assert_int_eq(kern_launch(k->k, k->head[b->lane]), 0);
        if (drafts)
            ck_assert_int_eq(kern_launch(k->k, k->draft[b->lane]), 0);
    }
}

struct waiter {
    struct kern *k;
    uint32_t lane;
    int ret;
};

static void *wait_one(void *arg) {
    struct waiter *w = arg;
    w->ret = kern_wait(w->k, w->lane);
    return NULL;
}

void kr_wait(struct kern_ranks *r, uint32_t lane, int ret[]) {
    pthread_t t[KR_MAX];
    struct waiter w[KR_MAX];
    for (uint32_t i = 0; i < r->n; i++) {
        w[i] = (struct waiter){.k = r->rank[i]->k, .lane = lane};
        ck_assert_int_eq(pthread_create(&t[i], NULL, wait_one, &w[i]), 0);
    }
    for (uint32_t i = 0; i < r->n; i++) {
        pthread_join(t[i], NULL);
        if (ret)
            ret[i] = w[i].ret;
        else
            ck_assert_msg(w[i].ret == 0, "rank %u: kern_wait: %d %s", i, w[i].ret, kern_last_error(w[i].k));
    }
}

void kr_run(struct kern_ranks *r, struct km_plan *p) {
    kr_launch(r, p);
    kr_wait(r, p->head.lane, NULL);
}

void kr_peek(struct kern_ranks *r, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst) {
    const struct kern_model_desc *m = &r->rank[0]->cfg.model;
    uint64_t width = what == KERN_PEEK_LOGITS    ? m->vocab_rows
                     : what == KERN_PEEK_STREAMS ? (uint64_t)m->hc_mult * m->hidden
                                                 : m->hidden;
    float *other = malloc(n * width * sizeof(float) + 1);
    ck_assert_ptr_nonnull(other);
    km_peek(r->rank[0], lane, what, row0, n, dst);
    for (uint32_t i = 1; i < r->n; i++) {
        km_peek(r->rank[i], lane, what, row0, n, other);
        ck_assert_msg(!memcmp(dst, other, n * width * sizeof(float)), "rank %u has other bits in peek %d", i, what);
    }
    free(other);
}

const struct kern_result *kr_results(struct kern_ranks *r, uint32_t lane) {
    uint32_t n, n0;
    const struct kern_result *first = kern_results(r->rank[0]->k, lane, &n0);
    for (uint32_t i = 1; i < r->n; i++) {
        const struct kern_result *x = kern_results(r->rank[i]->k, lane, &n);
        ck_assert_uint_eq(n, n0);
        ck_assert_msg(!memcmp(first, x, n * sizeof(*x)), "rank %u has other results", i);
    }
    return first;
}
