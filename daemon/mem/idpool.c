/* SPDX-License-Identifier: MIT */
/* Free lists behind the two typed pools. Owned by the engine thread once READY. An id given twice or never
 * taken would hand one page to two sequences; that is an assertion, which stays on in release builds. */
#undef NDEBUG
#include "idpool.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "size.h"

/* Pages and slots go through the arrays of the caller's type without a copy. */
_Static_assert(sizeof(struct mem_page) == sizeof(uint32_t), "a page is its id");
_Static_assert(sizeof(struct mem_slot) == sizeof(uint32_t), "a slot is its id");

static int ids_init(struct mem_ids *p, struct mem_account *a, uint32_t n) {
    uint64_t bytes = (uint64_t)n * (sizeof *p->free + sizeof *p->refs + sizeof *p->kept);
    void *mem = NULL;
    int r;

    if (n == 0)
        return -EINVAL;
    r = mem_account_plan(a, MEM_OTHER, bytes);
    if (r == 0)
        r = mem_map(a, MEM_OTHER, bytes, &mem);
    if (r < 0)
        return r;
    memset(p, 0, sizeof *p);
    p->free = mem;
    p->refs = p->free + n;
    p->kept = (uint8_t *)(p->refs + n);
    p->n = n;
    p->bytes = bytes;
    p->account = a;
    /* Stack order: id 0 is taken first. */
    for (uint32_t i = 0; i < n; i++)
        p->free[i] = n - 1 - i;
    return 0;
}

static void ids_done(struct mem_ids *p) {
    if (p->free)
        mem_unmap(p->account, MEM_OTHER, p->free, p->bytes);
    memset(p, 0, sizeof *p);
}

static uint32_t ids_used(const struct mem_ids *p) {
    return atomic_load_explicit(&p->n_used, memory_order_relaxed);
}

static int ids_take(struct mem_ids *p, uint32_t n, uint32_t *ret) {
    uint32_t used = ids_used(p);

    if (n > p->n - used)
        return -ENOBUFS;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = p->free[p->n - used - 1 - i];

        assert(id < p->n && !p->refs[id]);
        p->refs[id] = 1;
        ret[i] = id;
    }
    used += n;
    atomic_store_explicit(&p->n_used, used, memory_order_relaxed);
    if (used > atomic_load_explicit(&p->high, memory_order_relaxed))
        atomic_store_explicit(&p->high, used, memory_order_relaxed);
    return 0;
}

/* A kept page whose only holder is the cache. */
static bool id_idle(const struct mem_ids *p, uint32_t id) {
    return p->kept[id] && p->refs[id] == 1;
}

/* After the count or the mark of an id changed; was: whether it was idle before. */
static void idle_count(struct mem_ids *p, uint32_t id, bool was) {
    uint32_t idle = atomic_load_explicit(&p->idle, memory_order_relaxed);
    bool is = id_idle(p, id);

    if (is != was && !(FAULT(idpool_idle_stays) && was))
        atomic_store_explicit(&p->idle, is ? idle + 1 : idle - 1, memory_order_relaxed);
}

static void ids_ref(struct mem_ids *p, uint32_t n, const uint32_t *ids) {
    for (uint32_t i = 0; i < n; i++) {
        bool was;

        assert(ids[i] < p->n && p->refs[ids[i]] && p->refs[ids[i]] < UINT32_MAX);
        was = id_idle(p, ids[i]);
        p->refs[ids[i]]++;
        idle_count(p, ids[i], was);
    }
}

static void ids_give(struct mem_ids *p, uint32_t n, const uint32_t *ids) {
    uint32_t used = ids_used(p);

    for (uint32_t i = 0; i < n; i++) {
        bool was;

        assert(ids[i] < p->n && p->refs[ids[i]]);
        was = id_idle(p, ids[i]);
        p->refs[ids[i]]--;
        idle_count(p, ids[i], was);
        if (p->refs[ids[i]])
            continue;
        assert(!p->kept[ids[i]]); /* the cache gives its pages by mem_page_unkeep */
        p->free[p->n - used--] = FAULT(idpool_first_twice) ? ids[0] : ids[i];
    }
    atomic_store_explicit(&p->n_used, used, memory_order_relaxed);
}

static struct mem_pool_usage ids_read(const struct mem_ids *p) {
    return (struct mem_pool_usage){
        .n = p->n, .used = ids_used(p), .high = atomic_load_explicit(&p->high, memory_order_relaxed),
        .idle = atomic_load_explicit(&p->idle, memory_order_relaxed)};
}

int mem_page_pool_init(struct mem_page_pool *p, struct mem_account *a, uint32_t n_pages) {
    return ids_init(&p->ids, a, n_pages);
}

void mem_page_pool_done(struct mem_page_pool *p) {
    ids_done(&p->ids);
}

int mem_pages_take(struct mem_page_pool *p, uint32_t n, struct mem_page *ret) {
    return n ? ids_take(&p->ids, n, &ret->id) : 0;
}

void mem_pages_give(struct mem_page_pool *p, uint32_t n, const struct mem_page *pages) {
    if (n)
        ids_give(&p->ids, n, &pages->id);
}

void mem_pages_ref(struct mem_page_pool *p, uint32_t n, const struct mem_page *pages) {
    if (n)
        ids_ref(&p->ids, n, &pages->id);
}

void mem_page_keep(struct mem_page_pool *p, struct mem_page page) {
    bool was;

    assert(page.id < p->ids.n && p->ids.refs[page.id] && !p->ids.kept[page.id]);
    was = id_idle(&p->ids, page.id);
    p->ids.kept[page.id] = 1;
    p->ids.refs[page.id]++;
    idle_count(&p->ids, page.id, was);
}

void mem_page_unkeep(struct mem_page_pool *p, struct mem_page page) {
    bool was;

    assert(page.id < p->ids.n && p->ids.kept[page.id]);
    was = id_idle(&p->ids, page.id);
    p->ids.kept[page.id] = 0;
    idle_count(&p->ids, page.id, was);
    ids_give(&p->ids, 1, &page.id);
}

uint32_t mem_page_refs(const struct mem_page_pool *p, struct mem_page page) {
    return page.id < p->ids.n ? p->ids.refs[page.id] : 0;
}

bool mem_page_idle(const struct mem_page_pool *p, struct mem_page page) {
    return page.id < p->ids.n && id_idle(&p->ids, page.id);
}

struct mem_pool_usage mem_page_pool_read(const struct mem_page_pool *p) {
    return ids_read(&p->ids);
}

int mem_slot_pool_init(struct mem_slot_pool *p, struct mem_account *a, uint32_t n_slots) {
    return ids_init(&p->ids, a, n_slots);
}

void mem_slot_pool_done(struct mem_slot_pool *p) {
    ids_done(&p->ids);
}

int mem_slot_take(struct mem_slot_pool *p, struct mem_slot *ret) {
    return ids_take(&p->ids, 1, &ret->id);
}

void mem_slot_give(struct mem_slot_pool *p, struct mem_slot slot) {
    ids_give(&p->ids, 1, &slot.id);
}

struct mem_pool_usage mem_slot_pool_read(const struct mem_slot_pool *p) {
    return ids_read(&p->ids);
}
