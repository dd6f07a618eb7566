/* SPDX-License-Identifier: MIT */
/* progs.c: records the programs. Starting thread, before the first launch. */
#include "progs.h"

static int record_layer(struct kern *k, uint32_t layer) {
    int r;

    if ((r = kern_site_in(k, layer, KERN_SITE_ATTN)) < 0 || (r = kern_mix(k, layer)) < 0 ||
        (r = kern_site_out(k, layer, KERN_SITE_ATTN)) < 0 || (r = kern_site_in(k, layer, KERN_SITE_FFN)) < 0 ||
        (r = kern_mlp(k, layer)) < 0)
        return r;
    return kern_site_out(k, layer, KERN_SITE_FFN);
}

static int record_trunk(struct kern *k, uint32_t n_layers) {
    int r = kern_embed(k);

    for (uint32_t i = 0; r >= 0 && i < n_layers; i++)
        r = record_layer(k, i);
    if (r < 0 || (r = kern_final(k)) < 0)
        return r;
    return kern_head(k, KERN_SOURCE_TRUNK);
}

static int record_draft(struct kern *k, uint32_t layer) {
    int r;

    if ((r = kern_draft_in(k, layer)) < 0 || (r = record_layer(k, layer)) < 0 ||
        (r = kern_draft_out(k, layer)) < 0)
        return r;
    return kern_head(k, KERN_SOURCE_DRAFT);
}

static int record_head(struct kern *k, uint32_t unused) {
    (void)unused;
    return kern_head(k, KERN_SOURCE_TRUNK);
}

static int record_embed(struct kern *k, uint32_t unused) {
    (void)unused;
    return kern_embed(k);
}

static int record_final(struct kern *k, uint32_t unused) {
    (void)unused;
    return kern_final(k);
}

static int capture(struct kern *k, uint32_t lane, int (*record)(struct kern *k, uint32_t arg), uint32_t arg,
                   struct kern_prog **ret) {
    int r = kern_capture_begin(k, lane);

    if (r < 0 || (r = record(k, arg)) < 0)
        return r;
    return kern_capture_end(k, ret);
}

int progs_capture(struct kern *k, const struct kern_model_desc *m, bool with_draft, struct progs *ret) {
    struct progs p = { .n_layers = m->n_layers };
    int r;

    if ((r = capture(k, KERN_LANE_DECODE, record_trunk, m->n_layers, &p.decode)) < 0 ||
        (r = capture(k, KERN_LANE_PREFILL, record_embed, 0, &p.embed)) < 0)
        return r;
    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((r = capture(k, KERN_LANE_PREFILL, record_layer, i, &p.layer[i])) < 0)
            return r;
    if ((r = capture(k, KERN_LANE_PREFILL, record_final, 0, &p.final)) < 0 ||
        (r = capture(k, KERN_LANE_PREFILL, record_head, 0, &p.head)) < 0)
        return r;
    if (with_draft && m->n_draft &&
        (r = capture(k, KERN_LANE_PREFILL, record_draft, m->n_layers, &p.draft)) < 0)
        return r;
    *ret = p;
    return 0;
}
