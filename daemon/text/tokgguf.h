/* SPDX-License-Identifier: MIT */
/* The tokenizer in the metadata of a GGUF file, as the tokenizer.json it would have, so that there is one
 * loader; and the chat template beside it. Start-up only. */
#ifndef GLMD_TOKGGUF_H
#define GLMD_TOKGGUF_H

#include "xerr.h"

#include <jansson.h>

/* 1: dir holds a GGUF file: *ret_root (json_decref it) and *ret_path, its name (free it); 0: none, nothing is
 * written. -EINVAL: its tokenizer is of another kind than this program's. */
int tokgguf_read(const char *dir, json_t **ret_root, char **ret_path, struct xerr *err);
/* The template's text, of *ret_n bytes (free it): 1, or 0: there is none. */
int tokgguf_template(const char *dir, char **ret, size_t *ret_n, struct xerr *err);

#endif
