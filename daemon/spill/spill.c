/* SPDX-License-Identifier: MIT */
/* The tier as a whole: its memory, its thread, the two rings between that and the engine thread. See spill.h. */
#include "spill.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "random.h"
#include "size.h"
#include "spill_priv.h"

enum { MIN_ENTRIES = 256, MAX_ENTRIES = 131072 };

static uint32_t n_entries(const struct spill_options *o) {
    uint64_t one = spill_block_bytes(o->shape.page_tokens, o->shape.page_bytes), n = one ? o->max_bytes / one : 0;

    return n < MIN_ENTRIES ? MIN_ENTRIES : n > MAX_ENTRIES ? MAX_ENTRIES : (uint32_t)n;
}

static bool shape_is_sane(const struct spill_shape *h) {
    return h->page_tokens && h->page_tokens <= 1u << 20 && h->max_tokens && h->max_tokens <= 1u << 28 &&
           spill_block_bytes(h->page_tokens, h->page_bytes) && spill_block_bytes(h->max_tokens, h->state_bytes);
}

static uint64_t staging_bytes(const struct spill_options *o) {
    uint64_t pages = 0, sum = 0;

    return size_mul(spill_block_bytes(o->shape.page_tokens, o->shape.page_bytes), SPILL_PAGE_BUFFERS, &pages) &&
                   size_add(pages, spill_block_bytes(o->shape.max_tokens, o->shape.state_bytes), &sum)
               ? sum
               : UINT64_MAX;
}

static uint64_t table_bytes(const struct spill_options *o) {
    uint64_t pages = o->shape.max_tokens / o->shape.page_tokens + 1;

    return 2 * (uint64_t)o->shape.max_tokens * sizeof(uint32_t) + pages * (sizeof(uint64_t) + sizeof(uint32_t)) +
           spill_index_bytes(n_entries(o));
}

uint64_t spill_mem_bytes(const struct spill_options *o) {
    uint64_t sum = 0;

    if (!shape_is_sane(&o->shape) || !size_add(staging_bytes(o), table_bytes(o), &sum))
        return UINT64_MAX;
    return sum;
}

/* ---- the spill thread ---- */

static void *spill_main(void *ctx) {
    struct spill *s = ctx;
    struct spill_op ops[SPILL_BATCH];

    pthread_setname_np(pthread_self(), "glmd-spill");
    for (;;) {
        const struct spill_op *op;
        uint32_t n = 0, told = 0;

        for (; n < SPILL_BATCH && (op = spsc_peek_at(&s->commands, n)); n++)
            ops[n] = *op;
        if (!n && atomic_load_explicit(&s->stop, memory_order_acquire))
            return NULL;
        if (!n) {
            spsc_wait(&s->commands, &s->stop, 0);
            continue;
        }
        spsc_advance(&s->commands, n);
        spill_io_run(s->io, ops, n);
        for (uint32_t i = 0; i < n; i++)
            if (ops[i].type != SPILL_OP_REMOVE)
                told += spsc_push(&s->results, &ops[i]); /* no more are outstanding than it takes */
        if (told && s->o.wake)
            s->o.wake(s->o.ctx);
    }
}

bool spill_send(struct spill *s, const struct spill_op *op) {
    if (!spsc_push(&s->commands, op))
        return false;
    spsc_wake(&s->commands);
    return true;
}

/* Removals that find no room wait in the list of doomed entries. */
void spill_send_removals(struct spill *s) {
    struct spill_entry e;

    while (spsc_room(&s->commands) > SPILL_RING_SPARE && spill_index_reap(&s->ix, &e))
        spill_send(s, &(struct spill_op){ .type = SPILL_OP_REMOVE, .kind = e.kind, .id = e.id });
}

static void publish_stats(struct spill *s) {
    atomic_store_explicit(&s->stats.bytes, s->ix.bytes, memory_order_relaxed);
    atomic_store_explicit(&s->stats.blocks, s->ix.n_used, memory_order_relaxed);
    atomic_store_explicit(&s->stats.states, s->ix.n_states, memory_order_relaxed);
    atomic_store_explicit(&s->stats.foreign, s->ix.n_foreign, memory_order_relaxed);
}

void spill_poll(struct spill *s) {
    const struct spill_op *op;

    while ((op = spsc_peek(&s->results))) {
        if (op->type == SPILL_OP_WRITE)
            spill_put_result(s, op);
        else
            spill_get_result(s, op);
        spsc_advance(&s->results, 1);
    }
    spill_put_settle(s);
    spill_get_settle(s);
    spill_send_removals(s);
    publish_stats(s);
}

/* ---- opening ---- */

static int take_memory(struct spill *s) {
    const struct spill_shape *h = &s->o.shape;
    uint32_t n = n_entries(&s->o), pages = h->max_tokens / h->page_tokens + 1;

    s->page_image_bytes = spill_block_bytes(h->page_tokens, h->page_bytes);
    s->state_image_bytes = spill_block_bytes(h->max_tokens, h->state_bytes);
    s->staging_bytes = staging_bytes(&s->o);
    s->staging = mmap(NULL, s->staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->staging == MAP_FAILED) {
        s->staging = NULL;
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < SPILL_PAGE_BUFFERS; i++)
        s->page_buffer[i] = (char *)s->staging + i * s->page_image_bytes;
    s->state_buffer = (char *)s->staging + SPILL_PAGE_BUFFERS * s->page_image_bytes;
    s->index_mem = calloc(1, spill_index_bytes(n));
    s->put.ids = calloc(h->max_tokens, sizeof *s->put.ids);
    s->get.ids = calloc(h->max_tokens, sizeof *s->get.ids);
    s->put.hashes = calloc(pages, sizeof *s->put.hashes);
    s->get.chain = calloc(pages, sizeof *s->get.chain);
    if (!s->index_mem || !s->put.ids || !s->get.ids || !s->put.hashes || !s->get.chain)
        return -ENOMEM;
    spill_index_init(&s->ix, s->index_mem, n);
    s->put.tail = s->put.cur = s->put.state = s->get.state = s->get.broken = SPILL_NONE;
    if (spsc_init(&s->commands, SPILL_RING, sizeof(struct spill_op)) < 0)
        return -ENOMEM;
    if (spsc_init(&s->results, SPILL_RING, sizeof(struct spill_op)) < 0) {
        spsc_done(&s->commands);
        return -ENOMEM;
    }
    s->has_rings = true;
    return random_u64(&s->last_id.hi) < 0 ? -EIO : 0;
}

static int start_thread(struct spill *s) {
    sigset_t all, old;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(&s->thread, NULL, spill_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    s->has_thread = r == 0;
    return -r;
}

int spill_open(const struct spill_options *o, struct spill **ret, struct xerr *ret_note, struct xerr *err) {
    struct spill_io_options io = { .dir = o->dir, .keep_free = o->keep_free, .plain = o->plain, .shape = o->shape };
    struct spill *s;
    int r;

    memset(ret_note, 0, sizeof *ret_note);
    if (!shape_is_sane(&o->shape))
        return xerr_set(err, -EINVAL, "spill directory %s: a checkpoint of this model is too large for a block",
                        o->dir);
    s = aligned_alloc(_Alignof(struct spill), sizeof *s);
    if (!s)
        return xerr_set(err, -ENOMEM, "spill directory %s: no memory", o->dir);
    memset(s, 0, sizeof *s);
    s->o = *o;
    r = spill_io_open(&io, &s->io, err);
    if (r == 0) {
        s->o.dir = spill_io_dir(s->io);
        r = take_memory(s);
        if (r < 0)
            xerr_set(err, r, "spill directory %s: no memory for its tables and buffers", s->o.dir);
    }
    if (r == 0)
        r = spill_scan(s, ret_note, err);
    if (r == 0 && (r = start_thread(s)) < 0)
        xerr_set(err, r, "spill directory %s: no thread for it", s->o.dir);
    if (r < 0) {
        s->o.survive = true; /* nothing is removed that was not looked at */
        spill_close(s);
        return r;
    }
    publish_stats(s);
    *ret = s;
    return 0;
}

static void remove_entry(struct spill *s, const struct spill_entry *e) {
    char name[SPILL_NAME_MAX];

    spill_name(name, e->kind, &e->id);
    spill_io_remove(s->io, name);
}

struct spill *spill_close(struct spill *s) {
    struct spill_entry e;

    if (!s)
        return NULL;
    if (s->has_thread) {
        spill_put_abort(s);
        spill_get_abort(s);
        atomic_store_explicit(&s->stop, 1, memory_order_release);
        spsc_wake(&s->commands);
        pthread_join(s->thread, NULL);
        spill_poll(s); /* the last results; what they doom is removed here */
        while (spsc_peek(&s->commands)) {
            const struct spill_op *op = spsc_peek(&s->commands);

            spill_io_run(s->io, &(struct spill_op){ .type = SPILL_OP_REMOVE, .kind = op->kind, .id = op->id }, 1);
            spsc_advance(&s->commands, 1);
        }
        while (spill_index_reap(&s->ix, &e))
            remove_entry(s, &e);
    }
    for (uint32_t i = 0; s->has_thread && !s->o.survive && i < s->ix.n; i++)
        if (s->ix.e[i].state != SPILL_E_FREE && s->ix.e[i].kind != SPILL_FOREIGN)
            remove_entry(s, &s->ix.e[i]);
    if (s->has_rings) {
        spsc_done(&s->commands);
        spsc_done(&s->results);
    }
    if (s->staging)
        munmap(s->staging, s->staging_bytes);
    free(s->index_mem);
    free(s->put.ids);
    free(s->get.ids);
    free(s->put.hashes);
    free(s->get.chain);
    spill_io_close(s->io);
    free(s);
    return NULL;
}

void spill_get_stats(const struct spill *s, struct spill_stats *ret) {
    *ret = (struct spill_stats){
        .bytes = atomic_load_explicit(&s->stats.bytes, memory_order_relaxed),
        .max_bytes = s->o.max_bytes,
        .blocks = atomic_load_explicit(&s->stats.blocks, memory_order_relaxed),
        .states = atomic_load_explicit(&s->stats.states, memory_order_relaxed),
        .foreign = atomic_load_explicit(&s->stats.foreign, memory_order_relaxed),
        .puts = atomic_load_explicit(&s->stats.puts, memory_order_relaxed),
        .gets = atomic_load_explicit(&s->stats.gets, memory_order_relaxed),
        .read_bytes = atomic_load_explicit(&s->stats.read_bytes, memory_order_relaxed),
        .refused = atomic_load_explicit(&s->stats.refused, memory_order_relaxed),
        .damaged = atomic_load_explicit(&s->stats.damaged, memory_order_relaxed),
        .thrown_out = atomic_load_explicit(&s->stats.thrown_out, memory_order_relaxed),
        .error = atomic_load_explicit(&s->stats.error, memory_order_relaxed),
        .writing_stopped = atomic_load_explicit(&s->stats.stopped, memory_order_relaxed),
    };
}

const char *spill_io_text(const struct spill *s) {
    return spill_io_name(s->io);
}
