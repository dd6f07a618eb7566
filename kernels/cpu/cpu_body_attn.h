/* SPDX-License-Identifier: MIT */
/* cpu_body_attn.h: softmax attention over gathered latents, pooling and scoring of index keys, over v16. */
#ifndef GLMD_CPU_BODY_ATTN_H
#define GLMD_CPU_BODY_ATTN_H

/* s[h * ld] = q[h] . key for H heads: one chain a head and lane, lanes added in the fixed tree. */
ALWAYS void dot_heads(const int H, const float *q, size_t ldq, const float *key, uint32_t n, float *s,
                      size_t ld) {
    v16 acc[CPU_HEAD_BLOCK];
    V16_FOR(h, 0, H) {
        acc[h] = v_set(0.0f);
    }
    for (uint32_t i = 0; i < n; i += 16) {
        v16 c = v_ld(key + i);
        V16_FOR(h, 0, H) {
            acc[h] = v_fma(v_ld(q + (size_t)h * ldq + i), c, acc[h]);
        }
    }
    V16_FOR(h, 0, H) {
        s[(size_t)h * ld] = v_sum(acc[h]);
    }
}

/* acc[h] += sum over the tile of p[h][j] key[j], j ascending, for H heads at once. */
ALWAYS void mix_heads(const int H, float *acc, size_t ld, const float *p, const float *const *keys,
                      uint32_t n, uint32_t width) {
    for (uint32_t e = 0; e < width; e += 16) {
        v16 a[CPU_HEAD_BLOCK];
        V16_FOR(h, 0, H) {
            a[h] = v_ld(acc + (size_t)h * ld + e);
        }
        for (uint32_t j = 0; j < n; j++) {
            v16 c = v_ld(keys[j] + e);
            V16_FOR(h, 0, H) {
                a[h] = v_fma(v_set(p[h * CPU_KEY_TILE + (int)j]), c, a[h]);
            }
        }
        V16_FOR(h, 0, H) {
            v_st(acc + (size_t)h * ld + e, a[h]);
        }
    }
}

/* Scratch, in strides of a key: the heads' sums, CPU_KEY_TILE widened keys (the caller's); then scores, maxima and
 * denominators. */
static void body_attn_begin(struct cpu_attn *a) {
    a->acc = a->scratch;
    a->max = a->scratch + (size_t)(CPU_HEAD_BLOCK + CPU_KEY_TILE) * a->width + CPU_HEAD_BLOCK * CPU_KEY_TILE;
    a->sum = a->max + CPU_HEAD_BLOCK;
    memset(a->acc, 0, (size_t)a->n_heads * a->width * sizeof(float));
    for (uint32_t h = 0; h < a->n_heads; h++) {
        a->max[h] = -INFINITY;
        a->sum[h] = 0.0f;
    }
}

/* Running softmax: the tile's scores against the largest so far; earlier sums are scaled down when it grows.
 */
static void attn_softmax(struct cpu_attn *a, float *s, uint32_t h, uint32_t n) {
    float top = a->max[h], old = top;
    for (uint32_t j = 0; j < n; j++) {
        s[j] *= a->scale;
        top = s[j] > top ? s[j] : top;
    }
    for (uint32_t j = n; j < CPU_KEY_TILE; j++)
        s[j] = -INFINITY;
    v16 vt = v_set(top), sum = v_set(0.0f);
    for (uint32_t j = 0; j < n; j += 16) {
        v16 e = v_exp(v_sub(v_ld(s + j), vt));
        v_st(s + j, e);
    }
    for (uint32_t j = n; j < CPU_KEY_TILE; j++)
        s[j] = 0.0f;
    for (uint32_t j = 0; j < n; j += 16)
        sum = v_add(sum, v_ld(s + j));
    if (top != old) {
        _Alignas(64) float f[16];
        v_st(f, v_exp(v_set(old - top)));
        float down = old == -INFINITY ? 0.0f : f[0];
        a->sum[h] *= down;
        v16 vd = v_set(down);
        float *acc = a->acc + (size_t)h * a->width;
        for (uint32_t e = 0; e < a->rank; e += 16)
            v_st(acc + e, v_mul(v_ld(acc + e), vd));
        a->max[h] = top;
    }
    a->sum[h] += v_sum(sum);
}

ALWAYS void attn_ahead(const struct cpu_attn *a, uint32_t j) {
    for (uint32_t b = 0; j < a->n_next && b < a->row_bytes; b += 64)
        __builtin_prefetch(a->next[j] + b, 0, 2);
}

static void body_attn_tile(struct cpu_attn *a, const float *const *keys, uint32_t n) {
    float *s = a->scratch + (size_t)(CPU_HEAD_BLOCK + CPU_KEY_TILE) * a->width;
    if (a->n_heads == CPU_HEAD_BLOCK) {
        for (uint32_t j = 0; j < n; j++) {
            attn_ahead(a, j);
            dot_heads(CPU_HEAD_BLOCK, a->q, a->width, keys[j], a->width, s + j, CPU_KEY_TILE);
        }
    } else {
        for (uint32_t h = 0; h < a->n_heads; h++)
            for (uint32_t j = 0; j < n; j++)
                dot_heads(1, a->q + (size_t)h * a->width, a->width, keys[j], a->width, s + h * CPU_KEY_TILE + j,
                          1);
    }
    for (uint32_t h = 0; h < a->n_heads; h++)
        attn_softmax(a, s + h * CPU_KEY_TILE, h, n);
    if (a->n_heads == CPU_HEAD_BLOCK) {
        mix_heads(CPU_HEAD_BLOCK, a->acc, a->width, s, keys, n, a->rank);
    } else {
        for (uint32_t h = 0; h < a->n_heads; h++)
            mix_heads(1, a->acc + (size_t)h * a->width, a->width, s + h * CPU_KEY_TILE, keys, n, a->rank);
    }
}

static void body_attn_end(struct cpu_attn *a) {
    for (uint32_t h = 0; h < a->n_heads; h++) {
        v16 r = v_set(1.0f / a->sum[h]);
        for (uint32_t e = 0; e < a->rank; e += 16)
            v_st(a->out + (size_t)h * a->width + e, v_mul(v_ld(a->acc + (size_t)h * a->width + e), r));
    }
}

static void body_pool(float *out, const float *const *key, const float *const *gate, const float *ape,
                      size_t ld_ape, uint32_t kpool, uint32_t n) {
    for (uint32_t c = 0; c < n; c += 16) {
        v16 l[16], top = v_add(v_ld(gate[0] + c), v_ld(ape + c));
        l[0] = top;
        for (uint32_t j = 1; j < kpool; j++) {
            l[j] = v_add(v_ld(gate[j] + c), v_ld(ape + j * ld_ape + c));
            top = v_max(top, l[j]);
        }
        v16 sum = v_set(0.0f), mix = sum;
        for (uint32_t j = 0; j < kpool; j++) {
            v16 e = v_exp(v_sub(l[j], top));
            sum = v_add(sum, e);
            mix = v_fma(e, v_ld(key[j] + c), mix);
        }
        v_st(out + c, v_div(mix, sum));
    }
}

static void body_index_scores(float *scores, const float *q, size_t ldq, const float *omega, float scale,
                              uint32_t heads, uint32_t dim, const float *const *keys, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float total = 0.0f, s[CPU_HEAD_BLOCK];
        uint32_t h = 0;
        for (; h + CPU_HEAD_BLOCK <= heads; h += CPU_HEAD_BLOCK) {
            dot_heads(CPU_HEAD_BLOCK, q + h * ldq, ldq, keys[i], dim, s, 1);
            for (uint32_t j = 0; j < CPU_HEAD_BLOCK; j++)
                total = fmaf(omega[h + j] * scale, s[j] > 0.0f ? s[j] : 0.0f, total);
        }
        for (; h < heads; h++) {
            dot_heads(1, q + h * ldq, ldq, keys[i], dim, s, 1);
            total = fmaf(omega[h] * scale, s[0] > 0.0f ? s[0] : 0.0f, total);
        }
        scores[i] = total;
    }
}

#endif
