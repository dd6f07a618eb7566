/* SPDX-License-Identifier: MIT */
/* plan.c: the plan builder. Engine thread; never allocates, never reads anything but what it is given. */
#include "plan.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "size.h"

uint32_t plan_mask_words(const struct kern_config *cfg) {
    return (uint32_t)(((uint64_t)cfg->model.vocab_rows + 31) / 32);
}

uint64_t plan_max_bytes(const struct kern_config *cfg, const struct plan_limits *max) {
    struct kern_plan p = { .n_rows = max->rows, .n_seqs = max->seqs, .n_samples = max->samples,
                           .n_pages = max->pages, .n_bias = max->bias, .n_seen = max->seen, .n_ban = max->ban,
                           .n_mask_words = max->mask_words };

    return kern_plan_layout(cfg, &p, UINT64_MAX);
}

struct piece {
    uint64_t n, size;
};

enum { N_PIECES = 9 };

static void pieces_of(const struct kern_config *cfg, const struct plan_limits *max, struct piece ret[N_PIECES]) {
    ret[0] = (struct piece){ cfg->max_plan_bytes, 1 };
    ret[1] = (struct piece){ max->rows, sizeof(struct kern_row) };
    ret[2] = (struct piece){ max->seqs, sizeof(struct kern_seq) };
    ret[3] = (struct piece){ max->samples, sizeof(struct kern_sample) };
    ret[4] = (struct piece){ max->pages, sizeof(uint32_t) };
    ret[5] = (struct piece){ max->bias, sizeof(struct kern_bias) };
    ret[6] = (struct piece){ max->seen, sizeof(struct kern_seen) };
    ret[7] = (struct piece){ max->ban, sizeof(uint32_t) };
    ret[8] = (struct piece){ max->mask_words, sizeof(uint32_t) };
}

static bool offsets_of(const struct piece piece[N_PIECES], uint64_t off[N_PIECES], uint64_t *ret_end) {
    uint64_t at = 0, n;

    for (int i = 0; i < N_PIECES; i++) {
        off[i] = at;
        if (!size_mul(piece[i].n, piece[i].size, &n) || !size_add(at, n, &at) || !size_align(at, 64, &at))
            return false;
    }
    *ret_end = at;
    return at <= SIZE_MAX / 2;
}

int plan_mem_bytes(const struct kern_config *cfg, const struct plan_limits *max, uint64_t *ret_bytes) {
    struct piece piece[N_PIECES];
    uint64_t off[N_PIECES], end = 0;

    pieces_of(cfg, max, piece);
    if (!offsets_of(piece, off, &end))
        return -EOVERFLOW;
    *ret_bytes = end;
    return 0;
}

int plan_init(struct plan *p, const struct kern_config *cfg, const struct plan_limits *max, void *mem,
              uint64_t bytes) {
    struct piece piece[N_PIECES];
    uint64_t off[N_PIECES], end = 0;
    char *base = mem;

    pieces_of(cfg, max, piece);
    if (!offsets_of(piece, off, &end))
        return -EOVERFLOW;
    if (bytes < end)
        return -EINVAL;
    *p = (struct plan){ .cfg = cfg, .max = *max };
    p->out = (struct kern_plan *)(void *)(base + off[0]);
    p->rows = (struct kern_row *)(void *)(base + off[1]);
    p->seqs = (struct kern_seq *)(void *)(base + off[2]);
    p->samples = (struct kern_sample *)(void *)(base + off[3]);
    p->pages = (uint32_t *)(void *)(base + off[4]);
    p->bias = (struct kern_bias *)(void *)(base + off[5]);
    p->seen = (struct kern_seen *)(void *)(base + off[6]);
    p->ban = (uint32_t *)(void *)(base + off[7]);
    p->mask = (uint32_t *)(void *)(base + off[8]);
    return 0;
}

void plan_begin(struct plan *p, uint32_t lane, uint64_t step) {
    p->lane = lane;
    p->step = step;
    p->n_rows = p->n_seqs = p->n_samples = p->n_pages = p->n_bias = p->n_seen = p->n_ban = p->n_mask_words = 0;
}

int plan_seq(struct plan *p, struct mem_slot slot, uint32_t pos0, uint32_t keep, uint32_t flags,
             const struct mem_page *pages, uint32_t n_pages) {
    if (p->n_seqs == p->max.seqs || n_pages > p->max.pages - p->n_pages)
        return -ENOSPC;
    p->seqs[p->n_seqs++] = (struct kern_seq){ .slot = slot.id, .row0 = p->n_rows, .pos0 = pos0, .keep = keep,
                                              .page0 = p->n_pages, .n_pages = n_pages, .flags = flags };
    for (uint32_t i = 0; i < n_pages; i++)
        p->pages[p->n_pages + i] = pages[i].id;
    p->n_pages += n_pages;
    return 0;
}

int plan_row(struct plan *p, uint32_t token, uint32_t next) {
    struct kern_seq *s;

    if (p->n_rows == p->max.rows || !p->n_seqs)
        return -ENOSPC;
    s = &p->seqs[p->n_seqs - 1];
    p->rows[p->n_rows] = (struct kern_row){ .token = token, .seq = p->n_seqs - 1, .pos = s->pos0 + s->n_rows,
                                            .next = next, .embed = KERN_NONE };
    s->n_rows++;
    return (int)p->n_rows++;
}

struct kern_sample *plan_sample(struct plan *p, uint32_t row, enum kern_sample_mode mode,
                                enum kern_source source) {
    struct kern_sample *s;

    if (p->n_samples == p->max.samples)
        return NULL;
    s = &p->samples[p->n_samples++];
    *s = (struct kern_sample){ .row = row, .mode = (uint16_t)mode, .source = (uint16_t)source,
                               .target = KERN_NONE, .forced = KERN_NONE, .top_p = 1.0f, .repetition = 1.0f,
                               .mask0 = KERN_NONE };
    return s;
}

int plan_bias(struct plan *p, struct kern_sample *s, const struct kern_bias *bias, uint32_t n) {
    if (n > p->max.bias - p->n_bias)
        return -ENOSPC;
    if (n)
        memcpy(p->bias + p->n_bias, bias, n * sizeof *bias);
    s->bias0 = p->n_bias;
    s->n_bias = n;
    p->n_bias += n;
    return 0;
}

int plan_seen(struct plan *p, struct kern_sample *s, const struct kern_seen *seen, uint32_t n) {
    if (n > p->max.seen - p->n_seen)
        return -ENOSPC;
    if (n)
        memcpy(p->seen + p->n_seen, seen, n * sizeof *seen);
    s->seen0 = p->n_seen;
    s->n_seen = n;
    p->n_seen += n;
    return 0;
}

int plan_ban(struct plan *p, struct kern_sample *s, const uint32_t *ids, uint32_t n) {
    if (n > p->max.ban - p->n_ban)
        return -ENOSPC;
    if (n)
        memcpy(p->ban + p->n_ban, ids, n * sizeof *ids);
    s->ban0 = p->n_ban;
    s->n_ban = n;
    p->n_ban += n;
    return 0;
}

uint32_t *plan_mask_of(struct plan *p, struct kern_sample *s) {
    uint32_t n = plan_mask_words(p->cfg), *words = p->mask + p->n_mask_words;

    if (n > p->max.mask_words - p->n_mask_words)
        return NULL;
    memset(words, 0, n * sizeof *words);
    s->mask0 = p->n_mask_words;
    p->n_mask_words += n;
    return words;
}

static void put(struct kern_plan *out, uint32_t at, const void *src, size_t bytes) {
    char *base = (char *)out;

    if (bytes)
        memcpy(base + at, src, bytes);
    /* areas are 8-aligned: the gap is part of the digest, so it must not carry an earlier plan's bytes */
    if (bytes % 8)
        memset(base + at + bytes, 0, 8 - bytes % 8);
}

int plan_end(struct plan *p, const struct kern_plan **ret, uint64_t *ret_bytes) {
    struct kern_plan *o = p->out;
    uint64_t bytes;

    *o = (struct kern_plan){ .step = p->step, .lane = p->lane, .n_rows = p->n_rows, .n_seqs = p->n_seqs,
                             .n_samples = p->n_samples, .n_pages = p->n_pages, .n_bias = p->n_bias,
                             .n_seen = p->n_seen, .n_ban = p->n_ban, .n_mask_words = p->n_mask_words };
    bytes = kern_plan_layout(p->cfg, o, p->cfg->max_plan_bytes);
    if (!bytes)
        return -ENOSPC;
    put(o, o->rows, p->rows, p->n_rows * sizeof *p->rows);
    put(o, o->seqs, p->seqs, p->n_seqs * sizeof *p->seqs);
    put(o, o->samples, p->samples, p->n_samples * sizeof *p->samples);
    put(o, o->pages, p->pages, p->n_pages * sizeof *p->pages);
    put(o, o->bias, p->bias, p->n_bias * sizeof *p->bias);
    put(o, o->seen, p->seen, p->n_seen * sizeof *p->seen);
    put(o, o->ban, p->ban, p->n_ban * sizeof *p->ban);
    put(o, o->mask, p->mask, p->n_mask_words * sizeof *p->mask);
    o->digest = kern_plan_digest(o);
    *ret = o;
    *ret_bytes = bytes;
    return 0;
}
