/* SPDX-License-Identifier: MIT */
/* Counts descriptors in /proc/self/fd and children in /proc/self/task/TID/children.  Test processes only. */
#include "leakcheck.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static int list_fds(int *ret_fds, int max) {
    DIR *d = opendir("/proc/self/fd");
    ck_assert_msg(d != NULL, "/proc/self/fd cannot be read: descriptors cannot be counted");
    int n = 0;
    struct dirent *e;
    while ((e = readdir(d))) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(d))
            continue;
        ck_assert_int_lt(n, max);
        ret_fds[n++] = fd;
    }
    closedir(d);
    return n;
}

/* Children of every thread, running or zombie: the files list both. */
static int count_children(void) {
    DIR *d = opendir("/proc/self/task");
    ck_assert_msg(d != NULL, "/proc/self/task cannot be read: children cannot be counted");
    int n = 0;
    struct dirent *e;
    while ((e = readdir(d))) {
        char path[300];
        int pid;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/children", e->d_name);
        FILE *f = fopen(path, "re");
        if (!f)
            continue; /* the thread has just ended, or a kernel without the file: waitid below still sees some
                       */
        while (fscanf(f, "%d", &pid) == 1)
            n++;
        fclose(f);
    }
    closedir(d);
    siginfo_t si = {0};
    if (n == 0 && waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) == 0)
        n = 1; /* a child exists (an error says there is none) */
    return n;
}

void leakcheck_begin(struct leakcheck *l) {
    l->n_children = count_children();
    l->n_fds = list_fds(l->fds, LEAKCHECK_MAX_FD);
}

static int has_fd(const int *fds, int n, int fd) {
    for (int i = 0; i < n; i++)
        if (fds[i] == fd)
            return 1;
    return 0;
}

int leakcheck_end(const struct leakcheck *l, const char **ret_text) {
    static char text[2048];
    static int now[LEAKCHECK_MAX_FD];
    size_t used = 0;
    text[0] = 0;
    int n = list_fds(now, LEAKCHECK_MAX_FD);
    for (int i = 0; i < n && used < sizeof text - 300; i++) {
        char path[64], target[200];
        if (has_fd(l->fds, l->n_fds, now[i]))
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", now[i]);
        ssize_t len = readlink(path, target, sizeof target - 1);
        target[len > 0 ? len : 0] = 0;
        used += (size_t)snprintf(text + used, sizeof text - used, "descriptor %d left open (%s); ", now[i],
                                 target);
    }
    for (int i = 0; i < l->n_fds && used < sizeof text - 300; i++)
        if (!has_fd(now, n, l->fds[i]))
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "descriptor %d was closed; ", l->fds[i]);
    int children = count_children();
    if (children != l->n_children && used < sizeof text - 300)
        used += (size_t)snprintf(text + used, sizeof text - used, "children: %d before, %d after; ",
                                 l->n_children, children);
    *ret_text = text;
    return used ? -1 : 0;
}

static struct leakcheck fixture;

void leakcheck_setup(void) {
    leakcheck_begin(&fixture);
}

void leakcheck_teardown(void) {
    const char *text;
    if (leakcheck_end(&fixture, &text) < 0)
        ck_abort_msg("leak: %s", text);
}
