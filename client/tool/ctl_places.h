/* SPDX-License-Identifier: MIT */
/* Where characters broke, as token ids: what was asked, and what was answered up to the token that showed it. With
 * glmctl run --tokens the same place can be asked again, of another daemon or of other weights, which tells whether
 * the model chose these bytes or something on the way to them changed its mind. Pure over memory of its own; where
 * there is none left, a place is not remembered. */
#ifndef GLMD_CTL_PLACES_H
#define GLMD_CTL_PLACES_H

#include <stdint.h>

#include "ctl_text.h"

enum { CTL_PLACES = 16 };

struct ctl_place {
    struct ctl_buf prompt, answer; /* uint32_t each */
    const void *of;                /* whose prompt is still to come; NULL: it is here, or will not be known */
};

struct ctl_places {
    struct ctl_place at[CTL_PLACES];
    uint32_t n;
};

/* A token of an answer whose text so far has text_at bytes; tokens is the answer's, empty at first. */
void ctl_places_token(struct ctl_buf *tokens, uint32_t id, size_t text_at);
/* The character at byte `at` of the text of that answer is broken. */
void ctl_places_add(struct ctl_places *p, const void *of, const struct ctl_buf *tokens, size_t at);
/* Whether one waits for the prompt of `of`; more of that prompt; its end. */
int ctl_places_wait(const struct ctl_places *p, const void *of);
void ctl_places_prompt(struct ctl_places *p, const void *of, const uint32_t *ids, uint32_t n);
void ctl_places_known(struct ctl_places *p, const void *of);

/* Appends [{"prompt":[...],"answer":[...]}, ...]. */
void ctl_places_json(struct ctl_buf *b, const struct ctl_places *p);
void ctl_places_done(struct ctl_places *p);

#endif
