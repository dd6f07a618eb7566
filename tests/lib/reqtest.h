/* SPDX-License-Identifier: MIT */
/* Fixture of the request decoder's test programs: one payload, one decoder, one way to expect a refusal. */
#ifndef GLMD_TEST_REQTEST_H
#define GLMD_TEST_REQTEST_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "ipctest.h"
#include "leakcheck.h"
#include "reqdec.h"

static struct tlvbuf t;
static struct glmw_limits limits;
static uint64_t features;
static struct reqdec_req q;
static struct reqdec_err err;
static _Alignas(8) uint8_t mem[1 << 16];

static inline void setup(void) {
    leakcheck_setup();
    t.len = 0;
    limits = ipc_limits();
    features = GLMW_FEAT_ALL;
}

static inline int decode(void) {
    err = (struct reqdec_err){0};
    return reqdec_decode(t.b, t.len, &limits, features, mem, sizeof(mem), &q, &err);
}

/* The payload must be refused with this code, type and offset, and a reason that contains word. */
static inline void refused_at(int line, int code, uint16_t type, uint32_t offset, const char *word) {
    int r = decode();
    ck_assert_msg(r == code, "line %d: expected %d, found %d (%s)", line, code, r, err.reason);
    ck_assert_msg(err.code == code && strstr(err.reason, word), "line %d: reason is '%s'", line, err.reason);
    ck_assert_msg(err.type == type, "line %d: type is %u", line, err.type);
    ck_assert_msg(offset == UINT32_MAX || err.offset == offset, "line %d: offset is %u", line, err.offset);
    t.len = 0;
}
#define REFUSED(code, type, word)         refused_at(__LINE__, code, type, UINT32_MAX, word)
#define REFUSED_AT(code, type, off, word) refused_at(__LINE__, code, type, off, word)

static inline void user(const char *text) {
    tlv_msg(&t, GLMW_ROLE_USER);
    tlv_text(&t, GLMW_TLV_PART_TEXT, text);
    tlv_end(&t);
}

#define IS(s, lit) ck_assert((s).len == sizeof(lit) - 1 && memcmp((s).ptr, lit, sizeof(lit) - 1) == 0)

#endif
