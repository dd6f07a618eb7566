/* SPDX-License-Identifier: MIT */
/* Random bytes of the kernel, whole, whatever signal comes in between. Any thread; may block only while the machine
 * starts. */
#ifndef GLMD_RANDOM_H
#define GLMD_RANDOM_H

#include <errno.h>
#include <stdint.h>
#include <sys/random.h>

/* *ret stays as it was on failure. */
static inline int random_u64(uint64_t *ret) {
    uint64_t v = 0;
    ssize_t n; /* so few bytes come whole or not at all */

    do
        n = getrandom(&v, sizeof v, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof v)
        return n < 0 ? -errno : -EIO;
    *ret = v;
    return 0;
}

#endif
