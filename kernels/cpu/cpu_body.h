/* SPDX-License-Identifier: MIT */
/* cpu_body.h: the arithmetic of one instruction set, written once over v16.
 *
 * Included at the end of each cpu_ops_*.c, which defines v16 and its operations. Everything here is static;
 * the only thing that leaves the file is the table V16_OPS. See cpu_ops.h for what each function promises. */
#ifndef GLMD_CPU_BODY_H
#define GLMD_CPU_BODY_H

#include "cpu_ops.h"
#include "host_lattice.h"
#include "host_unpack.h"

#include <math.h>
#include <string.h>

/* Loops over the registers of a tile: unrolled where accumulators must be registers. */
#define V16_FOR(i, from, to) V16_UNROLL for (int i = (from); i < (to); i++)
#define ALWAYS               static inline __attribute__((always_inline))

#include "cpu_body_math.h"
#include "cpu_body_panel.h"
#include "cpu_body_prod.h"
#include "cpu_body_gguf.h"
#include "cpu_body_unpack.h"
#include "cpu_body_packed.h"
#include "cpu_body_kda.h"
#include "cpu_body_attn.h"

const struct cpu_ops V16_OPS = {
    .isa = V16_NAME,
    .panel = body_panel,
    .prod = body_prod,
    .packed = body_packed,
    .dots = body_dots,
    .sumsq = body_sumsq,
    .axpy = body_axpy,
    .rms = body_rms,
    .layer_norm = body_layer_norm,
    .swiglu = body_swiglu,
    .sigmoid = body_sigmoid,
    .widen = body_widen,
    .narrow = body_narrow,
    .widen8 = body_widen8,
    .narrow8 = body_narrow8,
    .hc_coeff = body_hc_coeff,
    .hc_collapse = body_hc_collapse,
    .hc_merge = body_hc_merge,
    .mean = body_mean,
    .kda = body_kda,
    .attn_begin = body_attn_begin,
    .attn_tile = body_attn_tile,
    .attn_end = body_attn_end,
    .pool = body_pool,
    .index_scores = body_index_scores,
};

#endif
