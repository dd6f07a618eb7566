/* SPDX-License-Identifier: MIT */
/* emit between a played engine and a client on the rings: what the tests of the emit room share. */
#ifndef GLMD_TEST_EMITTEST_H
#define GLMD_TEST_EMITTEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bell.h"
#include "emit.h"
#include "shm.h"
#include "tokenizer.h"

enum { ET_STREAMS = 64 };

struct et_client {
    struct shm_pair pair;
    struct bell bell;
    struct shm_view view;
    struct glmw_consumer tq;
    struct emit_conn *conn;
};

extern struct emit *et_emit;
extern struct stream_sink et_sink;
extern struct tok *et_tok;
extern _Atomic int et_kicks, et_wakes, et_cancels; /* calls of the hooks */
extern _Atomic int et_retired;
extern bool et_measuring; /* the engine measures what its publications cost, as in the daemon; before et_begin() */

/* text: with the tokenizer of nano */
void et_begin(uint32_t inline_conns, bool text);
void et_finish(void);
void et_on_retired(void *ctx, void *owner);

void et_open(struct et_client *c, unsigned tq_log2, unsigned txt_log2); /* every feature is granted */
void et_open_with(struct et_client *c, unsigned tq_log2, unsigned txt_log2, uint64_t features);
void et_close(struct et_client *c);
/* The next record, which stays unread until the next call gives it back. */
bool et_take(struct et_client *c, struct glmw_rec *r);
const uint8_t *et_text(const struct et_client *c, const struct glmw_rec *r);

struct stream_id et_accept(struct et_client *c, uint64_t tag, uint32_t n_alts, bool thinking);
struct stream_event et_token(struct stream_id id, uint32_t token);
struct stream_event et_end(struct stream_id id, enum stream_reason reason, int status);

#endif
