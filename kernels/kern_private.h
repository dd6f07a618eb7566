/* SPDX-License-Identifier: MIT */
/* kern_private.h: between the files of kernels/ itself; backends do not see it. */
#ifndef GLMD_KERN_PRIVATE_H
#define GLMD_KERN_PRIVATE_H

#include "kern.h"

int kern_host_alloc(uint64_t bytes, struct kern_block *ret);
void kern_host_free(struct kern_block *block);

#endif
