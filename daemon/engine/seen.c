/* SPDX-License-Identifier: MIT */
/* seen.c: the table of tokens a sequence has seen. Engine thread. */
#include "seen.h"

void seen_init(struct seen *s, void *mem, uint32_t vocab) {
    s->list = mem;
    s->place = (uint32_t *)(void *)(s->list + vocab);
    s->vocab = vocab;
    s->n = 0;
}

/* Costs what was seen, not what the vocabulary holds. */
void seen_reset(struct seen *s) {
    for (uint32_t i = 0; i < s->n; i++)
        s->place[s->list[i].token] = 0;
    s->n = 0;
}

void seen_add(struct seen *s, uint32_t token, uint32_t output_count) {
    if (token >= s->vocab)
        return;
    if (!s->place[token]) {
        s->list[s->n] = (struct kern_seen){ .token = token };
        s->place[token] = ++s->n;
    }
    s->list[s->place[token] - 1].count += output_count;
}
