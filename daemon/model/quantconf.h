/* SPDX-License-Identifier: MIT */
/* What config.json and hf_quant_config.json claim about the formats of the weights, against the tensors. */
#ifndef GLMD_MODEL_QUANTCONF_H
#define GLMD_MODEL_QUANTCONF_H

#include "directory.h"

/* dir as for model_config_read. A claim that is not there contradicts nothing. -EINVAL: the tensors are
 * stored in another way than claimed (both are shown), -ENOTSUP: a scheme that is not read, -EBADMSG: no
 * JSON. */
int model_quant_check(const char *dir, const struct model_directory *d, struct xerr *e);

#endif
