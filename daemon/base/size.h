/* SPDX-License-Identifier: MIT */
/* Checked arithmetic for every size that came from outside (files, clients, peers, devices). */
#ifndef GLMD_SIZE_H
#define GLMD_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* Each returns false on overflow and then leaves *ret untouched. */
static inline bool size_add(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

static inline bool size_mul(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

/* align must be a power of two */
static inline bool size_align(uint64_t a, uint64_t align, uint64_t *ret) {
    uint64_t r;
    if (!size_add(a, align - 1, &r))
        return false;
    *ret = r & ~(align - 1);
    return true;
}

/* true when [off, off + len) lies inside [0, size); no sum that can wrap */
static inline bool size_within(uint64_t off, uint64_t len, uint64_t size) {
    return len <= size && off <= size - len;
}

#endif
