/* SPDX-License-Identifier: MIT */
/* CRC-32C (Castagnoli, reflected, all ones in and out): the checksum that processors compute themselves, so that
 * looking at every byte that is read back costs less than reading it. It finds damage; it is no proof of origin. Any
 * thread. */
#ifndef GLMD_SPILL_CRC32C_H
#define GLMD_SPILL_CRC32C_H

#include <stdint.h>

/* crc: 0, or the result over what comes before p. */
uint32_t spill_crc32c(uint32_t crc, const void *p, uint64_t n);
/* The same without the processor's help, for the comparison in tests. */
uint32_t spill_crc32c_plain(uint32_t crc, const void *p, uint64_t n);

#endif
