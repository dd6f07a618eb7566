/* SPDX-License-Identifier: MIT */
/* selftest_table.h: known checkpoints and what they answer. */
#ifndef GLMD_ENGINE_SELFTEST_TABLE_H
#define GLMD_ENGINE_SELFTEST_TABLE_H

#include <stdint.h>

enum { SELFTEST_MAX_IDS = 64, SELFTEST_MAX_NEXT = 4 };

struct selftest_case {
    const char *name;
    uint64_t digest; /* FNV-1a of model.safetensors.index.json */
    uint32_t n_ids, ids[SELFTEST_MAX_IDS];
    uint32_t n_next, next[SELFTEST_MAX_NEXT];
};

extern const struct selftest_case selftest_cases[];
extern const uint32_t selftest_n_cases;

#endif
