/* SPDX-License-Identifier: MIT */
/* The books of the daemon's memory, to the byte. No locks: each number is an atomic of its own, and a reader
 * may see used and high of slightly different moments. The plan is what makes admission safe: a class never
 * grows past what was checked against the machine before READY. */
#undef NDEBUG /* the assertion below is one comparison and stays on in every build */
#include "account.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "size.h"

void mem_account_init(struct mem_account *a) {
    for (int c = 0; c < MEM_CLASSES; c++) {
        atomic_init(&a->cls[c].planned, 0);
        atomic_init(&a->cls[c].used, 0);
        atomic_init(&a->cls[c].high, 0);
    }
}

const char *mem_class_name(enum mem_class c) {
    static const char *const NAMES[MEM_CLASSES] = {
        [MEM_WEIGHTS] = "weights",   [MEM_PAGES] = "pages",     [MEM_SLOTS] = "slots",
        [MEM_WORK] = "work",         [MEM_CONTROL] = "control", [MEM_STAGING] = "staging",
        [MEM_REQUESTS] = "requests", [MEM_OTHER] = "other",
    };

    return (unsigned)c < MEM_CLASSES ? NAMES[c] : "?";
}

int mem_account_plan(struct mem_account *a, enum mem_class c, uint64_t bytes) {
    uint64_t total = mem_account_total(a).planned;

    if (!size_add(total, bytes, &total) || total > UINT64_MAX / 2)
        return -EOVERFLOW;
    /* One planning thread: the sum just checked cannot have moved. */
    atomic_fetch_add_explicit(&a->cls[c].planned, bytes, memory_order_relaxed);
    return 0;
}

int mem_account_take(struct mem_account *a, enum mem_class c, uint64_t bytes) {
    uint64_t planned = atomic_load_explicit(&a->cls[c].planned, memory_order_relaxed);
    uint64_t used = atomic_load_explicit(&a->cls[c].used, memory_order_relaxed);
    uint64_t high, now;

    do {
        if (!size_add(used, bytes, &now) || now > planned)
            return -ENOMEM;
    } while (!atomic_compare_exchange_weak_explicit(&a->cls[c].used, &used, now, memory_order_relaxed,
                                                    memory_order_relaxed));
    high = atomic_load_explicit(&a->cls[c].high, memory_order_relaxed);
    while (high < now && !atomic_compare_exchange_weak_explicit(&a->cls[c].high, &high, now,
                                                                memory_order_relaxed, memory_order_relaxed))
        ;
    return 0;
}

void mem_account_give(struct mem_account *a, enum mem_class c, uint64_t bytes) {
    uint64_t before = atomic_fetch_sub_explicit(&a->cls[c].used, bytes, memory_order_relaxed);

    assert(before >= bytes); /* more given than taken: our own bookkeeping is broken */
}

struct mem_usage mem_account_read(const struct mem_account *a, enum mem_class c) {
    return (struct mem_usage){
        .planned = atomic_load_explicit(&a->cls[c].planned, memory_order_relaxed),
        .used = atomic_load_explicit(&a->cls[c].used, memory_order_relaxed),
        .high = atomic_load_explicit(&a->cls[c].high, memory_order_relaxed),
    };
}

/* high is the sum of the classes' marks: an upper bound of what was in use at one moment. */
struct mem_usage mem_account_total(const struct mem_account *a) {
    struct mem_usage t = {0, 0, 0};

    for (int c = 0; c < MEM_CLASSES; c++) {
        struct mem_usage u = mem_account_read(a, (enum mem_class)c);

        t.planned += u.planned;
        t.used += u.used;
        t.high += u.high;
    }
    return t;
}

int mem_map(struct mem_account *a, enum mem_class c, uint64_t bytes, void **ret) {
    void *p;
    int r;

    if (bytes == 0)
        return -EINVAL;
    if (bytes > SIZE_MAX / 2)
        return -ENOMEM;
    /* Mapped before it is charged: a failed mapping must not leave a high-water mark. */
    p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -ENOMEM;
    r = mem_account_take(a, c, bytes);
    if (r < 0) {
        munmap(p, (size_t)bytes);
        return r;
    }
    *ret = p;
    return 0;
}

void mem_unmap(struct mem_account *a, enum mem_class c, void *p, uint64_t bytes) {
    if (!p)
        return;
    munmap(p, (size_t)bytes);
    mem_account_give(a, c, bytes);
}
