/* SPDX-License-Identifier: MIT */
/* Numbers, digit by digit, with bounds: a beginning is let through only when some way to go on satisfies
 * them. Any thread, no allocation. */
#include "grampriv.h"

/* Bounds of the digits before the point, for the sign the number has. */
struct range {
    uint64_t low, high;
    bool low_out, high_out, empty;
};

static uint64_t size_of(int64_t v) {
    return v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
}

static struct range range_of(const struct gleaf *x, bool negative) {
    struct range r = {.low = 0, .high = UINT64_MAX};

    if (negative) {
        /* of the size: low and high change places */
        if (x->has_low) {
            r.empty = x->low > 0 || (x->low == 0 && x->low_out);
            r.high = size_of(x->low);
            r.high_out = x->low_out;
        }
        if (x->has_high && x->high <= 0) {
            r.low = size_of(x->high);
            r.low_out = x->high_out;
        }
    } else {
        if (x->has_high) {
            r.empty = x->high < 0 || (x->high == 0 && x->high_out);
            r.high = size_of(x->high);
            r.high_out = x->high_out;
        }
        if (x->has_low && x->low >= 0) {
            r.low = size_of(x->low);
            r.low_out = x->low_out;
        }
    }
    if (r.low > r.high || (r.low == r.high && (r.low_out || r.high_out)))
        r.empty = true;
    if (x->integer && !r.empty) {
        r.low += r.low_out;
        r.high -= r.high_out;
        r.low_out = r.high_out = false;
        r.empty = r.low > r.high;
    }
    return r;
}

static bool bounded(const struct gleaf *x) {
    return x->has_low || x->has_high;
}

/* Digits can be added so that the number satisfies x. */
static bool can_go_on(const struct gleaf *x, const struct grammar_state *s) {
    struct range r = range_of(x, s->negative);
    uint64_t a = s->whole, z = s->whole;

    if (r.empty)
        return false;
    if (s->phase == NUM_MINUS)
        return true;
    r.high -= r.high_out; /* a fraction may still follow, a whole number of that size may not */
    if (s->phase == NUM_DOT || s->phase == NUM_FRAC || s->phase == NUM_ZERO) {
        if (a < r.low || a > r.high)
            return false;
        if (s->phase == NUM_ZERO)
            return true;
        /* at the very bound only zeros are left */
        return !s->fraction || a < r.high || r.high_out || !bounded(x);
    }
    for (;;) {
        uint64_t next;

        if (z >= r.low && a <= r.high)
            return true;
        if (a > r.high || __builtin_mul_overflow(a, 10, &next))
            return false;
        a = next;
        if (__builtin_mul_overflow(z, 10, &next) || __builtin_add_overflow(next, 9, &next))
            next = UINT64_MAX;
        z = next;
    }
}

static bool within(const struct gleaf *x, const struct grammar_state *s) {
    struct range r = range_of(x, s->negative);

    if (r.empty)
        return false;
    if (s->whole < r.low || (s->whole == r.low && r.low_out && !s->fraction))
        return false;
    return s->whole < r.high || (s->whole == r.high && !r.high_out && !s->fraction);
}

/* The phase behind b, or -1 when b is no part of a number here. */
static int phase_after(int phase, uint8_t b) {
    bool digit = b >= '0' && b <= '9';

    switch (phase) {
    case NUM_MINUS:
        return !digit ? -1 : b == '0' ? NUM_ZERO : NUM_INT;
    case NUM_ZERO:
    case NUM_INT:
        if (digit)
            return phase == NUM_INT ? NUM_INT : -1;
        return b == '.' ? NUM_DOT : (b | 0x20) == 'e' ? NUM_E : -1;
    case NUM_DOT:
        return digit ? NUM_FRAC : -1;
    case NUM_FRAC:
        return digit ? NUM_FRAC : (b | 0x20) == 'e' ? NUM_E : -1;
    case NUM_E:
        if (b == '+' || b == '-')
            return NUM_SIGN;
        return digit ? NUM_EXP : -1;
    default: /* NUM_SIGN, NUM_EXP */
        return digit ? NUM_EXP : -1;
    }
}

static bool follows(const struct grammar *g, const struct grammar_state *s, struct gscalar *v, uint8_t b) {
    const struct gleaf *x = &g->leaf[v->leaf];

    if (x->how == HOW_LIST) {
        gram_narrow(g, x->name0, s->len, b, &v->lo, &v->hi);
        return v->lo < v->hi;
    }
    if (x->integer && s->phase > NUM_INT)
        return false;
    if (!bounded(x))
        return true;
    return s->phase < NUM_E && can_go_on(x, s);
}

static bool advance(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    uint32_t n = 0;

    if (s->phase == NUM_ZERO || s->phase == NUM_INT) {
        /* beyond what any bound can be, one size is as large as the other */
        if (__builtin_mul_overflow(s->whole, 10, &s->whole) ||
            __builtin_add_overflow(s->whole, (uint64_t)(b - '0'), &s->whole))
            s->whole = UINT64_MAX - 1; /* below "no bound" */
    } else if (s->phase == NUM_FRAC && b != '0') {
        s->fraction = true;
    }
    for (uint32_t i = 0; i < s->n_scalars; i++)
        if (follows(g, s, &s->scalar[i], b))
            s->scalar[n++] = s->scalar[i];
    s->n_scalars = (uint8_t)n;
    s->len++;
    return n > 0;
}

bool gram_number_begin(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        s->scalar[i].lo = 0;
        s->scalar[i].hi = g->leaf[s->scalar[i].leaf].n_names;
    }
    s->mode = MODE_NUMBER;
    s->negative = b == '-';
    s->fraction = false;
    s->whole = 0;
    s->len = 0;
    s->phase = b == '-' ? NUM_MINUS : b == '0' ? NUM_ZERO : NUM_INT;
    return advance(g, s, b);
}

int gram_number_byte(const struct grammar *g, struct grammar_state *s, uint8_t b) {
    int phase = phase_after(s->phase, b);

    if (phase >= 0) {
        s->phase = (uint8_t)phase;
        return advance(g, s, b) ? 1 : -1;
    }
    return gram_number_parents(g, s) ? 0 : -1;
}

uint32_t gram_number_parents(const struct grammar *g, const struct grammar_state *s) {
    uint32_t parents = 0;

    if (s->phase != NUM_ZERO && s->phase != NUM_INT && s->phase != NUM_FRAC && s->phase != NUM_EXP)
        return 0;
    for (uint32_t i = 0; i < s->n_scalars; i++) {
        const struct gscalar *v = &s->scalar[i];
        const struct gleaf *x = &g->leaf[v->leaf];

        if (x->how == HOW_LIST ? g->name[x->name0 + v->lo].len == s->len : !bounded(x) || within(x, s))
            parents |= v->parents;
    }
    return parents;
}

bool gram_number_possible(const struct gleaf *x) {
    return !range_of(x, false).empty || !range_of(x, true).empty;
}
