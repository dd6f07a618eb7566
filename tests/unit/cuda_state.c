/* SPDX-License-Identifier: MIT */
/* What kern_state asks of the oracle, asked of CUDA: kept rows are plain decoding, a batch is its sequences alone, cuts
 * change nothing, slots and pages may move, and no row is read that the selection does not name. */
#define BACKEND "cuda"
#include "kern_state.c"
