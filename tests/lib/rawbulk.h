/* SPDX-License-Identifier: MIT */
/* Bulk objects from a client without scruples (rawclient.h). Each fails the test when it cannot do its part. */
#ifndef GLMD_TEST_RAWBULK_H
#define GLMD_TEST_RAWBULK_H

#include <fcntl.h>

#include "rawclient.h"

#define RAWBULK_SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A memfd with a prompt of three ids, then ignorable bytes that fill it: 32 at least, a multiple of 8. */
int rawbulk_object(size_t bytes, int seals);
void rawbulk_send(struct rawclient *k, uint32_t id, uint32_t kind, uint64_t bytes, int fd); /* takes fd */
/* The error of the answer, 0 when the object was taken. */
int rawbulk_answer(struct rawclient *k, uint32_t id);
int rawbulk_give(struct rawclient *k, uint32_t id, size_t bytes); /* a good one; what the answer says */
struct glmw_entry rawbulk_naming(uint64_t tag, uint64_t id);      /* a SUBMIT of it */

#endif
