/* SPDX-License-Identifier: MIT */
/* Numbers into EXL3: random signs and a scale per output make the transformed weights look alike; then each
 * tile's circular stream is searched by keeping the best few paths through the trellis (a beam, not all
 * 65,536 states): once from anywhere, to find a state the stream may close on, and once from that state to
 * itself. No calibration data, no correction of one tile's error in the next. Pure functions; any thread;
 * nothing is allocated. */
#include "host_quant_priv.h"

enum { SIDE = 128, WIDEST = 32 };

struct path {
    float cost;
    uint16_t state;
    uint8_t from, symbol; /* the path it continues, by its place in the step before */
};

/* All of the scratch. */
struct search {
    double w[SIDE][SIDE]; /* outputs, inputs */
    float value[65536];   /* of each state, of the codebook below */
    uint32_t codebook;
    uint32_t stamp[32768]; /* when a tail of a state was last seen, and by which path */
    uint32_t now;
    struct path step[256][WIDEST];
    struct path next[WIDEST * 256];
    uint16_t width[256];
};

static uint32_t beam_of(uint32_t bits) {
    return bits < 6 ? WIDEST : WIDEST / 2;
}

/* Numbers that look random and are the same for everybody. */
static bool negative(uint64_t i) {
    i = (i + 1) * 0x9e3779b97f4a7c15ull;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9ull;
    i = (i ^ i >> 27) * 0x94d049bb133111ebull;
    return i >> 63;
}

/* The `keep` cheapest of n to the front, in no order. */
static void select_paths(struct path *p, uint32_t n, uint32_t keep) {
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1 && keep > lo && keep < hi) {
        float pivot = p[lo + (hi - 1 - lo) / 2].cost; /* never the last: each part gets smaller */
        uint32_t i = lo, j = hi - 1;
        for (;;) {
            while (p[i].cost < pivot)
                i++;
            while (p[j].cost > pivot)
                j--;
            if (i >= j)
                break;
            struct path t = p[i];
            p[i++] = p[j];
            p[j--] = t;
        }
        /* [lo, j] <= pivot <= [j + 1, hi) */
        if (keep <= j + 1)
            hi = j + 1;
        else
            lo = j + 1;
    }
}

/* Of paths whose states have the same tail only the cheapest can be part of the best: what follows is alike.
 */
static uint32_t drop_doubles(struct search *s, struct path *p, uint32_t n, uint32_t bits) {
    uint32_t kept = 0;
    if (s->now > UINT32_MAX - 512) {
        memset(s->stamp, 0, sizeof(s->stamp));
        s->now = 0;
    }
    s->now += 256;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *seen = &s->stamp[p[i].state & (0xffffu >> bits)];
        if (*seen < s->now) {
            *seen = s->now + kept;
            p[kept++] = p[i];
        } else if (p[i].cost < p[*seen - s->now].cost) {
            p[*seen - s->now] = p[i];
        }
    }
    return kept;
}

/* One weight more: every path by every symbol that agrees with `want` where `mask` has bits. Returns how many
 * paths are kept in out. */
static uint32_t extend(struct search *s, const struct path *in, uint32_t n_in, uint32_t bits, uint32_t mask,
                       uint32_t want, float x, struct path *out) {
    uint32_t n = 0, beam = beam_of(bits);
    for (uint32_t i = 0; i < n_in; i++)
        for (uint32_t sym = 0; sym < 1u << bits; sym++) {
            uint16_t state = (uint16_t)((uint32_t)in[i].state << bits | sym);
            float e = s->value[state] - x;
            if ((sym & mask) != want)
                continue;
            s->next[n++] = (struct path){
                .cost = in[i].cost + e * e, .state = state, .from = (uint8_t)i, .symbol = (uint8_t)sym};
        }
    if (n > beam)
        select_paths(s->next, n, beam);
    n = drop_doubles(s, s->next, n < beam ? n : beam, bits);
    memcpy(out, s->next, n * sizeof(*out));
    return n;
}

static uint32_t best_of(const struct path *p, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = p[i].cost < p[best].cost ? i : best;
    return best;
}

/* The state before weight 0 on a good stream: half a turn from anywhere to weight 0, and half a turn on. */
static uint16_t closing_state(struct search *s, uint32_t bits, const float x[256]) {
    struct path start[16];
    uint32_t at;
    for (uint32_t i = 0; i < 16; i++)
        start[i] = (struct path){.state = (uint16_t)(i * 0x9e37u)};
    for (uint32_t i = 0; i < 256; i++)
        s->width[i] = (uint16_t)extend(s, i ? s->step[i - 1] : start, i ? s->width[i - 1] : 16, bits, 0, 0,
                                       x[(i + 128) % 256], s->step[i]);
    at = best_of(s->step[255], s->width[255]);
    for (uint32_t i = 255; i > 127; i--)
        at = s->step[i][at].from;
    return s->step[127][at].state;
}

/* Weights x[0 .. 256) of a tile to its words. */
static void search_tile(struct search *s, uint32_t bits, const float x[256], uint8_t *words) {
    const struct path start = {.state = closing_state(s, bits, x)};
    uint8_t symbol[256];
    uint32_t at;
    for (uint32_t t = 0; t < 256; t++) {
        uint32_t mask = 0, want = 0;
        for (uint32_t i = 0; i < bits;
             i++) { /* the last sixteen bits of the stream are the state it began with */
            uint32_t left = 256 * bits - 1 - (t * bits + i);
            if (left < 16 && !FAULT(exl3_stream_open)) {
                mask |= 1u << (bits - 1 - i);
                want |= ((uint32_t)start.state >> left & 1) << (bits - 1 - i);
            }
        }
        s->width[t] = (uint16_t)extend(s, t ? s->step[t - 1] : &start, t ? s->width[t - 1] : 1, bits, mask,
                                       want, x[t], s->step[t]);
    }
    at = best_of(s->step[255], s->width[255]);
    for (uint32_t t = 256; t-- > 0; at = s->step[t][at].from)
        symbol[t] = s->step[t][at].symbol;
    memset(words, 0, 32 * bits);
    for (uint32_t i = 0; i < 256 * bits; i++)
        if (symbol[i / bits] >> (bits - 1 - i % bits) & 1) {
            uint32_t bit = 31 - i % 32;
            words[i / 32 * 4 + bit / 8] |= (uint8_t)(1u << bit % 8);
        }
}

/* 128-point transform over v[0], v[step], ..., orthonormal. */
static void hadamard(double *v, uint32_t step) {
    for (uint32_t h = 1; h < SIDE; h *= 2)
        for (uint32_t i = 0; i < SIDE; i++)
            if (!(i & h)) {
                double a = v[i * step], b = v[(i + h) * step];
                v[i * step] = a + b;
                v[(i + h) * step] = a - b;
            }
    for (uint32_t i = 0; i < SIDE; i++)
        v[i * step] *= 0.08838834764831845;
}

/* Each output's scale: what makes its weights as large as the codebook's values are. */
static int output_scales(const struct kern_store *s, uint64_t cols, const float *w, uint64_t row0,
                         uint8_t *svh) {
    const double target = s->codebook == KERN_CODEBOOK_MUL1 ? 1.0003 : 1.2437;
    for (uint64_t n = 0; n < SIDE; n++) {
        double sum = 0;
        float v, same;
        for (uint64_t k = 0; k < cols; k++)
            sum += (double)w[n * cols + k] * (double)w[n * cols + k];
        v = (float)(sqrt(sum / (double)cols) / target);
        if (quant_put_f16(svh + 2 * (row0 + n), negative(~(row0 + n)) ? -v : v, &same) < 0)
            return -ERANGE;
    }
    return 0;
}

int quant_exl3(const struct kern_store *st, uint64_t rows, uint64_t cols, const float *w, uint64_t row0,
               void *const piece[KERN_PIECES], void *scratch) {
    _Static_assert(sizeof(struct search) <= HOST_QUANT_SCRATCH, "scratch");
    struct search *s = scratch;
    uint8_t *suh = piece[KERN_PIECE_SUH], *svh = piece[KERN_PIECE_SVH], *codes = piece[KERN_PIECE_CODES];
    float x[256];
    int r;
    if (s->codebook != st->codebook) {
        for (uint32_t i = 0; i < 65536; i++)
            s->value[i] = host_f16_f32(host_exl3_value(st->codebook, (uint16_t)i));
        s->codebook = st->codebook;
    }
    for (uint64_t k = 0; row0 == 0 && k < cols; k++)
        quant_put16(suh + 2 * k, negative(k) ? 0xbc00 : 0x3c00);
    if ((r = output_scales(st, cols, w, row0, svh)) < 0)
        return r;
    for (uint64_t k0 = 0; k0 < cols; k0 += SIDE) {
        for (uint32_t n = 0; n < SIDE; n++) {
            float v = host_f16_f32(host_le16(svh + 2 * (row0 + n)));
            for (uint32_t k = 0; k < SIDE; k++)
                s->w[n][k] =
                    v == 0 ? 0 : (double)w[n * cols + k0 + k] / (negative(k0 + k) ? -(double)v : (double)v);
            hadamard(s->w[n], 1);
        }
        for (uint32_t k = 0; k < SIDE; k++)
            hadamard(&s->w[0][k], SIDE);
        for (uint32_t kt = 0; kt < SIDE / 16; kt++)
            for (uint32_t nt = 0; nt < SIDE / 16; nt++) {
                uint64_t at = (k0 / 16 + kt) * (rows / 16) + row0 / 16 + nt;
                for (uint32_t t = 0; t < 256; t++)
                    x[t] = (float)s->w[16 * nt + host_exl3_col(t)][16 * kt + host_exl3_row(t)];
                search_tile(s, st->bits, x, codes + at * 32 * st->bits);
            }
    }
    return 0;
}
