/* SPDX-License-Identifier: MIT */
/* A model without files: the shapes of a published one, filled with numbers that compute and mean nothing. For
 * measuring a machine before 180 GB are fetched, and for tests of sizes that no small checkpoint has. Weights are the
 * same on every run; activations stay of the size of one, because each matrix is scaled by the root of its inputs.
 * Start-up only.
 *
 *   synthetic:SHAPE[,KEY=VALUE]...
 *     SHAPE    glm-5.3-flash, glm-5.3 or nano
 *     experts  format of the routed experts: bf16, fp8, int8, int4, mxfp8, mxfp4, nvfp4, exl3-1 .. exl3-8 (nvfp4)
 *     dense    of everything else that may be less than BF16: attention's large projections, shared experts, dense
 *              layers, head (int8)
 *     layers   the first so many of them (all)
 * Embedding, kv_b, q_a, kv_a, indexer, gates, router, mHC and norms stay BF16 and F32, as in published packs. */
#ifndef GLMD_MODEL_SYNTHETIC_H
#define GLMD_MODEL_SYNTHETIC_H

#include <string.h>

#include "directory.h"
#include "loader.h"

#define MODEL_SYNTHETIC "synthetic:"

static inline bool model_is_synthetic(const char *path) {
    return strncmp(path, MODEL_SYNTHETIC, sizeof(MODEL_SYNTHETIC) - 1) == 0;
}

/* spec: what stands behind "synthetic:". The directory has tensors but no items: there is nothing to read. -EINVAL: the
 * sentence names the word, and what was expected; -ENOMEM. */
int model_synthetic_open(const char *spec, struct model_config *ret_cfg, struct model_directory *ret, struct xerr *e);
/* "glm-5.3-flash": the shape's word, static. */
const char *model_synthetic_name(const struct model_config *cfg);
/* As model_load(), for such a directory; findings stay empty. */
int model_synthetic_load(const struct model_directory *d, const struct model_load *l, struct xerr *e);

#endif
