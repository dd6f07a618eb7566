/* SPDX-License-Identifier: MIT */
/* The tensors a configuration demands, by their names in safetensors and in GGUF files, from one table. Pure
 * functions over constant data. */
#ifndef GLMD_MODEL_PARTS_H
#define GLMD_MODEL_PARTS_H

#include "config.h"

#define MODEL_VISUAL_PREFIX "model.visual."

/* What the text model's tensors begin with in safetensors files. */
static inline const char *model_text_prefix(const struct model_config *c) {
    return c->family == MODEL_GLM53 ? "model." : "model.language_model.";
}

enum model_where {
    MODEL_ON_GLOBAL, /* once */
    MODEL_ON_LAYER,
    MODEL_ON_EXPERT, /* once per routed expert; in GGUF all of a layer are stacked in one tensor */
};

enum model_kind {
    MODEL_MATRIX,     /* in any format */
    MODEL_FULL,       /* a matrix that stays in F32, BF16 or F16 */
    MODEL_VECTOR,     /* F32, BF16 or F16, and no matrix */
    MODEL_VECTOR_F32, /* F32 only: what is narrowed here makes noise of every answer */
};

struct model_row {
    const char
        *name; /* safetensors: what model_row_name() puts behind the prefix; NULL: GGUF only */
    const char *gguf; /* after "blk.N."; several spellings with | between; NULL: safetensors only */
    enum model_where where;
    uint8_t on; /* which layers: inside of parts.c */
    enum kern_part part;
    enum model_kind kind;
    uint8_t dim[3];
};

extern const struct model_row model_rows[];
extern const size_t model_n_rows;

/* Its whole name in safetensors files. */
void model_row_name(const struct model_config *c, const struct model_row *row, uint32_t layer, uint32_t expert,
                    char *buf, size_t len);
/* Does the layer have it? layer is num_hidden_layers and above for the MTP layer. Not for MODEL_ON_GLOBAL. */
bool model_row_applies(const struct model_config *c, const struct model_row *row, uint32_t layer);
/* The shape a file must show, without the experts' dimension; n is 1 to 3. */
void model_row_shape(const struct model_config *c, const struct model_row *row, uint64_t ret_shape[3],
                     uint32_t *ret_n);

#endif
