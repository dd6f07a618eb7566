/* SPDX-License-Identifier: MIT */
/* Reader of /proc/meminfo and the one check of the plan against it. Allocates nothing, never logs. */
#include "meminfo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "size.h"

/* "Key:   123 kB" at the start of a line. */
static bool find_kb(const char *text, size_t n, const char *key, uint64_t *ret_bytes) {
    size_t len = strlen(key);

    for (size_t at = 0; at < n;) {
        const char *line = text + at, *nl = memchr(line, '\n', n - at);
        size_t line_len = nl ? (size_t)(nl - line) : n - at, i = len;
        uint64_t v = 0;
        bool digits = false;

        at += line_len + 1;
        if (line_len <= len || memcmp(line, key, len) != 0)
            continue;
        while (i < line_len && line[i] == ' ')
            i++;
        for (; i < line_len && line[i] >= '0' && line[i] <= '9'; i++) {
            digits = true;
            if (!size_mul(v, 10, &v) || !size_add(v, (uint64_t)(line[i] - '0'), &v))
                return false;
        }
        if (!digits || line_len - i != 3 || memcmp(line + i, " kB", 3) != 0)
            return false;
        return size_mul(v, 1024, ret_bytes);
    }
    return false;
}

int mem_info_parse(const char *text, size_t n, struct mem_info *ret) {
    struct mem_info m;

    if (!find_kb(text, n, "MemTotal:", &m.total_bytes) ||
        !find_kb(text, n, "MemAvailable:", &m.available_bytes))
        return -EBADMSG;
    *ret = m;
    return 0;
}

int mem_info_read(const char *path, struct mem_info *ret, struct xerr *e) {
    char text[8192];
    size_t n = 0;
    int fd, r;

    if (!path)
        path = "/proc/meminfo";
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        r = -errno;
        return xerr_set(e, r, "%s: cannot open: %s", path, strerror(-r));
    }
    while (n < sizeof text) {
        ssize_t got = read(fd, text + n, sizeof text - n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            r = -errno;
            close(fd);
            return xerr_set(e, r, "%s: cannot read: %s", path, strerror(-r));
        }
        if (got == 0)
            break;
        n += (size_t)got;
    }
    close(fd);
    r = mem_info_parse(text, n, ret);
    return r < 0 ? xerr_set(e, r, "%s: found no usable MemTotal and MemAvailable lines, expected both in kB",
                            path)
                 : 0;
}

int mem_check(const struct mem_account *a, const struct mem_info *info, uint64_t floor_bytes,
              struct xerr *e) {
    uint64_t planned = mem_account_total(a).planned, need;
    char list[160];
    size_t at = 0;

    if (size_add(planned, floor_bytes, &need) && need <= info->available_bytes)
        return 0;
    for (int c = 0; c < MEM_CLASSES; c++) {
        uint64_t b = mem_account_read(a, (enum mem_class)c).planned;

        if (b == 0 || at >= sizeof list)
            continue;
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s %llu", at ? ", " : "",
                               mem_class_name((enum mem_class)c), (unsigned long long)(b >> 20));
    }
    return xerr_set(
        e, -ENOMEM,
        "memory: found %llu MiB available, expected %llu MiB (%s) and %llu MiB kept free; shrink the "
        "context, the slots or KeepFreeBytes=",
        (unsigned long long)(info->available_bytes >> 20), (unsigned long long)(planned >> 20),
        at ? list : "nothing", (unsigned long long)(floor_bytes >> 20));
}
