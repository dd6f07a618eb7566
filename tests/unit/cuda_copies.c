/* SPDX-License-Identifier: MIT */
/* Slots and pages of the CUDA backend, whose memory is a device's: as bytes, and copied inside. */
#define BACKENDS "cuda", "cpu"
#include "kern_copies.c"
