/* SPDX-License-Identifier: MIT */
/* Inside of struct tok, shared by the loader and the encoder only. Everything is written by the loader and
 * constant afterwards. */
#ifndef GLMD_TOKPRIV_H
#define GLMD_TOKPRIV_H

#include "tokenizer.h"

#define TOK_NONE UINT32_MAX

struct tok_entry {
    uint32_t off, len; /* bytes in blob */
    uint8_t flags;     /* enum tok_kind_flags */
    bool used;
    bool made; /* a merge results in it */
};

struct tok_pair { /* one merge: the symbols left and right become id */
    uint32_t left, right;
    uint32_t rank; /* line of the merge list, lower goes first */
    uint32_t id;
};

struct tok {
    uint8_t *blob;
    struct tok_entry *entries;
    uint32_t size, count;
    size_t max_bytes;
    bool ignore_merges;
    uint32_t byte_id[256];
    uint32_t *vocab; /* open-addressing hash of the base vocabulary by bytes: ids, TOK_NONE = free */
    uint32_t vocab_mask;
    struct tok_pair *pairs; /* open-addressing hash of the merges by (left, right): left TOK_NONE = free */
    uint32_t pairs_mask;
    uint32_t *added; /* ids of the added tokens by first byte, longest first */
    uint32_t n_added;
    uint32_t added_start[257];
};

static inline uint32_t tok_hash_pair(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(h >> 32);
}

/* The base vocabulary entry with exactly these bytes, or TOK_NONE. */
uint32_t tok_vocab_find(const struct tok *t, const uint8_t *bytes, size_t n);
uint32_t tok_hash_bytes(const uint8_t *bytes, size_t n);
const struct tok_pair *tok_pair_find(const struct tok *t, uint32_t left, uint32_t right);

struct tok_scratch {
    size_t max_bytes;
    void *mem; /* nodes and heap of one long run */
    size_t mem_bytes;
};

#endif
