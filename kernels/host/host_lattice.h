/* SPDX-License-Identifier: MIT */
/* host_lattice.h: the points that the IQ formats choose from. A point is one u16: of IQ1 and IQ2 eight steps
 * of two bits, of IQ3 four steps of four bits, first element lowest; host_*_level turns a step into a number.
 * Constants. */
#ifndef GLMD_HOST_LATTICE_H
#define GLMD_HOST_LATTICE_H

#include <stdint.h>

extern const uint16_t host_iq2xxs[256], host_iq2xs[512], host_iq2s[1024];
extern const uint16_t host_iq3xxs[256], host_iq3s[512];
extern const uint16_t host_iq1s[2048]; /* IQ1_S and IQ1_M */

static const uint8_t host_iq2_level[4] = {8, 25, 43, 0}; /* the fourth step does not occur */
static const uint8_t host_iq3xxs_level[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const uint8_t host_iq3s_level[8] = {1, 3, 5, 7, 9, 11, 13, 15};
static const int8_t host_iq1_level[4] = {-1, 0, 1, 0};
/* IQ4_NL, IQ4_XS */
static const int8_t host_iq4_level[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

/* Seven stored signs are eight: the last one makes the number of negative ones even. */
static inline uint8_t host_iq_signs(uint32_t index) {
    return (uint8_t)(index | (uint32_t)__builtin_parity(index) << 7);
}

#endif
