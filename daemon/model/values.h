/* SPDX-License-Identifier: MIT */
/* Room-private: the look that is taken at every number of a checkpoint while it is read, and what is done to
 * the few that are stored in another way than kernels want them. Pure functions. */
#ifndef GLMD_MODEL_VALUES_H
#define GLMD_MODEL_VALUES_H

#include "directory.h"

enum {
    MODEL_CONV_WORDS = 32, /* of signs, converted in one go */
};

/* Windows of an item begin and end at multiples of so many bytes (and the end of the item). */
uint32_t model_number_unit(const struct model_item *it);

/* Number of the first of n bytes (whole units) that breaks the item's rule, counted in numbers (in blocks for
 * GGUF formats); -1: none. */
int64_t model_bad_number(const struct model_item *it, const void *bytes, uint64_t n);
/* "finite numbers", …: what the rule wants; and what number i is, for "found". */
const char *model_rule_text(const struct model_item *it);
const char *model_number_text(const struct model_item *it, const void *bytes, uint64_t i, char *buf,
                              size_t len);

/* The largest number of n bytes of scales, none of which is negative. */
float model_largest_scale(uint8_t number, const void *bytes, uint64_t n);
/* One number as a float. */
float model_number_at(uint8_t number, const void *bytes, uint64_t i);

/* MODEL_CONV_RECIPROCAL and _A_LOG, in place. */
void model_convert(uint8_t conv, void *bytes, uint64_t n);
/* n words of 16 signs to 16 F16 each. */
void model_convert_signs(const void *words, uint64_t n, void *ret);

#endif
