/* SPDX-License-Identifier: MIT */
/* The test's side of failure injection; see failctl.h. */
#include "failctl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct failctl *failctl_open(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *p = MAP_FAILED;

    if (fd < 0)
        return NULL;
    if (ftruncate(fd, sizeof(struct failctl)) == 0)
        p = mmap(NULL, sizeof(struct failctl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

void failctl_close(struct failctl *c) {
    munmap(c, sizeof *c);
}

void failctl_arm(struct failctl *c, enum fail_mode mode, uint64_t at) {
    failctl_arm_only(c, "", mode, at);
}

void failctl_arm_only(struct failctl *c, const char *only, enum fail_mode mode, uint64_t at) {
    atomic_store(&c->mode, FAIL_OFF);
    c->name[0] = 0;
    snprintf(c->only, sizeof c->only, "%s", only);
    atomic_store(&c->at, at);
    atomic_store(&c->calls, 0);
    atomic_store(&c->failed, 0);
    atomic_store(&c->where, 0);
    atomic_store(&c->mode, mode);
}

void failctl_disarm(struct failctl *c) {
    atomic_store(&c->mode, FAIL_OFF);
}

const char *failctl_mode_name(enum fail_mode mode) {
    static const char *const names[FAIL_MODES] = {"off", "once", "for ever", "for a while", "interrupted", "short"};

    return names[mode];
}

const char *failctl_text(const struct failctl *c, enum fail_mode mode) {
    static char text[160];

    snprintf(text, sizeof text, "call %llu, %.31s from 0x%llx, %s", (unsigned long long)c->at,
             c->failed ? c->name : "none", (unsigned long long)c->where, failctl_mode_name(mode));
    return text;
}
