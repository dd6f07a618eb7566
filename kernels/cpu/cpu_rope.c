/* SPDX-License-Identifier: MIT */
/* cpu_rope.c: rotary positions. The angles of a row are taken once a step, in double; its layers then turn pairs of
 * neighbours by the rounded cosines and sines. Every member of the team runs this; nothing here waits. */
#include "cpu.h"

#include <math.h>

void cpu_rope_open(struct cpu *c) {
    const struct kern_model_desc *m = &c->k->cfg.model;
    for (uint32_t i = 0; i < m->rope_dim / 2; i++)
        c->rope_freq[i] = pow((double)m->rope_theta, -2.0 * i / m->rope_dim);
}

static float *angles(const struct cpu_run *r, uint32_t row) {
    return r->lane->turn + (uint64_t)row * r->c->k->cfg.model.rope_dim;
}

void cpu_rope_rows(struct cpu_run *r) {
    const struct cpu_rows *rows = &r->lane->rows[0];
    const uint32_t pairs = r->c->k->cfg.model.rope_dim / 2;
    for (uint32_t i = share_lo(r, rows->n), hi = share_hi(r, rows->n); i < hi && pairs; i++) {
        float *t = angles(r, i);
        for (uint32_t j = 0; j < pairs; j++) {
            double a = rows->pos[i] * r->c->rope_freq[j];
            t[2 * j] = (float)cos(a);
            t[2 * j + 1] = (float)sin(a);
        }
    }
}

void cpu_rope_turn(const struct cpu_run *r, uint32_t row, const float *x, float *out) {
    const uint32_t n = r->c->k->cfg.model.rope_dim;
    const float *t = angles(r, row);
    if (FAULT(cpu_rope_row_of_first))
        t = angles(r, 0);
    for (uint32_t i = 0; i < n; i += 2) {
        const float re = x[i], im = x[i + 1];
        out[i] = re * t[i] - im * t[i + 1];
        out[i + 1] = im * t[i] + re * t[i + 1];
    }
}
