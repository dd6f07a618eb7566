/* SPDX-License-Identifier: MIT */
/* See reqback.h.  Test processes only. */
#include "reqback.h"

#include <check.h>
#include <stdlib.h>

const struct glmw_limits reqback_limits = {.max_payload_bytes = 1u << 20,
                                           .max_messages = 100,
                                           .max_parts = 100,
                                           .max_tools = 10,
                                           .max_stops = 10,
                                           .max_stop_bytes = 100,
                                           .max_bias = 10,
                                           .max_alts = 20,
                                           .vocab_tokens = 1000,
                                           .max_context_tokens = 10000,
                                           .max_output_tokens = 10000,
                                           .max_live = 64};

int reqback(struct fake *f, struct reqback *ret, struct reqdec_err *ret_err) {
    ck_assert(fake_pop(f, &ret->e));
    size_t len = ret->e.payload_len, n = reqdec_mem_bytes(&reqback_limits, len);
    ret->payload = calloc(1, len + 8);
    ret->mem = calloc(1, n + 8);
    ck_assert_int_eq(shm_payload_read(&f->shm, ret->e.payload_off, (uint32_t)len, ret->payload), 0);
    return reqdec_decode(ret->payload, len, &reqback_limits, f->welcome.features, ret->mem, n, &ret->q, ret_err);
}

void reqback_ok(struct fake *f, struct reqback *ret) {
    struct reqdec_err err = {0};
    int r = reqback(f, ret, &err);
    ck_assert_msg(r == 0, "decode: %d, TLV %u at %u: %s", r, err.type, err.offset, err.reason);
}

void reqback_drop(struct reqback *b) {
    free(b->payload);
    free(b->mem);
}
