/* SPDX-License-Identifier: MIT */
/* Numbers into EXL3: random signs and a scale per output make the transformed weights look alike; then each
 * tile's circular stream is searched by keeping the best few paths through the trellis (a beam, not all
 * 65,536 states): once from anywhere, to find a state the stream may close on, and once from that state to
 * itself. No calibration data, no correction of one tile's error in the next. Pure functions; any thread;
 * nothing is allocated. */
#include "host_quant_priv.h"

enum { SIDE = 128, WIDEST = 32, FEW = 8 };

struct path {
    float cost;
    uint16_t state;
    uint8_t from, symbol; /* the path it continues, by its place in the step before */
};

/* All of the scratch. */
struct search {
    double w[SIDE][SIDE]; /* outputs, inputs */
    /* What can follow a state is 2^bits neighbours: their values, rising, and which symbol has each. */
    float value[65536];
    uint8_t symbol[65536];
    uint32_t codebook, bits; /* of those tables */
    uint32_t stamp[32768];   /* when a tail of a state was last seen, and by which path */
    uint32_t now;
    struct path step[256][WIDEST];
    uint64_t next[WIDEST * 256]; /* continuations: cost, path and place in its list; see key() */
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

static void sort_list(float *value, uint8_t *symbol, uint32_t n) {
    for (uint32_t gap = n / 2; gap; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            float v = value[i];
            uint8_t sym = symbol[i];
            uint32_t j = i;
            for (; j >= gap && value[j - gap] > v; j -= gap) {
                value[j] = value[j - gap];
                symbol[j] = symbol[j - gap];
            }
            value[j] = v;
            symbol[j] = sym;
        }
}

static void make_tables(struct search *s, const struct kern_store *st) {
    uint32_t n = 1u << st->bits;
    if (s->codebook == st->codebook && (s->bits == st->bits || (s->bits && FAULT(exl3_tables_kept))))
        return;
    for (uint32_t i = 0; i < 65536; i++) {
        s->value[i] = host_f16_f32(host_exl3_value(st->codebook, (uint16_t)i));
        s->symbol[i] = (uint8_t)(i & (n - 1));
    }
    for (uint32_t i = 0; i < 65536; i += n)
        sort_list(s->value + i, s->symbol + i, n);
    s->codebook = st->codebook;
    s->bits = st->bits;
}

/* A continuation as one number that orders by cost, which is never negative, and then by place: no two are equal, so
 * which are the cheapest does not depend on how they are looked for. */
static uint64_t key(float cost, uint32_t path, uint32_t place) {
    return (uint64_t)quant_bits(cost) << 32 | path << 8 | place;
}

static float cost_of(uint64_t k) {
    return host_bits_f32((uint32_t)(k >> 32));
}

/* The `keep` smallest of n to the front, in no order. Every comparison is a coin toss, so none is a branch. */
static void smallest(uint64_t *k, uint32_t n, uint32_t keep) {
    uint32_t lo = 0, hi = n;
    while (keep > lo && keep < hi) {
        uint32_t at = lo, mid = lo + (hi - lo) / 2;
        uint64_t pivot = k[mid];
        k[mid] = k[hi - 1];
        k[hi - 1] = pivot;
        for (uint32_t i = lo; i < hi - 1; i++) {
            uint64_t v = k[i];
            k[i] = k[at];
            k[at] = v;
            at += v < pivot;
        }
        k[hi - 1] = k[at];
        k[at] = pivot;
        if (keep <= at)
            hi = at;
        else
            lo = at + 1;
    }
}

/* Of paths whose states have the same tail only the cheapest can be part of the best: what follows is alike. */
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

static uint32_t list_of(const struct path *p, uint32_t bits) {
    return (uint32_t)p->state << bits & 0xffff;
}

/* All continuations whose symbol agrees with `want` where `mask` has bits. */
static uint32_t all_next(struct search *s, const struct path *in, uint32_t n_in, uint32_t bits, uint32_t mask,
                         uint32_t want, float x) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_in; i++) {
        uint32_t list = list_of(&in[i], bits);
        for (uint32_t j = 0; j < 1u << bits; j++) {
            float e = s->value[list + j] - x;
            s->next[n] = key(in[i].cost + e * e, i, j);
            n += (s->symbol[list + j] & mask) == want;
        }
    }
    return n;
}

/* Enough continuations for the `beam` cheapest of all to be among them, found from the two sides of x in every list:
 * the two nearest of each list give `beam` of some cost, and what costs more than those do cannot be wanted. At least
 * beam / 2 paths. */
static uint32_t near_next(struct search *s, const struct path *in, uint32_t n_in, uint32_t bits, uint32_t beam,
                          float x) {
    uint32_t last = (1u << bits) - 1, n = 0, right[WIDEST];
    float most = 0;
    for (uint32_t i = 0; i < n_in; i++) {
        const float *v = s->value + list_of(&in[i], bits);
        uint32_t j = 0;
        for (uint32_t half = 1u << (bits - 1); half; half /= 2)
            j += v[j + half - 1] < x ? half : 0;
        j = j ? j : 1; /* v[j - 1] and v[j] are around x, or next to it where all lie on one side */
        right[i] = j;
        for (uint32_t k = j - 1; k <= j; k++)
            s->next[n++] = key(in[i].cost + (v[k] - x) * (v[k] - x), i, k);
    }
    smallest(s->next, n, beam);
    for (uint32_t i = 0; i < beam; i++)
        most = cost_of(s->next[i]) > most ? cost_of(s->next[i]) : most;
    n = 0;
    for (uint32_t i = 0; i < n_in; i++) {
        const float *v = s->value + list_of(&in[i], bits);
        float c;
        for (uint32_t k = right[i]; k <= last && (c = in[i].cost + (v[k] - x) * (v[k] - x)) <= most; k++)
            s->next[n++] = key(c, i, k);
        for (uint32_t k = FAULT(exl3_one_side) ? 0 : right[i];
             k-- > 0 && (c = in[i].cost + (v[k] - x) * (v[k] - x)) <= most;)
            s->next[n++] = key(c, i, k);
    }
    return n;
}

/* One weight more: the cheapest continuations of all paths. Returns how many are kept in out. */
static uint32_t extend(struct search *s, const struct path *in, uint32_t n_in, uint32_t bits, uint32_t mask,
                       uint32_t want, float x, struct path *out) {
    uint32_t beam = beam_of(bits), n;
    if (mask || 1u << bits < FEW || 2 * n_in < beam)
        n = all_next(s, in, n_in, bits, mask, want, x);
    else
        n = near_next(s, in, n_in, bits, beam, x);
    smallest(s->next, n, beam);
    n = n < beam ? n : beam;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = s->next[i] >> 8 & 0xff, list = list_of(&in[from], bits);
        uint8_t sym = s->symbol[list + (s->next[i] & 0xff)];
        out[i] = (struct path){
            .cost = cost_of(s->next[i]), .state = (uint16_t)(list | sym), .from = (uint8_t)from, .symbol = sym};
    }
    return drop_doubles(s, out, n, bits);
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

int host_quant_exl3_scales(const struct kern_store *st, uint64_t cols, const float *w, uint64_t row0,
                           void *const piece[KERN_PIECES]) {
    uint8_t *suh = piece[KERN_PIECE_SUH];
    for (uint64_t k = 0; row0 == 0 && k < cols; k++)
        quant_put16(suh + 2 * k, negative(k) ? 0xbc00 : 0x3c00);
    return output_scales(st, cols, w, row0, piece[KERN_PIECE_SVH]);
}

void host_quant_exl3_square(const struct kern_store *st, uint64_t rows, const float *w, uint64_t stride, uint64_t row0,
                            uint64_t col0, void *const piece[KERN_PIECES], void *scratch) {
    _Static_assert(sizeof(struct search) <= HOST_QUANT_SCRATCH, "scratch");
    struct search *s = scratch;
    uint8_t *svh = piece[KERN_PIECE_SVH], *codes = piece[KERN_PIECE_CODES];
    float x[256];
    make_tables(s, st);
    for (uint32_t n = 0; n < SIDE; n++) {
        float v = host_f16_f32(host_le16(svh + 2 * (row0 + n)));
        for (uint32_t k = 0; k < SIDE; k++)
            s->w[n][k] = v == 0 ? 0 : (double)w[n * stride + k] / (negative(col0 + k) ? -(double)v : (double)v);
        hadamard(s->w[n], 1);
    }
    for (uint32_t k = 0; k < SIDE; k++)
        hadamard(&s->w[0][k], SIDE);
    for (uint32_t kt = 0; kt < SIDE / 16; kt++)
        for (uint32_t nt = 0; nt < SIDE / 16; nt++) {
            uint64_t at = (col0 / 16 + kt) * (rows / 16) + row0 / 16 + nt;
            for (uint32_t t = 0; t < 256; t++)
                x[t] = (float)s->w[16 * nt + host_exl3_col(t)][16 * kt + host_exl3_row(t)];
            search_tile(s, st->bits, x, codes + at * 32 * st->bits);
        }
}

int quant_exl3(const struct kern_store *st, uint64_t rows, uint64_t cols, const float *w, uint64_t row0,
               void *const piece[KERN_PIECES], void *scratch) {
    int r = host_quant_exl3_scales(st, cols, w, row0, piece);
    for (uint64_t k = 0; r == 0 && k < cols; k += SIDE)
        host_quant_exl3_square(st, rows, w + k, cols, row0, k, piece, scratch);
    return r;
}
