/* SPDX-License-Identifier: MIT */
/* Fuzz body of the reader of spilled blocks. The input is the bytes of a file; a first look takes it as it is, a
 * second one with the head's checksum made right, so that wild numbers are not hidden behind it. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "crc32c.h"
#include "fuzz.h"

static const struct spill_shape shape = { .lineage = "fuzz", .page_tokens = 16, .max_tokens = 1000, .page_bytes = 64,
                                          .state_bytes = 5000 };

/* What is accepted lies inside the file, ids and payload included. */
static void check_accepted(const uint8_t *image, size_t size) {
    const struct spill_head *h = (const struct spill_head *)(const void *)image;
    volatile uint8_t sum = 0;

    FUZZ_NEED(h->kind == SPILL_PAGE || h->kind == SPILL_STATE);
    FUZZ_NEED(h->pos && h->pos <= shape.max_tokens && h->n_ids && h->n_ids <= h->pos);
    FUZZ_NEED(h->payload_bytes == (h->kind == SPILL_PAGE ? shape.page_bytes : shape.state_bytes));
    FUZZ_NEED(h->ids_bytes <= size - SPILL_HEAD_BYTES && h->payload_at >= SPILL_HEAD_BYTES + h->ids_bytes);
    FUZZ_NEED(h->payload_at <= size && h->payload_bytes <= size - h->payload_at);
    FUZZ_NEED(memcmp(h->lineage, shape.lineage, sizeof h->lineage) == 0);
    for (size_t i = 0; i < h->payload_bytes; i++)
        sum = (uint8_t)(sum + image[h->payload_at + i]);
}

int fuzz_spill_block(const uint8_t *data, size_t size) {
    uint8_t *image = aligned_alloc(SPILL_ALIGN, (size + 2 * SPILL_ALIGN) / SPILL_ALIGN * SPILL_ALIGN);
    struct spill_head *h = (struct spill_head *)(void *)image;

    FUZZ_NEED(image != NULL);
    memcpy(image, data, size);
    if (spill_block_check(image, size, &shape) == 0)
        check_accepted(image, size);
    if (size >= SPILL_HEAD_BYTES) {
        h->head_crc = spill_crc32c(0, h, offsetof(struct spill_head, head_crc));
        if (spill_head_check(h, &shape, size) == 0) {
            spill_block_seal(image);
            FUZZ_NEED(spill_block_check(image, size, &shape) == 0);
            check_accepted(image, size);
        }
    }
    free(image);
    return 0;
}
