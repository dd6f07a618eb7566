/* SPDX-License-Identifier: MIT */
/* Linked into the daemon that tests run (build/test/glmd) with --wrap for every function below: after a
 * thread has called seal_thread(), any allocation of it aborts with the function's name. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "seal.h"

static _Thread_local bool sealed;

void seal_thread(void) {
    sealed = true;
}

static void check(const char *name) {
    static const char text[] = "allocation on a sealed thread: ";

    if (!sealed)
        return;
    sealed = false; /* abort may allocate */
    if (write(2, text, sizeof text - 1) < 0 || write(2, name, strlen(name)) < 0 || write(2, "\n", 1) < 0)
        _exit(99);
    abort();
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__real_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off);
FILE *__real_fopen(const char *path, const char *mode);
int __real_posix_memalign(void **ret, size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off);
FILE *__wrap_fopen(const char *path, const char *mode);
int __wrap_posix_memalign(void **ret, size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);

void *__wrap_malloc(size_t n) {
    check("malloc");
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    check("calloc");
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    check("realloc");
    return __real_realloc(p, n);
}

void __wrap_free(void *p) {
    check("free");
    __real_free(p);
}

void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off) {
    check("mmap");
    return __real_mmap(addr, len, prot, flags, fd, off);
}

FILE *__wrap_fopen(const char *path, const char *mode) {
    check("fopen");
    return __real_fopen(path, mode);
}

int __wrap_posix_memalign(void **ret, size_t align, size_t n) {
    check("posix_memalign");
    return __real_posix_memalign(ret, align, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n) {
    check("aligned_alloc");
    return __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s) {
    check("strdup");
    return __real_strdup(s);
}
