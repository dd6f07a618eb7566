/* SPDX-License-Identifier: MIT */
/* Files that a person names, opened without waiting. Starting thread; owns nothing; never logs. */
#include "textfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int textfile_open(const char *path, const char *what, FILE **ret, struct xerr *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (FAULT(textfile_waits) ? 0 : O_NONBLOCK)), r = 0;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        r = xerr_set(err, -errno, "%s%s: cannot be read: %s", what, path, strerror(errno));
    else if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))
        r = xerr_set(err, -EINVAL, "%s%s: found a FIFO, expected a file: whoever writes into it may never come", what,
                     path);
    else if (!(*ret = fdopen(fd, "r")))
        r = xerr_set(err, -errno, "%s%s: cannot be read: %s", what, path, strerror(errno));
    if (r < 0 && fd >= 0)
        close(fd);
    return r;
}
