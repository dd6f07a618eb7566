/* SPDX-License-Identifier: MIT */
/* What a kept stream has said lately: its records with their text, oldest first, in a fixed piece of memory;
 * the oldest fall out. Called by whoever holds the right of the stream's connection; once the stream has
 * ended nothing is added and io alone reads. Allocates nothing. */
#include <string.h>

#include "emit_impl.h"

static size_t align8(size_t n) {
    return (n + 7) & ~(size_t)7;
}

/* Bytes of text behind a record in the store. The numbers are our own. */
static uint32_t text_bytes(const void *slot64) {
    struct glmw_rec r;

    memcpy(&r, slot64, sizeof r);
    if (r.type != GLMW_REC_TOKEN && r.type != GLMW_REC_TEXT && r.type != GLMW_REC_ERROR)
        return 0;
    return r.flags & GLMW_RF_INLINE ? 0 : r.text_len;
}

static void copy_in(struct estore *st, uint64_t at, const void *from, size_t n) {
    size_t off = (size_t)(at % st->cap), first = n < st->cap - off ? n : st->cap - off;

    memcpy(st->buf + off, from, first);
    memcpy(st->buf, (const uint8_t *)from + first, n - first);
}

static void copy_out(const struct estore *st, uint64_t at, void *to, size_t n) {
    size_t off = (size_t)(at % st->cap), first = n < st->cap - off ? n : st->cap - off;

    memcpy(to, st->buf + off, first);
    memcpy((uint8_t *)to + first, st->buf, n - first);
}

void estore_reset(struct estore *st) {
    st->head = st->tail = 0;
    st->first_seq = st->next_seq = 1; /* 0 is the ACCEPTED of the tag it was submitted under */
}

void estore_add(struct estore *st, const void *slot64, const void *text) {
    uint32_t len = text_bytes(slot64);
    size_t total = GLMW_SLOT_BYTES + align8(len);

    while (st->cap - (st->tail - st->head) < total) {
        uint8_t oldest[GLMW_SLOT_BYTES];

        copy_out(st, st->head, oldest, sizeof oldest);
        st->head += GLMW_SLOT_BYTES + align8(text_bytes(oldest));
        st->first_seq++;
    }
    copy_in(st, st->tail, slot64, GLMW_SLOT_BYTES);
    if (len)
        copy_in(st, st->tail + GLMW_SLOT_BYTES, text, len);
    st->tail += total;
    st->next_seq++;
}

size_t estore_read(const struct estore *st, uint64_t at, void *ret_slot64, void *ret_text) {
    uint32_t len;

    copy_out(st, at, ret_slot64, GLMW_SLOT_BYTES);
    len = text_bytes(ret_slot64);
    copy_out(st, at + GLMW_SLOT_BYTES, ret_text, len);
    return GLMW_SLOT_BYTES + align8(len);
}

bool estore_find(const struct estore *st, uint32_t seq, struct estore_at *ret) {
    struct estore_at at = {st->head, st->first_seq};

    /* At most a step for every 64 bytes of the store, and io walks it twice for a RESUME: measured, 20 to 30 us each
     * with the 1,024 records of 64 KiB. The numbers of a stream do not wrap: it would take 2^32 records */
    if (seq < st->first_seq || seq > st->next_seq)
        return false;
    for (; at.seq < st->next_seq; at.seq++) {
        uint8_t slot[GLMW_SLOT_BYTES];

        copy_out(st, at.pos, slot, sizeof slot);
        /* whoever counts tokens and not records asks for the first ALTS of the token that it has */
        if (at.seq >= seq + (FAULT(resume_off_by_one) ? 1u : 0u) && slot[0] != GLMW_REC_ALTS)
            break;
        at.pos += GLMW_SLOT_BYTES + align8(text_bytes(slot));
    }
    *ret = at;
    return true;
}
