/* SPDX-License-Identifier: MIT */
/* Finds the words of the tool block in a checkpoint's chat_template.jinja. The template is cut into
 * literals and tags, white space control is applied to the literals, and nothing is ever evaluated. Pure
 * function on text, allocates. */
#ifndef GLMD_CHATTMPL_H
#define GLMD_CHATTMPL_H

#include "tbuf.h"

struct chattmpl {
    struct tbuf head; /* "<|system|>" to the newline behind "<tools>"; empty when not found */
    struct tbuf tail; /* "</tools>" to the end of the block */
    struct tbuf warn; /* what is unfamiliar, one sentence a line */
};

/* 0 or -ENOMEM. An unfamiliar template is not an error: head and tail stay empty, warn says what differs. */
int chattmpl_read(const char *src, size_t n, struct chattmpl *ret);
void chattmpl_done(struct chattmpl *t);

#endif
