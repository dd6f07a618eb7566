/* SPDX-License-Identifier: MIT */
/* Per expert and matrix the largest scale and the factor; compared at the end. Loading thread. */
#include "watch.h"

#include <stdlib.h>

#include "values.h"

struct seen {
    float top, factor; /* 0: none */
};

struct model_watch {
    uint32_t layers, experts;
    struct seen *s; /* [layers][3][experts] */
};

static bool is_expert(uint32_t part) {
    return part >= KERN_EXP_GATE && part <= KERN_EXP_DOWN;
}

static struct seen *seen_of(const struct model_watch *w, uint32_t layer, uint32_t part, uint32_t expert) {
    return &w->s[((uint64_t)layer * 3 + (part - KERN_EXP_GATE)) * w->experts + expert];
}

struct model_watch *model_watch_new(const struct model_directory *d) {
    struct model_watch *w = calloc(1, sizeof *w);

    for (size_t i = 0; w && i < d->n_tensors; i++)
        if (is_expert(d->tensor[i].id.part)) {
            w->layers = d->tensor[i].id.layer >= w->layers ? d->tensor[i].id.layer + 1 : w->layers;
            w->experts = d->tensor[i].id.expert >= w->experts ? d->tensor[i].id.expert + 1 : w->experts;
        }
    if (w && !(w->s = calloc((size_t)w->layers * 3 * w->experts + 1, sizeof *w->s)))
        return model_watch_free(w);
    return w;
}

struct model_watch *model_watch_free(struct model_watch *w) {
    if (w)
        free(w->s);
    free(w);
    return NULL;
}

void model_watch_see(struct model_watch *w, const struct model_item *it, const void *bytes, uint64_t n) {
    struct seen *s;
    float v;

    if (!is_expert(it->id.part) || (it->id.piece != KERN_PIECE_SCALE && it->id.piece != KERN_PIECE_GLOBAL))
        return;
    s = seen_of(w, it->id.layer, it->id.part, it->id.expert);
    v = model_largest_scale(it->number, bytes, n);
    if (it->id.piece == KERN_PIECE_GLOBAL)
        s->factor = v;
    else if (v > s->top)
        s->top = v;
}

static void see_group(const struct model_watch *w, uint32_t layer, uint32_t part, struct model_findings *f) {
    double lo = 0, hi = 0;

    for (uint32_t x = 0; x < w->experts; x++) {
        const struct seen *s = seen_of(w, layer, part, x);
        double v = (double)s->top * (s->factor > 0 ? (double)s->factor : 1.0);

        if (v <= 0)
            continue;
        lo = lo == 0 || v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    if (lo == 0 || hi / lo <= MODEL_ABSURD)
        return;
    f->absurd++;
    if (hi / lo > f->absurd_ratio) {
        f->absurd_ratio = hi / lo;
        f->absurd_layer = layer;
        f->absurd_part = part;
    }
}

void model_watch_report(const struct model_watch *w, struct model_findings *ret) {
    struct model_findings f = {.worst_ratio = 1};

    for (uint32_t l = 0; l < w->layers; l++) {
        for (uint32_t x = 0; x < w->experts; x++) {
            double a = (double)seen_of(w, l, KERN_EXP_GATE, x)->factor,
                   b = (double)seen_of(w, l, KERN_EXP_UP, x)->factor;
            double ratio = a > b ? a / b : b / a;

            if (a <= 0 || b <= 0)
                continue;
            f.pairs++;
            f.unequal += a != b;
            f.worst_ratio = ratio > f.worst_ratio ? ratio : f.worst_ratio;
        }
        for (uint32_t part = KERN_EXP_GATE; part <= KERN_EXP_DOWN; part++)
            see_group(w, l, part, &f);
    }
    *ret = f;
}
