/* SPDX-License-Identifier: MIT */
/* What an earlier daemon left in the directory. Heads are read, nothing else: the rest is looked at when it is asked
 * for. Starting thread, before there is another. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spill_priv.h"

struct found {
    struct spill_id id, parent;
    uint64_t domain, hash, bytes;
    uint32_t pos, entry;
    uint8_t kind, quality, mark;
};

struct scan {
    struct found *f;
    size_t n, cap;
    uint64_t foreign_bytes;
    uint32_t n_foreign, n_damaged, n_unread;
};

static int by_id(const struct spill_id *a, const struct spill_id *b) {
    if (a->hi != b->hi)
        return a->hi < b->hi ? -1 : 1;
    return a->lo == b->lo ? 0 : a->lo < b->lo ? -1 : 1;
}

static int order_by_id(const void *a, const void *b) {
    return by_id(&((const struct found *)a)->id, &((const struct found *)b)->id);
}

/* Parents before what refers to them: shorter prefixes first, and of one length the page before the state. */
static int order_by_depth(const void *a, const void *b) {
    const struct found *x = *(const struct found *const *)a, *y = *(const struct found *const *)b;

    if (x->pos != y->pos)
        return x->pos < y->pos ? -1 : 1;
    return x->kind - y->kind;
}

static bool is_temporary(const char *name) {
    char stem[SPILL_NAME_MAX];
    size_t n = strlen(name);
    struct spill_id id;
    uint8_t kind;

    if (n < 5 || n >= sizeof stem || strcmp(name + n - 4, ".tmp") != 0)
        return false;
    memcpy(stem, name, n - 4);
    stem[n - 4] = 0;
    return spill_name_parse(stem, &kind, &id);
}

static int keep(struct scan *c, const struct found *f) {
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 256;
        struct found *more = reallocarray(c->f, cap, sizeof *more);

        if (!more)
            return -ENOMEM;
        c->f = more;
        c->cap = cap;
    }
    c->f[c->n++] = *f;
    return 0;
}

static int look_at(struct spill *s, struct scan *c, const char *name) {
    struct spill_head h;
    struct found f = { .entry = SPILL_NONE };
    int r;

    if (is_temporary(name)) {
        spill_io_remove(s->io, name);
        return 0;
    }
    if (!spill_name_parse(name, &f.kind, &f.id))
        return 0; /* not ours */
    r = spill_io_head(s->io, name, &h, &f.bytes);
    if (r == 0 && (h.kind != f.kind || by_id(&h.id, &f.id) != 0))
        r = -EBADMSG;
    if (r == -ESTALE || r == -EPROTO) {
        c->n_foreign++;
        c->foreign_bytes += f.bytes;
        f.kind = SPILL_FOREIGN;
        return keep(c, &f);
    }
    if (r == -EBADMSG || (r == 0 && !s->o.survive)) {
        c->n_damaged += r < 0;
        spill_io_remove(s->io, name);
        return 0;
    }
    if (r < 0) {
        c->n_unread++;
        return r == -ENOMEM ? r : 0;
    }
    f.parent = h.parent;
    f.domain = h.domain;
    f.hash = h.hash;
    f.pos = h.pos;
    f.quality = (uint8_t)h.quality;
    f.mark = h.mark <= UINT8_MAX ? (uint8_t)h.mark : 0;
    return keep(c, &f);
}

static const struct found *parent_of(const struct scan *c, const struct found *f) {
    struct found key = { .id = f->parent };

    return bsearch(&key, c->f, c->n, sizeof *c->f, order_by_id);
}

/* A page whose chain is whole, a state whose last page is there. */
static bool is_linked(const struct spill *s, const struct scan *c, const struct found *f, uint32_t *ret_parent) {
    uint32_t start = spill_page_start(f->pos, s->o.shape.page_tokens);
    const struct found *p;

    *ret_parent = SPILL_NONE;
    if (f->kind == SPILL_FOREIGN || (f->kind == SPILL_PAGE && !start))
        return true;
    p = parent_of(c, f);
    if (!p || p->entry == SPILL_NONE || p->kind != SPILL_PAGE || p->domain != f->domain || p->quality > f->quality)
        return false;
    *ret_parent = p->entry;
    return p->pos == (f->kind == SPILL_STATE ? f->pos : start);
}

static int link_all(struct spill *s, struct scan *c) {
    struct found **order = calloc(c->n ? c->n : 1, sizeof *order);
    char name[SPILL_NAME_MAX];
    uint32_t n_pages = 0;

    if (!order)
        return -ENOMEM;
    if (c->n)
        qsort(c->f, c->n, sizeof *c->f, order_by_id);
    for (size_t i = 0; i < c->n; i++)
        order[i] = &c->f[i];
    qsort(order, c->n, sizeof *order, order_by_depth);
    for (size_t i = 0; i < c->n; i++) {
        struct found *f = order[i];
        struct spill_entry e = { .kind = f->kind, .quality = f->quality, .mark = f->mark, .state = SPILL_E_READY,
                                 .pos = f->pos, .domain = f->domain, .hash = f->hash, .id = f->id,
                                 .bytes = f->bytes };

        if (is_linked(s, c, f, &e.parent))
            f->entry = spill_index_add(&s->ix, &e);
        if (f->entry == SPILL_NONE && f->kind != SPILL_FOREIGN) {
            spill_name(name, f->kind, &f->id);
            spill_io_remove(s->io, name);
        }
        n_pages += f->entry != SPILL_NONE && f->kind == SPILL_PAGE;
    }
    /* pages of a checkpoint whose state was never written */
    for (size_t i = c->n; n_pages && i-- > 0;)
        if (order[i]->entry != SPILL_NONE && order[i]->kind == SPILL_PAGE)
            spill_index_drop(&s->ix, order[i]->entry);
    free(order);
    return 0;
}

static void say_what_was_found(const struct spill *s, const struct scan *c, struct xerr *ret_note) {
    char foreign[128] = "", damaged[64] = "", unread[64] = "";

    if (!c->n_foreign && !c->n_damaged && !c->n_unread)
        return;
    if (c->n_foreign)
        snprintf(foreign, sizeof foreign, "; %u blocks (%" PRIu64 " MiB) of another model or version stay until "
                 "their space is needed", c->n_foreign, c->foreign_bytes >> 20);
    if (c->n_damaged)
        snprintf(damaged, sizeof damaged, "; %u damaged ones were removed", c->n_damaged);
    if (c->n_unread)
        snprintf(unread, sizeof unread, "; %u cannot be read", c->n_unread);
    xerr_set(ret_note, -ESTALE, "spill directory %s: found %u checkpoints%s%s%s", s->o.dir, s->ix.n_states, foreign,
             damaged, unread);
}

int spill_scan(struct spill *s, struct xerr *ret_note, struct xerr *err) {
    DIR *d = opendir(s->o.dir);
    struct scan c = { 0 };
    struct dirent *e;
    int r = 0;

    if (!d)
        return xerr_set(err, -errno, "spill directory %s: cannot be looked through: %s", s->o.dir, strerror(errno));
    while (r == 0 && (e = readdir(d)))
        r = look_at(s, &c, e->d_name);
    closedir(d);
    if (r == 0)
        r = link_all(s, &c);
    if (r == 0) {
        uint32_t v;

        while (s->ix.bytes > s->o.max_bytes && (v = spill_index_victim(&s->ix)) != SPILL_NONE)
            spill_index_drop(&s->ix, v);
        say_what_was_found(s, &c, ret_note);
    }
    free(c.f);
    return r < 0 ? xerr_set(err, r, "spill directory %s: no memory to look through it", s->o.dir) : 0;
}
