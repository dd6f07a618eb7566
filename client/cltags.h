/* SPDX-License-Identifier: MIT */
/* The live requests of a connection by tag.  A tag names its table slot in the low bits and carries a
 * serial number above them, so it is found without hashing and never comes back.  An entry whose END was
 * handed out stays readable until the caller gives its events back, because END points at its usage.
 * Used by the thread that owns the connection. */
#ifndef GLMD_CLTAGS_H
#define GLMD_CLTAGS_H

#include <stdbool.h>
#include <stdint.h>

#include "glmd.h"
#include "wire.h"

#define CL_TAG_SLOT_BITS 12
#define CL_TAG_SLOTS     (1u << CL_TAG_SLOT_BITS)

/* Where the object of a request stands that goes by a sealed memfd. */
enum cl_bulk { CL_BULK_NONE, CL_BULK_ASKED, CL_BULK_OWED /* the entry found no room yet */, CL_BULK_NAMED };

struct cl_live {
    uint64_t tag;
    struct cl_live *next; /* in the retired or in the free list */
    uint64_t payload_off;
    bool has_payload; /* the daemon may still read the payload */
    bool resumed;      /* ACCEPTED says where its records begin */
    uint32_t from_seq; /* where they were asked to */
    bool ended;
    bool has_usage;
    bool cancel_wanted; /* the ring was full when cancel was asked */
    bool cancel_late;   /* asked before the entry could be pushed */
    bool told;          /* the ERROR of `refused` was handed out */
    uint8_t bulk;       /* enum cl_bulk */
    int refused;        /* the daemon did not take the object: its END is ours to make */
    struct glmw_entry entry; /* with bulk: pushed when the object is taken */
    struct glmd_usage usage;
};

/* A place of the table: what most records look at and nothing else. They come from all streams in turn, and what lies
 * side by side is at hand by then. */
struct cl_tag {
    uint64_t tag; /* 0: free */
    struct cl_live *live;
    uint32_t next_seq;
    bool accepted;
};

struct cl_tags {
    struct cl_tag *slots;
    uint32_t n_slots; /* allocated */
    uint32_t n_live;
    uint64_t serial;
    struct cl_live *retired;
    struct cl_live *spare;
    uint32_t scan; /* where the search for a free slot and for the next live entry goes on */
};

void cl_tags_init(struct cl_tags *t);
void cl_tags_done(struct cl_tags *t);

/* -EBUSY: no slot; -ENOMEM.  The entry is borrowed. */
int cl_tags_add(struct cl_tags *t, struct cl_live **ret);
/* NULL when the tag is not live.  Valid until the next cl_tags_add(). */
struct cl_tag *cl_tags_find(const struct cl_tags *t, uint64_t tag);
/* Undoes cl_tags_add() before anybody has seen the tag. */
void cl_tags_drop(struct cl_tags *t, struct cl_live *l);
/* The tag is no longer live; the entry stays readable until cl_tags_recycle(). */
void cl_tags_retire(struct cl_tags *t, struct cl_live *l);
void cl_tags_recycle(struct cl_tags *t);
/* Any live one, or NULL.  Repeated calls go round the table. */
struct cl_tag *cl_tags_any(struct cl_tags *t);

#endif
