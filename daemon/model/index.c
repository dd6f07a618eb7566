/* SPDX-License-Identifier: MIT */
/* The shards of a checkpoint and the union of their tensors. Owns every shard's descriptor. Start-up only;
 * never logs (the one warning is handed to the caller).
 *
 * index.json and the shard headers must say the same: a name in two shards, a listed name its shard does not
 * have, or a shard tensor that is not listed are all signs of a mixed or half-fetched download. */
#include "index.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ggufile.h"
#include "indexpriv.h"
#include "modeljson.h"

enum {
    INDEX_MAX_BYTES = 48 << 20, /* 120,000 tensors need 15 MB */
};

#define INDEX_NAME  "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"

int model_index_path(const struct model_index *x, const char *name, char path[PATH_MAX], struct xerr *e) {
    int n = snprintf(path, PATH_MAX, "%s/%s", x->dir, name);

    return n < 0 || n >= PATH_MAX ? xerr_set(e, -ENAMETOOLONG, "model directory: the path is too long") : 0;
}

/* A plain name in the directory: nothing that could lead out of it. (NUL cannot come out of the parser.) */
static bool is_plain_name(const char *s) {
    return *s && !strchr(s, '/') && !strchr(s, '\\') && !strstr(s, "..") && strcmp(s, ".") != 0 &&
           strlen(s) <= NAME_MAX;
}

static int by_string(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Distinct file names of weight_map, sorted, checked. */
static int list_files(struct model_index *x, const char *shown, json_t *map, struct xerr *e) {
    struct show s, n;
    const char **all;
    size_t count = json_object_size(map), i = 0;
    const char *name;
    json_t *v;
    int r = 0;

    if (count == 0)
        return xerr_set(e, -EINVAL, "%s: weight_map: found no tensors, expected some", shown);
    all = calloc(count, sizeof *all);
    if (!all)
        return xerr_set(e, -ENOMEM, "%s: no memory for %zu names", shown, count);
    json_object_foreach(map, name, v) {
        const char *file = json_string_value(v);

        if (!file || !is_plain_name(file)) {
            r = xerr_set(e, -EINVAL, "%s: weight_map, tensor %s: found %s, expected a plain file name", shown,
                         show_str(&n, name), modeljson_show(&s, v));
            goto out;
        }
        all[i++] = file;
    }
    qsort(all, count, sizeof *all, by_string);
    for (i = 0; i < count; i++) {
        if (i > 0 && strcmp(all[i], all[i - 1]) == 0)
            continue;
        if (x->n_files == MODEL_MAX_FILES) {
            r = xerr_set(e, -EINVAL, "%s: weight_map: found more than %d files, expected at most that", shown,
                         MODEL_MAX_FILES);
            goto out;
        }
        x->file_name[x->n_files++] = all[i];
    }
out:
    free(all);
    return r;
}

/* Every missing shard in one message, as many as fit: a download is repaired once, not file by file. */
static int check_present(const struct model_index *x, const char *shown, struct xerr *e) {
    char list[160], path[PATH_MAX];
    struct show s;
    struct stat st;
    size_t at = 0;
    uint32_t missing = 0;
    int r;

    for (uint32_t i = 0; i < x->n_files; i++) {
        r = model_index_path(x, x->file_name[i], path, e);
        if (r < 0)
            return r;
        if (stat(path, &st) == 0 || errno != ENOENT)
            continue;
        missing++;
        show_str(&s, x->file_name[i]);
        if (at + strlen(s.s) + 8 < sizeof list)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", s.s);
        else if (at + 6 < sizeof list && strncmp(list + at - 3, "...", 3) != 0)
            at += (size_t)snprintf(list + at, sizeof list - at, ", ...");
    }
    if (missing == 0)
        return 0;
    return xerr_set(e, -ENOENT, "%s: found %u of %u shards, expected all; missing: %s", shown,
                    x->n_files - missing, x->n_files, list);
}

static int entry_by_name(const void *a, const void *b) {
    return strcmp(((const struct model_entry *)a)->t->name, ((const struct model_entry *)b)->t->name);
}

static int gather(struct model_index *x, struct xerr *e) {
    struct show f, g, s;
    size_t n = 0, at = 0;

    for (uint32_t i = 0; i < x->n_files; i++)
        n += st_count(x->file[i]);
    x->entry = calloc(n ? n : 1, sizeof *x->entry);
    if (!x->entry)
        return xerr_set(e, -ENOMEM, "%s: no memory for %zu tensors", show_path(&f, x->dir), n);
    for (uint32_t i = 0; i < x->n_files; i++)
        for (size_t j = 0; j < st_count(x->file[i]); j++)
            x->entry[at++] = (struct model_entry){st_at(x->file[i], j), i};
    x->n_entries = n;
    qsort(x->entry, n, sizeof *x->entry, entry_by_name);
    for (size_t i = 1; i < n; i++)
        if (entry_by_name(&x->entry[i - 1], &x->entry[i]) == 0)
            return xerr_set(e, -EBADMSG, "%s: tensor %s: found it in %s too, expected each name in one shard",
                            show_path(&f, st_path(x->file[x->entry[i].file])),
                            show_str(&s, x->entry[i].t->name),
                            show_path(&g, st_path(x->file[x->entry[i - 1].file])));
    return 0;
}

/* The map and the headers, each against the other. */
static int check_map(const struct model_index *x, const char *shown, json_t *map, struct xerr *e) {
    struct show f, s, m;
    const char *name;
    json_t *v;

    json_object_foreach(map, name, v) {
        const struct model_entry *en = model_index_find(x, name);

        if (!en)
            return xerr_set(e, -EINVAL, "%s: weight_map: found tensor %s, expected it in %s, which has none",
                            shown, show_str(&s, name), show_str(&f, json_string_value(v)));
        if (strcmp(x->file_name[en->file], json_string_value(v)) != 0)
            return xerr_set(e, -EINVAL, "%s: weight_map: tensor %s: found %s, expected %s, which holds it",
                            shown, show_str(&s, name), show_str(&m, json_string_value(v)),
                            show_str(&f, x->file_name[en->file]));
    }
    for (size_t i = 0; i < x->n_entries; i++)
        if (!json_object_get(map, x->entry[i].t->name))
            return xerr_set(e, -EINVAL,
                            "%s: found tensor %s, expected only tensors that weight_map of %s lists",
                            show_path(&f, st_path(x->file[x->entry[i].file])),
                            show_str(&s, x->entry[i].t->name), INDEX_NAME);
    return 0;
}

/* total_size is wrong in some published packs, so it only warns; a wrong type is still a broken file. */
static int check_total(struct model_index *x, const char *shown, const json_t *root, struct xerr *e) {
    const json_t *meta = json_object_get(root, "metadata");
    const json_t *total = json_object_get(meta, "total_size");
    uint64_t sum = 0;
    struct show s;

    if (meta && !json_is_object(meta))
        return xerr_set(e, -EINVAL, "%s: metadata: found %s, expected an object", shown,
                        modeljson_show(&s, meta));
    if (!total)
        return 0;
    if (!json_is_number(total))
        return xerr_set(e, -EINVAL, "%s: metadata.total_size: found %s, expected a number", shown,
                        modeljson_show(&s, total));
    for (size_t i = 0; i < x->n_entries; i++)
        sum += x->entry[i].t->bytes;
    if (!json_is_integer(total) || (uint64_t)json_integer_value(total) != sum)
        snprintf(x->warning, sizeof x->warning,
                 "%s: metadata.total_size: found %s, expected %llu, the bytes of all tensors", shown,
                 modeljson_show(&s, total), (unsigned long long)sum);
    return 0;
}

static int open_files(struct model_index *x, const struct st_io *io, struct xerr *e) {
    char path[PATH_MAX];
    int r = 0;

    for (uint32_t i = 0; i < x->n_files && r == 0; i++) {
        r = model_index_path(x, x->file_name[i], path, e);
        if (r == 0)
            r = st_open(&x->file[i], path, io, e);
    }
    return r;
}

static int open_sharded(struct model_index *x, const char *path, const struct st_io *io, struct xerr *e) {
    struct show p, s;
    json_t *root, *map;
    int r = modeljson_load(path, INDEX_MAX_BYTES, &root, e);

    if (r < 0)
        return r;
    show_path(&p, path);
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map))
        r = xerr_set(e, -EINVAL, "%s: weight_map: found %s, expected an object", p.s,
                     modeljson_show(&s, map));
    if (r == 0)
        r = list_files(x, p.s, map, e);
    if (r == 0)
        r = check_present(x, p.s, e);
    if (r == 0)
        r = open_files(x, io, e);
    if (r == 0)
        r = gather(x, e);
    if (r == 0)
        r = check_map(x, p.s, map, e);
    if (r == 0)
        r = check_total(x, p.s, root, e);
    json_decref(root);
    for (uint32_t i = 0; i < x->n_files; i++)
        x->file_name[i] = NULL;
    return r;
}

int model_index_open(struct model_index **ret, const char *dir, const struct st_io *io, struct xerr *e) {
    struct model_index *x = calloc(1, sizeof *x);
    char path[PATH_MAX];
    bool is_sharded, is_single;
    struct stat st;
    struct show d;
    int r;

    if (!x || !(x->dir = strdup(dir))) {
        free(x);
        return xerr_set(e, -ENOMEM, "%s: no memory", show_path(&d, dir));
    }
    r = model_index_path(x, INDEX_NAME, path, e);
    /* lstat: a dangling link is a broken sharded checkpoint, not a single-file one. */
    is_sharded = r == 0 && lstat(path, &st) == 0;
    if (r == 0 && !is_sharded)
        r = model_index_path(x, SINGLE_NAME, path, e);
    is_single = r == 0 && !is_sharded && lstat(path, &st) == 0;
    if (r == 0)
        r = model_index_gguf_files(x, is_sharded ? INDEX_NAME : is_single ? SINGLE_NAME : NULL, io, e);
    if (r > 0) {
        r = gather(x, e);
    } else if (r == 0 && is_sharded) {
        r = open_sharded(x, path, io, e);
    } else if (r == 0 && !is_single) {
        r = xerr_set(e, -ENOENT, "%s: found neither %s nor %s nor a GGUF file, expected one of them",
                     show_path(&d, dir), INDEX_NAME, SINGLE_NAME);
    } else if (r == 0) {
        x->n_files = 1;
        r = st_open(&x->file[0], path, io, e);
        if (r == 0)
            r = gather(x, e);
    }
    if (r < 0) {
        model_index_close(x);
        return r;
    }
    *ret = x;
    return 0;
}

int model_index_open_gguf(struct model_index **ret, const char *dir, struct xerr *e) {
    struct model_index *x = calloc(1, sizeof *x);
    struct show d;
    int r;

    if (!x || !(x->dir = strdup(dir))) {
        free(x);
        return xerr_set(e, -ENOMEM, "%s: no memory", show_path(&d, dir));
    }
    r = model_index_gguf_files(x, NULL, NULL, e);
    if (r > 0)
        r = gather(x, e) < 0 ? -EBADMSG : 1;
    if (r <= 0)
        model_index_close(x);
    else
        *ret = x;
    return r;
}

struct model_index *model_index_close(struct model_index *x) {
    if (!x)
        return NULL;
    for (uint32_t i = 0; i < x->n_files; i++)
        st_close(x->file[i]);
    free(x->entry);
    free(x->dir);
    free(x);
    return NULL;
}

const char *model_index_dir(const struct model_index *x) {
    return x->dir;
}

uint32_t model_index_files(const struct model_index *x) {
    return x->n_files;
}

const struct st_file *model_index_file(const struct model_index *x, uint32_t file) {
    return file < x->n_files ? x->file[file] : NULL;
}

size_t model_index_count(const struct model_index *x) {
    return x->n_entries;
}

const struct model_entry *model_index_at(const struct model_index *x, size_t i) {
    return i < x->n_entries ? &x->entry[i] : NULL;
}

size_t model_index_from(const struct model_index *x, const char *name) {
    size_t lo = 0, hi = x->n_entries;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (strcmp(name, x->entry[mid].t->name) <= 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

const struct model_entry *model_index_find(const struct model_index *x, const char *name) {
    size_t i = model_index_from(x, name);

    return i < x->n_entries && strcmp(x->entry[i].t->name, name) == 0 ? &x->entry[i] : NULL;
}

const struct gguf *model_index_gguf(const struct model_index *x) {
    return x->n_files ? st_gguf(x->file[0]) : NULL;
}

const char *model_index_warning(const struct model_index *x) {
    return x->warning[0] ? x->warning : NULL;
}
