/* SPDX-License-Identifier: MIT */
/* Products, norms and scalar functions of the oracle: double inside, F32 outside. */
#include <math.h>

#include "ref.h"

static char *piece_at(const struct ref *r, uint64_t slot, uint32_t piece) {
    return r->weights + r->offset[slot * KERN_PIECES + piece];
}

/* Every row of a matrix asks for the same places, and a row is short: they are looked up once. */
static void open_matrix(struct ref *r, const struct kern_tensor_id *id) {
    struct ref_matrix *o = &r->open;
    const uint64_t slot = kern_part_slot(r->m, id);
    struct kern_part_info info = {0};
    kern_part_info(r->m, id->part, id->layer, &info);
    *o = (struct ref_matrix){.id = *id,
                             .store = kern_matrix_store(&r->k->cfg, id),
                             .rows = info.rows,
                             .cols = info.cols,
                             .unpacked = UINT64_MAX};
    o->unit = host_unpack_unit(&o->store);
    for (uint32_t i = 0; i < KERN_PIECES; i++) {
        struct kern_piece_info p = {0};
        kern_store_piece(&o->store, info.rows, info.cols, (enum kern_piece)i, &p);
        o->piece[i] = p.rows ? piece_at(r, slot, i) : NULL;
    }
}

static struct ref_matrix *matrix_of(struct ref *r, uint32_t part, uint32_t layer, uint32_t expert) {
    struct ref_matrix *o = &r->open;
    if (o->id.part != part || o->id.layer != layer || o->id.expert != expert)
        open_matrix(r, &(struct kern_tensor_id){.part = part, .layer = layer, .expert = expert});
    return o;
}

const float *ref_row(struct ref *r, uint32_t part, uint32_t layer, uint32_t expert, uint64_t row) {
    struct ref_matrix *o = matrix_of(r, part, layer, expert);
    if (o->unpacked != row / o->unit) {
        o->unpacked = row / o->unit;
        host_unpack_rows(&o->store, o->rows, o->cols, o->piece, o->unpacked * o->unit, o->unit, r->unpacked);
    }
    return r->unpacked + row % o->unit * o->cols;
}

const float *ref_vector(const struct ref *r, uint32_t part, uint32_t layer) {
    const struct kern_tensor_id id = {.part = part, .layer = layer};
    return (const float *)(const void *)piece_at(r, kern_part_slot(r->m, &id), KERN_PIECE_CODES);
}

/* Eight chains in a fixed pattern: the order depends on n only, and the adds need not wait for each other. */
double ref_dot(const float *w, const float *x, uint64_t n) {
    double a[8] = {0};
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            a[j] += (double)w[i + (uint64_t)j] * (double)x[i + (uint64_t)j];
    for (int j = 0; i < n; i++, j++)
        a[j] += (double)w[i] * (double)x[i];
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
}

/* The same over numbers kept as BF16: a row that is used once need not be written as floats first. */
static double dot_bf16(const uint8_t *w, const float *x, uint64_t n) {
    double a[8] = {0};
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint64_t j = 0; j < 8; j++)
            a[j] += (double)host_f32(host_le16(w + 2 * (i + j))) * (double)x[i + j];
    for (int j = 0; i < n; i++, j++)
        a[j] += (double)host_f32(host_le16(w + 2 * i)) * (double)x[i];
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
}

double ref_sigmoid(double z) {
    /* exp of a negative number only */
    return z >= 0 ? 1.0 / (1.0 + exp(-z)) : exp(z) / (1.0 + exp(z));
}
double ref_silu(double z) {
    return z * ref_sigmoid(z);
}

const float *ref_input(struct ref *r, const float *in, uint64_t n) {
    if (!r->rounded)
        return in;
    for (uint64_t i = 0; i < n; i++)
        r->rounded[i] = host_f32(host_bf16(in[i]));
    return r->rounded;
}

void ref_linear(struct ref_ctx *x, uint32_t part, uint32_t expert, const float *in, float *out) {
    struct kern_part_info info = {0};
    uint32_t layer = x->layer;
    if (!kern_part_info(x->r->m, part, layer, &info))
        return;
    const struct ref_matrix *m = matrix_of(x->r, part, layer, expert);
    const uint8_t *w = m->piece[KERN_PIECE_CODES];
    if (part != KERN_ROUTER && (part != KERN_IDX_W || m->store.format > KERN_F32))
        in = ref_input(x->r, in, info.cols);
    for (uint64_t o = 0; o < info.rows; o++)
        out[o] = (float)(m->store.format == KERN_BF16 ? dot_bf16(w + o * info.cols * 2, in, info.cols)
                                                      : ref_dot(ref_row(x->r, part, layer, expert, o), in, info.cols));
    x->c->flops += 2 * info.rows * info.cols;
}

/* Bytes a tensor is kept in, as its format has them. */
static uint64_t bytes_of(const struct ref *r, const struct kern_tensor_id *id, uint64_t *ret_rows) {
    struct kern_part_info info;
    if (!kern_part_info(r->m, id->part, id->layer, &info))
        return 0;
    const struct kern_store s =
        info.matrix ? kern_matrix_store(&r->k->cfg, id) : kern_store_plain(KERN_F32);
    uint64_t bytes = 0;
    kern_store_bytes(&s, info.rows, info.cols, &bytes);
    *ret_rows = info.rows;
    return bytes;
}

void ref_count(struct ref_ctx *x, uint32_t part, uint32_t layer) {
    const struct kern_tensor_id id = {.part = part, .layer = layer};
    uint64_t rows;
    x->c->weight_bytes += bytes_of(x->r, &id, &rows);
}

void ref_count_expert(struct ref_ctx *x, uint32_t part, uint32_t expert) {
    const struct kern_tensor_id id = {.part = part, .layer = x->layer, .expert = expert};
    uint64_t rows;
    x->c->weight_bytes += bytes_of(x->r, &id, &rows);
}

void ref_count_row(struct ref_ctx *x, uint32_t part) {
    const struct kern_tensor_id id = {.part = part};
    uint64_t rows = 1, bytes = bytes_of(x->r, &id, &rows);
    x->c->weight_bytes += bytes / rows;
}

void ref_rope(const struct kern_model_desc *m, float *x, uint32_t pos) {
    const uint32_t half = m->rope_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double a = pos * pow((double)m->rope_theta, -2.0 * i / m->rope_dim);
        float *re = x + 2 * i, *im = re + 1;
        if (FAULT(rope_halves)) {
            re = x + i;
            im = x + i + half;
        }
        double u = (double)*re, v = (double)*im;
        *re = (float)(u * cos(a) - v * sin(a));
        *im = (float)(v * cos(a) + u * sin(a));
    }
}

void ref_rmsnorm(const float *in, const float *w, uint64_t n, float eps, float *out) {
    double s = 1.0 / sqrt(ref_dot(in, in, n) / (double)n + (double)eps);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)((double)in[i] * s * (double)w[i]);
}
