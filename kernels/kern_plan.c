/* SPDX-License-Identifier: MIT */
/* The plan: layout, digest, and the check of every index, slice, flag and number against the configuration.
 * A plan may come from another machine, so nothing in it is believed: no area is read before its bounds are
 * known, no sum can wrap, and the work of the check is bounded by the plan's own size. Pure functions. */
#include "backend.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { N_AREAS = 9 };

struct area {
    uint64_t off, bytes;
};

static uint64_t mask_words(const struct kern_config *cfg) {
    return ((uint64_t)cfg->model.vocab_rows + 31) / 32;
}

static void area_sizes(const struct kern_config *cfg, const struct kern_plan *p, uint64_t size[N_AREAS]) {
    size[0] = p->n_rows * (uint64_t)sizeof(struct kern_row);
    size[1] = p->n_seqs * (uint64_t)sizeof(struct kern_seq);
    size[2] = p->n_samples * (uint64_t)sizeof(struct kern_sample);
    size[3] = p->n_pages * (uint64_t)sizeof(uint32_t);
    size[4] = p->n_bias * (uint64_t)sizeof(struct kern_bias);
    size[5] = p->n_seen * (uint64_t)sizeof(struct kern_seen);
    size[6] = p->n_ban * (uint64_t)sizeof(uint32_t);
    size[7] = p->n_mask_words * (uint64_t)sizeof(uint32_t);
    size[8] = p->n_embeds * (uint64_t)cfg->model.hidden * sizeof(float);
}

uint64_t kern_plan_layout(const struct kern_config *cfg, struct kern_plan *p, uint64_t cap) {
    uint64_t size[N_AREAS], off[N_AREAS], at = sizeof(*p);
    area_sizes(cfg, p, size);
    for (int i = 0; i < N_AREAS; i++) {
        off[i] = at;
        at += (size[i] + 7) & ~7ull;
        if (at > cap || at > UINT32_MAX)
            return 0;
    }
    uint32_t *field[N_AREAS] = {&p->rows, &p->seqs, &p->samples, &p->pages, &p->bias,
                                &p->seen, &p->ban,  &p->mask,    &p->embeds};
    for (int i = 0; i < N_AREAS; i++)
        *field[i] = (uint32_t)off[i];
    p->magic = KERN_PLAN_MAGIC;
    p->version = 1;
    p->bytes = at;
    p->zero = 0;
    return at;
}

uint64_t kern_plan_digest(const struct kern_plan *p) {
    const char *at = (const char *)p;
    uint64_t h = 0x9e3779b97f4a7c15ull ^ p->bytes;
    for (uint64_t i = 0; i + 8 <= p->bytes; i += 8) {
        uint64_t w = 0;
        if (i != offsetof(struct kern_plan, digest))
            memcpy(&w, at + i, 8);
        h ^= w;
        h *= 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    }
    return h;
}

static int check_header(const struct kern_config *cfg, const struct kern_plan *p, uint64_t bytes) {
    if (((uintptr_t)p & 7) || bytes < sizeof(*p))
        return -EINVAL;
    if (p->magic != KERN_PLAN_MAGIC || p->version != 1 || p->zero || p->bytes < sizeof(*p) || p->bytes % 8 ||
        p->bytes > bytes || p->lane >= KERN_LANES)
        return -EINVAL;
    if (p->bytes > cfg->max_plan_bytes || p->n_rows > cfg->max_rows[p->lane] || p->n_seqs > cfg->max_seqs ||
        p->n_samples > cfg->max_samples || p->n_embeds > cfg->max_rows[p->lane])
        return -EOVERFLOW;
    return p->n_seqs ? 0 : -EINVAL;
}

/* Non-empty areas lie inside the plan, 8-aligned, behind the header, and overlap nothing. */
static int check_areas(const struct kern_config *cfg, const struct kern_plan *p) {
    uint64_t size[N_AREAS];
    const uint64_t off[N_AREAS] = {p->rows, p->seqs, p->samples, p->pages, p->bias,
                                   p->seen, p->ban,  p->mask,    p->embeds};
    area_sizes(cfg, p, size);
    for (int i = 0; i < N_AREAS; i++) {
        if (!size[i])
            continue;
        if (off[i] % 8 || off[i] < sizeof(*p) || size[i] > p->bytes || off[i] > p->bytes - size[i])
            return -EINVAL;
        for (int j = 0; j < i; j++)
            if (size[j] && off[i] < off[j] + size[j] && off[j] < off[i] + size[i])
                return -EINVAL;
    }
    return 0;
}

static bool slice_ok(uint32_t first, uint32_t n, uint32_t total) {
    return n <= total && first <= total - n;
}

static int check_seq(const struct kern_config *cfg, const struct kern_plan *p, const struct kern_seq *s,
                     uint32_t row0) {
    bool prefill = s->flags & KERN_SEQ_PREFILL, commit = s->flags & KERN_SEQ_COMMIT;
    if (s->slot >= cfg->n_slots || s->row0 != row0 || s->n_rows > p->n_rows - row0)
        return -EINVAL;
    if (s->flags & ~(uint32_t)KERN_SEQ_ALL_FLAGS)
        return -EINVAL;
    if (s->keep > KERN_MAX_WINDOW || s->keep > s->pos0)
        return -EINVAL;
    if ((s->flags & KERN_SEQ_RESET) && (s->pos0 || s->keep))
        return -EINVAL;
    if (prefill && (p->lane != KERN_LANE_PREFILL || s->pos0 % KERN_GRID || !commit || !s->n_rows))
        return -EINVAL;
    if (!prefill && s->n_rows > KERN_MAX_WINDOW)
        return -EINVAL;
    if (!s->n_rows && (!commit || !s->keep))
        return -EINVAL;
    if ((s->flags & KERN_SEQ_DRAFT) && !cfg->model.n_draft)
        return -EINVAL;
    if (s->pos0 > cfg->max_context || s->n_rows > cfg->max_context - s->pos0)
        return -EOVERFLOW;
    if (!slice_ok(s->page0, s->n_pages, p->n_pages))
        return -EINVAL;
    if ((uint64_t)s->n_pages * KERN_PAGE_TOKENS < (uint64_t)s->pos0 + s->n_rows)
        return -EINVAL;
    return 0;
}

static int check_rows(const struct kern_config *cfg, const struct kern_plan *p, uint32_t index,
                      const struct kern_seq *s) {
    uint32_t vocab = cfg->model.vocab_rows;
    bool next_ended = false;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct kern_row *r = &plan_rows(p)[s->row0 + i];
        if (r->seq != index || r->pos != s->pos0 + i || r->zero)
            return -EINVAL;
        if (r->token >= vocab && r->token != KERN_TOKEN_LAST)
            return -EINVAL;
        if (r->next >= vocab && r->next != KERN_TOKEN_LAST && r->next != KERN_NONE)
            return -EINVAL;
        if (r->embed != KERN_NONE && r->embed >= p->n_embeds)
            return -EINVAL;
        /* Entries of the draft cache are made in order: no holes. */
        if (r->next == KERN_NONE)
            next_ended = true;
        else if (next_ended && (s->flags & KERN_SEQ_DRAFT))
            return -EINVAL;
    }
    return 0;
}

/* Pages that `s` writes occur once in the whole table. Two sequences over the same range of the table would
 * pass; check_seqs() refuses those. */
static int check_written_pages(const struct kern_plan *p, const struct kern_seq *s) {
    if (!s->n_rows)
        return 0;
    uint32_t first = s->pos0 / KERN_PAGE_TOKENS, last = (s->pos0 + s->n_rows - 1) / KERN_PAGE_TOKENS;
    for (uint32_t w = first; w <= last; w++) {
        uint32_t at = s->page0 + w;
        for (uint32_t i = 0; i < p->n_pages; i++)
            if (i != at && plan_pages(p)[i] == plan_pages(p)[at])
                return -EINVAL;
    }
    return 0;
}

static int check_seqs(const struct kern_config *cfg, const struct kern_plan *p) {
    const struct kern_seq *seqs = plan_seqs(p);
    uint32_t row0 = 0;
    for (uint32_t i = 0; i < p->n_pages; i++)
        if (plan_pages(p)[i] >= cfg->n_pages)
            return -EINVAL;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        int r = check_seq(cfg, p, &seqs[i], row0);
        if (!r)
            r = check_rows(cfg, p, i, &seqs[i]);
        if (!r)
            r = check_written_pages(p, &seqs[i]);
        if (r)
            return r;
        row0 += seqs[i].n_rows;
        for (uint32_t j = 0; j < i; j++) {
            if (seqs[j].slot == seqs[i].slot)
                return -EINVAL;
            /* shared prefixes repeat the page ids, never the range */
            if (seqs[i].n_pages && seqs[j].n_pages && seqs[i].page0 < seqs[j].page0 + seqs[j].n_pages &&
                seqs[j].page0 < seqs[i].page0 + seqs[i].n_pages)
                return -EINVAL;
        }
    }
    return row0 == p->n_rows ? 0 : -EINVAL;
}

static bool in_range(float v, float lo, float hi) {
    return isfinite(v) && v >= lo && v <= hi;
}

static int check_sample(const struct kern_config *cfg, const struct kern_plan *p,
                        const struct kern_sample *s) {
    uint32_t vocab = cfg->model.vocab_tokens;
    if (s->row >= p->n_rows || s->zero)
        return -EINVAL;
    if (s->mode != KERN_SAMPLE_DRAW && s->mode != KERN_SAMPLE_SCORE)
        return -EINVAL;
    if (s->source != KERN_SOURCE_TRUNK && s->source != KERN_SOURCE_DRAFT)
        return -EINVAL;
    if (s->source == KERN_SOURCE_DRAFT) {
        const struct kern_row *r = &plan_rows(p)[s->row];
        if (r->next == KERN_NONE || !(plan_seqs(p)[r->seq].flags & KERN_SEQ_DRAFT))
            return -EINVAL;
    }
    if ((s->target >= vocab && s->target != KERN_NONE) || (s->forced >= vocab && s->forced != KERN_NONE))
        return -EINVAL;
    if (!in_range(s->temperature, 0.0f, 1e4f) || !in_range(s->top_p, 1e-9f, 1.0f) ||
        !in_range(s->min_p, 0.0f, 1.0f) || !in_range(s->repetition, 1e-4f, 1e4f) ||
        !in_range(s->presence, -1e4f, 1e4f) || !in_range(s->frequency, -1e4f, 1e4f))
        return -EINVAL;
    if (s->n_alts > KERN_MAX_ALTS)
        return -EINVAL;
    if (!slice_ok(s->bias0, s->n_bias, p->n_bias) || !slice_ok(s->seen0, s->n_seen, p->n_seen) ||
        !slice_ok(s->ban0, s->n_ban, p->n_ban))
        return -EINVAL;
    if (s->mask0 != KERN_NONE &&
        (p->n_mask_words < mask_words(cfg) || s->mask0 > p->n_mask_words - mask_words(cfg)))
        return -EINVAL;
    return 0;
}

static int check_sampling(const struct kern_config *cfg, const struct kern_plan *p) {
    uint32_t vocab = cfg->model.vocab_tokens;
    for (uint32_t i = 0; i < p->n_samples; i++) {
        int r = check_sample(cfg, p, &plan_samples(p)[i]);
        if (r)
            return r;
    }
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (plan_bias(p)[i].token >= vocab || !in_range(plan_bias(p)[i].bias, -1e4f, 1e4f))
            return -EINVAL;
    for (uint32_t i = 0; i < p->n_seen; i++)
        if (plan_seen(p)[i].token >= cfg->model.vocab_rows || plan_seen(p)[i].count > cfg->max_context)
            return -EINVAL;
    for (uint32_t i = 0; i < p->n_ban; i++)
        if (plan_ban(p)[i] >= cfg->model.vocab_rows)
            return -EINVAL;
    for (uint64_t i = 0; i < p->n_embeds * (uint64_t)cfg->model.hidden; i++)
        if (!in_range(plan_embeds(p)[i], -1e6f, 1e6f))
            return -EINVAL;
    return 0;
}

int kern_plan_check(const struct kern_config *cfg, const struct kern_plan *p, uint64_t bytes) {
    int r = check_header(cfg, p, bytes);
    if (!r)
        r = check_areas(cfg, p);
    if (r)
        return r;
    if (kern_plan_digest(p) != p->digest)
        return -EBADMSG;
    r = check_seqs(cfg, p);
    return r ? r : check_sampling(cfg, p);
}
