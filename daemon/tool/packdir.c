/* SPDX-License-Identifier: MIT */
/* packdir.c: the directory that is written, and the record of what is finished in it. While the work lasts
 * the record is glm-pack.partial; what is continued must have been begun by the same command from the same
 * files. Afterwards it is glm-pack.json. Nothing that was not made here is ever replaced. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pack.h"

#define PARTIAL "glm-pack.partial"
#define SUMMARY "glm-pack.json"

enum { MAX_COPY = 256 << 20 };

int pack_put_file(const char *dir, const char *name, const void *bytes, size_t n, struct xerr *e) {
    char tmp[4200], path[4200];
    const char *p = bytes;
    int fd, r = 0;

    snprintf(tmp, sizeof tmp, "%s/.%s.part", dir, name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return xerr_set(e, -errno, "%s: cannot create: %s", tmp, strerror(errno));
    while (n && r == 0) {
        ssize_t k = write(fd, p, n);

        if (k < 0 && errno != EINTR)
            r = -errno;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    close(fd);
    if (r == 0 && rename(tmp, path) < 0)
        r = -errno;
    return r < 0 ? xerr_set(e, r, "%s: cannot write: %s", path, strerror(-r)) : 0;
}

int pack_put_json(const char *dir, const char *name, const json_t *v, struct xerr *e) {
    char *text = json_dumps(v, JSON_INDENT(2));
    int r;

    if (!text)
        return xerr_set(e, -ENOMEM, "%s: no memory", name);
    r = pack_put_file(dir, name, text, strlen(text), e);
    free(text);
    return r;
}

json_t *pack_path_json(const char *path) {
    json_t *v = json_string(path);
    size_t n = strlen(path);
    char *hex = v ? NULL : malloc(2 * n + 1);

    for (size_t i = 0; hex && i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)path[i]);
    v = hex ? json_string(hex) : v;
    free(hex);
    return v;
}

/* Which command this is: options, and the sources with their sizes and times. NULL: no memory. */
static json_t *identity(const struct pack_options *o, const struct pack_plan *p) {
    json_t *id, *rules = json_array(), *files = json_array();
    int r = 0;

    for (uint32_t i = 0; i < o->n_rules; i++)
        r |= json_array_append_new(rules,
                                   json_pack("[o, s]", pack_path_json(o->rule[i].pattern), o->rule[i].f->word));
    for (uint32_t i = 0; i < model_index_files(p->x); i++) {
        struct stat st = { .st_size = 0 };
        const char *path = st_path(model_index_file(p->x, i));

        stat(path, &st);
        r |= json_array_append_new(files,
                                   json_pack("[o, I, I, I]", pack_path_json(path), (json_int_t)st.st_size,
                                             (json_int_t)st.st_mtim.tv_sec, (json_int_t)st.st_mtim.tv_nsec));
    }
    id = r == 0 ? json_pack("{s:s, s:s, s:O, s:O}", "version", GLMD_VERSION, "format", o->format->word, "parts", rules,
                            "source", files)
                : NULL;
    json_decref(rules);
    json_decref(files);
    if (id && o->numbers && json_object_set_new(id, "numbers", json_true()) < 0) {
        json_decref(id);
        id = NULL;
    }
    return id;
}

/* But for a record that a kill cut short before it had its name. */
static bool is_empty(const char *path) {
    DIR *d = opendir(path);
    struct dirent *ent;
    bool empty = d != NULL;

    while (d && (ent = readdir(d)))
        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0 &&
            strcmp(ent->d_name, "." PARTIAL ".part") != 0)
            empty = false;
    if (d)
        closedir(d);
    return empty;
}

static int continue_or_begin(struct pack_dir *d, json_t *id, struct xerr *e) {
    char path[4200];
    json_t *old;
    int r;

    snprintf(path, sizeof path, "%s/" PARTIAL, d->path);
    if (access(path, F_OK) < 0) {
        if (!is_empty(d->path))
            return xerr_set(e, -EEXIST,
                            "%s: found files that are not this program's unfinished work, expected nothing "
                            "there: nothing "
                            "is overwritten",
                            d->path);
        d->record = json_pack("{s:O, s:{}}", "made_from", id, "shards");
        return d->record ? pack_put_json(d->path, PARTIAL, d->record, e) : xerr_set(e, -ENOMEM, "no memory");
    }
    r = modeljson_load(path, PACK_MAX_JSON, &old, e);
    if (r < 0) /* its words say what is wrong with the record */
        return r;
    if (!json_equal(json_object_get(old, "made_from"), id) ||
        !json_is_object(json_object_get(old, "shards"))) {
        json_decref(old);
        return xerr_set(
            e, -EEXIST,
            "%s: found unfinished work of other options or another source, expected that of this command; "
            "remove the directory or name another",
            d->path);
    }
    d->record = old;
    return 0;
}

int pack_dir_open(struct pack_dir *ret, const struct pack_options *o, const struct pack_plan *p,
                  struct xerr *e) {
    struct pack_dir d = { .path = o->out, .lock = -1 };
    json_t *id;
    int r;

    if (strlen(o->out) > 4000)
        return xerr_set(e, -ENAMETOOLONG, "%s: too long a path", o->out);
    if (mkdir(o->out, 0755) < 0 && errno != EEXIST)
        return xerr_set(e, -errno, "%s: cannot create: %s", o->out, strerror(errno));
    d.lock = open(o->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d.lock < 0)
        return xerr_set(e, -errno, "%s: cannot open: %s", o->out, strerror(errno));
    id = identity(o, p);
    if (flock(d.lock, LOCK_EX | LOCK_NB) < 0)
        r = xerr_set(e, -EBUSY, "%s: another glm-pack works there", o->out);
    else
        r = id ? continue_or_begin(&d, id, e) : xerr_set(e, -ENOMEM, "no memory");
    json_decref(id);
    if (r < 0)
        pack_dir_done(&d);
    else
        *ret = d;
    return r;
}

/* What is made anew, or says something about the source that is no longer true. */
static bool is_ours(const char *name) {
    static const char *const ours[] = { "model.safetensors.index.json",
                                        "config.json",
                                        "hf_quant_config.json",
                                        "quantization_config.json",
                                        "README.md",
                                        SUMMARY,
                                        PARTIAL };
    static const char *const ends[] = { ".safetensors", ".gguf", ".bin", ".pt", ".pth" };
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strcmp(name, ours[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return name[0] == '.';
}

static int copy_one(const struct pack_dir *d, const char *in, const char *name, struct xerr *e) {
    char path[4600];
    struct stat st;
    void *bytes = NULL;
    FILE *f;
    int r = 0;

    snprintf(path, sizeof path, "%s/%s", in, name);
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (st.st_size > MAX_COPY)
        return xerr_set(e, -EFBIG, "%s: found %lld bytes, expected at most %d MiB in a file that is copied",
                        path, (long long)st.st_size, MAX_COPY >> 20);
    f = fopen(path, "re");
    bytes = malloc((size_t)st.st_size + 1);
    if (!f || !bytes || fread(bytes, 1, (size_t)st.st_size, f) != (size_t)st.st_size)
        r = xerr_set(e, -EIO, "%s: cannot read", path);
    if (f)
        fclose(f);
    if (r == 0)
        r = pack_put_file(d->path, name, bytes, (size_t)st.st_size, e);
    free(bytes);
    return r;
}

int pack_dir_copy(const struct pack_dir *d, const char *in, struct xerr *e) {
    DIR *from = opendir(in);
    struct dirent *ent;
    int r = 0;

    if (!from)
        return xerr_set(e, -errno, "%s: cannot open: %s", in, strerror(errno));
    while (r >= 0 && (ent = readdir(from)))
        if (!is_ours(ent->d_name))
            r = copy_one(d, in, ent->d_name, e);
    closedir(from);
    return r;
}

int pack_dir_finish(struct pack_dir *d, struct xerr *e) {
    char path[4200];
    int r = pack_put_json(d->path, SUMMARY, d->record, e);

    snprintf(path, sizeof path, "%s/" PARTIAL, d->path);
    if (r >= 0 && unlink(path) < 0)
        r = xerr_set(e, -errno, "%s: cannot remove: %s", path, strerror(errno));
    if (r >= 0 && fsync(d->lock) < 0)
        r = xerr_set(e, -errno, "%s: cannot write: %s", d->path, strerror(errno));
    return r;
}

void pack_dir_done(struct pack_dir *d) {
    json_decref(d->record);
    if (d->lock >= 0)
        close(d->lock);
    d->record = NULL;
    d->lock = -1;
}
