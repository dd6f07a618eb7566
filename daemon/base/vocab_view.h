/* SPDX-License-Identifier: MIT */
/* The raw bytes of every token and the ids that steer control, as the engine needs them; built once by main
 * from the tokenizer, because the engine does not include the text room. */
#ifndef GLMD_VOCAB_VIEW_H
#define GLMD_VOCAB_VIEW_H

#include <stdint.h>

struct vocab_view {
    const uint8_t *bytes;
    const uint32_t *offsets; /* n_tokens + 1; token i is bytes[offsets[i]] .. bytes[offsets[i + 1]] */
    uint32_t n_tokens;
    const uint32_t *stop_ids; /* the configuration's eos ids and <|assistant|> */
    uint32_t n_stop_ids;
    const uint32_t *mark_ids; /* added tokens: marks of the format, whose bytes are no text */
    uint32_t n_mark_ids;
    /* marks of the format; UINT32_MAX when the tokenizer has none */
    uint32_t think_open, think_close, tool_open, tool_close;
    uint32_t key_open, key_close, value_open, value_close; /* inside a tool call */
    uint32_t text_end; /* of the stop ids the one that is no other speaker's turn */
};

#endif
