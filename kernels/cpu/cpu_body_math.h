/* SPDX-License-Identifier: MIT */
/* cpu_body_math.h: element functions, norms and the hyper-connection arithmetic over v16. */
#ifndef GLMD_CPU_BODY_MATH_H
#define GLMD_CPU_BODY_MATH_H

/* e^x to about 1 ulp for x in [-87, 88]; below that a number under 2e-38 instead of the subnormal or 0.
 * 12582912 = 1.5 * 2^23 rounds x / ln 2 to an integer, which then stands in the low bits of the sum. */
ALWAYS v16 v_exp(v16 x) {
    const v16 magic = v_set(12582912.0f);
    x = v_min(v_set(88.0f), v_max(v_set(-87.0f), x));
    v16 m = v_fma(x, v_set(1.44269504f), magic);
    v16 n = v_sub(m, magic);
    v16 r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    v16 p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), v_add(r, v_set(1.0f)));
    return v_scale2(p, m);
}

ALWAYS v16 v_sigmoid(v16 x) {
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), x))));
}

ALWAYS v16 v_silu(v16 x) {
    return v_div(x, v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), x))));
}

static float body_sumsq(const float *x, uint32_t n) {
    v16 s = v_set(0.0f), t = s;
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        v16 a = v_ld(x + i), b = v_ld(x + i + 16);
        s = v_fma(a, a, s);
        t = v_fma(b, b, t);
    }
    if (i < n) {
        v16 a = v_ld(x + i);
        s = v_fma(a, a, s);
    }
    return v_sum(v_add(s, t));
}

static void body_axpy(float *y, float a, const float *x, uint32_t n) {
    v16 va = v_set(a);
    for (uint32_t i = 0; i < n; i += 16)
        v_st(y + i, v_fma(va, v_ld(x + i), v_ld(y + i)));
}

static void body_rms(float *out, const float *x, const float *w, uint32_t n, uint32_t n_real, float eps) {
    v16 r = v_set(1.0f / sqrtf(body_sumsq(x, n) / (float)n_real + eps));
    for (uint32_t i = 0; i < n; i += 16)
        v_st(out + i, v_mul(v_mul(v_ld(x + i), r), v_ld(w + i)));
}

/* Padding must not enter the variance: the tail is done number by number. */
static void body_layer_norm(float *out, const float *x, const float *w, const float *b, uint32_t n_real,
                            float eps) {
    uint32_t whole = n_real & ~15u, n = (n_real + 15) & ~15u;
    v16 s = v_set(0.0f), q = s;
    for (uint32_t i = 0; i < n; i += 16)
        s = v_add(s, v_ld(x + i));
    float mean = v_sum(s) / (float)n_real;
    v16 m = v_set(mean);
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 d = v_sub(v_ld(x + i), m);
        q = v_fma(d, d, q);
    }
    float var = v_sum(q);
    for (uint32_t i = whole; i < n_real; i++)
        var = fmaf(x[i] - mean, x[i] - mean, var);
    v16 r = v_set(1.0f / sqrtf(var / (float)n_real + eps));
    for (uint32_t i = 0; i < n; i += 16)
        v_st(out + i, v_fma(v_mul(v_sub(v_ld(x + i), m), r), v_ld(w + i), v_ld(b + i)));
}

static void body_swiglu(float *out, const float *gu, uint32_t n, float limit) {
    v16 hi = v_set(limit), lo = v_set(-limit);
    for (uint32_t i = 0; i < n; i += 16, gu += 32) {
        v16 g = v_ld(gu), u = v_ld(gu + 16);
        if (limit > 0) {
            g = v_min(hi, g);
            u = v_min(hi, v_max(lo, u));
        }
        v_st(out + i, v_mul(v_silu(g), u));
    }
}

static void body_sigmoid(float *out, const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 16)
        v_st(out + i, v_sigmoid(v_ld(x + i)));
}

static void body_widen(float *out, const uint16_t *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 16)
        v_st(out + i, v_ldh(x + i));
}

/* To the nearest, ties to even; NaN stays NaN. */
static void body_narrow(uint16_t *out, const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, x + i, sizeof b);
        uint32_t up = b + 0x7fffu + (b >> 16 & 1);
        out[i] = (uint16_t)(((b & 0x7fffffffu) > 0x7f800000u ? b | 0x400000u : up) >> 16);
    }
}

/* v_ld8 gives a 256th of each code's number; one rounding, as in number times factor. */
static void body_widen8(float *out, const uint8_t *x, uint32_t n) {
    float scale;
    memcpy(&scale, x + n, sizeof scale);
    v16 f = v_set(scale * 256.0f);
    for (uint32_t i = 0; i < n; i += 16)
        v_st(out + i, v_mul(v_ld8(x + i), f));
}

static void body_narrow8(uint8_t *out, const float *x, uint32_t n) {
    uint32_t top = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, x + i, sizeof b);
        b &= 0x7fffffffu;
        top = b > top ? b : top;
    }
    float scale = host_fp8_scale(top);
    for (uint32_t i = 0; i < n; i++)
        out[i] = host_e4m3(x[i] / scale);
    memcpy(out + n, &scale, sizeof scale);
}

/* ---- hyper-connections ----------------------------------------------------------------------------------
 */

/* Rows are sources, columns destinations: after the softmax and the first column pass come iters - 1 pairs of
 * a row and a column pass, each with eps on the sum. One reciprocal serves a whole row or column. */
static void hc_sinkhorn(float *c, uint32_t hc, uint32_t iters, float eps) {
    for (uint32_t it = 0; it < iters; it++) {
        for (uint32_t i = 0; it > 0 && i < hc; i++) {
            float s = eps;
            for (uint32_t j = 0; j < hc; j++)
                s += c[i * hc + j];
            s = 1.0f / s;
            for (uint32_t j = 0; j < hc; j++)
                c[i * hc + j] *= s;
        }
        float s[8];
        for (uint32_t j = 0; j < hc; j++)
            s[j] = eps;
        for (uint32_t i = 0; i < hc; i++)
            for (uint32_t j = 0; j < hc; j++)
                s[j] += c[i * hc + j];
        for (uint32_t j = 0; j < hc; j++)
            s[j] = 1.0f / s[j];
        for (uint32_t i = 0; i < hc; i++)
            for (uint32_t j = 0; j < hc; j++)
                c[i * hc + j] *= s[j];
    }
}

/* The sizes of the real models are compiled with constant bounds: the loops unroll and vectorise. */
ALWAYS void hc_comb(float *comb, const float *z, uint32_t hc, uint32_t iters, float eps) {
    _Alignas(64) float e[80];
    memset(e, 0, sizeof e);
    for (uint32_t i = 0; i < hc; i++) {
        float top = z[i * hc];
        for (uint32_t j = 1; j < hc; j++)
            top = z[i * hc + j] > top ? z[i * hc + j] : top;
        for (uint32_t j = 0; j < hc; j++)
            e[i * hc + j] = z[i * hc + j] - top;
    }
    for (uint32_t i = 0; i < hc * hc; i += 16)
        v_st(e + i, v_exp(v_ld(e + i)));
    for (uint32_t i = 0; i < hc; i++) {
        float s = 0;
        for (uint32_t j = 0; j < hc; j++)
            s += e[i * hc + j];
        for (uint32_t j = 0; j < hc; j++)
            comb[i * hc + j] = e[i * hc + j] / s + eps;
    }
    if (hc == 4)
        hc_sinkhorn(comb, 4, iters, eps);
    else
        hc_sinkhorn(comb, hc, iters, eps);
}

static void body_hc_coeff(float *pre, float *post, float *comb, const float *mix, float r, const float *base,
                          const float *scale, uint32_t hc, uint32_t iters, float eps) {
    _Alignas(64) float a[96], g[96];
    uint32_t n = hc * (2 + hc);
    memset(a, 0, sizeof a);
    for (uint32_t i = 0; i < n; i++)
        a[i] = mix[i] * r * scale[i < hc ? 0 : i < 2 * hc ? 1 : 2] + base[i];
    for (uint32_t i = 0; i < 2 * hc; i += 16)
        v_st(g + i, v_sigmoid(v_ld(a + i)));
    for (uint32_t i = 0; i < hc; i++) {
        pre[i] = g[i] + eps;
        post[i] = 2.0f * g[hc + i];
    }
    if (hc == 4)
        hc_comb(comb, a + 8, 4, iters, eps);
    else
        hc_comb(comb, a + 2 * hc, hc, iters, eps);
}

static void body_hc_collapse(float *x, const float *streams, const float *pre, uint32_t hc, size_t ld,
                             uint32_t n) {
    for (uint32_t e = 0; e < n; e += 16) {
        v16 s = v_mul(v_set(pre[0]), v_ld(streams + e));
        for (uint32_t i = 1; i < hc; i++)
            s = v_fma(v_set(pre[i]), v_ld(streams + i * ld + e), s);
        v_st(x + e, s);
    }
}

static void body_hc_merge(float *streams, const float *y, const float *post, const float *comb, uint32_t hc,
                          size_t ld, uint32_t n) {
    for (uint32_t e = 0; e < n; e += 16) {
        v16 in[8], vy = v_ld(y + e);
        for (uint32_t i = 0; i < hc; i++)
            in[i] = v_ld(streams + i * ld + e);
        for (uint32_t j = 0; j < hc; j++) {
            v16 s = v_mul(v_set(post[j]), vy);
            for (uint32_t i = 0; i < hc; i++)
                s = v_fma(v_set(comb[i * hc + j]), in[i], s);
            v_st(streams + j * ld + e, s);
        }
    }
}

static void body_mean(float *x, const float *streams, uint32_t hc, size_t ld, uint32_t n) {
    v16 inv = v_set(1.0f / (float)hc);
    for (uint32_t e = 0; e < n; e += 16) {
        v16 s = v_ld(streams + e);
        for (uint32_t i = 1; i < hc; i++)
            s = v_add(s, v_ld(streams + i * ld + e));
        v_st(x + e, v_mul(s, inv));
    }
}

#endif
