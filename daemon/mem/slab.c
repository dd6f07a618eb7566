/* SPDX-License-Identifier: MIT */
/* Slab and arenas. First fit over a byte map: requests are few and short runs dominate, so the scan is a few
 * cache lines. Under AddressSanitizer freed runs are poisoned, which makes a read through a stale request
 * pointer visible. */
#undef NDEBUG
#include "slab.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "size.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

struct run {
    char *before; /* the run taken before this one, or NULL */
    uint64_t bytes;
};

enum {
    RUN_HEAD = 64, /* keeps the alignment of what follows */
};

_Static_assert(sizeof(struct run) <= RUN_HEAD, "the link fits");

int mem_slab_init(struct mem_slab *s, struct mem_account *a, uint64_t bytes) {
    uint64_t chunks, total;
    void *mem = NULL;
    int r;

    if (bytes == 0 || !size_align(bytes, MEM_CHUNK_BYTES, &bytes))
        return -EINVAL;
    chunks = bytes / MEM_CHUNK_BYTES;
    if (chunks > UINT32_MAX / 2 || !size_add(bytes, chunks, &total))
        return -EINVAL;
    r = mem_account_plan(a, MEM_REQUESTS, total);
    if (r == 0)
        r = mem_map(a, MEM_REQUESTS, total, &mem);
    if (r < 0)
        return r;
    memset(s, 0, sizeof *s);
    r = pthread_mutex_init(&s->lock, NULL);
    if (r != 0) {
        mem_unmap(a, MEM_REQUESTS, mem, total);
        return -r;
    }
    s->base = mem;
    s->used = (uint8_t *)s->base + bytes;
    s->n_chunks = (uint32_t)chunks;
    s->bytes = total;
    s->account = a;
    ASAN_POISON_MEMORY_REGION(s->base, bytes);
    return 0;
}

void mem_slab_done(struct mem_slab *s) {
    if (!s->base)
        return;
    assert(s->n_used == 0);
    ASAN_UNPOISON_MEMORY_REGION(s->base, (uint64_t)s->n_chunks * MEM_CHUNK_BYTES);
    pthread_mutex_destroy(&s->lock);
    mem_unmap(s->account, MEM_REQUESTS, s->base, s->bytes);
    memset(s, 0, sizeof *s);
}

struct mem_slab_usage mem_slab_read(struct mem_slab *s) {
    struct mem_slab_usage u;

    pthread_mutex_lock(&s->lock);
    u = (struct mem_slab_usage){s->n_chunks, s->n_used, s->high};
    pthread_mutex_unlock(&s->lock);
    return u;
}

/* First free run of n chunks in [from, to). */
static bool find_run(const struct mem_slab *s, uint32_t from, uint32_t to, uint32_t n, uint32_t *ret) {
    uint32_t have = 0;

    for (uint32_t i = from; i < to; i++) {
        have = s->used[i] ? 0 : have + 1;
        if (have == n) {
            *ret = i + 1 - n;
            return true;
        }
    }
    return false;
}

static int run_take(struct mem_slab *s, uint32_t n, char **ret) {
    uint32_t first = 0;
    bool found;

    pthread_mutex_lock(&s->lock);
    /* hint: no chunk below it is free. */
    found = n <= s->n_chunks - s->n_used && find_run(s, s->hint, s->n_chunks, n, &first);
    if (found) {
        memset(s->used + first, 1, n);
        s->n_used += n;
        s->high = s->n_used > s->high ? s->n_used : s->high;
        if (first == s->hint)
            s->hint += n;
    }
    pthread_mutex_unlock(&s->lock);
    if (!found)
        return -ENOBUFS;
    *ret = s->base + (uint64_t)first * MEM_CHUNK_BYTES;
    ASAN_UNPOISON_MEMORY_REGION(*ret, (uint64_t)n * MEM_CHUNK_BYTES);
    return 0;
}

static void run_give(struct mem_slab *s, char *run, uint64_t bytes) {
    uint32_t first = (uint32_t)((uint64_t)(run - s->base) / MEM_CHUNK_BYTES);
    uint32_t n = (uint32_t)(bytes / MEM_CHUNK_BYTES);

    ASAN_POISON_MEMORY_REGION(run, bytes);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < n; i++)
        assert(s->used[first + i]);
    memset(s->used + first, 0, n);
    s->n_used -= n;
    if (first < s->hint)
        s->hint = first;
    pthread_mutex_unlock(&s->lock);
}

void mem_arena_init(struct mem_arena *a, struct mem_slab *s, uint64_t limit_bytes) {
    *a = (struct mem_arena){.slab = s, .limit = limit_bytes};
}

void mem_arena_done(struct mem_arena *a) {
    while (a->run) {
        struct run head;

        memcpy(&head, a->run, sizeof head);
        run_give(a->slab, a->run, head.bytes);
        a->run = head.before;
    }
    mem_arena_init(a, a->slab, a->limit);
}

static int arena_grow(struct mem_arena *a, uint64_t n) {
    uint64_t bytes, taken;
    struct run head;
    char *run;
    int r;

    if (!size_add(n, RUN_HEAD, &bytes) || !size_align(bytes, MEM_CHUNK_BYTES, &bytes) ||
        !size_add(a->taken, bytes, &taken) || taken > a->limit)
        return -EMSGSIZE;
    if (bytes / MEM_CHUNK_BYTES > a->slab->n_chunks)
        return -ENOBUFS;
    r = run_take(a->slab, (uint32_t)(bytes / MEM_CHUNK_BYTES), &run);
    if (r < 0)
        return r;
    head = (struct run){a->run, bytes};
    memcpy(run, &head, sizeof head);
    a->run = run;
    a->at = RUN_HEAD;
    a->run_end = bytes;
    a->taken = taken;
    return 0;
}

int mem_arena_alloc(struct mem_arena *a, uint64_t n, uint64_t align, void **ret) {
    uint64_t at;
    int r;

    if (align == 0 || align > RUN_HEAD || (align & (align - 1)) != 0)
        return -EINVAL;
    at = (a->at + align - 1) & ~(align - 1);
    if (!a->run || !size_within(at, n, a->run_end)) {
        r = arena_grow(a, n);
        if (r < 0)
            return r;
        at = a->at;
    }
    a->at = at + n;
    *ret = a->run + at;
    return 0;
}

int mem_arena_copy(struct mem_arena *a, const void *src, uint64_t n, void **ret) {
    void *p;
    int r = mem_arena_alloc(a, n, 8, &p);

    if (r < 0)
        return r;
    if (n > 0)
        memcpy(p, src, (size_t)n);
    *ret = p;
    return 0;
}
