/* SPDX-License-Identifier: MIT */
/* Matrices that a checkpoint has in BF16 and that are made smaller while they are loaded. */
#ifndef GLMD_MODEL_SMALLER_H
#define GLMD_MODEL_SMALLER_H

#include "directory.h"

#define MODEL_SMALLER_GROUPS  "shared, dense, mla, kda_in, kda_o, lm_head"
#define MODEL_SMALLER_FORMATS "int8, int4, mxfp8"

/* list: "GROUP:FORMAT" with commas between, of the words above; "" or NULL: nothing. The store and the bytes of every
 * matrix of these groups that is in BF16 become those of the format; what the files hold (the directory's items) stays
 * as it is. Of lm_head's width and the like nothing is assumed: -EINVAL names a matrix that the format cannot hold.
 * -EINVAL also: a word that is none, a group named twice, a part that stays as it is, a group without any matrix in
 * BF16. */
int model_smaller(struct model_directory *d, const char *list, struct xerr *e);
/* The words alone, before there is a checkpoint. four_bit: [Model] AllowFourBitDense, without which no word makes
 * anything of four bits: every group lies outside of the routed experts. -EPERM then; -EINVAL as above. */
int model_smaller_words(const char *list, bool four_bit, struct xerr *e);

#endif
