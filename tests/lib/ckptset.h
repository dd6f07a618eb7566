/* SPDX-License-Identifier: MIT */
/* The tensors of a checkpoint in memory, to be replaced by others and written again, and one module's weights
 * in every spelling that published packs use. Plain code of its own: nothing of the daemon's or the packer's.
 * Every failure fails the running Check test. */
#ifndef GLMD_TEST_CKPTSET_H
#define GLMD_TEST_CKPTSET_H

#include <stdarg.h>

#include "ckpt.h"

struct ckpt_tensor {
    char name[160];
    char dtype[12];
    uint32_t n_dims;
    uint64_t dim[8];
    unsigned char *bytes;
    size_t n;
};

struct ckpt_set {
    struct ckpt_tensor *t;
    size_t n, cap;
};

void ckpt_set_load(struct ckpt_set *s, const char *model); /* every tensor of $GLMD_MODELS/NAME */
void ckpt_set_load_dir(struct ckpt_set *s, const char *dir);
void ckpt_set_done(struct ckpt_set *s);
struct ckpt_tensor *ckpt_set_find(struct ckpt_set *s, const char *name); /* NULL: none */
struct ckpt_tensor *ckpt_set_get(struct ckpt_set *s, const char *name);
/* bytes are copied (zeros when NULL); a tensor of that name is replaced. The size follows from dtype and
 * shape. */
struct ckpt_tensor *ckpt_set_put(struct ckpt_set *s, const char *name, const char *dtype, const void *bytes,
                                 uint32_t n_dims, ...);
void ckpt_set_drop(struct ckpt_set *s, const char *name);
/* As DIR/model.safetensors; index and shards of the directory are removed. */
void ckpt_set_write(const struct ckpt_set *s, const struct ckpt *c);
void ckpt_set_save(const struct ckpt_set *s, const char *path); /* as a new file */

enum ckpt_spelling {
    CKPT_BF16,
    CKPT_F16,
    CKPT_F32,
    CKPT_FP8_BLOCK,    /* weight_scale_inv */
    CKPT_FP8_BLOCK_CT, /* weight_scale, BF16 */
    CKPT_FP8_BLOCK_PB, /* weight_scale [N/128,1,K/128,1] */
    CKPT_FP8_CHANNEL,
    CKPT_FP8_TENSOR,
    CKPT_NVFP4_MODELOPT, /* with input_scale */
    CKPT_NVFP4_CT,
    CKPT_MXFP8,
    CKPT_MXFP4_CT,
    CKPT_MXFP4_MODELOPT,
    CKPT_INT8,
    CKPT_INT4,
    CKPT_EXL3,       /* 4 bits, mcg; the trellis is noise */
    CKPT_EXL3_SIGNS, /* 3 bits, mul1, su and sv */
    CKPT_EXL3_3INST, /* 2 bits */
    CKPT_SPELLINGS
};
extern const char *const ckpt_spelling_name[CKPT_SPELLINGS];

/* name: of the BF16 weight, "….weight", which goes. -1: the shape cannot be written so, nothing was changed.
 */
int ckpt_spell(struct ckpt_set *s, const char *name, enum ckpt_spelling how);
/* Every matrix whose name contains `part` ("" = all that end in proj.weight), but for shapes that do not fit.
 * Returns how many. */
size_t ckpt_spell_all(struct ckpt_set *s, const char *part, enum ckpt_spelling how);

/* ckptplain.c: every quantised matrix becomes F32, decoded by code of its own. Returns how many. */
size_t ckpt_plain_all(struct ckpt_set *s);

float ckpt_e4m3(unsigned char code);
unsigned char ckpt_to_e4m3(float x);

/* ckptnum.c: to the nearest, ties to even; a NaN becomes 0, what is too large for F16 the largest one. */
uint16_t ckpt_to_bf16(double v);
double ckpt_bf16(uint16_t b);
uint16_t ckpt_to_f16(double v);
double ckpt_f16(uint16_t b);

#endif
