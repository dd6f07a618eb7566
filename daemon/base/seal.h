/* SPDX-License-Identifier: MIT */
/* The engine and the emit thread allocate nothing once they run. They say so when they begin; the test build
 * defines this function and then aborts on any allocation of a thread that said it. In the product it does
 * not exist. */
#ifndef GLMD_SEAL_H
#define GLMD_SEAL_H

extern void seal_thread(void) __attribute__((weak));

static inline void seal_this_thread(void) {
    if (seal_thread)
        seal_thread();
}

#endif
