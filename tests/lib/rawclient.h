/* SPDX-License-Identifier: MIT */
/* A client without scruples: speaks the wire directly on the ipc room, so that tests can break every rule. */
#ifndef GLMD_TEST_RAWCLIENT_H
#define GLMD_TEST_RAWCLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "hello.h"
#include "shm.h"
#include "wire.h"

struct rawclient {
    int fd;
    int fds[GLMW_FD_COUNT];
    struct glmw_welcome welcome;
    struct shm_view view;
    struct glmw_producer sq;
    struct glmw_consumer tq;
    uint32_t serial;
};

int raw_socket(const char *path);
void raw_send(int fd, struct hello_msg *msg, const int *fds, unsigned n_fds);
/* The next packet of these types; skips NOTICE. Fails the test after 10 s. */
void raw_expect(int fd, enum hello_phase phase, uint16_t type, struct hello_msg *ret);
/* The peer closes; packets before that are skipped. Returns the error of its BYE, 0 without one. */
int raw_expect_close(int fd);
struct hello_msg raw_hello(void);

void raw_open(struct rawclient *c, const char *path, const struct hello_msg *hello); /* NULL: defaults */
void raw_welcome(struct rawclient *c, int fd); /* HELLO was sent over fd; takes it */
void raw_close(struct rawclient *c);
void raw_bell(struct rawclient *c);
/* Puts an entry as it is and rings. */
void raw_submit(struct rawclient *c, const struct glmw_entry *e);
/* A prompt of three token ids at offset 0 of the arena. */
struct glmw_entry raw_request(struct rawclient *c, uint64_t tag);
/* The next record of any type; false after timeout_ms. Gives it back at once unless keep. */
bool raw_record(struct rawclient *c, struct glmw_rec *ret, int timeout_ms, bool keep);
/* Reads records until END of tag; returns its status. Counts TOKEN records in *ret_tokens (NULL allowed). */
int raw_until_end(struct rawclient *c, uint64_t tag, uint32_t *ret_tokens);

#endif
