/* SPDX-License-Identifier: MIT */
/* packcheck.c: is a checkpoint whole? Its tensors are found, read and looked at as the daemon does when it
 * loads them, and where glm-pack left its summary, the bytes are those it wrote. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "directory.h"
#include "loader.h"
#include "pack.h"

enum { STAGING = 4 << 20 };

static int swallow(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                   const void *bytes, uint64_t n) {
    uint64_t *total = ctx;

    (void)id;
    (void)t;
    (void)offset;
    (void)bytes;
    *total += n;
    return 0;
}

static int read_all(const struct model_index *x, const struct model_directory *d, uint64_t *ret_bytes,
                    struct xerr *e) {
    uint64_t total = 0;
    struct model_load l = { .staging = NULL, .staging_bytes = STAGING, .sink = swallow, .sink_ctx = &total };
    int r;

    l.staging = aligned_alloc(64, STAGING);
    if (!l.staging)
        return xerr_set(e, -ENOMEM, "no memory to read into");
    r = model_load(x, d, &l, e);
    free(l.staging);
    *ret_bytes = total;
    return r;
}

/* Digests against the summary. *ret_n: files compared, 0 without a summary. */
static int digests(const char *dir, const struct model_index *x, uint32_t *ret_n, struct xerr *e) {
    char path[4200], found[33];
    json_t *doc;
    int r;

    *ret_n = 0;
    snprintf(path, sizeof path, "%s/glm-pack.json", dir);
    if (access(path, F_OK) < 0)
        return 0;
    r = modeljson_load(path, PACK_MAX_JSON, &doc, e);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < model_index_files(x) && r >= 0; i++) {
        const struct st_file *f = model_index_file(x, i);
        const char *name = strrchr(st_path(f), '/') ? strrchr(st_path(f), '/') + 1 : st_path(f);
        const char *want = json_string_value(
            json_object_get(json_object_get(json_object_get(doc, "shards"), name), "digest"));

        r = pack_digest(f, found, e);
        if (r >= 0 && (!want || strcmp(want, found) != 0))
            r = xerr_set(e, -EBADMSG, "%s: found contents %s, expected %s, which were written", st_path(f),
                         found, want ? want : "none");
        if (r >= 0)
            ++*ret_n;
    }
    json_decref(doc);
    return r;
}

int pack_check(const char *dir, bool json) {
    struct model_config cfg;
    struct model_directory d = { .item = NULL };
    struct model_index *x = NULL;
    struct xerr err = { 0 };
    uint64_t bytes = 0;
    uint32_t n = 0;
    bool built = false;
    char path[4200];
    int r;

    if (access(dir, R_OK | X_OK) < 0) {
        fprintf(stderr, "glm-pack: --check %s: %s; expected the directory of a checkpoint\n", dir, strerror(errno));
        return PACK_TROUBLE;
    }
    snprintf(path, sizeof path, "%s/glm-pack.partial", dir);
    if (access(path, F_OK) == 0)
        r = xerr_set(&err, -EINPROGRESS,
                     "%s: unfinished: the command that makes it did not end; call it again", dir);
    else
        r = model_index_open(&x, dir, NULL, &err);
    if (r >= 0)
        r = model_config_read(dir, &cfg, &err);
    if (r >= 0 && (r = model_directory_build(&d, &cfg, x, &err)) >= 0)
        built = true;
    if (r >= 0)
        r = read_all(x, &d, &bytes, &err);
    if (r >= 0)
        r = digests(dir, x, &n, &err);
    if (json) {
        json_t *doc = json_pack("{s:o, s:b, s:I, s:i, s:o}", "directory", pack_path_json(dir), "good", r >= 0,
                                "bytes", (json_int_t)bytes, "digests", (int)n, "error",
                                pack_path_json(r < 0 ? err.msg : ""));

        if (doc)
            json_dumpf(doc, stdout, JSON_COMPACT);
        printf("\n");
        json_decref(doc);
    } else if (r >= 0) {
        printf("%s: good: %zu tensors, %" PRIu64 " bytes read; ", dir, d.n_items, bytes);
        if (n)
            printf("%u files are as they were written\n", n);
        else
            printf("no glm-pack.json tells what was written\n");
    }
    if (r < 0)
        fprintf(stderr, "glm-pack: %s\n", err.msg);
    if (built)
        model_directory_done(&d);
    model_index_close(x);
    return r < 0 ? PACK_DIFFERS : PACK_OK;
}
