/* SPDX-License-Identifier: MIT */
/* Bytes planned, in use and at most ever in use, per class. Planning is done by the starting thread before
 * READY; taking and giving from any thread; reading from any thread. */
#ifndef GLMD_MEM_ACCOUNT_H
#define GLMD_MEM_ACCOUNT_H

#include <stdatomic.h>
#include <stdint.h>

#include "xerr.h"

enum mem_class {
    MEM_WEIGHTS,  /* packed weights */
    MEM_PAGES,    /* latent and pooled-key pages */
    MEM_SLOTS,    /* recurrent-state slots */
    MEM_WORK,     /* activations */
    MEM_CONTROL,  /* backend objects, programs, plans, results */
    MEM_STAGING,  /* loader's buffer; given back before READY */
    MEM_REQUESTS, /* request arenas */
    MEM_OTHER,    /* tables of the engine and the scheduler, id pools */
    MEM_CLASSES
};

struct mem_account {
    struct {
        _Atomic uint64_t planned, used, high;
    } cls[MEM_CLASSES];
};

struct mem_usage {
    uint64_t planned, used, high; /* bytes */
};

void mem_account_init(struct mem_account *a);
const char *mem_class_name(enum mem_class c);

/* Adds to what the class may use. -EOVERFLOW beyond 2^63 in sum over all classes. */
int mem_account_plan(struct mem_account *a, enum mem_class c, uint64_t bytes);
/* -ENOMEM when the class would exceed its plan; nothing is taken then. */
int mem_account_take(struct mem_account *a, enum mem_class c, uint64_t bytes);
void mem_account_give(struct mem_account *a, enum mem_class c, uint64_t bytes);

struct mem_usage mem_account_read(const struct mem_account *a, enum mem_class c);
struct mem_usage mem_account_total(const struct mem_account *a);

/* Anonymous, zeroed, page-aligned memory of a class, charged to it. -ENOMEM, -EINVAL (0 bytes). */
int mem_map(struct mem_account *a, enum mem_class c, uint64_t bytes, void **ret);
void mem_unmap(struct mem_account *a, enum mem_class c, void *p, uint64_t bytes); /* NULL ok */

#endif
