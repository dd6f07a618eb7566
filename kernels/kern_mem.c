/* SPDX-License-Identifier: MIT */
/* Memory of host backends: anonymous mappings with huge pages advised. Called before READY only. */
#include "kern_private.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

int kern_host_alloc(uint64_t bytes, struct kern_block *ret) {
    long page = sysconf(_SC_PAGESIZE);
    uint64_t align = page > 4096 ? (uint64_t)page : 4096;
    if (bytes > (1ull << 60))
        return -ENOMEM;
    if (!bytes) {
        *ret = (struct kern_block){0};
        return 0;
    }
    uint64_t size = (bytes + align - 1) / align * align;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -ENOMEM;
    /* Fewer TLB misses over gigabytes of weights; refusal costs nothing. */
    if (size >= (4u << 20))
        (void)madvise(p, size, MADV_HUGEPAGE);
    *ret = (struct kern_block){.base = p, .bytes = size};
    return 0;
}

void kern_host_free(struct kern_block *block) {
    if (block->base)
        munmap(block->base, block->bytes);
    *block = (struct kern_block){0};
}
