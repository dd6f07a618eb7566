/* SPDX-License-Identifier: MIT */
/* What the files of prep share; one worker's. */
#ifndef GLMD_PREP_IMPL_H
#define GLMD_PREP_IMPL_H

#include "chat.h"
#include "outparse.h"
#include "prep.h"

struct prep_scratch {
    struct tok_scratch *tok;
    /* with turns only */
    struct outparse_vocab vocab;
    void *parser_mem;
    struct outparse *parser;
    uint32_t *ids, ids_cap; /* of the answer found last */
};

/* prep_turn.c: the request being prepared, as the renderer asks for its turns. */
struct prep_replay {
    struct chat_replay replay;
    const struct prep_model *model;
    struct prep_scratch *scratch;
    uint32_t uid;
    uint32_t left; /* ids that may still be put in: a longer prompt is refused anyway */
};
void prep_replay_init(struct prep_replay *p, const struct prep_model *m, struct prep_scratch *s, uint32_t uid);
/* prep_control.c. What the request says of calls: whether the model is shown tools at all and, when it names one,
 * which (else -1); r->tools is then made. */
int prep_choice(struct prep_req *r, bool *ret_tools, int *ret_only, struct xerr *err);
/* r->tools: all, or the one. */
int prep_tools(struct prep_req *r, int only, struct xerr *err);
/* r->sched.control, after r->tools. */
int prep_control(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r, struct xerr *err);

/* prep_grammar.c: r->grammar, after r->sched.control. only: the one tool that may be called, or -1. */
/* Before the request's user may go. */
void prep_grammar_drop(struct prep_req *r);
int prep_grammar(const struct prep_model *m, struct prep_req *r, int only, struct xerr *err);

int prep_parser_new(const struct prep_model *m, struct prep_scratch *s);

#endif
