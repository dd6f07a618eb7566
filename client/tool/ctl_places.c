/* SPDX-License-Identifier: MIT */
/* See ctl_places.h. One thread. */
#include "ctl_places.h"

#include <inttypes.h>
#include <string.h>

struct token {
    uint32_t id;
    uint64_t text_at;
};

void ctl_places_token(struct ctl_buf *tokens, uint32_t id, size_t text_at) {
    struct token t;
    memset(&t, 0, sizeof t); /* its padding too */
    t.id = id;
    t.text_at = text_at;
    ctl_buf_add(tokens, (const char *)&t, sizeof t);
}

void ctl_places_add(struct ctl_places *p, const void *of, const struct ctl_buf *tokens, size_t at) {
    struct ctl_place *place = &p->at[p->n];
    struct token t;
    if (p->n == CTL_PLACES || tokens->failed || !tokens->len)
        return;
    *place = (struct ctl_place){.of = of};
    /* A token's text begins where the tokens before it had come to, so the last one that begins no later shows it. */
    for (size_t i = 0; i < tokens->len; i += sizeof t) {
        memcpy(&t, tokens->p + i, sizeof t);
        if (t.text_at > at && !FAULT(ctl_places_whole_answer))
            break;
        ctl_buf_add(&place->answer, (const char *)&t.id, sizeof t.id);
    }
    if (place->answer.failed)
        ctl_buf_done(&place->answer);
    else
        p->n++;
}

int ctl_places_wait(const struct ctl_places *p, const void *of) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->at[i].of == of)
            return 1;
    return 0;
}

void ctl_places_prompt(struct ctl_places *p, const void *of, const uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->at[i].of == of)
            ctl_buf_add(&p->at[i].prompt, (const char *)ids, n * sizeof *ids);
}

void ctl_places_known(struct ctl_places *p, const void *of) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->at[i].of == of) {
            p->at[i].of = NULL;
            if (p->at[i].prompt.failed)
                ctl_buf_done(&p->at[i].prompt); /* a part of it would be another question */
        }
}

static void ids_json(struct ctl_buf *b, const struct ctl_buf *ids) {
    ctl_buf_str(b, "[");
    for (size_t i = 0; i < ids->len; i += sizeof(uint32_t)) {
        uint32_t id;
        memcpy(&id, ids->p + i, sizeof id);
        ctl_buf_fmt(b, "%s%" PRIu32, i ? "," : "", id);
    }
    ctl_buf_str(b, "]");
}

void ctl_places_json(struct ctl_buf *b, const struct ctl_places *p) {
    ctl_buf_str(b, "[");
    for (uint32_t i = 0; i < p->n; i++) {
        ctl_buf_str(b, i ? ",{\"prompt\":" : "{\"prompt\":");
        ids_json(b, &p->at[i].prompt);
        ctl_buf_str(b, ",\"answer\":");
        ids_json(b, &p->at[i].answer);
        ctl_buf_str(b, "}");
    }
    ctl_buf_str(b, "]");
}

void ctl_places_done(struct ctl_places *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        ctl_buf_done(&p->at[i].prompt);
        ctl_buf_done(&p->at[i].answer);
    }
    p->n = 0;
}
