/* SPDX-License-Identifier: MIT */
/* Forced into every object of the mutation build: FAULT(name) is true when GLMD_FAULT names it. */
#ifndef GLMD_TEST_FAULT_H
#define GLMD_TEST_FAULT_H

#include <stdlib.h>
#include <string.h>

/* Read once per place: the environment does not change while the program runs. */
#define FAULT(name)                                                                                          \
    (__extension__({                                                                                         \
        static int fault_state_;                                                                             \
        if (fault_state_ == 0) {                                                                             \
            const char *fault_env_ = getenv("GLMD_FAULT");                                                   \
            fault_state_ = fault_env_ && strcmp(fault_env_, #name) == 0 ? 1 : -1;                            \
        }                                                                                                    \
        fault_state_ > 0;                                                                                    \
    }))

#endif
