/* SPDX-License-Identifier: MIT */
#include "ckpt.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *ckpt_model(const char *name) {
    static char path[PATH_MAX];
    const char *root = getenv("GLMD_MODELS");
    char rel[PATH_MAX], config[PATH_MAX + 16];

    snprintf(rel, sizeof rel, "%s/%s", root && *root ? root : "build/models", name);
    ck_assert_msg(realpath(rel, path) != NULL, "%s: %s; run `make models`", rel, strerror(errno));
    snprintf(config, sizeof config, "%s/config.json", path);
    ck_assert_msg(access(config, R_OK) == 0, "%s: %s; run `make models`", config, strerror(errno));
    return path;
}

void ckpt_empty(struct ckpt *c) {
    const char *tmp = getenv("TMPDIR");

    snprintf(c->dir, sizeof c->dir, "%s/glmd-ckpt-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    ck_assert_msg(mkdtemp(c->dir) != NULL, "%s: %s", c->dir, strerror(errno));
}

void ckpt_copy(struct ckpt *c, const char *model) {
    const char *from = ckpt_model(model);
    char src[PATH_MAX + 256];
    struct dirent *de;
    DIR *d = opendir(from);

    ck_assert_ptr_nonnull(d);
    ckpt_empty(c);
    while ((de = readdir(d))) {
        if (de->d_name[0] == '.')
            continue;
        snprintf(src, sizeof src, "%s/%s", from, de->d_name);
        if (link(src, ckpt_path(c, de->d_name)) < 0)
            ck_assert_msg(symlink(src, ckpt_path(c, de->d_name)) == 0, "%s: %s", src, strerror(errno));
    }
    closedir(d);
}

void ckpt_remove(struct ckpt *c) {
    struct dirent *de;
    DIR *d = opendir(c->dir);

    ck_assert_ptr_nonnull(d);
    while ((de = readdir(d)))
        if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
            ck_assert_int_eq(remove(ckpt_path(c, de->d_name)), 0);
    closedir(d);
    ck_assert_int_eq(rmdir(c->dir), 0);
}

const char *ckpt_path(const struct ckpt *c, const char *file) {
    static char buf[4][512];
    static unsigned turn;
    char *b = buf[turn++ % 4];

    ck_assert_int_lt(snprintf(b, sizeof buf[0], "%s/%s", c->dir, file), (int)sizeof buf[0]);
    return b;
}

void ckpt_write(const struct ckpt *c, const char *file, const void *bytes, size_t n) {
    const char *path = ckpt_path(c, file);
    FILE *f;

    unlink(path);
    f = fopen(path, "wx");
    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

void *ckpt_read(const struct ckpt *c, const char *file, size_t *ret_n) {
    const char *path = ckpt_path(c, file);
    FILE *f = fopen(path, "r");
    struct stat st;
    char *buf;

    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    ck_assert_int_eq(fstat(fileno(f), &st), 0);
    buf = malloc((size_t)st.st_size + 1);
    ck_assert_ptr_nonnull(buf);
    ck_assert_uint_eq(fread(buf, 1, (size_t)st.st_size, f), (size_t)st.st_size);
    buf[st.st_size] = 0;
    fclose(f);
    *ret_n = (size_t)st.st_size;
    return buf;
}

json_t *ckpt_json(const struct ckpt *c, const char *file) {
    json_error_t e;
    json_t *v = json_load_file(ckpt_path(c, file), 0, &e);

    ck_assert_msg(v != NULL, "%s: %s", file, e.text);
    return v;
}

void ckpt_write_json(const struct ckpt *c, const char *file, const json_t *v) {
    char *text = json_dumps(v, JSON_INDENT(2) | JSON_REAL_PRECISION(17));

    ck_assert_ptr_nonnull(text);
    ckpt_write(c, file, text, strlen(text));
    free(text);
}

/* The container of the last step of path, and that step. */
static json_t *parent(json_t *root, const char *path, char last[128]) {
    const char *dot;
    json_t *v = root;

    while ((dot = strchr(path, '.'))) {
        char step[128];

        snprintf(step, sizeof step, "%.*s", (int)(dot - path), path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(step)) : json_object_get(v, step);
        path = dot + 1;
    }
    snprintf(last, 128, "%s", path);
    return v;
}

json_t *ckpt_get(json_t *root, const char *path) {
    char last[128];
    json_t *p = parent(root, path, last);

    return json_is_array(p) ? json_array_get(p, (size_t)atoi(last)) : json_object_get(p, last);
}

void ckpt_set(json_t *root, const char *path, json_t *v) {
    char last[128];
    json_t *p = parent(root, path, last);
    int r;

    ck_assert_msg(p != NULL, "%s: no such place", path);
    if (json_is_array(p))
        r = !v                                        ? json_array_remove(p, (size_t)atoi(last))
            : (size_t)atoi(last) < json_array_size(p) ? json_array_set_new(p, (size_t)atoi(last), v)
                                                      : json_array_append_new(p, v);
    else
        r = v ? json_object_set_new(p, last, v) : json_object_del(p, last);
    ck_assert_msg(r == 0, "%s: cannot be changed", path);
}

void ckpt_write_st(const struct ckpt *c, const char *file, const char *header, const void *data, size_t n) {
    size_t len = strlen(header);
    unsigned char *all = calloc(1, 8 + len + n);

    ck_assert_ptr_nonnull(all);
    for (int i = 0; i < 8; i++)
        all[i] = (unsigned char)((uint64_t)len >> (8 * i));
    memcpy(all + 8, header, len);
    if (data && n)
        memcpy(all + 8 + len, data, n);
    ckpt_write(c, file, all, 8 + len + n);
    free(all);
}

void ckpt_expect(const char *label, int r, int code, const struct xerr *e, const char *const has[]) {
    ck_assert_msg(r == code, "%s: returned %d, expected %d; message: %s", label, r, code,
                  r < 0 ? e->msg : "-");
    ck_assert_msg(e->code == code, "%s: xerr code %d, expected %d", label, e->code, code);
    for (size_t i = 0; has[i]; i++)
        ck_assert_msg(strstr(e->msg, has[i]) != NULL, "%s: message lacks \"%s\": %s", label, has[i], e->msg);
}

uint64_t ckpt_rand(struct ckpt_rng *r) {
    uint64_t z = r->s += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
