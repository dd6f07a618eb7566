/* SPDX-License-Identifier: MIT */
/* Shared by the tests of the text room: places of models and golden files, seeded random numbers, random
 * text. */
#ifndef GLMD_TEXTTEST_H
#define GLMD_TEXTTEST_H

#include <stddef.h>
#include <stdint.h>

const char *texttest_model(const char *name);           /* directory; fails the test when it is missing */
char *texttest_file(const char *path, size_t *ret_n);   /* whole file, to be freed; fails when missing */
char *texttest_golden(const char *name, size_t *ret_n); /* tests/golden/NAME */

struct texttest_rng {
    uint64_t s;
};
uint64_t texttest_rand(struct texttest_rng *r);
uint32_t texttest_below(struct texttest_rng *r, uint32_t n);

/* Valid UTF-8 of at most n bytes with everything the splitter cares about: letters of many scripts,
 * numbers of all kinds, white space, line ends, contractions, punctuation, unassigned and rare code
 * points. Returns its length. */
size_t texttest_text(struct texttest_rng *r, char *buf, size_t n);

/* For the inside of long loops, where Check's own macros write a record for every single pass. */
#define must(cond)                                                                                           \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            ck_abort_msg("%s is false", #cond);                                                              \
    } while (0)

double texttest_now(void); /* processor seconds of this process: bounds hold on a busy machine too */
/* Factor for time bounds: sanitizers and emulation are slower by design. */
double texttest_slow(void);

#endif
