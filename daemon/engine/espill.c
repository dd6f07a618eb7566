/* SPDX-License-Identifier: MIT */
/* espill.c: see espill.h. */
#include "espill.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "crc32c.h"
#include "engine_priv.h"
#include "log.h"

enum {
    BLOCKS_A_ROUND = 4,
    GAIN_TOKENS = 256,    /* beyond what memory has that are worth a wait for the disk */
    PRESSED_PERCENT = 70, /* of pages, slots or the cache's share in use: what may soon have to go is written early */
    FLUSH_SEC = 5,
    STUCK_SEC = 10,       /* without a word from the disk: whoever waits reads for himself */
};

static struct spill_options options_of(const struct engine *e, uint64_t page_bytes, uint64_t slot_bytes) {
    return (struct spill_options){ .dir = e->opt.spill_dir,
                                   .max_bytes = e->opt.spill_bytes,
                                   .keep_free = e->opt.spill_keep_free,
                                   .survive = e->opt.spill_survive,
                                   .plain = e->opt.spill_plain,
                                   .shape = { .page_tokens = KERN_PAGE_TOKENS,
                                              .max_tokens = e->kc.max_context,
                                              .page_bytes = page_bytes,
                                              .state_bytes = slot_bytes } };
}

bool espill_is_wanted(const struct engine *e) {
    return e->opt.spill_dir && e->opt.spill_dir[0] && e->opt.cache_slots && !e->is_script;
}

uint64_t espill_bytes(const struct engine *e, uint64_t page_bytes, uint64_t slot_bytes) {
    const struct spill_options o = options_of(e, page_bytes, slot_bytes);

    return espill_is_wanted(e) ? spill_mem_bytes(&o) : 0;
}

/* ---- opening ---- */

uint64_t espill_mix(uint32_t part, uint32_t layer, uint32_t expert, uint64_t offset, const void *bytes, uint64_t n) {
    const uint64_t v[] = { (uint64_t)part << 32 | layer, expert, offset, n, spill_crc32c(0, bytes, n) };
    uint64_t h = 0;

    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        h = (h ^ v[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    return h;
}

static void on_wake(void *ctx) {
    inbox_wake(&((struct engine *)ctx)->inbox);
}

/* All that the bytes of a page or a state depend on besides the tokens. */
static void write_lineage(const struct engine *e, char ret[SPILL_LINEAGE_BYTES]) {
    uint64_t model = espill_mix(0, 0, 0, 0, &e->kc.model, sizeof e->kc.model);
    char ranks[16] = "";

    if (e->kc.n_ranks > 1)
        snprintf(ranks, sizeof ranks, "x%u", e->kc.n_ranks);
    memset(ret, 0, SPILL_LINEAGE_BYTES);
    snprintf(ret, SPILL_LINEAGE_BYTES, "%016llx %016llx %s %s%s %u %.40s", (unsigned long long)e->spill.weights,
             (unsigned long long)model, GLMD_VERSION, kern_name(e->k), ranks, e->kc.cache, e->name);
}

void espill_open(struct engine *e) {
    struct espill *p = &e->spill;
    struct spill_options o;
    struct spill_stats st;
    struct xerr note, err = { 0 };
    int r;

    p->out_point = PREFIX_NONE;
    p->in_stream = ENGINE_NONE;
    p->looked_at = UINT64_MAX;
    p->wanted = e->opt.spill_dir && e->opt.spill_dir[0];
    if (!p->wanted) {
        if (e->opt.spill_survive)
            log_warning("[Cache] SpillSurvive=yes keeps nothing over a restart, because SpillDirectory is not set");
        return;
    }
    if (!espill_is_wanted(e)) {
        snprintf(p->text, sizeof p->text, "spill directory %.200s: not used, because there is no prefix cache",
                 e->opt.spill_dir);
        log_warning("%s", p->text);
        return;
    }
    o = options_of(e, ranks_page_bytes(&e->ranks), ranks_slot_bytes(&e->ranks));
    write_lineage(e, o.shape.lineage);
    o.wake = on_wake;
    o.ctx = e;
    p->charged = spill_mem_bytes(&o);
    if ((r = mem_account_plan(&e->account, MEM_OTHER, p->charged)) < 0 ||
        (r = mem_account_take(&e->account, MEM_OTHER, p->charged)) < 0) {
        p->charged = 0;
        xerr_set(&err, r, "spill directory %s: too large for memory", o.dir);
    } else {
        r = spill_open(&o, &p->tier, &note, &err);
    }
    if (r < 0) {
        snprintf(p->text, sizeof p->text, "%s", err.msg);
        log_warning("%s; going on without it", err.msg);
        return;
    }
    spill_get_stats(p->tier, &st);
    snprintf(p->text, sizeof p->text, "%s", spill_io_text(p->tier));
    log_notice("spill directory %s: %u checkpoints, %llu MiB; %s", o.dir, st.states,
               (unsigned long long)(st.bytes >> 20), p->text);
    if (note.msg[0])
        log_warning("%s", note.msg);
}

void espill_close(struct engine *e) {
    e->spill.tier = spill_close(e->spill.tier);
    mem_account_give(&e->account, MEM_OTHER, e->spill.charged);
    e->spill.charged = 0;
}

/* ---- out: checkpoints of the cache ---- */

static bool is_much(uint64_t used, uint64_t n) {
    return used > n / 100 * PRESSED_PERCENT + n % 100 * PRESSED_PERCENT / 100;
}

/* The cache throws out at limits of its own, too, however much of the pools idle seats leave free. */
static bool is_pressed(const struct engine *e) {
    struct mem_pool_usage pages = mem_page_pool_read(&e->pages), slots = mem_slot_pool_read(&e->slots);
    struct prefix_counts c;

    if (e->opt.spill_survive || is_much(pages.used, pages.n) || is_much(slots.used, slots.n))
        return true;
    if (FAULT(espill_own_limits_forgotten))
        return false;
    prefix_get_counts(e->prefix, &c);
    if (is_much(c.checkpoints + e->n_rolling, e->opt.cache_slots))
        return true;
    /* a few large ones may never come near the limit: whether one more would fit counts */
    return e->opt.cache_bytes && c.checkpoints && is_much(c.bytes + c.bytes / c.checkpoints, e->opt.cache_bytes);
}

static void out_done(struct engine *e) {
    struct espill *p = &e->spill;

    mem_pages_give(&e->pages, p->out_n, p->out_pages);
    prefix_release(e->prefix, p->out_point);
    p->out_point = PREFIX_NONE;
}

/* The next one that the tier wants. False: there is none for now. */
static bool out_begin(struct engine *e) {
    struct espill *p = &e->spill;
    struct prefix_info in;

    if (p->looked_at == e->cache_moves || spill_put_busy(p->tier) || !is_pressed(e))
        return false;
    for (uint32_t i = 0; i < e->opt.cache_slots; i++) {
        int r;

        if (!prefix_get(e->prefix, i, &in) || in.serial == p->offered[i] || in.pos < e->opt.spill_min_tokens)
            continue;
        p->offered[i] = in.serial;
        prefix_get_ids(e->prefix, i, p->ids);
        r = spill_put(p->tier, in.domain, in.exact ? SPILL_EXACT : SPILL_NEAR, (uint8_t)in.kind, p->ids, in.pos);
        if (r != 1)
            continue;
        p->out_n = prefix_hold(e->prefix, i, p->out_pages);
        p->out_point = i;
        p->out_slot = in.slot;
        return true;
    }
    p->looked_at = e->cache_moves;
    return false;
}

static int out_copy(struct engine *e, const struct spill_piece *b) {
    struct espill *p = &e->spill;

    if (b->kind == SPILL_STATE)
        return ranks_slot_read(&e->ranks, p->out_slot.id, b->bytes, ranks_slot_bytes(&e->ranks));
    return ranks_page_read(&e->ranks, p->out_pages[b->page].id, b->bytes, ranks_page_bytes(&e->ranks));
}

static int out_round(struct engine *e, uint32_t *left) {
    struct espill *p = &e->spill;
    struct spill_piece b;

    while (p->out_point != PREFIX_NONE || out_begin(e)) {
        int r = *left ? spill_put_next(p->tier, &b) : 1;

        if (!*left)
            p->more = true;
        if (!*left || r == -EAGAIN)
            return 0;
        if (r == 0) {
            out_done(e);
            continue;
        }
        --*left;
        if ((r = out_copy(e, &b)) < 0) {
            spill_put_abort(p->tier);
            out_done(e);
            return engine_fail(e, "checkpoint's copy for the disk", r);
        }
        spill_put_filled(p->tier);
    }
    return 0;
}

bool espill_give_way(struct engine *e) {
    if (!e->spill.tier || e->spill.out_point == PREFIX_NONE || FAULT(espill_never_yields))
        return false;
    spill_put_abort(e->spill.tier);
    out_done(e);
    return true;
}

/* ---- in: what a queued request would find ---- */

void espill_look(struct engine *e, uint32_t stream) {
    struct eng_stream *st = &e->streams[stream];
    const struct sched_req *req = st->req;
    const struct prefix_text x = { .ids = req->ids, .n_ids = req->n_ids };
    struct spill_found found;
    struct prefix_hit h;

    if (!e->spill.tier || e->spill.stuck || req->no_cache || req->n_ids <= e->opt.spill_min_tokens)
        return;
    prefix_find(e->prefix, ecache_domain(req), &x, &h);
    if (!spill_find(e->spill.tier, ecache_domain(req), req->ids, h.pos + GAIN_TOKENS - 1, req->n_ids - 1, KERN_GRID,
                    &found))
        return;
    st->fetching = true;
    if (!e->spill.n_fetching++)
        e->spill.progress_ns = e->now_ns;
    stream_hold(e, stream);
}

/* What was taken for the read that is over, or never began. */
static void in_release(struct engine *e) {
    struct espill *p = &e->spill;

    mem_pages_give(&e->pages, p->in_n, p->in_pages);
    p->in_n = 0;
    p->in_stream = ENGINE_NONE;
}

static void fetched(struct engine *e, uint32_t stream, uint32_t tokens) {
    struct eng_stream *st = &e->streams[stream];

    st->fetching = false;
    st->tier = tokens;
    st->looked = false;
    e->spill.n_fetching--;
    e->queue_dirty = true;
    stream_hold(e, stream);
}

void espill_gone(struct engine *e, uint32_t stream) {
    struct espill *p = &e->spill;

    if (!e->streams[stream].fetching)
        return;
    if (p->in_stream == stream) {
        spill_get_abort(p->tier);
        mem_slot_give(&e->slots, p->in_slot);
        in_release(e);
    }
    e->streams[stream].fetching = false;
    p->n_fetching--;
}

/* Pages of h that hold what those on the disk do, from the first on. */
static uint32_t shared_pages(const struct prefix_hit *h, uint8_t quality) {
    uint32_t exact = h->exact_rows / KERN_PAGE_TOKENS;

    if (!h->pos || FAULT(espill_reads_whole))
        return 0;
    return quality != SPILL_EXACT || h->exact || h->full_pages < exact || FAULT(espill_near_shared) ? h->full_pages
                                                                                                   : exact;
}

/* n pages, the first `shared` of them those of h, and a slot for the read. No sequence ever waits for them: they are
 * taken only from what is free or cached. */
static int in_take(struct engine *e, uint32_t n, const struct prefix_hit *h, uint32_t shared) {
    struct espill *p = &e->spill;
    uint32_t pages, slots, held = 0;
    int r = -ENOBUFS;

    if (shared) {
        held = prefix_hold(e->prefix, h->checkpoint, p->in_pages);
        mem_pages_give(&e->pages, held - shared, p->in_pages + shared);
    }
    ecache_available(e, &pages, &slots);
    if (pages >= n - shared)
        r = ecache_take_pages(e, n - shared, p->in_pages + shared);
    if (shared)
        prefix_release(e->prefix, h->checkpoint);
    p->in_n = r < 0 ? shared : n;
    if (r == 0)
        r = ecache_spare_slot(e, &p->in_slot);
    if (r < 0)
        in_release(e);
    return r;
}

/* True: a read has begun. */
static bool in_try(struct engine *e, uint32_t stream) {
    struct espill *p = &e->spill;
    const struct sched_req *req = e->streams[stream].req;
    const struct prefix_text x = { .ids = req->ids, .n_ids = req->n_ids };
    uint64_t domain = ecache_domain(req);
    struct prefix_hit h;
    uint32_t shared;

    prefix_find(e->prefix, domain, &x, &h); /* others may have read or fetched it meanwhile */
    if (!spill_find(p->tier, domain, req->ids, h.pos + GAIN_TOKENS - 1, req->n_ids - 1, KERN_GRID, &p->in_found))
        return false;
    shared = shared_pages(&h, p->in_found.quality);
    if (in_take(e, mem_pages_for(p->in_found.pos), &h, shared) < 0)
        return false;
    if (spill_get(p->tier, domain, req->ids, p->in_found.pos, shared) < 0) {
        mem_slot_give(&e->slots, p->in_slot);
        in_release(e);
        return false;
    }
    p->in_stream = stream;
    p->progress_ns = e->now_ns;
    return true;
}

static bool in_begin(struct engine *e) {
    while (e->spill.n_fetching && !spill_get_busy(e->spill.tier)) {
        uint32_t first = ENGINE_NONE;

        for (uint32_t i = 0; i < e->opt.max_streams; i++)
            if (e->streams[i].req && e->streams[i].fetching &&
                (first == ENGINE_NONE || e->streams[i].taken_ns < e->streams[first].taken_ns))
                first = i;
        if (first == ENGINE_NONE)
            return false;
        if (in_try(e, first))
            return true;
        fetched(e, first, 0); /* it reads its prompt itself */
    }
    return false;
}

/* What it was kept for, which says what it is worth. */
static enum prefix_kind kind_of(const struct spill_found *f) {
    return f->mark >= PREFIX_SYSTEM && f->mark <= PREFIX_LONG && !FAULT(espill_kind_lost) ? (enum prefix_kind)f->mark
                                                                                         : PREFIX_TURN;
}

/* All of it is there: a checkpoint of the cache like any other, and one of the four of whoever wanted it. */
static void in_done(struct engine *e) {
    struct espill *p = &e->spill;
    const struct sched_req *req = e->streams[p->in_stream].req;
    bool exact = p->in_found.quality == SPILL_EXACT || FAULT(espill_near_exact);
    const struct prefix_new n = { .domain = ecache_domain(req), .text = { .ids = req->ids, .n_ids = req->n_ids },
                                  .pos = p->in_found.pos, .exact = exact ? UINT32_MAX : 0,
                                  .kind = kind_of(&p->in_found), .slot = p->in_slot, .pages = p->in_pages };
    uint32_t stream = p->in_stream, at;
    struct prefix_info in;
    struct prefix_hit h;

    if (prefix_insert(e->prefix, &n) < 0)
        mem_slot_give(&e->slots, p->in_slot);
    at = prefix_newest(e->prefix);
    if (at != PREFIX_NONE && prefix_get(e->prefix, at, &in))
        e->streams[stream].fetched = (struct ecache_own){ in.serial, at, n.pos, n.kind };
    prefix_find(e->prefix, n.domain, &n.text, &h);
    if (h.pos == n.pos && prefix_get(e->prefix, h.checkpoint, &in))
        p->offered[h.checkpoint] = in.serial; /* it need not be written again */
    in_release(e);
    ecache_changed(e);
    fetched(e, stream, n.pos);
}

static int in_copy(struct engine *e, const struct spill_piece *b) {
    struct espill *p = &e->spill;

    if (b->kind == SPILL_STATE)
        return ranks_slot_write(&e->ranks, p->in_slot.id, b->bytes, ranks_slot_bytes(&e->ranks));
    return ranks_page_write(&e->ranks, p->in_pages[b->page].id, b->bytes, ranks_page_bytes(&e->ranks));
}

static void in_failed(struct engine *e) {
    uint32_t stream = e->spill.in_stream;

    mem_slot_give(&e->slots, e->spill.in_slot);
    in_release(e);
    fetched(e, stream, 0);
}

static int in_round(struct engine *e, uint32_t *left) {
    struct espill *p = &e->spill;
    struct spill_piece b;

    while (p->in_stream != ENGINE_NONE || in_begin(e)) {
        int r = *left ? spill_get_next(p->tier, &b) : 1;

        if (!*left)
            p->more = true;
        if (!*left || r == -EAGAIN)
            return 0;
        if (r == 0) {
            in_done(e);
        } else if (r < 0) {
            in_failed(e);
        } else {
            --*left;
            r = in_copy(e, &b);
            if (r == 0) {
                spill_get_taken(p->tier);
                p->progress_ns = e->now_ns;
                continue;
            }
            spill_get_abort(p->tier);
            in_failed(e);
            if (r != -EBADMSG)
                return engine_fail(e, "checkpoint's copy from the disk", r);
            log_warning("spill: a checkpoint is none of this model, though it says so; it is not used");
        }
    }
    return 0;
}

uint64_t espill_next_event(const struct engine *e) {
    return e->spill.n_fetching ? e->spill.progress_ns + STUCK_SEC * CLOCK_NS_PER_SEC : UINT64_MAX;
}

/* A disk may hang for minutes; a request that waits for it would have been read meanwhile. */
static void in_watch(struct engine *e) {
    struct espill *p = &e->spill;

    p->stuck = p->stuck && spill_get_busy(p->tier);
    if (e->now_ns < espill_next_event(e) || FAULT(espill_waits_for_ever))
        return;
    log_warning("spill directory %s: nothing came from there for %d s; prompts are read anew", e->opt.spill_dir,
                STUCK_SEC);
    if (p->in_stream != ENGINE_NONE) {
        spill_get_abort(p->tier);
        in_failed(e);
    }
    p->stuck = spill_get_busy(p->tier);
    for (uint32_t i = 0; i < e->opt.max_streams; i++)
        if (e->streams[i].req && e->streams[i].fetching)
            fetched(e, i, 0);
}

/* ---- both ---- */

int espill_round(struct engine *e) {
    uint32_t left = BLOCKS_A_ROUND;
    int r;

    e->spill.more = false;
    if (!e->spill.tier)
        return 0;
    /* a read that was given up may just have ended, and with it what others wait for */
    if (!FAULT(espill_not_polled))
        spill_poll(e->spill.tier);
    in_watch(e);
    r = in_round(e, &left);
    return r < 0 ? r : out_round(e, &left);
}

void espill_flush(struct engine *e) {
    uint64_t until = clock_now_ns() + FLUSH_SEC * CLOCK_NS_PER_SEC;

    if (!e->spill.tier || !e->opt.spill_survive)
        return;
    while (clock_now_ns() < until) {
        uint32_t ticket = inbox_ticket(&e->inbox);

        if (espill_round(e) < 0 || (e->spill.out_point == PREFIX_NONE && !spill_put_busy(e->spill.tier)))
            return;
        if (!e->spill.more)
            inbox_wait(&e->inbox, ticket, 10 * CLOCK_NS_PER_MS);
    }
}

void engine_get_tier(const struct engine *e, struct engine_tier *ret) {
    struct spill_stats st = { 0 };

    *ret = (struct engine_tier){ .wanted = e->spill.wanted, .on = e->spill.tier != NULL };
    memcpy(ret->text, e->spill.text, sizeof ret->text);
    if (!ret->on)
        return;
    spill_get_stats(e->spill.tier, &st);
    ret->stopped = st.writing_stopped;
    ret->error = st.error;
    ret->bytes = st.bytes;
    ret->max_bytes = st.max_bytes;
    ret->blocks = st.blocks;
    ret->checkpoints = st.states;
    ret->foreign = st.foreign;
    ret->written = st.puts;
    ret->read = st.gets;
    ret->read_bytes = st.read_bytes;
    ret->refused = st.refused;
    ret->damaged = st.damaged;
    ret->thrown_out = st.thrown_out;
}
