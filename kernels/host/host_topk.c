/* SPDX-License-Identifier: MIT */
/* Exact selection and sorting of ranks (host_rank: all distinct). Deterministic: pivots are chosen by
 * position, and a selection that goes badly falls back to a sort, so the cost is bounded whatever the data.
 */
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

static void heap_sort(uint64_t *a, uint64_t n) {
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

/* Around a median of three: [0, i) larger, a[i] the pivot, the rest smaller. Returns i. n > 0. */
static uint64_t split(uint64_t *a, uint64_t n) {
    const uint64_t pivot = median3(a[0], a[n / 2], a[n - 1]);
    uint64_t i = 0, at = 0;
    for (uint64_t j = 0; j < n; j++) {
        uint64_t v = a[j];
        if (v > pivot) {
            a[j] = a[i];
            a[i++] = v;
        }
    }
    for (at = i; a[at] != pivot; at++)
        ;
    a[at] = a[i];
    a[i] = pivot;
    return i;
}

static void insertion_sort(uint64_t *a, uint64_t n) {
    for (uint64_t i = 1; i < n; i++) {
        uint64_t v = a[i], at = i;
        for (; at > 0 && a[at - 1] < v; at--)
            a[at] = a[at - 1];
        a[at] = v;
    }
}

void host_sort(uint64_t *a, uint64_t n) {
    /* The larger side waits, so 64 entries are enough; a range that was cut too often is handed to the heap.
     */
    struct {
        uint64_t *a, n;
        uint32_t cuts;
    } stack[64];
    uint32_t top = 0, cuts = 0;
    for (;;) {
        while (n > 16 && cuts < 96) {
            uint64_t i = split(a, n), right = n - i - 1;
            cuts++;
            bool left_waits = i > right;
            stack[top].a = left_waits ? a : a + i + 1;
            stack[top].n = left_waits ? i : right;
            stack[top++].cuts = cuts;
            a = left_waits ? a + i + 1 : a;
            n = left_waits ? right : i;
        }
        if (n > 16)
            heap_sort(a, n);
        else
            insertion_sort(a, n);
        if (!top)
            return;
        a = stack[--top].a;
        n = stack[top].n;
        cuts = stack[top].cuts;
    }
}

void host_select(uint64_t *a, uint64_t n, uint64_t k) {
    uint64_t lo = 0, hi = n; /* the boundary k lies inside [lo, hi] */
    for (int round = 0; k > lo && k < hi; round++) {
        if (hi - lo <= 16 || round == 64) {
            host_sort(a + lo, hi - lo);
            return;
        }
        uint64_t i = lo + split(a + lo, hi - lo);
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
