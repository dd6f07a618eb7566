/* SPDX-License-Identifier: MIT */
/* Plans for the random model; see kernmodel.h. Single thread. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernmodel.h"

struct km_plan *km_plan_new_cfg(const struct kern_config *cfg) {
    struct km_plan *p = calloc(1, sizeof(*p));
    ck_assert_ptr_nonnull(p);
    p->cfg = cfg;
    p->pages_per_slot = cfg->n_pages / cfg->n_slots;
    p->cap = cfg->max_plan_bytes;
    p->built = aligned_alloc(64, (p->cap + 63) / 64 * 64);
    ck_assert_ptr_nonnull(p->built);
    return p;
}

struct km_plan *km_plan_new(const struct km_inst *i) {
    return km_plan_new_cfg(&i->cfg);
}

void km_plan_free(struct km_plan *p) {
    free(p->built);
    free(p);
}

void km_plan_clear(struct km_plan *p, uint32_t lane) {
    memset(&p->head, 0, sizeof(p->head));
    p->head.lane = lane;
    p->embed = NULL;
}

uint32_t km_plan_seq(struct km_plan *p, uint32_t slot, uint32_t pos0, uint32_t keep, uint32_t flags,
                     const uint32_t *tokens, uint32_t n, const uint32_t *next) {
    uint32_t row0 = p->head.n_rows, pages = (pos0 + n + KERN_PAGE_TOKENS - 1) / KERN_PAGE_TOKENS;
    ck_assert_uint_lt(p->head.n_seqs, KM_MAX_SEQS);
    ck_assert_uint_le(row0 + n, KM_MAX_ROWS);
    ck_assert_uint_le(p->head.n_pages + pages, KM_MAX_PAGES);
    p->seq[p->head.n_seqs] = (struct kern_seq){.slot = slot,
                                               .row0 = row0,
                                               .n_rows = n,
                                               .pos0 = pos0,
                                               .keep = keep,
                                               .page0 = p->head.n_pages,
                                               .n_pages = pages,
                                               .flags = flags};
    for (uint32_t i = 0; i < pages; i++)
        p->page[p->head.n_pages++] = slot * p->pages_per_slot + i;
    for (uint32_t i = 0; i < n; i++)
        p->row[p->head.n_rows++] = (struct kern_row){.token = tokens[i],
                                                     .seq = p->head.n_seqs,
                                                     .pos = pos0 + i,
                                                     .next = next ? next[i] : KERN_NONE,
                                                     .embed = KERN_NONE};
    p->head.n_seqs++;
    return row0;
}

struct kern_sample *km_plan_sample(struct km_plan *p, uint32_t row, uint32_t mode, uint32_t source) {
    ck_assert_uint_lt(p->head.n_samples, KM_MAX_SAMPLES);
    struct kern_sample *s = &p->sample[p->head.n_samples++];
    *s = (struct kern_sample){.row = row,
                              .mode = (uint16_t)mode,
                              .source = (uint16_t)source,
                              .target = KERN_NONE,
                              .forced = KERN_NONE,
                              .top_p = 1,
                              .repetition = 1,
                              .mask0 = KERN_NONE};
    return s;
}

struct kern_plan *km_plan_build(struct km_plan *p) {
    struct kern_plan *b = p->built;
    *b = p->head;
    uint64_t bytes = kern_plan_layout(p->cfg, b, p->cap);
    ck_assert_uint_ne(bytes, 0);
    char *at = (char *)b;
    memset(at + sizeof(*b), 0, bytes - sizeof(*b));
    memcpy(at + b->rows, p->row, b->n_rows * sizeof(p->row[0]));
    memcpy(at + b->seqs, p->seq, b->n_seqs * sizeof(p->seq[0]));
    memcpy(at + b->samples, p->sample, b->n_samples * sizeof(p->sample[0]));
    memcpy(at + b->pages, p->page, b->n_pages * sizeof(p->page[0]));
    memcpy(at + b->bias, p->bias, b->n_bias * sizeof(p->bias[0]));
    memcpy(at + b->seen, p->seen, b->n_seen * sizeof(p->seen[0]));
    memcpy(at + b->ban, p->ban, b->n_ban * sizeof(p->ban[0]));
    memcpy(at + b->mask, p->mask, b->n_mask_words * sizeof(p->mask[0]));
    if (b->n_embeds)
        memcpy(at + b->embeds, p->embed, b->n_embeds * (uint64_t)p->cfg->model.hidden * sizeof(float));
    b->digest = kern_plan_digest(b);
    return b;
}

/* ---- running ---- */

void km_launch_wait(struct km_inst *i, uint32_t lane, struct kern_prog *prog) {
    int r = kern_launch(i->k, prog);
    if (!r)
        r = kern_wait(i->k, lane);
    ck_assert_msg(r == 0, "launch: %d %s", r, kern_last_error(i->k));
}

static void launch(struct km_inst *i, struct kern_prog *prog) {
    int r = kern_launch(i->k, prog);
    ck_assert_msg(r == 0, "kern_launch: %d %s", r, kern_last_error(i->k));
}

void km_run(struct km_inst *i, struct km_plan *p) {
    struct kern_plan *b = km_plan_build(p);
    uint32_t lane = b->lane;
    bool draft = false, head = false;
    int r = kern_plan_load(i->k, b, b->bytes);
    ck_assert_msg(r == 0, "kern_plan_load: %d %s", r, kern_last_error(i->k));
    for (uint32_t s = 0; s < b->n_seqs; s++)
        draft |= (p->seq[s].flags & KERN_SEQ_DRAFT) != 0;
    for (uint32_t s = 0; s < b->n_samples; s++)
        head |= p->sample[s].source == KERN_SOURCE_TRUNK;
    launch(i, i->trunk[lane]);
    if (head)
        launch(i, i->head[lane]);
    if (draft)
        launch(i, i->draft[lane]);
    r = kern_wait(i->k, lane);
    ck_assert_msg(r == 0, "kern_wait: %d %s", r, kern_last_error(i->k));
}

const struct kern_result *km_results(struct km_inst *i, uint32_t lane) {
    uint32_t n;
    const struct kern_result *r = kern_results(i->k, lane, &n);
    ck_assert_ptr_nonnull(r);
    return r;
}

void km_peek(struct km_inst *i, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst) {
    const struct kern_model_desc *m = &i->cfg.model;
    uint64_t width = what == KERN_PEEK_LOGITS    ? m->vocab_rows
                     : what == KERN_PEEK_STREAMS ? (uint64_t)m->hc_mult * m->hidden
                                                 : m->hidden;
    int r = kern_peek(i->k, lane, what, row0, n, dst, n * width);
    ck_assert_msg(r == 0, "kern_peek: %d %s", r, kern_last_error(i->k));
}

void km_prefill(struct km_inst *i, struct km_plan *p, uint32_t slot, const uint32_t *tokens, uint32_t n,
                uint32_t chunk) {
    uint32_t next[KM_MAX_ROWS];
    bool draft = i->cfg.model.n_draft > 0;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t now = n - at < chunk ? n - at : chunk;
        for (uint32_t j = 0; j < now; j++)
            next[j] = at + j + 1 < n ? tokens[at + j + 1] : KERN_NONE;
        km_plan_clear(p, KERN_LANE_PREFILL);
        km_plan_seq(p, slot, at, 0,
                    KERN_SEQ_PREFILL | KERN_SEQ_COMMIT | (at ? 0u : KERN_SEQ_RESET) |
                        (draft ? KERN_SEQ_DRAFT : 0u),
                    tokens + at, now, draft ? next : NULL);
        km_run(i, p);
    }
}

void km_decode(struct km_inst *i, struct km_plan *p, uint32_t slot, uint32_t pos, uint32_t token,
               float *dst) {
    km_plan_clear(p, KERN_LANE_DECODE);
    km_plan_seq(p, slot, pos, 0, KERN_SEQ_COMMIT | (pos ? 0u : KERN_SEQ_RESET), &token, 1, NULL);
    km_plan_sample(p, 0, KERN_SAMPLE_SCORE, KERN_SOURCE_TRUNK);
    km_run(i, p);
    if (dst)
        km_peek(i, KERN_LANE_DECODE, KERN_PEEK_LOGITS, 0, 1, dst);
}
