/* SPDX-License-Identifier: MIT */
/* Table of live tags; see cltags.h.  Runs on the connection's thread. */
#include "cltags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void cl_tags_init(struct cl_tags *t) {
    *t = (struct cl_tags){0};
}

static void free_list(struct cl_live *l) {
    while (l) {
        struct cl_live *next = l->next;
        free(l);
        l = next;
    }
}

void cl_tags_done(struct cl_tags *t) {
    for (uint32_t i = 0; i < t->n_slots; i++)
        free(t->slots[i].live);
    free(t->slots);
    free_list(t->retired);
    free_list(t->spare);
    *t = (struct cl_tags){0};
}

static int find_slot(struct cl_tags *t, uint32_t *ret) {
    for (uint32_t i = 0; i < t->n_slots; i++) {
        uint32_t s = (t->scan + i) & (t->n_slots - 1);
        if (!t->slots[s].tag) {
            *ret = s;
            return 0;
        }
    }
    if (t->n_slots == CL_TAG_SLOTS)
        return -EBUSY;
    uint32_t n = t->n_slots ? t->n_slots * 2 : 16;
    struct cl_tag *p = realloc(t->slots, n * sizeof *p);
    if (!p)
        return -ENOMEM;
    memset(p + t->n_slots, 0, (n - t->n_slots) * sizeof *p);
    *ret = t->n_slots;
    t->slots = p;
    t->n_slots = n;
    return 0;
}

int cl_tags_add(struct cl_tags *t, struct cl_live **ret) {
    uint32_t s;
    int r = find_slot(t, &s);
    if (r < 0)
        return r;
    struct cl_live *l = t->spare;
    if (l)
        t->spare = l->next;
    else if (!(l = malloc(sizeof *l)))
        return -ENOMEM;
    *l = (struct cl_live){.tag = ++t->serial << CL_TAG_SLOT_BITS | s};
    t->slots[s] = (struct cl_tag){.tag = l->tag, .live = l};
    t->n_live++;
    t->scan = s + 1;
    *ret = l;
    return 0;
}

struct cl_tag *cl_tags_find(const struct cl_tags *t, uint64_t tag) {
    uint32_t s = (uint32_t)tag & (CL_TAG_SLOTS - 1);
    return tag && s < t->n_slots && t->slots[s].tag == tag ? &t->slots[s] : NULL;
}

static void unlink_slot(struct cl_tags *t, struct cl_live *l) {
    t->slots[(uint32_t)l->tag & (CL_TAG_SLOTS - 1)] = (struct cl_tag){0};
    t->n_live--;
}

void cl_tags_drop(struct cl_tags *t, struct cl_live *l) {
    unlink_slot(t, l);
    l->next = t->spare;
    t->spare = l;
}

void cl_tags_retire(struct cl_tags *t, struct cl_live *l) {
    unlink_slot(t, l);
    l->ended = true;
    l->next = t->retired;
    t->retired = l;
}

void cl_tags_recycle(struct cl_tags *t) {
    while (t->retired) {
        struct cl_live *l = t->retired;
        t->retired = l->next;
        l->next = t->spare;
        t->spare = l;
    }
}

struct cl_tag *cl_tags_any(struct cl_tags *t) {
    if (!t->n_live)
        return NULL;
    for (uint32_t i = 0; i < t->n_slots; i++) {
        uint32_t s = (t->scan + i) & (t->n_slots - 1);
        if (t->slots[s].tag) {
            t->scan = s + 1;
            return &t->slots[s];
        }
    }
    return NULL;
}
