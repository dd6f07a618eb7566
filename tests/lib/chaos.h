/* SPDX-License-Identifier: MIT */
/* Clients without scruples whose acts a seed decides. They run in child processes: nothing here asserts
 * anything about the daemon, and the clients never return to the test.
 *
 * chaos_client() does everything a client may and may not do, and dies somewhere in the middle of it.
 * vandal_client() writes at random over all the memory it shares with the daemon, and tries to write what it
 * may only read. */
#ifndef GLMD_TEST_CHAOS_H
#define GLMD_TEST_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#include "hello.h"
#include "shm.h"
#include "wire.h"

/* exit status of a client that could write what the daemon protects */
#define VANDAL_GOT_THROUGH 42

_Noreturn void chaos_client(const char *socket_path, uint64_t seed);
_Noreturn void vandal_client(const char *socket_path, uint64_t seed);

/* ---- what both are made of ---- */

struct mad {
    int fd;
    int fds[GLMW_FD_COUNT];
    struct glmw_welcome welcome;
    struct shm_view view;
    struct glmw_producer sq;
    struct glmw_consumer tq;
};

void mad_seed(uint64_t seed);
uint64_t mad_next(void);
uint32_t mad_below(uint32_t n); /* n > 0 */
bool mad_open(struct mad *c, const char *socket_path);
void mad_bell(struct mad *c);
void mad_put(struct mad *c, const struct glmw_entry *e);
void mad_submit(struct mad *c);

#endif
