/* SPDX-License-Identifier: MIT */
/* A client that does everything a client may not do, in an order that its seed decides, and dies somewhere in
 * the middle of it. Runs in a child process: it asserts nothing and never returns to the test. */
#ifndef GLMD_TEST_CHAOS_H
#define GLMD_TEST_CHAOS_H

#include <stdint.h>

_Noreturn void chaos_client(const char *socket_path, uint64_t seed);

#endif
