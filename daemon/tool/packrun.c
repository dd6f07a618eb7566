/* SPDX-License-Identifier: MIT */
/* packrun.c: one conversion from beginning to end, and what is told about it. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "directory.h"
#include "pack.h"

void pack_tell(const char *file, uint64_t before, uint64_t now, uint64_t all) {
    uint64_t tenths = all ? now / ((all + 9) / 10) : 0;

    if (!FAULT(pack_silent) && now < all && tenths > before / ((all + 9) / 10))
        fprintf(stderr, "glm-pack: %s: %u0 %%\n", file, (unsigned)tenths);
}

static double error_of(double diff, double norm) {
    return norm > 0 ? sqrt(diff / norm) : 0;
}

static void print_parts(const struct pack_totals *t) {
    printf("%-8s %16s %16s %8s %9s\n", "part", "bytes before", "bytes after", "ratio", "error");
    for (int i = 0; i < PACK_PARTS; i++)
        if (t->from[i])
            printf("%-8s %16" PRIu64 " %16" PRIu64 " %8.4f %9.5f\n", pack_part_name((enum pack_part)i),
                   t->from[i], t->to[i], (double)t->to[i] / (double)t->from[i],
                   error_of(t->diff[i], t->norm[i]));
}

static json_t *number(double v) {
    return isfinite(v) ? json_real(v) : json_null(); /* JSON has no other */
}

static json_t *parts_json(const struct pack_totals *t) {
    json_t *doc = json_object();

    for (int i = 0; i < PACK_PARTS; i++)
        if (t->from[i])
            json_object_set_new(doc, pack_part_name((enum pack_part)i),
                                json_pack("{s:I, s:I, s:o}", "bytes_before", (json_int_t)t->from[i],
                                          "bytes_after", (json_int_t)t->to[i], "relative_error",
                                          number(error_of(t->diff[i], t->norm[i]))));
    return doc;
}

/* One line for people, one object for machines. */
static void print_kl(const char *text, const struct pack_kl *k) {
    printf("%s: %u positions: KL %.3e (largest %.3e), same first choice %.4f, loss %.4f before, %.4f after\n", text,
           k->n, k->kl, k->worst, k->same, k->loss_in, k->loss_out);
}

static json_t *kl_json(const struct pack_kl *k) {
    return json_pack("{s:i, s:o, s:o, s:f, s:o, s:o}", "positions", (int)k->n, "kl", number(k->kl), "worst",
                     number(k->worst), "same", k->same, "loss_before", number(k->loss_in), "loss_after",
                     number(k->loss_out));
}

static int report(const struct pack_options *o, const struct pack_plan *p, const struct pack_totals *t,
                  const struct pack_kl *k, uint32_t kept, struct xerr *e) {
    json_t *doc;

    if (!o->json) {
        print_parts(t);
        printf("%s: %" PRIu64 " matrices converted", o->out, p->n_converted);
        if (p->n_unfit)
            printf(", %" PRIu64 " left as they were, whose shapes do not fit (first %s)", p->n_unfit,
                   p->first_unfit);
        printf("\n");
        if (k)
            print_kl(o->text, k);
        return 0;
    }
    doc = json_pack("{s:o, s:o, s:s, s:I, s:I, s:i, s:o}", "source", pack_path_json(o->in), "directory",
                    pack_path_json(o->out), "format",
                    o->format->word, "converted", (json_int_t)p->n_converted, "unfit", (json_int_t)p->n_unfit,
                    "shards_kept", (int)kept, "parts", parts_json(t));
    if (doc && k)
        json_object_set_new(doc, "text", kl_json(k));
    if (!doc)
        return xerr_set(e, -ENOMEM, "--json: no memory");
    json_dumpf(doc, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(doc);
    return 0;
}

static int write_index(const struct pack_dir *d, const struct pack_plan *p, json_t *map,
                       const struct pack_totals *t, struct xerr *e) {
    uint64_t total = 0;
    json_t *doc;
    int r;

    if (model_index_files(p->x) == 1 &&
        strcmp(strrchr(st_path(model_index_file(p->x, 0)), '/'), "/model.safetensors") == 0)
        return 0; /* a single file needs none */
    for (int i = 0; i < PACK_PARTS; i++)
        total += t->to[i];
    doc = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    r = doc ? pack_put_json(d->path, "model.safetensors.index.json", doc, e)
            : xerr_set(e, -ENOMEM, "no memory");
    json_decref(doc);
    return r;
}

static int shards(struct pack_dir *d, const struct pack_plan *p, struct pack_totals *t, uint32_t *ret_kept,
                  struct xerr *e) {
    uint32_t n = model_index_files(p->x);
    json_t *map = json_object();
    int r = map ? 0 : xerr_set(e, -ENOMEM, "no memory");

    for (uint32_t i = 0; i < n && r >= 0; i++) {
        bool was_there = false;

        r = pack_shard(d, p, i, map, t, &was_there, e);
        *ret_kept += was_there;
        if (r >= 0)
            fprintf(stderr, "glm-pack: %u of %u: %s\n", i + 1, n,
                    was_there ? "was finished and is as it was written" : "written");
    }
    if (r >= 0)
        r = write_index(d, p, map, t, e);
    json_decref(map);
    return r;
}

/* A source that says it is quantised is none. */
static int look_at_source(const struct pack_options *o, struct xerr *e) {
    char path[4200];
    json_t *doc;
    int r;

    if (strlen(o->in) > 4000)
        return xerr_set(e, -ENAMETOOLONG, "%s: too long a path", o->in);
    snprintf(path, sizeof path, "%s/config.json", o->in);
    r = modeljson_load(path, PACK_MAX_JSON, &doc, e);
    if (r < 0)
        return r;
    if (json_object_get(doc, "quantization_config") && !json_is_null(json_object_get(doc, "quantization_config")))
        r = xerr_set(
            e, -EINVAL,
            "%s: found quantization_config, expected none: only an unquantised checkpoint is converted",
            path);
    json_decref(doc);
    return r;
}

/* What the daemon would refuse is not converted: it would be refused after hours, or, where a tensor has another
 * shape or type than the model's, be written as something else. */
static int is_whole(const struct pack_options *o, const struct model_index *x, struct xerr *e) {
    struct model_directory d;
    struct model_config cfg;
    int r = model_config_read(o->in, &cfg, e);

    if (FAULT(pack_source_unseen))
        return 0;
    if (r >= 0 && (r = model_directory_build(&d, &cfg, x, e)) >= 0)
        model_directory_done(&d);
    return r < 0 ? r : 0;
}

int pack_run(const struct pack_options *o) {
    struct model_index *x = NULL;
    struct pack_plan p = { .x = NULL };
    struct pack_dir d = { .lock = -1 };
    struct pack_totals t = { .from = { 0 } };
    struct pack_kl k = { .n = 0 };
    struct xerr err = { 0 };
    uint32_t kept = 0, left = 0;
    int r = look_at_source(o, &err);

    if (r >= 0)
        r = model_index_open(&x, o->in, NULL, &err);
    if (r >= 0)
        r = is_whole(o, x, &err);
    if (r >= 0)
        r = pack_plan_make(o, x, &p, &err);
    if (r >= 0 && p.family == PACK_GGUF)
        r = pack_gguf_can(o, &err);
    if (r >= 0)
        r = pack_dir_open(&d, o, &p, &err);
    if (r >= 0 && p.family == PACK_GGUF) {
        bool all = false;

        r = pack_gguf(&d, o, &p, &t, &all, &left, &err);
        kept = all;
    } else if (r >= 0) {
        r = shards(&d, &p, &t, &kept, &err);
        if (r >= 0)
            r = pack_config(&d, o, &p, &err);
    }
    if (r >= 0)
        r = pack_dir_copy(&d, o->in, &err);
    if (left)
        fprintf(stderr,
                "glm-pack: %u tensors of the vision tower have no place in a GGUF file and are left out\n",
                left);
    if (r >= 0)
        r = pack_dir_finish(&d, &err);
    if (r >= 0 && o->text)
        r = pack_compare(o, &k, &err);
    if (r >= 0)
        r = report(o, &p, &t, o->text ? &k : NULL, kept, &err);
    pack_dir_done(&d);
    pack_plan_done(&p);
    model_index_close(x);
    if (r < 0) {
        fprintf(stderr, "glm-pack: %s\n", err.msg);
        return PACK_TROUBLE;
    }
    return PACK_OK;
}

int pack_compare_run(const struct pack_options *o) {
    struct xerr err = { 0 };
    struct pack_kl k;
    json_t *doc;

    if (pack_compare(o, &k, &err) < 0) {
        fprintf(stderr, "glm-pack: %s\n", err.msg);
        return PACK_TROUBLE;
    }
    if (!o->json) {
        print_kl(o->text, &k);
        return PACK_OK;
    }
    doc = json_pack("{s:o, s:o, s:o, s:o}", "first", pack_path_json(o->in), "second", pack_path_json(o->out), "file",
                    pack_path_json(o->text), "text", kl_json(&k));
    if (!doc) {
        fprintf(stderr, "glm-pack: --json: no memory\n");
        return PACK_TROUBLE;
    }
    json_dumpf(doc, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(doc);
    return PACK_OK;
}
