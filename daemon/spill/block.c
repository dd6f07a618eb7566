/* SPDX-License-Identifier: MIT */
/* Blocks as they lie in files: made, sealed, checked. */
#include "block.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "crc32c.h"
#include "size.h"

static const char MAGIC[8] = { 'G', 'L', 'M', 'D', 'S', 'P', 'I', 'L' };

_Static_assert(sizeof(struct spill_head) == SPILL_HEAD_BYTES, "the head is one aligned piece of the file");
_Static_assert(offsetof(struct spill_head, head_crc) == SPILL_HEAD_BYTES - 4, "its checksum comes last");

static bool parts(uint32_t n_ids, uint64_t payload_bytes, uint64_t *ret_payload_at, uint64_t *ret_bytes) {
    uint64_t ids, payload, sum;

    if (!payload_bytes || payload_bytes > (uint64_t)SPILL_MAX_CHUNKS * SPILL_CHUNK_BYTES ||
        !size_align((uint64_t)n_ids * sizeof(uint32_t), SPILL_ALIGN, &ids) ||
        !size_align(payload_bytes, SPILL_ALIGN, &payload) || !size_add(SPILL_HEAD_BYTES, ids, &sum) ||
        sum > UINT32_MAX)
        return false;
    *ret_payload_at = sum;
    return size_add(sum, payload, ret_bytes);
}

uint64_t spill_block_bytes(uint32_t n_ids, uint64_t payload_bytes) {
    uint64_t at = 0, bytes = 0;

    return parts(n_ids, payload_bytes, &at, &bytes) ? bytes : 0;
}

static uint32_t n_chunks(uint64_t payload_bytes) {
    return (uint32_t)((payload_bytes + SPILL_CHUNK_BYTES - 1) / SPILL_CHUNK_BYTES);
}

static uint64_t chunk_bytes(uint64_t payload_bytes, uint32_t i) {
    uint64_t left = payload_bytes - (uint64_t)i * SPILL_CHUNK_BYTES;

    return left < SPILL_CHUNK_BYTES ? left : SPILL_CHUNK_BYTES;
}

void spill_block_begin(void *image, const struct spill_shape *s, uint32_t kind, uint32_t pos) {
    struct spill_head *h = image;
    uint32_t n_ids = kind == SPILL_STATE ? pos : pos - spill_page_start(pos, s->page_tokens);
    uint64_t at = 0, payload = kind == SPILL_STATE ? s->state_bytes : s->page_bytes;

    memset(h, 0, sizeof *h);
    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->version = SPILL_VERSION;
    h->head_bytes = SPILL_HEAD_BYTES;
    h->kind = kind;
    h->pos = pos;
    h->n_ids = n_ids;
    h->ids_bytes = (uint64_t)n_ids * sizeof(uint32_t);
    h->payload_bytes = payload;
    parts(n_ids, payload, &at, &h->file_bytes);
    h->payload_at = (uint32_t)at;
    memcpy(h->lineage, s->lineage, sizeof h->lineage);
    h->n_chunks = n_chunks(payload);
    /* what an earlier block left in the buffer is nobody's business */
    memset((char *)image + SPILL_HEAD_BYTES + h->ids_bytes, 0, at - SPILL_HEAD_BYTES - h->ids_bytes);
    memset((char *)image + at + payload, 0, h->file_bytes - at - payload);
}

void spill_block_seal(void *image) {
    struct spill_head *h = image;
    const char *p = spill_block_payload(image);

    h->ids_crc = spill_crc32c(0, spill_block_ids(image), h->ids_bytes);
    for (uint32_t i = 0; i < h->n_chunks; i++)
        h->chunk_crc[i] = spill_crc32c(0, p + (uint64_t)i * SPILL_CHUNK_BYTES, chunk_bytes(h->payload_bytes, i));
    h->head_crc = spill_crc32c(0, h, offsetof(struct spill_head, head_crc));
}

/* Do the numbers of a sound head describe a block of this shape? */
static bool fits(const struct spill_head *h, const struct spill_shape *s) {
    bool state = h->kind == SPILL_STATE;
    bool has_parent = h->parent.hi || h->parent.lo;
    uint32_t start;

    if ((h->kind != SPILL_PAGE && !state) || h->quality > SPILL_NEAR || !h->pos || h->pos > s->max_tokens)
        return false;
    start = spill_page_start(h->pos, s->page_tokens);
    return h->n_ids == (state ? h->pos : h->pos - start) && h->ids_bytes == (uint64_t)h->n_ids * sizeof(uint32_t) &&
           h->payload_bytes == (state ? s->state_bytes : s->page_bytes) &&
           h->n_chunks == n_chunks(h->payload_bytes) && has_parent == (state || start) && (h->id.hi || h->id.lo);
}

int spill_head_check(const struct spill_head *h, const struct spill_shape *s, uint64_t file_bytes) {
    uint64_t at = 0, bytes = 0;

    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return -EBADMSG;
    if (h->version != SPILL_VERSION || h->head_bytes != SPILL_HEAD_BYTES)
        return -EPROTO; /* nothing else is known of it */
    if (h->head_crc != spill_crc32c(0, h, offsetof(struct spill_head, head_crc)) ||
        !parts(h->n_ids, h->payload_bytes, &at, &bytes) || at != h->payload_at || bytes != h->file_bytes)
        return -EBADMSG;
    if (bytes != file_bytes)
        return -EBADMSG; /* cut off, or grown */
    if (memcmp(h->lineage, s->lineage, sizeof h->lineage) != 0 && !FAULT(spill_any_lineage))
        return -ESTALE;
    return fits(h, s) || FAULT(spill_numbers_unchecked) ? 0 : -ESTALE;
}

int spill_ids_check(const void *image, uint64_t bytes, uint64_t file_bytes, const struct spill_shape *s) {
    const struct spill_head *h = image;
    const char *p = image;
    int r;

    if (bytes < SPILL_HEAD_BYTES)
        return -EBADMSG;
    if ((r = spill_head_check(h, s, file_bytes)) < 0)
        return r;
    if (h->payload_at > bytes || h->ids_crc != spill_crc32c(0, p + SPILL_HEAD_BYTES, h->ids_bytes))
        return -EBADMSG;
    return 0;
}

int spill_block_check(const void *image, uint64_t bytes, const struct spill_shape *s) {
    const struct spill_head *h = image;
    const char *p = image;
    int r;

    if ((r = spill_ids_check(image, bytes, bytes, s)) < 0)
        return r;
    if (h->file_bytes > bytes)
        return -EBADMSG;
    for (uint32_t i = 0; i < h->n_chunks && !FAULT(spill_payload_unchecked); i++)
        if (h->chunk_crc[i] != spill_crc32c(0, p + h->payload_at + (uint64_t)i * SPILL_CHUNK_BYTES,
                                            chunk_bytes(h->payload_bytes, i)))
            return -EBADMSG;
    return 0;
}
