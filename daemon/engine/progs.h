/* SPDX-License-Identifier: MIT */
/* The stage sequences the engine launches, recorded once before the first step. A decode step is one
 * program. A prefill chunk is a list of programs, one per layer, so that decode steps can run between
 * them. */
#ifndef GLMD_ENGINE_PROGS_H
#define GLMD_ENGINE_PROGS_H

#include "kern.h"

struct progs {
    uint32_t n_layers;
    struct kern_prog *decode;
    struct kern_prog *embed, *layer[KERN_MAX_LAYERS];
    struct kern_prog *final, *head;
    struct kern_prog *draft; /* NULL without draft layers */
};

/* with_draft: the model has a draft layer and evaluation wants it. */
int progs_capture(struct kern *k, const struct kern_model_desc *m, bool with_draft, struct progs *ret);

#endif
