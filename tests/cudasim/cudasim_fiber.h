/* SPDX-License-Identifier: MIT */
/* cudasim_fiber.h: between the simulated runtime and what computes a grid. */
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include "cudasim.h"

/* Computes a whole grid before it returns. One call at a time. */
void cudasim_grid(const char *name, dim3 grid, dim3 block, size_t smem, void (*fn)(const void *args),
                  const void *args, int order);

#endif
