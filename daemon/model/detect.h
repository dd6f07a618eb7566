/* SPDX-License-Identifier: MIT */
/* How one weight matrix is stored in a checkpoint, decided by the tensors that are there and by nothing else.
 * What the configuration claims is compared afterwards (quantconf.h). Pure functions over an index; start-up.
 */
#ifndef GLMD_MODEL_DETECT_H
#define GLMD_MODEL_DETECT_H

#include "index.h"
#include "kern.h"

/* What the loader does to a tensor's bytes before anybody sees them. */
enum model_conv {
    MODEL_CONV_NONE,
    MODEL_CONV_RECIPROCAL, /* F32, a divisor -> the factor, divided once, in F32 */
    MODEL_CONV_SIGNS,      /* 16-bit words of signs, the lowest first, 1 = minus -> F16 +-1 */
    MODEL_CONV_A_LOG,      /* F32 -exp(x) -> x */
};

/* What the numbers of a tensor are, for the look that is taken at each while it is read. */
enum model_number {
    MODEL_NUM_BYTES, /* codes of which every one is a weight */
    MODEL_NUM_F32,
    MODEL_NUM_BF16,
    MODEL_NUM_F16,
    MODEL_NUM_E4M3,
    MODEL_NUM_E8M0,
    MODEL_NUM_I32,
    MODEL_NUM_I64,
};

enum model_rule {
    MODEL_RULE_ANY,     /* finite, nothing else */
    MODEL_RULE_SCALE,   /* finite and not negative: of blocks, where 0 stands for a block of zeros */
    MODEL_RULE_FACTOR,  /* finite and above 0: of a whole matrix */
    MODEL_RULE_SMALL,   /* a factor that says it multiplies FP4: at most 1, or it is really the divisor */
    MODEL_RULE_LARGE,   /* one that says it divides: at least 1 */
    MODEL_RULE_BELOW_0, /* finite and negative */
    MODEL_RULE_MCG,     /* the EXL3 markers: exactly that number */
    MODEL_RULE_MUL1,
    MODEL_RULE_SHAPE, /* rows, then columns of the matrix */
};

enum {
    MODEL_PIECE_NONE = 0xff, /* read and looked at, handed to nobody */
    MODEL_MAX_PIECES = 6,
    MODEL_MAX_SEEN = 12,
};

struct model_piece {
    const struct model_entry *en;
    uint8_t piece; /* enum kern_piece or MODEL_PIECE_NONE */
    uint8_t conv, number, rule;
};

struct model_module {
    struct kern_store store;
    uint32_t n;
    struct model_piece piece[MODEL_MAX_PIECES];
    /* every tensor that belongs to the module, scales of activations included, which are not needed */
    uint32_t n_seen;
    const struct model_entry *seen[MODEL_MAX_SEEN];
};

/* The module whose unquantised weight would be called `name` ("….q_proj.weight"): a matrix of this shape.
 * -ENODATA: none of its tensors is there (e untouched); -ENODATA with a sentence: one of a set is missing;
 * -EINVAL: a wrong dtype or shape, two sets; -ENOTSUP: a spelling that is not read. */
int model_detect(const struct model_index *x, const char *name, uint64_t rows, uint64_t cols,
                 struct model_module *ret, struct xerr *e);

/* A tensor that stands alone, in F32, BF16, F16 or a GGUF format: its store and how to look at it. -EINVAL:
 * no such dtype. */
int model_detect_plain(const struct model_entry *en, struct kern_store *ret_store, struct model_piece *ret);

/* Weights of a block and its bytes for a GGUF dtype; 0 for all others. */
uint32_t model_gguf_format(enum st_dtype d); /* enum kern_format */

#endif
