/* SPDX-License-Identifier: MIT */
/* Shared by the tests of the output parser: tools, ids out of readable text, and everything the parser
 * says as one line. */
#ifndef GLMD_OUTTEST_H
#define GLMD_OUTTEST_H

#include "outparse.h"

extern struct tok *outtest_tok;
extern struct tok_scratch *outtest_scratch;
extern struct outparse_vocab outtest_vocab;
extern struct outtools *outtest_tools;
extern struct outparse *outtest_parser; /* with the default limits */

void outtest_setup(void);
void outtest_teardown(void);

/* R(reasoning) C(content) name{arguments}. or, for a call that is void, name{cut! */
struct outtest_heard {
    char text[1 << 16];
    size_t n;
    int last; /* what the last piece was, to join pieces */
    unsigned events, open_calls, next_call;
};

struct outtest_options {
    bool open, ignore_eos, raw, no_tools;
    const struct stopstr_set *stop;
    int end; /* 0: eos in the text or none; 'L' token limit, 'E' ended by somebody else */
};

/* Markers become ids; what stands between \1 and \2 is ordinary text whatever it looks like. */
size_t outtest_ids(const char *text, uint32_t *ids, size_t cap);
const struct outparse_result *outtest_run(struct outparse *p, const uint32_t *ids, size_t n,
                                          struct outtest_options o, struct outtest_heard *h);
struct outparse *outtest_small(struct outparse_limits lim, void **ret_mem);

#define CALL  "<tool_call>"
#define END   "</tool_call>"
#define K(k)  "<arg_key>" k "</arg_key>"
#define V(v)  "<arg_value>" v "</arg_value>"
#define U     "<|user|>"
#define OBS   "<|observation|>"
#define STOP  OUT_FINISH_STOP
#define CALLS OUT_FINISH_TOOL_CALLS

#endif
