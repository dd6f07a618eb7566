/* SPDX-License-Identifier: MIT */
/* exp() of many numbers, in the instructions every processor of the architecture has, and the choice of a
 * wider variant. Pure functions; any thread. */
#define HOST_EXP host_exp_any
#include "host_exp_body.h"

void host_exp(double *x, uint32_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        host_exp_avx2(x, n);
        return;
    }
#endif
    host_exp_any(x, n);
}
