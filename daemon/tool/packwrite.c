/* SPDX-License-Identifier: MIT */
/* packwrite.c: one shard of the source into one shard of the output. Every tensor is made whole in memory,
 * written at its place and hashed; the file gets its name when all of it is on the disk and the record says
 * what is in it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pack.h"
#include "size.h"

struct out_tensor {
    struct pack_tensor t;
    size_t source;  /* of the index */
    uint32_t piece; /* which of the module's tensors */
    uint64_t at;
};

struct shard {
    const struct pack_plan *p;
    uint32_t file;
    struct out_tensor *out;
    size_t n, cap;
    char *header;
    size_t header_bytes; /* with the eight bytes before it */
    int fd;
    struct siphash *digest; /* of each tensor, in the order of the file */
};

static const struct siphash KEY = { { 0x676c6d2d7061636bull, 1 } };

/* ---- what the file will look like ---- */

static int add(struct shard *s, const struct pack_tensor *t, size_t source, uint32_t piece) {
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        struct out_tensor *grown = realloc(s->out, cap * sizeof *grown);

        if (!grown)
            return -ENOMEM;
        s->out = grown;
        s->cap = cap;
    }
    s->out[s->n++] = (struct out_tensor){ .t = *t, .source = source, .piece = piece };
    return 0;
}

static int add_source(struct shard *s, size_t i) {
    const struct st_tensor *t = model_index_at(s->p->x, i)->t;
    struct pack_tensor part[PACK_MAX_TENSORS];
    char module[300];
    uint32_t n = 0;
    int r = 0;

    if (!s->p->to[i]) {
        if (t->n_dims > 8 || strlen(t->name) >= sizeof part[0].name)
            return -EOVERFLOW;
        part[0] = (struct pack_tensor){ .dtype = t->dtype, .n_dims = t->n_dims, .bytes = t->bytes };
        snprintf(part[0].name, sizeof part[0].name, "%s", t->name);
        return add(s, &part[0], i, 0);
    }
    pack_module_name(t->name, module, sizeof module);
    r = pack_tensors(s->p->to[i], s->p->family, module, t->shape[0], t->shape[1], part, &n);
    for (uint32_t k = 0; k < n && r >= 0; k++)
        r = add(s, &part[k], i, k);
    return r;
}

/* Large elements first, so that every tensor starts at a multiple of its element. */
static int by_width(const void *a, const void *b) {
    const struct out_tensor *x = a, *y = b;
    uint32_t u = st_dtype_bits(x->t.dtype), v = st_dtype_bits(y->t.dtype);

    return u != v ? (u < v ? 1 : -1) : strcmp(x->t.name, y->t.name);
}

static json_t *entry(const struct model_index *x, const struct out_tensor *o) {
    const struct st_tensor *t = model_index_at(x, o->source)->t;
    bool same = strcmp(t->name, o->t.name) == 0 && t->dtype == o->t.dtype; /* shapes of any rank are copied */
    json_t *shape = json_array(), *all = NULL;
    int r = 0;

    for (uint32_t i = 0; i < o->t.n_dims; i++)
        r |= json_array_append_new(shape, json_integer((json_int_t)(same ? t->shape[i] : o->t.shape[i])));
    if (r == 0)
        all = json_pack("{s:s, s:O, s:[I, I]}", "dtype", st_dtype_name(o->t.dtype), "shape", shape, "data_offsets",
                        (json_int_t)o->at, (json_int_t)(o->at + o->t.bytes));
    json_decref(shape);
    return all;
}

static int lay_out(struct shard *s) {
    json_t *doc = json_object();
    uint64_t at = 0;
    char *text;
    size_t n, padded;
    int r = doc && json_object_set_new(doc, "__metadata__", json_pack("{s:s}", "format", "pt")) == 0
                ? 0
                : -ENOMEM;

    qsort(s->out, s->n, sizeof *s->out, by_width);
    for (size_t i = 0; i < s->n && r >= 0; i++) {
        s->out[i].at = at;
        if (!size_add(at, s->out[i].t.bytes, &at))
            r = -EOVERFLOW;
        else if (json_object_set_new(doc, s->out[i].t.name, entry(s->p->x, &s->out[i])) < 0)
            r = -ENOMEM;
    }
    text = r >= 0 ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    if (!text)
        return r < 0 ? r : -ENOMEM;
    n = strlen(text);
    padded = (n + 7) & ~(size_t)7;
    s->header = malloc(padded + 8);
    if (s->header) {
        memset(s->header + 8, ' ', padded);
        memcpy(s->header + 8, text, n);
        for (int i = 0; i < 8; i++)
            s->header[i] = (char)(padded >> (8 * i));
        s->header_bytes = padded + 8;
    }
    free(text);
    return s->header ? 0 : -ENOMEM;
}

/* ---- writing ---- */

static int put(int fd, const void *bytes, uint64_t n, uint64_t at) {
    const char *p = bytes;

    while (n) {
        ssize_t k = pwrite(fd, p, n < 1u << 30 ? n : 1u << 30, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EIO;
        p += k;
        at += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return 0;
}

static int put_tensor(struct shard *s, size_t source, uint32_t piece, const void *bytes) {
    for (size_t i = 0; i < s->n; i++)
        if (s->out[i].source == source && s->out[i].piece == piece) {
            s->digest[i] = siphash(KEY, bytes, s->out[i].t.bytes);
            return put(s->fd, bytes, s->out[i].t.bytes, s->header_bytes + s->out[i].at);
        }
    return -EINVAL;
}

static int convert(struct shard *s, size_t i, const void *source, struct pack_totals *t, struct xerr *e) {
    const struct st_tensor *from = model_index_at(s->p->x, i)->t;
    struct pack_tensor part[PACK_MAX_TENSORS];
    uint8_t *bytes[PACK_MAX_TENSORS] = { NULL };
    uint8_t p = s->p->part[i];
    char module[300];
    double diff = 0, norm = 0;
    uint32_t n = 0;
    int r;

    pack_module_name(from->name, module, sizeof module);
    r = pack_tensors(s->p->to[i], s->p->family, module, from->shape[0], from->shape[1], part, &n);
    if (r >= 0)
        r = pack_encode(s->p->to[i], s->p->family, from->dtype, source, from->shape[0], from->shape[1], part,
                        n, bytes, &diff, &norm);
    if (r == -EDOM)
        xerr_set(e, r, "%s: found a number that is infinite or none, expected finite weights", from->name);
    else if (r == -ERANGE)
        xerr_set(e, r, "%s: found numbers larger than the scales of %s hold", from->name, s->p->to[i]->word);
    else if (r < 0)
        xerr_set(e, r, "%s: cannot be written as %s: %s", from->name, s->p->to[i]->word, strerror(-r));
    for (uint32_t k = 0; k < n && r >= 0; k++) {
        r = put_tensor(s, i, k, bytes[k]);
        if (r < 0)
            xerr_set(e, r, "%s: cannot write: %s", from->name, strerror(-r));
        t->to[p] += part[k].bytes;
    }
    for (uint32_t k = 0; k < n; k++)
        free(bytes[k]);
    t->from[p] += from->bytes;
    t->diff[p] += diff;
    t->norm[p] += norm;
    return r;
}

static int one_source(struct shard *s, size_t i, struct pack_totals *t, struct xerr *e) {
    const struct model_entry *en = model_index_at(s->p->x, i);
    uint8_t p = s->p->part[i];
    void *bytes = malloc(en->t->bytes ? en->t->bytes : 1);
    int r;

    if (!bytes)
        return xerr_set(e, -ENOMEM, "%s: no memory for %llu bytes", en->t->name,
                        (unsigned long long)en->t->bytes);
    r = st_read(model_index_file(s->p->x, en->file), en->t, 0, bytes, en->t->bytes, e);
    if (r >= 0 && s->p->to[i]) {
        r = convert(s, i, bytes, t, e);
    } else if (r >= 0) {
        t->from[p] += en->t->bytes;
        t->to[p] += en->t->bytes;
        r = put_tensor(s, i, 0, bytes);
        if (r < 0)
            xerr_set(e, r, "%s: cannot write: %s", en->t->name, strerror(-r));
    }
    free(bytes);
    return r;
}

static void hex(struct siphash h, char ret[33]) {
    snprintf(ret, 33, "%016llx%016llx", (unsigned long long)h.h[0], (unsigned long long)h.h[1]);
}

void pack_hash(const void *bytes, uint64_t n, char ret[33]) {
    hex(siphash(KEY, bytes, n), ret);
}

static int by_offset(const void *a, const void *b) {
    const struct st_tensor *const *x = a, *const *y = b;

    return (*x)->offset < (*y)->offset ? -1 : (*x)->offset > (*y)->offset;
}

int pack_digest(const struct st_file *f, char ret[33], struct xerr *e) {
    size_t n = st_count(f);
    const struct st_tensor **order = calloc(n + 1, sizeof *order);
    struct siphash *all = calloc(n + 1, sizeof *all);
    int r = order && all ? 0 : xerr_set(e, -ENOMEM, "%s: no memory", st_path(f));

    for (size_t i = 0; i < n && r >= 0; i++)
        order[i] = st_at(f, i);
    if (r >= 0)
        qsort(order, n, sizeof *order, by_offset);
    for (size_t i = 0; i < n && r >= 0; i++) {
        void *bytes = malloc(order[i]->bytes + 1);

        r = bytes ? st_read(f, order[i], 0, bytes, order[i]->bytes, e)
                  : xerr_set(e, -ENOMEM, "%s: %s: no memory", st_path(f), order[i]->name);
        if (r >= 0)
            all[i] = siphash(KEY, bytes, order[i]->bytes);
        free(bytes);
    }
    if (r >= 0)
        hex(siphash(KEY, all, n * sizeof *all), ret);
    free(order);
    free(all);
    return r < 0 ? r : 0;
}

/* ---- the record ---- */

json_t *pack_to_record(const char digest[33], const struct pack_totals *t) {
    json_t *parts = json_object(), *one;
    int r = 0;

    for (int i = 0; i < PACK_PARTS; i++)
        if (t->from[i])
            r |= json_object_set_new(parts, pack_part_name((enum pack_part)i),
                                     json_pack("[I, I, f, f]", (json_int_t)t->from[i], (json_int_t)t->to[i],
                                               t->diff[i], t->norm[i]));
    one = r == 0 ? json_pack("{s:s, s:O}", "digest", digest, "parts", parts) : NULL;
    json_decref(parts);
    return one;
}

static void from_record(const json_t *one, struct pack_totals *t) {
    for (int i = 0; i < PACK_PARTS; i++) {
        const json_t *v = json_object_get(json_object_get(one, "parts"), pack_part_name((enum pack_part)i));

        t->from[i] += (uint64_t)json_integer_value(json_array_get(v, 0));
        t->to[i] += (uint64_t)json_integer_value(json_array_get(v, 1));
        t->diff[i] += json_number_value(json_array_get(v, 2));
        t->norm[i] += json_number_value(json_array_get(v, 3));
    }
}

void pack_sum_up(struct pack_totals *t, const struct pack_totals *more) {
    for (int i = 0; i < PACK_PARTS; i++) {
        t->from[i] += more->from[i];
        t->to[i] += more->to[i];
        t->diff[i] += more->diff[i];
        t->norm[i] += more->norm[i];
    }
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Whether the finished file is there as the record has it. */
static bool is_finished(const struct pack_dir *d, const char *name) {
    const char *want = json_string_value(
        json_object_get(json_object_get(json_object_get(d->record, "shards"), name), "digest"));
    struct st_file *f = NULL;
    char path[4200], found[33];
    bool same;

    snprintf(path, sizeof path, "%s/%s", d->path, name);
    if (!want || access(path, F_OK) < 0 || st_open(&f, path, NULL, NULL) < 0)
        return false;
    same = pack_digest(f, found, NULL) == 0 && (strcmp(found, want) == 0 || FAULT(pack_trusts_record));
    st_close(f);
    return same;
}

/* Bytes of the output that come from source i. */
static uint64_t bytes_from(const struct shard *s, size_t i) {
    uint64_t sum = 0;

    for (size_t k = 0; k < s->n; k++)
        sum += s->out[k].source == i ? s->out[k].t.bytes : 0;
    return sum;
}

static int put_sources(struct shard *s, const char *name, struct pack_totals *t, struct xerr *e) {
    uint64_t all = 0, done = 0;
    int r = 0;

    for (size_t k = 0; k < s->n; k++)
        all += s->out[k].t.bytes;
    for (size_t i = 0; i < model_index_count(s->p->x) && r >= 0; i++) {
        if (model_index_at(s->p->x, i)->file != s->file)
            continue;
        uint64_t more = bytes_from(s, i);

        r = one_source(s, i, t, e);
        if (r >= 0)
            pack_tell(name, done, done + more, all);
        done += more;
    }
    return r;
}

static int write_shard(struct shard *s, const struct pack_dir *d, const char *name, struct pack_totals *t,
                       struct xerr *e) {
    char tmp[4200], path[4200], digest[33];
    json_t *shards = json_object_get(d->record, "shards");
    int r;

    snprintf(tmp, sizeof tmp, "%s/.%s.part", d->path, name);
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    s->fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (s->fd < 0)
        return xerr_set(e, -errno, "%s: cannot create: %s", tmp, strerror(errno));
    r = put(s->fd, s->header, s->header_bytes, 0);
    if (r < 0)
        xerr_set(e, r, "%s: cannot write: %s", tmp, strerror(-r));
    if (r >= 0)
        r = put_sources(s, name, t, e);
    if (r >= 0 && fsync(s->fd) < 0)
        r = xerr_set(e, -errno, "%s: cannot write: %s", tmp, strerror(errno));
    close(s->fd);
    if (r < 0)
        return r;
    hex(siphash(KEY, s->digest, s->n * sizeof *s->digest), digest);
    if (json_object_set_new(shards, name, pack_to_record(digest, t)) < 0)
        return xerr_set(e, -ENOMEM, "%s: no memory for the record", name);
    r = pack_put_json(d->path, "glm-pack.partial", d->record, e);
    if (r >= 0 && rename(tmp, path) < 0)
        r = xerr_set(e, -errno, "%s: cannot rename to %s: %s", tmp, path, strerror(errno));
    return r;
}

int pack_shard(struct pack_dir *d, const struct pack_plan *p, uint32_t file, json_t *weight_map,
               struct pack_totals *t, bool *ret_kept, struct xerr *e) {
    const char *name = base_name(st_path(model_index_file(p->x, file)));
    struct shard s = { .p = p, .file = file, .fd = -1 };
    struct pack_totals own = { .from = { 0 } };
    int r = 0;

    *ret_kept = false;
    for (size_t i = 0; i < model_index_count(p->x) && r >= 0; i++)
        if (model_index_at(p->x, i)->file == file)
            r = add_source(&s, i);
    if (r >= 0)
        r = lay_out(&s);
    s.digest = calloc(s.n + 1, sizeof *s.digest);
    if (r < 0 || !s.digest) {
        r = xerr_set(e, r < 0 ? r : -ENOMEM, "%s: cannot be laid out: %s", name,
                     strerror(r < 0 ? -r : ENOMEM));
    } else if (is_finished(d, name)) {
        *ret_kept = true;
        from_record(json_object_get(json_object_get(d->record, "shards"), name), t);
    } else {
        r = write_shard(&s, d, name, &own, e);
        pack_sum_up(t, &own);
    }
    for (size_t i = 0; i < s.n && r >= 0; i++)
        if (json_object_set_new(weight_map, s.out[i].t.name, json_string(name)) < 0)
            r = xerr_set(e, -ENOMEM, "%s: no memory for the index", name);
    free(s.out);
    free(s.header);
    free(s.digest);
    return r < 0 ? r : 0;
}
