/* SPDX-License-Identifier: MIT */
/* convert.c: rows of BF16 into the codes and scales of a smaller format, while a checkpoint is loaded. Loading thread,
 * before READY; allocates nothing. Sixteen rows make a panel of the cpu backend, which is written fastest when they
 * come together. Every block of a row is converted by itself, so where windows are cut cannot be seen. */
#include "convert.h"

#include <errno.h>
#include <string.h>

#include "host_quant.h"

enum { ROWS = 16 };

static uint64_t aligned(uint64_t n) {
    return (n + 63) & ~63ull;
}

/* The widest row, and the most bytes of codes and scales that sixteen rows become. */
static void widest(const struct model_directory *d, const struct kern_model_desc *m, const struct kern_store *stores,
                   uint64_t *cols, uint64_t *codes, uint64_t *scales) {
    *cols = *codes = *scales = 0;
    for (size_t i = 0; i < d->n_items; i++) {
        const struct model_item *it = &d->item[i];
        struct kern_piece_info c, s;

        if (it->id.piece != KERN_PIECE_CODES || it->id.layer >= m->n_layers + m->n_draft ||
            it->k.store.format != KERN_BF16)
            continue;
        const struct kern_store *to = &stores[kern_part_slot(m, &it->id)];
        if (!to->format || to->format == KERN_BF16 ||
            kern_store_piece(to, ROWS, it->k.cols, KERN_PIECE_CODES, &c) < 0 ||
            kern_store_piece(to, ROWS, it->k.cols, KERN_PIECE_SCALE, &s) < 0)
            continue;
        *cols = it->k.cols > *cols ? it->k.cols : *cols;
        *codes = c.row_bytes > *codes ? c.row_bytes : *codes;
        *scales = s.row_bytes > *scales ? s.row_bytes : *scales;
    }
}

uint64_t convert_bytes(const struct model_directory *d, const struct kern_model_desc *m,
                       const struct kern_store *stores) {
    uint64_t cols, codes, scales;

    widest(d, m, stores, &cols, &codes, &scales);
    return cols ? aligned(ROWS * cols * 2) + aligned(ROWS * cols * 4) + aligned(ROWS * codes) + aligned(ROWS * scales) +
                      HOST_QUANT_SCRATCH
                : 0;
}

void convert_begin(struct convert *c, const struct model_directory *d, const struct kern_model_desc *m,
                   const struct kern_store *stores, void *memory) {
    uint64_t cols, codes, scales;
    uint8_t *p = memory;

    widest(d, m, stores, &cols, &codes, &scales);
    c->next = c->row = c->filled = 0;
    c->in = p;
    p += aligned(ROWS * cols * 2);
    c->numbers = (float *)(void *)p;
    p += aligned(ROWS * cols * 4);
    c->codes = p;
    p += aligned(ROWS * codes);
    c->scales = p;
    p += aligned(ROWS * scales);
    c->scratch = p;
}

/* The n rows that wait. */
static int flush(struct convert *c, const struct kern_tensor *t, const struct kern_store *to, uint64_t n) {
    const struct kern_tensor made = {.store = *to, .rows = t->rows, .cols = t->cols};
    void *const piece[KERN_PIECES] = {[KERN_PIECE_CODES] = c->codes, [KERN_PIECE_SCALE] = c->scales};
    int r;

    for (uint64_t i = 0; i < n * t->cols; i++)
        c->numbers[i] = host_f32(host_le16(c->in + 2 * i));
    r = host_quant_rows(to, n, t->cols, c->numbers, 0, n, 0, piece, c->scratch);
    for (uint32_t p = KERN_PIECE_CODES; r == 0 && p <= KERN_PIECE_SCALE; p++) {
        struct kern_tensor_id id = c->id;
        struct kern_piece_info info;

        id.piece = p;
        if ((r = kern_store_piece(to, t->rows, t->cols, (enum kern_piece)p, &info)) == 0)
            r = c->sink(c->sink_ctx, &id, &made, c->row * info.row_bytes, piece[p], n * info.row_bytes);
    }
    c->row += n;
    c->filled = 0;
    return r;
}

int convert_window(struct convert *c, const struct kern_tensor_id *id, const struct kern_tensor *t,
                   const struct kern_store *to, uint64_t offset, const void *bytes, uint64_t n) {
    const uint8_t *src = bytes;
    int r = 0;

    if (offset == 0 && c->filled == 0) {
        c->id = *id;
        c->next = c->row = 0;
    }
    if (offset != c->next || id->part != c->id.part || id->layer != c->id.layer || id->expert != c->id.expert)
        return -EPROTO;
    while (n && r == 0) {
        uint64_t rows = t->rows - c->row < ROWS ? t->rows - c->row : ROWS, want = rows * t->cols * 2 - c->filled;
        uint64_t run = n < want ? n : want;

        if (!run)
            return -EPROTO; /* more than the matrix has */
        memcpy(c->in + c->filled, src, run);
        c->filled += run;
        c->next += run;
        src += run;
        n -= run;
        if (run == want)
            r = flush(c, t, to, FAULT(convert_row_less) && rows > 1 ? rows - 1 : rows);
    }
    return r;
}
