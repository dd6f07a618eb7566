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
int prep_parser_new(const struct prep_model *m, struct prep_scratch *s);

#endif
