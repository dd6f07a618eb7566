/* SPDX-License-Identifier: MIT */
/* Putting a checkpoint in: the pages that are not there yet, then, when all of them are on the disk, the state. Until
 * the state has its name nothing of it can be found. Engine thread. */
#include <errno.h>
#include <string.h>

#include "log.h"
#include "spill_priv.h"

bool spill_put_busy(const struct spill *s) {
    return s->put.active;
}

static uint32_t page_end(const struct spill *s, uint32_t page) {
    uint64_t end = ((uint64_t)page + 1) * s->o.shape.page_tokens;

    return end < s->put.pos ? (uint32_t)end : s->put.pos;
}

int spill_put(struct spill *s, uint64_t domain, uint8_t quality, uint8_t mark, const uint32_t *ids,
              uint32_t pos) {
    struct spill_put *p = &s->put;
    uint64_t h = 0;
    uint32_t found;

    spill_poll(s);
    if (p->active)
        return -EBUSY;
    if (!pos || pos > s->o.shape.max_tokens || quality > SPILL_NEAR)
        return -EINVAL;
    if (atomic_load_explicit(&s->stats.stopped, memory_order_relaxed))
        return 0;
    if (s->skipped < s->skip) {
        s->skipped++;
        return 0;
    }
    p->domain = domain;
    p->quality = quality;
    p->mark = mark;
    p->pos = pos;
    p->n_pages = spill_n_pages(s, pos);
    memcpy(p->ids, ids, pos * sizeof *ids);
    for (uint32_t i = 0, page = 0; i < pos; i++) {
        h = spill_hash_step(h, ids[i]);
        if (i + 1 == page_end(s, page))
            p->hashes[page++] = h;
    }
    found = spill_index_find(&s->ix, SPILL_STATE, domain, pos, h, SPILL_NONE, quality);
    if (found != SPILL_NONE) {
        spill_index_used(&s->ix, found);
        return 0;
    }
    p->tail = SPILL_NONE;
    for (p->next = 0; p->next < p->n_pages; p->next++) {
        found = spill_index_find(&s->ix, SPILL_PAGE, domain, page_end(s, p->next), p->hashes[p->next], p->tail,
                                 quality);
        if (found == SPILL_NONE)
            break;
        p->tail = found;
    }
    if (p->tail != SPILL_NONE)
        spill_index_hold(&s->ix, p->tail);
    p->active = true;
    p->failed = p->given = false;
    p->error = 0;
    p->cur = p->state = SPILL_NONE;
    p->outstanding = 0;
    return 1;
}

/* Room for one more block. -EDQUOT: everything that is there is in use; -EAGAIN: removals are on their way. */
static int make_room(struct spill *s, uint64_t bytes) {
    while (s->ix.free == SPILL_NONE || s->ix.bytes + bytes > s->o.max_bytes) {
        uint32_t v;

        if (s->ix.free == SPILL_NONE && s->ix.doomed != SPILL_NONE)
            return -EAGAIN; /* their entries are free when the thread has been told */
        v = spill_index_victim(&s->ix);
        if (v == SPILL_NONE)
            return -EDQUOT;
        s->ix.floor = s->ix.e[v].value > s->ix.floor ? s->ix.e[v].value : s->ix.floor;
        spill_index_drop(&s->ix, v);
        spill_count(&s->stats.thrown_out);
        spill_send_removals(s);
    }
    return 0;
}

/* Makes the entry and the image of the next piece. */
static int begin_piece(struct spill *s, void *image) {
    struct spill_put *p = &s->put;
    bool state = p->next == p->n_pages;
    uint32_t end = state ? p->pos : page_end(s, p->next), start = state ? 0 : p->next * s->o.shape.page_tokens;
    struct spill_head *h = image;
    struct spill_entry e = { .kind = state ? SPILL_STATE : SPILL_PAGE,
                             .quality = p->quality,
                             .mark = state ? p->mark : 0,
                             .state = SPILL_E_WRITING,
                             .pos = end,
                             .parent = p->tail,
                             .domain = p->domain,
                             .hash = p->hashes[state ? p->n_pages - 1 : p->next] };
    uint32_t i;
    int r;

    spill_block_begin(image, &s->o.shape, e.kind, end);
    e.bytes = h->file_bytes;
    if ((r = make_room(s, e.bytes)) < 0)
        return r;
    s->last_id.lo++;
    e.id = s->last_id;
    h->quality = p->quality;
    h->mark = e.mark;
    h->domain = p->domain;
    h->hash = e.hash;
    h->id = e.id;
    if (p->tail != SPILL_NONE)
        h->parent = s->ix.e[p->tail].id;
    memcpy(spill_block_ids(image), p->ids + start, h->ids_bytes);
    i = spill_index_add(&s->ix, &e); /* there is room */
    p->cur = i;
    if (state) {
        p->state = i;
        return 0;
    }
    spill_index_hold(&s->ix, i);
    if (p->tail != SPILL_NONE)
        spill_index_release(&s->ix, p->tail); /* the new page refers to it */
    p->tail = i;
    return 0;
}

static void *free_buffer(struct spill *s, bool state) {
    if (state) {
        if (s->state_busy)
            return NULL;
        s->state_busy = true;
        return s->state_buffer;
    }
    for (uint32_t i = 0; i < SPILL_SIDE_BUFFERS; i++)
        if (!s->page_busy[i]) {
            s->page_busy[i] = true;
            return s->page_buffer[i];
        }
    return NULL;
}

static void give_buffer(struct spill *s, const void *image) {
    if (image == s->state_buffer)
        s->state_busy = false;
    for (uint32_t i = 0; i < SPILL_SIDE_BUFFERS; i++)
        if (image == s->page_buffer[i])
            s->page_busy[i] = false;
}

int spill_put_next(struct spill *s, struct spill_piece *ret) {
    struct spill_put *p = &s->put;
    int r;

    spill_poll(s);
    if (!p->active)
        return 0;
    if (!p->given) {
        bool state = p->next == p->n_pages;
        void *image;

        /* the state comes when every page is where it will be found */
        if (p->failed || p->state != SPILL_NONE || (state && p->outstanding) ||
            spsc_room(&s->commands) < SPILL_RING_SPARE / 2 || !(image = free_buffer(s, state)))
            return -EAGAIN;
        if ((r = begin_piece(s, image)) < 0) {
            give_buffer(s, image);
            if (r == -EAGAIN)
                return r;
            p->failed = true;
            p->error = r;
            spill_put_settle(s);
            return p->active ? -EAGAIN : 0;
        }
        p->image = image;
        p->given = true;
    }
    *ret = (struct spill_piece){ .kind = s->ix.e[p->cur].kind, .page = p->next,
                                 .bytes = spill_block_payload(p->image) };
    return 1;
}

void spill_put_filled(struct spill *s) {
    struct spill_put *p = &s->put;
    const struct spill_entry *e = &s->ix.e[p->cur];

    if (!p->active || !p->given)
        return;
    p->given = false;
    p->outstanding++;
    p->next += e->kind == SPILL_PAGE;
    spill_send(s, &(struct spill_op){ .type = SPILL_OP_WRITE, .kind = e->kind, .ref = p->cur, .id = e->id,
                                      .image = p->image, .bytes = e->bytes });
}

void spill_put_abort(struct spill *s) {
    struct spill_put *p = &s->put;

    if (!p->active)
        return;
    if (p->given)
        give_buffer(s, p->image);
    p->given = false;
    p->failed = true;
    spill_put_settle(s);
}

void spill_put_result(struct spill *s, const struct spill_op *op) {
    struct spill_put *p = &s->put;

    p->outstanding--;
    give_buffer(s, op->image);
    if (op->result < 0) {
        p->failed = true;
        p->error = op->result;
    } else {
        s->ix.e[op->ref].state = SPILL_E_READY;
    }
}

/* Said once until it works again; tried less and less often meanwhile. */
static void put_failed(struct spill *s, int error) {
    if (error == -EDQUOT) {
        if (!s->told_full)
            log_warning("spill directory %s: a checkpoint is not written, because it is larger than [Cache] "
                        "SpillBytes leaves room for", s->o.dir);
        s->told_full = true;
    } else if (error == -ENOSPC) {
        uint32_t v = spill_index_victim(&s->ix);

        if (!s->told_full)
            log_warning("spill directory %s is full: checkpoints are not written while its file system has less room "
                        "than [Cache] SpillKeepFree", s->o.dir);
        s->told_full = true;
        if (v != SPILL_NONE) /* the tier itself may be what fills the disk */
            spill_index_drop(&s->ix, v);
    } else {
        if (!s->told_error)
            log_warning("spill directory %s: checkpoints cannot be written: %s", s->o.dir, strerror(-error));
        s->told_error = true;
        if (++s->failures == SPILL_GIVE_UP_PUTS) {
            log_warning("spill directory %s: nothing is written there any more until the daemon is started again",
                        s->o.dir);
            atomic_store_explicit(&s->stats.stopped, 1, memory_order_relaxed);
        }
    }
    s->skip = s->skip ? (s->skip < SPILL_MAX_SKIP ? s->skip * 2 : SPILL_MAX_SKIP) : 1;
    s->skipped = 0;
    if (!FAULT(spill_error_untold))
        atomic_store_explicit(&s->stats.error, (uint32_t)-error, memory_order_relaxed);
    spill_count(&s->stats.refused);
}

void spill_put_settle(struct spill *s) {
    struct spill_put *p = &s->put;
    uint32_t tail = p->tail, state = p->state;

    if (!p->active || p->outstanding || p->given || (!p->failed && state == SPILL_NONE))
        return;
    p->active = false;
    p->tail = p->cur = p->state = SPILL_NONE;
    if (p->failed) {
        if (state != SPILL_NONE)
            spill_index_drop(&s->ix, state);
    } else {
        spill_count(&s->stats.puts);
        atomic_store_explicit(&s->stats.error, 0, memory_order_relaxed);
        s->failures = s->skip = s->skipped = 0;
        s->told_full = s->told_error = false;
    }
    if (tail != SPILL_NONE)
        spill_index_release(&s->ix, tail);
    if (p->error < 0)
        put_failed(s, p->error);
}
