/* SPDX-License-Identifier: MIT */
/* Exact selection and sorting of ranks (host_rank: all distinct). Deterministic: pivots are chosen by position,
 * and a selection that goes badly falls back to a sort, so the cost is bounded whatever the data. */
#include "host.h"

#include <math.h>

static void sift(uint64_t *a, uint64_t root, uint64_t n) {
    uint64_t v = a[root];
    for (;;) {
        uint64_t child = 2 * root + 1;
        if (child >= n)
            break;
        if (child + 1 < n && a[child + 1] < a[child])
            child++;
        if (a[child] >= v)
            break;
        a[root] = a[child];
        root = child;
    }
    a[root] = v;
}

void host_sort(uint64_t *a, uint64_t n) {
    /* A min-heap sorts descending. */
    for (uint64_t i = n / 2; i-- > 0;)
        sift(a, i, n);
    for (uint64_t i = n; i-- > 1;) {
        uint64_t v = a[0];
        a[0] = a[i];
        a[i] = v;
        sift(a, 0, i);
    }
}

static uint64_t median3(uint64_t a, uint64_t b, uint64_t c) {
    if (a > b) {
        uint64_t t = a;
        a = b;
        b = t;
    }
    return c < a ? a : c > b ? b : c;
}

void host_select(uint64_t *a, uint64_t n, uint64_t k) {
    uint64_t lo = 0, hi = n; /* the boundary k lies inside [lo, hi] */
    for (int round = 0; k > lo && k < hi; round++) {
        if (hi - lo <= 16 || round == 64) {
            host_sort(a + lo, hi - lo);
            return;
        }
        uint64_t pivot = median3(a[lo], a[lo + (hi - lo) / 2], a[hi - 1]);
        uint64_t i = lo;
        /* [lo, i) > pivot; the pivot itself is kept out of both halves by swapping it to the boundary */
        for (uint64_t j = lo; j < hi; j++)
            if (a[j] > pivot) {
                uint64_t t = a[i];
                a[i++] = a[j];
                a[j] = t;
            }
        for (uint64_t j = i; j < hi; j++)
            if (a[j] == pivot) {
                a[j] = a[i];
                a[i] = pivot;
                break;
            }
        if (k <= i)
            hi = i;
        else
            lo = i + 1;
    }
}

void host_topk(const float *score, uint32_t n, uint32_t k, uint64_t *scratch, uint32_t *ret_ids) {
    for (uint32_t i = 0; i < n; i++)
        scratch[i] = isnan(score[i]) ? (uint32_t)~i : host_rank(score[i], i);
    host_select(scratch, n, k);
    /* Ascending ids: sort the complements descending. */
    for (uint32_t i = 0; i < k; i++)
        scratch[i] = (uint32_t)scratch[i];
    host_sort(scratch, k);
    for (uint32_t i = 0; i < k; i++)
        ret_ids[i] = host_rank_id(scratch[i]);
}
