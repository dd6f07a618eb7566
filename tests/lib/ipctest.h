/* SPDX-License-Identifier: MIT */
/* Helpers of the ipc tests: a payload builder, a seeded generator, and the two fuzz bodies. */
#ifndef GLMD_TEST_IPCTEST_H
#define GLMD_TEST_IPCTEST_H

#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* xorshift64*; the same seed gives the same run everywhere */
struct ipc_rng {
    uint64_t s;
};
uint64_t ipc_rand(struct ipc_rng *r);
uint32_t ipc_below(struct ipc_rng *r, uint32_t n);

/* A payload under construction, without any check: tests build broken ones too. */
struct tlvbuf {
    _Alignas(8) uint8_t b[16384];
    size_t len;
};
void tlv_put2(struct tlvbuf *t, uint16_t type, uint16_t flags, const void *a, size_t a_len, const void *b,
              size_t b_len);
void tlv_put(struct tlvbuf *t, uint16_t type, const void *body, size_t len);
void tlv_text(struct tlvbuf *t, uint16_t type, const char *text);
void tlv_msg(struct tlvbuf *t, uint32_t role);
void tlv_end(struct tlvbuf *t);
void tlv_call(struct tlvbuf *t, const char *id, const char *name, const char *args);
void tlv_result(struct tlvbuf *t, const char *id, const char *text);
struct glmw_sampling ipc_sampling(void); /* every field set, in range */
void ipc_full_chat(struct tlvbuf *t);    /* every TLV type but TOKENS, valid under ipc_limits() */
struct glmw_limits ipc_limits(void);

/* Fuzz bodies: abort when a promise of hello.h or reqdec.h is broken. Always return 0. */
int ipc_fuzz_hello(const uint8_t *data, size_t size);
int ipc_fuzz_reqdec(const uint8_t *data, size_t size);

#endif
