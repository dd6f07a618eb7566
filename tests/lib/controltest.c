/* SPDX-License-Identifier: MIT */
/* controltest.c: a small vocabulary. */
#include "controltest.h"

#include <string.h>

static const char *const TEXT[T_N] = {
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v",
    "w", "x", "y", "z", "xSTOPy", "xSTO", "Pq", "", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<eos>", "<assistant>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
};
static uint8_t bytes[512];
static uint32_t offsets[T_N + 1];
static const uint32_t stop_ids[2] = { T_EOS, T_ASSIST };
struct vocab_view controltest_vocab = { .bytes = bytes, .offsets = offsets, .n_tokens = T_N, .stop_ids = stop_ids,
                                   .n_stop_ids = 2, .think_open = T_THINK, .think_close = T_NOTHINK,
                                   .tool_open = T_CALL, .tool_close = T_NOCALL, .key_open = T_KEY, .key_close = T_NOKEY,
                                   .value_open = T_VALUE, .value_close = T_NOVALUE, .text_end = T_EOS };

void controltest_setup(void) {
    uint32_t at = 0;

    for (uint32_t i = 0; i < T_N; i++) {
        offsets[i] = at;
        memcpy(bytes + at, TEXT[i], strlen(TEXT[i]));
        at += (uint32_t)strlen(TEXT[i]);
    }
    offsets[T_N] = at;
}
