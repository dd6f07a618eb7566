/* SPDX-License-Identifier: MIT */
/* evalnum.c: how far two vectors are apart; files as texts. Pure but for the file. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "eval.h"

enum { MAX_TEXT = 256 << 20 };

double eval_rel_error(const float *a, const float *b, uint64_t n) {
    double diff = 0, norm = 0;

    for (uint64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];

        diff += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    if (norm > 0 || isnan(norm))
        return sqrt(diff / norm);
    return sqrt(diff);
}

double eval_max_error(const float *a, const float *b, uint64_t n) {
    double worst = 0;

    for (uint64_t i = 0; i < n; i++) {
        double base = fabs((double)b[i]), e = fabs((double)a[i] - (double)b[i]) / (base > 1 ? base : 1);

        if (!(e <= worst))
            worst = e;
        if (isnan(worst))
            break;
    }
    return worst;
}

char *eval_read_file(const char *path, uint64_t *ret_bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a FIFO must not hang us */
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    struct stat st;
    char *text = NULL;
    size_t n = 0;

    if (!f) {
        fprintf(stderr, "%s: %s: cannot open: %s\n", program_invocation_short_name, path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_TEXT) {
        fprintf(stderr, "%s: %s: expected a regular file of at most %d MiB\n", program_invocation_short_name,
                path, MAX_TEXT >> 20);
    } else if (!(text = malloc((size_t)st.st_size + 1))) {
        fprintf(stderr, "%s: %s: no memory to read it\n", program_invocation_short_name, path);
    } else {
        n = fread(text, 1, (size_t)st.st_size, f);
        text[n] = 0;
        if (n != (size_t)st.st_size) {
            fprintf(stderr, "%s: %s: cannot read: found %zu of %lld bytes\n", program_invocation_short_name,
                    path, n, (long long)st.st_size);
            free(text);
            text = NULL;
        }
    }
    fclose(f);
    *ret_bytes = n;
    return text;
}
