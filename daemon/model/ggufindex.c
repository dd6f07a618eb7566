/* SPDX-License-Identifier: MIT */
/* The GGUF files of a directory: one, or all parts of one that was split (NAME-00001-of-00004.gguf). What
 * belongs to a vision tower (mmproj…) is another program's. Start-up only; never logs. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggufile.h"
#include "indexpriv.h"
#include "show.h"

struct found {
    char **name;
    size_t n;
};

static bool is_gguf(const char *name) {
    size_t n = strlen(name);

    return n > 5 && strcmp(name + n - 5, ".gguf") == 0 && strncmp(name, "mmproj", 6) != 0 && name[0] != '.';
}

static int by_string(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list(const struct model_index *x, struct found *f, struct xerr *e) {
    DIR *d = opendir(x->dir);
    struct dirent *de;
    struct show s;
    int r = 0;

    if (!d) /* no directory: said when its index is looked for */
        return errno == ENOMEM || errno == EMFILE || errno == ENFILE
                   ? xerr_set(e, -errno, "%s: cannot be listed: %s", show_path(&s, x->dir), strerror(errno))
                   : 0;
    while (r == 0 && (errno = 0, de = readdir(d))) {
        char **grown;

        if (!is_gguf(de->d_name))
            continue;
        grown = f->n < MODEL_MAX_FILES ? reallocarray(f->name, f->n + 1, sizeof *grown) : NULL;
        if (grown)
            f->name = grown;
        if (!grown || !(f->name[f->n] = strdup(de->d_name)))
            r = xerr_set(e, f->n < MODEL_MAX_FILES ? -ENOMEM : -EINVAL,
                         "%s: found more than %zu GGUF files, expected those of one model",
                         show_path(&s, x->dir), f->n);
        else
            f->n++;
    }
    if (r == 0 && errno)
        r = xerr_set(e, -errno, "%s: cannot be listed: %s", show_path(&s, x->dir), strerror(errno));
    closedir(d);
    if (f->n)
        qsort(f->name, f->n, sizeof *f->name, by_string);
    return r;
}

static bool five_digits(const char *s, uint32_t *ret) {
    *ret = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        *ret = *ret * 10 + (uint32_t)(s[i] - '0');
    }
    return true;
}

/* Length of NAME in NAME-00001-of-00004.gguf, 0: no such name. */
static size_t split_name(const char *name, uint32_t *ret_no, uint32_t *ret_count) {
    size_t n = strlen(name);
    const char *tail = n > 20 ? name + n - 20 : ""; /* "-00001-of-00004.gguf" */

    if (tail[0] != '-' || !five_digits(tail + 1, ret_no) || strncmp(tail + 6, "-of-", 4) != 0 ||
        !five_digits(tail + 10, ret_count))
        return 0;
    return n - 20;
}

/* The names are those of one model. */
static int check_names(const struct model_index *x, const struct found *f, struct xerr *e) {
    uint32_t no, count = 0, count0;
    size_t stem = split_name(f->name[0], &no, &count0);
    struct show s, a, b;

    for (size_t i = 0; i < f->n && stem; i++) {
        size_t n = split_name(f->name[i], &no, &count);

        if (n != stem || count != count0 || strncmp(f->name[i], f->name[0], stem) != 0)
            stem = 0;
        else if (no != i + 1)
            return xerr_set(
                e, -ENOENT,
                "%s: found part %u of %u (%s), expected part %zu before it: fetch what is missing",
                show_path(&s, x->dir), no, count, show_str(&a, f->name[i]), i + 1);
    }
    if (stem && f->n != count0)
        return xerr_set(e, -ENOENT, "%s: found %zu parts of %s, expected %u", show_path(&s, x->dir), f->n,
                        show_str(&a, f->name[0]), count0);
    if (!stem && f->n > 1)
        return xerr_set(e, -EINVAL,
                        "%s: found %zu GGUF files, among them %s and %s, expected one model in a directory",
                        show_path(&s, x->dir), f->n, show_str(&a, f->name[0]), show_str(&b, f->name[1]));
    return 0;
}

/* What each part says of itself. A file that was not split need not say anything. */
static int check_parts(const struct model_index *x, struct xerr *e) {
    uint64_t all = 0, v;
    struct show s;

    for (uint32_t i = 0; i < x->n_files; i++) {
        const struct gguf *g = st_gguf(x->file[i]);
        const struct gguf_value *no = gguf_find(g, "split.no"), *count = gguf_find(g, "split.count");

        show_path(&s, st_path(x->file[i]));
        if ((no || x->n_files > 1) && (!gguf_uint(no, 0, &v) || v != i))
            return xerr_set(e, -EINVAL, "%s: split.no: found %s, expected %u, as the name says", s.s,
                            no ? "another number" : "nothing", i);
        if ((count || x->n_files > 1) &&
            (!gguf_uint(count, 0, &v) || (v != x->n_files && !(v == 0 && x->n_files == 1))))
            return xerr_set(e, -EINVAL, "%s: split.count: found %s, expected %u, the parts there are", s.s,
                            count ? "another number" : "nothing", x->n_files);
        all += st_count(x->file[i]);
    }
    for (uint32_t i = 0; i < x->n_files; i++) {
        const struct gguf_value *t = gguf_find(st_gguf(x->file[i]), "split.tensors.count");

        if ((t || (x->n_files > 1 && i == 0)) && (!gguf_uint(t, 0, &v) || v != all))
            return xerr_set(e, -EINVAL,
                            "%s: split.tensors.count: found %s, expected %llu, which all parts together hold",
                            show_path(&s, st_path(x->file[i])), t ? "another number" : "nothing",
                            (unsigned long long)all);
    }
    return 0;
}

int model_index_gguf_files(struct model_index *x, const char *other, const struct st_io *io, struct xerr *e) {
    struct found f = {0};
    char path[PATH_MAX];
    struct show s, a;
    int r = list(x, &f, e);

    if (r == 0 && f.n > 0 && other)
        r = xerr_set(e, -EINVAL, "%s: found %s and %s, expected one model in a directory",
                     show_path(&s, x->dir), show_str(&a, f.name[0]), other);
    if (r == 0 && f.n > 0)
        r = check_names(x, &f, e);
    for (size_t i = 0; i < f.n && r == 0; i++) {
        r = model_index_path(x, f.name[i], path, e);
        if (r == 0)
            r = st_open_gguf(&x->file[i], path, io, e);
        if (r == 0)
            x->n_files++;
    }
    if (r == 0 && f.n > 0)
        r = check_parts(x, e);
    r = r < 0 ? r : f.n > 0;
    for (size_t i = 0; i < f.n; i++)
        free(f.name[i]);
    free(f.name);
    return r;
}
