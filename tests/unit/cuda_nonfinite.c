/* SPDX-License-Identifier: MIT */
/* One weight that is no number reaches the logits of the CUDA backend, too. */
#define BACKENDS "cuda"
#include "kern_nonfinite.c"
