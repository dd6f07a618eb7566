/* SPDX-License-Identifier: MIT */
/* Temporary files and directories that outlive their test; see tmpleft.h.  Any thread of any process of a test program
 * may remember; beginning and ending are the runner's.  Test processes only. */
#include "tmpleft.h"

#include <errno.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { SLOTS = 256, LONGEST = 256 };
enum { EMPTY, BUSY, SET };

struct tmpleft {
    struct {
        atomic_int state;
        char path[LONGEST];
    } slot[SLOTS];
};

static struct tmpleft *left;

char *__real_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path);
int __real_mkstemp(char *path);
int __wrap_mkstemp(char *path);

static void need(int ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "tmpleft: %s\n", what);
    abort();
}

static int is_there(const char *path) {
    struct stat st;

    return lstat(path, &st) == 0;
}

static void remember(const char *path) {
    int saved = errno;

    if (!left)
        return;
    need(strlen(path) < LONGEST, "a name that is too long to be remembered");
    for (int i = 0; i < SLOTS; i++) {
        int was = atomic_load(&left->slot[i].state);

        if (was == BUSY || (was == SET && is_there(left->slot[i].path)) ||
            !atomic_compare_exchange_strong(&left->slot[i].state, &was, BUSY))
            continue;
        strcpy(left->slot[i].path, path);
        atomic_store(&left->slot[i].state, SET);
        errno = saved;
        return;
    }
    need(0, "more temporary files at once than can be remembered");
}

char *__wrap_mkdtemp(char *path) {
    char *r = __real_mkdtemp(path);

    if (r)
        remember(r);
    return r;
}

int __wrap_mkstemp(char *path) {
    int fd = __real_mkstemp(path);

    if (fd >= 0)
        remember(path);
    return fd;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where) {
    (void)st, (void)type, (void)where;
    remove(path);
    return 0;
}

struct tmpleft *tmpleft_begin(void) {
    struct tmpleft *outer = left;
    void *p = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    need(p != MAP_FAILED, "no memory");
    left = p;
    return outer;
}

unsigned tmpleft_end(struct tmpleft *outer) {
    unsigned n = 0;

    for (int i = 0; i < SLOTS; i++) {
        const char *path = left->slot[i].path;

        if (atomic_load(&left->slot[i].state) != SET || !is_there(path))
            continue;
        fprintf(stderr, "left behind by a test, and removed now: %s\n", path);
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
        n++;
    }
    munmap(left, sizeof *left);
    left = outer;
    return n;
}
