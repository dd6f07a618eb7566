/* SPDX-License-Identifier: MIT */
/* A block as it lies in its file: head, token ids, payload, each padded to SPILL_ALIGN so that it can be read and
 * written past the page cache. A page block has the latents of the tokens of one page; a state block has the
 * recurrent state behind a prefix and all ids of that prefix. Blocks name the page before them by its random number,
 * so a chain of them says exactly which tokens it stands for; no hash is believed for that.
 *
 * A block from a file is believed nothing: spill_block_check looks at every byte that is used. Pure functions; any
 * thread. */
#ifndef GLMD_SPILL_BLOCK_H
#define GLMD_SPILL_BLOCK_H

#include <stdint.h>

enum { SPILL_PAGE = 1, SPILL_STATE = 2, SPILL_FOREIGN = 3 /* in no file: one that this daemon cannot use */ };

/* How exactly a block repeats what a fresh reading of its tokens would give. */
enum { SPILL_EXACT = 0 /* bit for bit */, SPILL_NEAR = 1 /* written by decode steps */ };

enum {
    SPILL_VERSION = 1,
    SPILL_ALIGN = 4096,
    SPILL_HEAD_BYTES = 4096,
    SPILL_CHUNK_BYTES = 8 << 20, /* of payload under one checksum, and in one transfer */
    SPILL_LINEAGE_BYTES = 128,
    SPILL_MAX_CHUNKS = 896,
};

struct spill_id {
    uint64_t hi, lo; /* 0, 0: none */
};

struct spill_head {
    char magic[8];
    uint32_t version, head_bytes;
    uint32_t kind;    /* SPILL_PAGE, SPILL_STATE */
    uint32_t quality; /* SPILL_EXACT, SPILL_NEAR */
    uint32_t pos;     /* tokens of the prefix up to and with this block */
    uint32_t n_ids;   /* page: its own tokens; state: pos */
    uint64_t domain;  /* whose text it is: blocks of one domain never serve another */
    uint64_t hash;    /* of the prefix, to find it; not believed */
    struct spill_id id, parent; /* parent: the page before a page, the last page of a state */
    uint64_t ids_bytes, payload_bytes, file_bytes;
    char lineage[SPILL_LINEAGE_BYTES]; /* what computed it: weights, backend, layout; padded with zeros */
    uint32_t ids_crc, n_chunks;
    uint32_t chunk_crc[SPILL_MAX_CHUNKS];
    uint32_t mark; /* states: why it was kept, as its caller says; 0: unknown */
    uint8_t zero[260];
    uint32_t payload_at, head_crc; /* over all before it */
};

/* What this daemon can use. */
struct spill_shape {
    char lineage[SPILL_LINEAGE_BYTES];
    uint32_t page_tokens, max_tokens; /* of a page, of a prefix */
    uint64_t page_bytes, state_bytes; /* payloads */
};

/* Bytes of the file, a multiple of SPILL_ALIGN; 0: no block can be that large. */
uint64_t spill_block_bytes(uint32_t n_ids, uint64_t payload_bytes);

/* Bytes of head and ids. */
static inline uint64_t spill_ids_bytes(uint32_t n_ids) {
    return SPILL_HEAD_BYTES + ((uint64_t)n_ids * sizeof(uint32_t) + SPILL_ALIGN - 1) / SPILL_ALIGN * SPILL_ALIGN;
}

/* Where ids and payload lie in an image that has its numbers already. */
static inline uint32_t *spill_block_ids(void *image) {
    return (uint32_t *)(void *)((char *)image + SPILL_HEAD_BYTES);
}
static inline void *spill_block_payload(void *image) {
    return (char *)image + ((const struct spill_head *)image)->payload_at;
}

/* First page of the prefix that a block's head stands for, in tokens. */
static inline uint32_t spill_page_start(uint32_t pos, uint32_t page_tokens) {
    return (pos - 1) / page_tokens * page_tokens;
}

/* Fills the head of an image, checksums apart, and the padding. kind, pos and what depends on shape are valid. */
void spill_block_begin(void *image, const struct spill_shape *s, uint32_t kind, uint32_t pos);
/* Checksums, when everything else is there. */
void spill_block_seal(void *image);

/* The head alone. -EBADMSG: damaged or no block; -EPROTO: of another version; -ESTALE: of another lineage or shape,
 * sound otherwise. file_bytes: what the file system says. */
int spill_head_check(const struct spill_head *h, const struct spill_shape *s, uint64_t file_bytes);
/* Head and ids of an image, of which `bytes` bytes are readable and file_bytes are in the file; what it stands for, and
 * nothing of its payload. */
int spill_ids_check(const void *image, uint64_t bytes, uint64_t file_bytes, const struct spill_shape *s);
/* A whole image of `bytes` bytes, which are readable. */
int spill_block_check(const void *image, uint64_t bytes, const struct spill_shape *s);

#endif
