/* SPDX-License-Identifier: MIT */
/* exp() of many numbers, four at once. Called only where the processor has AVX2. */
#define HOST_EXP host_exp_avx2
#include "host_exp_body.h"
