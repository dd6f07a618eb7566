/* SPDX-License-Identifier: MIT */
/* Fixture of the programs whose clients break rules: a daemon with scripted answers and an honest client, which
 * is served as before at the end of each test, and then the daemon has given everything back.
 *
 * Prompts of raw_request() are answered by ten tokens, those that begin with HOSTILE_ENDLESS by tokens without
 * an end, those that begin with HOSTILE_OTHER by three. */
#ifndef GLMD_TEST_HOSTILEFIX_H
#define GLMD_TEST_HOSTILEFIX_H

#include <check.h>

#include "daemonfix.h"
#include "rawclient.h"

enum { HOSTILE_ENDLESS = 90, HOSTILE_OTHER = 91 };

struct hostilefix {
    struct daemonfix f;
    struct rawclient honest;
    struct rawclient c; /* the hostile one, for the test to open */
    int before;
};

extern struct hostilefix hf;

/* One test case per event loop, with the fixture and the check for leaks around each test. */
void hostilefix_cases(Suite *s, void (*add_tests)(TCase *tc));
/* hf.c is cut off with -EPROTO; the log names the rule. */
void hostilefix_cut_off(const char *rule);
/* The same request with another first token. */
struct glmw_entry hostilefix_request(struct rawclient *c, uint64_t tag, uint32_t first);

#endif
