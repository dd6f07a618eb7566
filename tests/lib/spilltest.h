/* SPDX-License-Identifier: MIT */
/* Fixture: a directory for the spill tier and payloads that say by themselves which tokens they stand for, so that a
 * wrong one is noticed whatever way it came. Log lines go to a file. One thread. */
#ifndef GLMD_TEST_SPILLTEST_H
#define GLMD_TEST_SPILLTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spill.h"

enum { SPILLTEST_MARK = 5, SPILLTEST_PAGE_TOKENS = 16, SPILLTEST_GRID = 4, SPILLTEST_MAX_TOKENS = 256 };

struct spilltest {
    char dir[64], log[80];
    int log_fd;
    struct spill_options o; /* of the next open */
    struct spill *s;
    struct xerr note, err;
};

/* where: NULL is $TMPDIR or /tmp; one that cannot be written becomes that too. */
void spilltest_init(struct spilltest *t, const char *where);
int spilltest_open(struct spilltest *t); /* what spill_open says */
void spilltest_close(struct spilltest *t);
void spilltest_done(struct spilltest *t); /* closes, removes the directory */
/* An options block like spilltest_init's, for a directory. */
struct spill_options spilltest_options(const char *dir);

/* Drives a put to its end; false: it was there already or left out. */
bool spilltest_put(struct spill *s, uint64_t domain, uint8_t quality, const uint32_t *ids, uint32_t pos);
/* Finds and reads; the position that was read and is right, or 0. Aborts on a wrong payload. */
uint32_t spilltest_get(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t most);
uint32_t spilltest_get_from(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t most, uint32_t from_page);
/* One piece of a put or a get. */
void spilltest_fill(const struct spill *s, const struct spill_piece *p, uint64_t domain, const uint32_t *ids,
                    uint32_t pos);
bool spilltest_is_right(const struct spill *s, const struct spill_piece *p, uint64_t domain, const uint32_t *ids,
                        uint32_t pos);
void spilltest_settle(struct spill *s); /* until nothing is under way */

/* Tokens of text number n: texts that differ in n / 8 share half their tokens with others. */
void spilltest_text(uint32_t n, uint32_t *ids, uint32_t count);

/* Files in the directory whose name ends so; the bytes of all blocks; the path of the first such file. */
uint32_t spilltest_files(const struct spilltest *t, const char *ending);
void spilltest_empty(const struct spilltest *t); /* removes all blocks, while it is closed */
uint64_t spilltest_bytes(const struct spilltest *t);
bool spilltest_first(const struct spilltest *t, const char *ending, char *ret, size_t cap);
const char *spilltest_log(const struct spilltest *t); /* all of it so far */

#endif
