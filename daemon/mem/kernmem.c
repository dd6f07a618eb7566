/* SPDX-License-Identifier: MIT */
/* Backend blocks and the packing glue. Runs on the starting thread before READY (the pack function on loader
 * threads); owns the blocks until mem_kern_free(). */
#include "kernmem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static enum mem_class class_of(enum kern_mem m) {
    switch (m) {
    case KERN_MEM_WEIGHTS:
        return MEM_WEIGHTS;
    case KERN_MEM_PAGES:
        return MEM_PAGES;
    case KERN_MEM_SLOTS:
        return MEM_SLOTS;
    case KERN_MEM_WORK:
        return MEM_WORK;
    case KERN_MEM_CTL:
    case KERN_MEM_N:
        break;
    }
    return MEM_CONTROL;
}

int mem_kern_plan(struct mem_kern *m, struct mem_account *a, const char *backend,
                  const struct kern_config *cfg, struct xerr *e) {
    struct mem_kern n = {.account = a};
    int r;

    if (snprintf(n.backend, sizeof n.backend, "%s", backend) >= (int)sizeof n.backend)
        return xerr_set(e, -ENOENT, "backend: found a name of %zu bytes, expected a known one",
                        strlen(backend));
    r = kern_query(backend, cfg, n.bytes);
    if (r < 0)
        return xerr_set(e, r, "backend %s cannot compute this model: %s", backend, kern_open_error());
    for (int c = 0; c < KERN_MEM_N; c++) {
        r = mem_account_plan(a, class_of((enum kern_mem)c), n.bytes[c]);
        if (r < 0)
            return xerr_set(
                e, r, "backend %s: %s: found a need of %llu bytes, expected one a machine can have", backend,
                mem_class_name(class_of((enum kern_mem)c)), (unsigned long long)n.bytes[c]);
    }
    *m = n;
    return 0;
}

int mem_kern_alloc(struct mem_kern *m, struct xerr *e) {
    int r = 0;

    for (int c = 0; c < KERN_MEM_N && r == 0; c++) {
        enum mem_class cls = class_of((enum kern_mem)c);

        if (m->bytes[c] == 0)
            continue;
        r = mem_account_take(m->account, cls, m->bytes[c]);
        if (r < 0) {
            xerr_set(e, r, "memory: %s: found no room in the plan for %llu bytes", mem_class_name(cls),
                     (unsigned long long)m->bytes[c]);
            break;
        }
        r = kern_mem_alloc(m->backend, (enum kern_mem)c, m->bytes[c], &m->block[c]);
        if (r < 0) {
            mem_account_give(m->account, cls, m->bytes[c]);
            memset(&m->block[c], 0, sizeof m->block[c]);
            xerr_set(e, r, "memory: %s: found no %llu bytes: %s", mem_class_name(cls),
                     (unsigned long long)m->bytes[c], *kern_open_error() ? kern_open_error() : strerror(-r));
        }
    }
    if (r < 0)
        mem_kern_free(m);
    return r;
}

void mem_kern_free(struct mem_kern *m) {
    for (int c = 0; c < KERN_MEM_N; c++) {
        if (!m->block[c].base)
            continue;
        kern_mem_free(m->backend, (enum kern_mem)c, &m->block[c]);
        mem_account_give(m->account, class_of((enum kern_mem)c), m->bytes[c]);
        memset(&m->block[c], 0, sizeof m->block[c]);
    }
}

int mem_pack_window(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                    const void *bytes, uint64_t n) {
    struct mem_pack *p = ctx;
    int r = kern_pack(p->k, id, t, offset, bytes, n);

    if (r == 0)
        atomic_fetch_add_explicit(&p->bytes, n, memory_order_relaxed);
    return r;
}

int mem_pack_done(struct mem_pack *p, struct xerr *e) {
    int r = kern_pack_done(p->k);

    return r < 0 ? xerr_set(e, r, "weights: found an incomplete set, expected every part: %s",
                            kern_last_error(p->k))
                 : 0;
}
