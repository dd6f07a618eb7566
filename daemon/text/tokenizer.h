/* SPDX-License-Identifier: MIT */
/* Byte-level BPE tokenizer of the GLM-5.3 family, read from a checkpoint's tokenizer.json.
 *
 * A struct tok is immutable after tok_open() and may be used by any number of threads; working memory is
 * in struct tok_scratch, one per thread. Encoding may allocate inside the scratch (text workers only);
 * looking up the bytes of a token never allocates (emit thread). */
#ifndef GLMD_TOKENIZER_H
#define GLMD_TOKENIZER_H

#include "xerr.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOK_MAX_IDS (1u << 21) /* no id of the file may reach this */

struct tok;
struct tok_scratch;

/* Reads dir/tokenizer.json. Anything this code does not implement exactly (another model type or pattern, a
 * normaliser, a merge without operands, double ids, ...) is refused with file, key, found and expected. */
int tok_open(const char *dir, struct tok **ret, struct xerr *err);
struct tok *tok_free(struct tok *t); /* takes t, NULL allowed, returns NULL */

/* Highest id of the file plus one. Rows of the model's head from here on are padding and must never be
 * sampled; ids below without a token (holes) are possible and are reported by tok_bytes(). */
uint32_t tok_size(const struct tok *t);
uint32_t tok_count(const struct tok *t);   /* ids that have a token */
size_t tok_max_bytes(const struct tok *t); /* length of the longest token */
bool tok_ignores_merges(const struct tok *t);

enum tok_kind_flags {
    TOK_ADDED = 1,   /* from added_tokens: matched in text only with TOK_MARKERS */
    TOK_SPECIAL = 2, /* the file's own flag */
};

/* Raw bytes of a token (not NUL-terminated, may be part of a UTF-8 sequence); they live as long as t.
 * Returns the kind flags (>= 0), or -ENOENT for a hole or a padding row. */
int tok_bytes(const struct tok *t, uint32_t id, const uint8_t **ret_bytes, size_t *ret_len);

/* Id of the added token with exactly this text, or -ENOENT. */
int64_t tok_id(const struct tok *t, const char *added_text);

/* The added token that starts exactly at text (the longest one), or -ENOENT. *ret_len (NULL allowed): its
 * bytes. */
int64_t tok_marker_at(const struct tok *t, const char *text, size_t len, size_t *ret_len);

/* max_bytes bounds the memory the scratch may take (0: no bound); a run of text without any break needs about
 * 28 bytes of scratch a byte. */
int tok_scratch_new(size_t max_bytes, struct tok_scratch **ret);
struct tok_scratch *tok_scratch_free(struct tok_scratch *s);

enum tok_encode_flags {
    TOK_MARKERS =
        1, /* added tokens written in the text become their ids (raw completion prompts, templates) */
};

/* Encodes text. No token is ever added in front or behind.
 *   ids == NULL  only counts: *ret_n is the exact number of ids
 *   -ENOSPC      more than cap ids; nothing is reported, ids[] is unspecified. cap = len always suffices.
 *   -EILSEQ      text is not valid UTF-8 (utf8_valid_prefix() says where)
 *   -E2BIG       the scratch limit is too small for a run in this text; -ENOMEM */
int tok_encode(const struct tok *t, struct tok_scratch *s, const char *text, size_t len, unsigned flags,
               uint32_t *ids, size_t cap, size_t *ret_n);

#endif
