/* SPDX-License-Identifier: MIT */
/* Getting a checkpoint out: found by hash, believed only after everything that was read says the same tokens, one by
 * one, in the same domain, and each block names the one before it. Engine thread. */
#include <errno.h>
#include <string.h>

#include "log.h"
#include "spill_priv.h"

bool spill_get_busy(const struct spill *s) {
    return s->get.active;
}

bool spill_find(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t above, uint32_t most,
                uint32_t grid, struct spill_found *ret) {
    uint64_t h = 0;
    uint32_t best = SPILL_NONE;

    spill_poll(s);
    if (!grid || !s->ix.n_states)
        return false;
    if (most > s->o.shape.max_tokens)
        most = s->o.shape.max_tokens;
    for (uint32_t i = 0; i < most; i++) {
        uint32_t e;

        h = spill_hash_step(h, ids[i]);
        if ((i + 1) % grid || i + 1 <= above)
            continue;
        e = spill_index_find(&s->ix, SPILL_STATE, domain, i + 1, h, SPILL_NONE, SPILL_NEAR);
        if (e != SPILL_NONE && s->ix.e[e].state == SPILL_E_READY)
            best = e;
    }
    if (best == SPILL_NONE)
        return false;
    *ret = (struct spill_found){ s->ix.e[best].pos, s->ix.e[best].quality, s->ix.e[best].mark };
    return true;
}

int spill_get(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t pos, uint32_t from_page) {
    struct spill_get *g = &s->get;
    uint64_t h = 0;
    uint32_t e, i;

    spill_poll(s);
    if (g->active)
        return -EBUSY;
    if (!pos || pos > s->o.shape.max_tokens)
        return -ENOENT;
    for (i = 0; i < pos; i++)
        h = spill_hash_step(h, ids[i]);
    e = spill_index_find(&s->ix, SPILL_STATE, domain, pos, h, SPILL_NONE, SPILL_NEAR);
    if (e == SPILL_NONE || s->ix.e[e].state != SPILL_E_READY)
        return -ENOENT;
    g->n_items = 1 + spill_n_pages(s, pos);
    i = s->ix.e[e].parent;
    for (uint32_t n = g->n_items - 1; n; n--, i = s->ix.e[i].parent)
        g->chain[n - 1] = i; /* the index has no chains with gaps */
    memcpy(g->ids, ids, pos * sizeof *ids);
    g->domain = domain;
    g->pos = pos;
    g->from_page = FAULT(spill_reads_all) ? 0 : from_page;
    g->state = e;
    g->broken = SPILL_NONE;
    g->sent = g->ready = g->taken = g->outstanding = 0;
    g->failed = g->checked = false;
    g->active = true;
    spill_index_hold(&s->ix, e);
    return 0;
}

static uint32_t item_entry(const struct spill_get *g, uint32_t item) {
    return item ? g->chain[item - 1] : g->state;
}

/* A page that the caller has: it says which tokens it stands for, and no more is asked. */
static bool is_known(const struct spill_get *g, uint32_t item) {
    return item && item - 1 < g->from_page;
}

static uint64_t item_bytes(const struct spill *s, uint32_t item) {
    const struct spill_entry *e = &s->ix.e[item_entry(&s->get, item)];

    return is_known(&s->get, item) ? spill_ids_bytes(e->pos - spill_page_start(e->pos, s->o.shape.page_tokens))
                                   : e->bytes;
}

static uint32_t item_buffer(uint32_t item) {
    return SPILL_SIDE_BUFFERS + (item - 1) % SPILL_SIDE_BUFFERS;
}

static void *item_image(struct spill *s, uint32_t item) {
    return item ? s->page_buffer[item_buffer(item)] : s->state_buffer;
}

static void give_item(struct spill *s, uint32_t item) {
    if (item)
        s->page_busy[item_buffer(item)] = false;
    else
        s->state_busy = false;
}

static void send_reads(struct spill *s) {
    struct spill_get *g = &s->get;

    for (; g->sent < g->n_items && !g->failed; g->sent++) {
        bool *busy = g->sent ? &s->page_busy[item_buffer(g->sent)] : &s->state_busy;
        const struct spill_entry *e = &s->ix.e[item_entry(g, g->sent)];

        if (*busy || spsc_room(&s->commands) < SPILL_RING_SPARE / 2)
            return;
        *busy = true;
        g->outstanding++;
        spill_send(s, &(struct spill_op){ .type = SPILL_OP_READ, .kind = e->kind, .ref = g->sent, .id = e->id,
                                          .image = item_image(s, g->sent), .bytes = item_bytes(s, g->sent),
                                          .file_bytes = e->bytes });
    }
}

/* Errors that say something of the block, not of the moment. */
static bool is_lasting(int r) {
    return r == -EBADMSG || r == -EPROTO || r == -ESTALE || r == -ENOENT || r == -EIO || r == -ELOOP;
}

void spill_get_result(struct spill *s, const struct spill_op *op) {
    struct spill_get *g = &s->get;

    g->outstanding--;
    g->ready++;
    atomic_store_explicit(&s->stats.read_bytes, s->stats.read_bytes + op->bytes, memory_order_relaxed);
    if (op->result < 0 && !g->failed) {
        g->failed = true;
        if (is_lasting(op->result))
            g->broken = item_entry(g, op->ref);
    }
}

static bool is_expected(const struct spill *s, uint32_t item, const void *image) {
    const struct spill_get *g = &s->get;
    const struct spill_head *h = image;
    const struct spill_entry *e = &s->ix.e[item_entry(g, item)];
    uint32_t start = item ? (item - 1) * s->o.shape.page_tokens : 0;
    struct spill_id none = { 0, 0 }, parent = e->parent == SPILL_NONE ? none : s->ix.e[e->parent].id;

    if (h->pos != e->pos || h->quality != e->quality || (h->domain != g->domain && !FAULT(spill_domain_unchecked)) ||
        h->parent.hi != parent.hi || h->parent.lo != parent.lo)
        return false;
    return memcmp(spill_block_ids((void *)(uintptr_t)image), g->ids + start, h->ids_bytes) == 0 ||
           FAULT(spill_ids_unchecked);
}

/* The item at `taken` is here: is it what it should be? */
static void check_item(struct spill *s) {
    struct spill_get *g = &s->get;

    g->checked = is_expected(s, g->taken, item_image(s, g->taken)) ||
                 (is_known(g, g->taken) && FAULT(spill_known_unchecked));
    if (g->checked)
        return;
    g->failed = true;
    g->broken = item_entry(g, g->taken);
}

int spill_get_next(struct spill *s, struct spill_piece *ret) {
    struct spill_get *g = &s->get;

    spill_poll(s);
    if (!g->active)
        return -ENOENT;
    send_reads(s);
    while (!g->failed && !g->checked && g->ready > g->taken) {
        check_item(s);
        if (g->checked && is_known(g, g->taken))
            spill_get_taken(s);
    }
    if (!g->failed && g->taken == g->n_items) {
        uint32_t state = g->state;

        g->active = false;
        g->state = SPILL_NONE;
        spill_index_used(&s->ix, state);
        spill_index_release(&s->ix, state);
        spill_count(&s->stats.gets);
        return 0;
    }
    if (g->failed) {
        spill_get_settle(s);
        return g->active ? -EAGAIN : -ENOENT;
    }
    if (!g->checked)
        return -EAGAIN;
    *ret = (struct spill_piece){ .kind = g->taken ? SPILL_PAGE : SPILL_STATE,
                                 .page = g->taken ? g->taken - 1 : 0,
                                 .bytes = spill_block_payload(item_image(s, g->taken)) };
    return 1;
}

void spill_get_taken(struct spill *s) {
    struct spill_get *g = &s->get;

    if (!g->active || !g->checked)
        return;
    give_item(s, g->taken++);
    g->checked = false;
    send_reads(s);
}

void spill_get_abort(struct spill *s) {
    if (!s->get.active)
        return;
    s->get.failed = true;
    spill_get_settle(s);
}

/* A failed read ends when none of its buffers is the thread's any more. */
void spill_get_settle(struct spill *s) {
    struct spill_get *g = &s->get;
    uint32_t state = g->state, broken = g->broken;

    if (!g->active || !g->failed || g->outstanding)
        return;
    for (uint32_t i = g->taken; i < g->sent; i++)
        give_item(s, i);
    g->active = false;
    g->state = g->broken = SPILL_NONE;
    spill_index_release(&s->ix, state);
    if (broken == SPILL_NONE)
        return;
    log_warning("spill directory %s: a checkpoint was found damaged or not to be what it should be, and is forgotten",
                s->o.dir);
    spill_index_condemn(&s->ix, broken);
    spill_count(&s->stats.damaged);
}
