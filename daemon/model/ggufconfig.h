/* SPDX-License-Identifier: MIT */
/* Room-private: the metadata of a GGUF model as the config.json it would have, so that there is one reader.
 */
#ifndef GLMD_MODEL_GGUFCONFIG_H
#define GLMD_MODEL_GGUFCONFIG_H

#include <jansson.h>

#include "config.h"
#include "index.h"

/* 1: the directory holds a GGUF model, *ret is what its metadata says (json_decref it) and *ret_index its
 * files; 0: it does not, nothing is written. -EINVAL: a key is missing, mistyped or contradicts another. */
int model_gguf_config(const char *dir, json_t **ret, struct model_index **ret_index, struct xerr *e);
/* Every value of the metadata that config.json has, too, must be the same. */
int model_gguf_same(const json_t *metadata, const json_t *config, const char *shown, struct xerr *e);
/* What of the configuration only the tensors tell. */
void model_gguf_tensors(const struct model_index *x, struct model_config *cfg);

#endif
