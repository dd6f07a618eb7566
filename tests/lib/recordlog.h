/* SPDX-License-Identifier: MIT */
/* The records of one tag as a raw client read them, with their text, to compare one run with another. */
#ifndef GLMD_TEST_RECORDLOG_H
#define GLMD_TEST_RECORDLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipctest.h"
#include "rawclient.h"

enum { RECORDLOG_MAX = 8192, RECORDLOG_TEXT = 1 << 18 };

struct recordlog {
    struct glmw_rec rec[RECORDLOG_MAX];
    uint32_t text_at[RECORDLOG_MAX];
    char text[RECORDLOG_TEXT];
    uint32_t n, n_text; /* rec[i] has seq i, once everything from 0 on was read */
    uint64_t stream_id;
    int status; /* of END; 1 = none yet */
};

void recordlog_begin(struct recordlog *l);
/* Reads the records of tag until END or until `most` were read (0: no limit). Every seq must be the next: an
 * ACCEPTED behind the first makes l go back to where it says, when that is not behind what is missing.
 * Returns whether END was read; fails the test after 20 s without a record. */
bool recordlog_read(struct rawclient *c, uint64_t tag, uint32_t most, struct recordlog *l);
/* What to resume from: the next record, or again the token whose alternatives are not all there. */
uint32_t recordlog_next(const struct recordlog *l);
/* Everything but tags, times and places of text must be the same. */
void recordlog_expect_same(const struct recordlog *got, const struct recordlog *want);

/* An entry for the payload in t, which is put at the begin of the arena. */
struct glmw_entry recordlog_submit(struct rawclient *c, uint64_t tag, uint8_t flags, const struct tlvbuf *t);
struct glmw_entry recordlog_resume(uint64_t tag, uint64_t stream_id, uint32_t from_seq);

#endif
