/* SPDX-License-Identifier: MIT */
/* The prefix tree, against a list of everything that was ever put into it: what it finds, what its pages hold, what
 * it calls exact, and that everything adds up, for thousands of random moves. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "leakcheck.h"
#include "prefix.h"

enum { PAGE = KERN_PAGE_TOKENS, PAGES = 96, SLOTS = 16, MOST = 1400, RUNS = 5, TEXTS = 24 };

/* A pretended device: what stands in every row of every page and in every slot. */
struct row {
    uint32_t id;
    bool exact;
};

struct state {
    uint32_t pos, ids[MOST];
    uint64_t domain;
    bool exact;
};

struct run {
    bool used;
    uint64_t domain;
    uint32_t ids[MOST], n, pos, exact;
    struct mem_page pages[MOST / PAGE + 1];
    uint32_t n_pages;
};

static struct mem_account account;
static struct mem_page_pool pages;
static struct mem_slot_pool slots;
static void *mem;
static struct prefix *t;
static struct row rows[PAGES][PAGE];
static struct state states[SLOTS];
static struct run runs[RUNS];
static struct ckpt_rng rng;

static void make(const struct prefix_config *cfg) {
    uint64_t bytes;

    mem_account_init(&account);
    ck_assert_int_eq(mem_page_pool_init(&pages, &account, PAGES), 0);
    ck_assert_int_eq(mem_slot_pool_init(&slots, &account, SLOTS), 0);
    ck_assert_int_eq(prefix_bytes(cfg, &bytes), 0);
    ck_assert_int_eq(posix_memalign(&mem, 64, bytes), 0);
    memset(mem, 0, bytes);
    ck_assert_int_eq(prefix_init(cfg, mem, bytes, &pages, &slots, &t), 0);
    memset(runs, 0, sizeof runs);
    rng.s = 11;
}

static void check(void) {
    const char *what = "";

    ck_assert_msg(prefix_check(t, &what) == 0, "%s", what);
}

/* Everything given up must leave nothing behind. */
static void unmake(void) {
    check();
    while (prefix_evict(t, PREFIX_WANT_SLOT))
        check();
    ck_assert_uint_eq(mem_page_pool_read(&pages).used, 0);
    ck_assert_uint_eq(mem_slot_pool_read(&slots).used, 0);
    mem_page_pool_done(&pages);
    mem_slot_pool_done(&slots);
    free(mem);
}

static void setup(void) {
    leakcheck_setup();
    make(&(struct prefix_config){ .max_checkpoints = 12, .max_pages = PAGES, .slot_bytes = 1000, .page_bytes = 100 });
}

static void teardown(void) {
    unmake();
    leakcheck_teardown();
}

/* ---- a run: what the engine does, on the pretended device ---- */

static bool get_pages(uint32_t n, struct mem_page *ret) {
    while (mem_pages_take(&pages, n, ret) < 0)
        if (!prefix_evict(t, PREFIX_WANT_PAGE))
            return false;
    return true;
}

static bool get_slot(struct mem_slot *ret) {
    while (mem_slot_take(&slots, ret) < 0)
        if (!prefix_evict(t, PREFIX_WANT_SLOT))
            return false;
    return true;
}

/* Starts over a text; returns the tokens found. */
static uint32_t start(struct run *r, uint64_t domain, const uint32_t *ids, uint32_t n) {
    struct mem_page path[MOST / PAGE + 1];
    struct prefix_text x = { .ids = ids, .n_ids = n };
    struct prefix_hit h;
    uint32_t held = 0;

    *r = (struct run){ .used = true, .domain = domain, .n = n, .exact = UINT32_MAX };
    memcpy(r->ids, ids, n * sizeof *ids);
    prefix_find(t, domain, &x, &h);
    r->n_pages = mem_pages_for(n);
    if (h.pos)
        held = prefix_hold(t, h.checkpoint, path);
    ck_assert(get_pages(r->n_pages - h.full_pages, r->pages + h.full_pages));
    memcpy(r->pages, path, h.full_pages * sizeof *path);
    if (held > h.full_pages) {
        memcpy(rows[r->pages[h.full_pages].id], rows[path[h.full_pages].id], sizeof rows[0]);
        mem_pages_give(&pages, 1, &path[h.full_pages]);
    }
    if (h.pos) {
        const struct state *s = &states[h.slot.id];

        ck_assert_uint_eq(s->pos, h.pos);
        ck_assert_uint_eq(s->domain, domain);
        ck_assert_mem_eq(s->ids, ids, h.pos * sizeof *ids);
        ck_assert(!h.exact || s->exact);
        prefix_release(t, h.checkpoint);
        if (!h.exact)
            r->exact = h.exact_rows;
    }
    for (uint32_t i = 0; i < h.pos; i++) {
        const struct row *w = &rows[r->pages[i / PAGE].id][i % PAGE];

        ck_assert_uint_eq(w->id, ids[i]);
        ck_assert(w->exact || i >= h.exact_rows);
    }
    r->pos = h.pos;
    prefix_count(t, domain, &x, &h, false, 0);
    return h.pos;
}

static void advance(struct run *r, uint32_t to, bool decode) {
    if (decode && r->exact > r->pos)
        r->exact = r->pos;
    for (; r->pos < to; r->pos++)
        rows[r->pages[r->pos / PAGE].id][r->pos % PAGE] = (struct row){ r->ids[r->pos], r->exact == UINT32_MAX };
}

static int keep(struct run *r, enum prefix_kind kind) {
    struct prefix_new n = { .domain = r->domain, .text = { r->ids, r->n, NULL, 0 }, .pos = r->pos, .exact = r->exact,
                            .kind = kind, .pages = r->pages };
    uint32_t cut = (uint32_t)(ckpt_rand(&rng) % (r->n + 1));
    int got;

    /* a text may come in two pieces, cut anywhere */
    n.text = (struct prefix_text){ r->ids, cut, r->ids + cut, r->n - cut };
    if (!get_slot(&n.slot))
        return -ENOBUFS;
    states[n.slot.id] = (struct state){ .pos = r->pos, .domain = r->domain, .exact = r->exact >= r->pos };
    memcpy(states[n.slot.id].ids, r->ids, r->pos * sizeof *r->ids);
    got = prefix_insert(t, &n);
    if (got < 0)
        mem_slot_give(&slots, n.slot);
    return got;
}

static void stop(struct run *r) {
    mem_pages_give(&pages, r->n_pages, r->pages);
    r->used = false;
}

/* The whole life of a request: found, read up to pos, a checkpoint there. */
static uint32_t ask(uint64_t domain, const uint32_t *ids, uint32_t n, uint32_t pos, enum prefix_kind kind) {
    static struct run r;
    uint32_t hit = start(&r, domain, ids, n);

    if (pos > hit) {
        advance(&r, pos, false);
        keep(&r, kind);
    }
    advance(&r, n, false);
    stop(&r);
    check();
    return hit;
}

static void fill(uint32_t *ids, uint32_t n, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = seed * 100000 + i;
}

static uint32_t find(uint64_t domain, const uint32_t *ids, uint32_t n, struct prefix_hit *h) {
    prefix_find(t, domain, &(struct prefix_text){ .ids = ids, .n_ids = n }, h);
    return h->pos;
}

/* ---- random moves ---- */

static uint32_t texts[TEXTS][MOST], text_n[TEXTS];

/* Texts that share beginnings of all lengths, pages' borders among them. */
static void make_texts(void) {
    for (uint32_t i = 0; i < TEXTS; i++) {
        uint32_t from = i ? (uint32_t)(ckpt_rand(&rng) % i) : 0, cut = 0;

        text_n[i] = 1 + (uint32_t)(ckpt_rand(&rng) % MOST);
        if (i) {
            cut = (uint32_t)(ckpt_rand(&rng) % (text_n[from] + 1));
            if (ckpt_rand(&rng) % 3 == 0)
                cut = cut / 64 * 64;
            memcpy(texts[i], texts[from], cut * sizeof texts[0][0]);
        }
        for (uint32_t k = cut; k < MOST; k++)
            texts[i][k] = (uint32_t)(ckpt_rand(&rng) % 3);
        text_n[i] = text_n[i] < cut ? cut : text_n[i];
    }
}

/* Of all that is kept, the deepest that is a beginning of the text. */
static uint32_t naive(uint64_t domain, const uint32_t *ids, uint32_t n) {
    static uint32_t got[MOST];
    struct prefix_info in;
    uint32_t best = 0;

    for (uint32_t i = 0; i < 12; i++)
        if (prefix_get(t, i, &in) && in.domain == domain && in.pos < n && in.pos > best) {
            const struct state *s = &states[in.slot.id];

            prefix_get_ids(t, i, got);
            ck_assert_uint_eq(s->pos, in.pos);
            ck_assert_mem_eq(got, s->ids, in.pos * sizeof *got);
            if (memcmp(got, ids, in.pos * sizeof *got) == 0)
                best = in.pos;
        }
    return best;
}

static void random_begin(uint32_t k, uint32_t *hits) {
    uint32_t i = (uint32_t)(ckpt_rand(&rng) % TEXTS);
    uint64_t domain = ckpt_rand(&rng) % 2;
    uint32_t want = naive(domain, texts[i], text_n[i]), got;

    if (!text_n[i])
        return;
    got = start(&runs[k], domain, texts[i], text_n[i]);
    ck_assert_uint_eq(got, want);
    *hits += got > 0;
}

static void random_step(struct run *r, uint32_t *kept) {
    uint32_t to = r->pos + 1 + (uint32_t)(ckpt_rand(&rng) % 300);
    bool decode = r->exact != UINT32_MAX || ckpt_rand(&rng) % 8 == 0;

    if (ckpt_rand(&rng) % 4)
        to = to / 64 * 64;
    if (to > r->n || to <= r->pos)
        to = r->n;
    advance(r, to, decode);
    if (r->pos && r->pos % 64 == 0)
        *kept += keep(r, (enum prefix_kind)(1 + ckpt_rand(&rng) % 6)) == 0;
    if (r->pos == r->n || ckpt_rand(&rng) % 16 == 0)
        stop(r);
}

START_TEST(random_moves) {
    uint32_t hits = 0, kept = 0;
    struct prefix_counts c;

    for (int round = 0; round < 6000; round++) {
        uint32_t k = (uint32_t)(ckpt_rand(&rng) % RUNS);

        if (round % 500 == 0)
            make_texts();
        if (runs[k].used)
            random_step(&runs[k], &kept);
        else
            random_begin(k, &hits);
        if (ckpt_rand(&rng) % 100 == 0)
            prefix_evict(t, PREFIX_WANT_PAGE);
        check();
    }
    for (uint32_t i = 0; i < RUNS; i++)
        if (runs[i].used)
            stop(&runs[i]);
    prefix_get_counts(t, &c);
    ck_assert_uint_gt(hits, 200);
    ck_assert_uint_gt(kept, 500);
    ck_assert_uint_gt(c.evicted, 200);
    ck_assert_uint_gt(c.replaced, 0);
    ck_assert_uint_eq(c.hits, hits);
    ck_assert_uint_eq(mem_page_pool_read(&pages).idle, c.pages);
}
END_TEST

/* ---- single properties ---- */

START_TEST(grid_and_depth) {
    uint32_t ids[700];
    struct prefix_hit h;

    fill(ids, 700, 1);
    ck_assert_uint_eq(ask(7, ids, 700, 640, PREFIX_END), 0);
    ck_assert_uint_eq(find(7, ids, 700, &h), 640);
    ck_assert_uint_eq(h.full_pages, 2);
    ck_assert_uint_eq(h.idle_pages, 3);
    ck_assert(h.exact);
    ck_assert_uint_eq(find(7, ids, 641, &h), 640);
    ck_assert_uint_eq(find(7, ids, 640, &h), 0); /* one token has to be read: there is no result without one */
    ck_assert_uint_eq(h.shared, 640);
    ids[639]++;
    ck_assert_uint_eq(find(7, ids, 700, &h), 0);
    ck_assert_uint_eq(h.shared, 639);
    ids[639]--;
    ck_assert_uint_eq(ask(7, ids, 320, 256, PREFIX_TURN), 0);
    ck_assert_uint_eq(find(7, ids, 600, &h), 256); /* falls back to the deepest there is */
    ck_assert_uint_eq(h.full_pages, 1);
}
END_TEST

START_TEST(domains) {
    uint32_t ids[300], far[700];
    struct prefix_hit h;
    struct prefix_miss m[PREFIX_MISSES];

    fill(ids, 300, 1);
    ask(1000, ids, 300, 256, PREFIX_END);
    ck_assert_uint_eq(find(1001, ids, 300, &h), 0);
    ck_assert_uint_eq(h.shared, 0);
    ck_assert_uint_eq(ask(1001, ids, 300, 256, PREFIX_END), 0);
    ck_assert_uint_eq(prefix_get_misses(t, m), 2);
    ck_assert_int_eq(m[0].why, PREFIX_WHY_DOMAIN);
    ck_assert_uint_eq(ask(1001, ids, 300, 256, PREFIX_END), 256);
    ck_assert_uint_eq(ask(1000, ids, 300, 256, PREFIX_END), 256);
    /* also when the first checkpoint of the other lies pages further on */
    fill(far, 700, 2);
    ask(1000, far, 700, 640, PREFIX_END);
    ck_assert_uint_eq(ask(1001, far, 700, 640, PREFIX_END), 0);
    prefix_get_misses(t, m);
    ck_assert_int_eq(m[0].why, PREFIX_WHY_DOMAIN);
}
END_TEST

START_TEST(decoded_is_not_exact) {
    static struct run r;
    uint32_t ids[400];
    struct prefix_hit h;

    fill(ids, 400, 3);
    start(&r, 1, ids, 400);
    advance(&r, 100, false);
    advance(&r, 320, true);
    ck_assert_int_eq(keep(&r, PREFIX_REPLY), 0);
    stop(&r);
    ck_assert_uint_eq(find(1, ids, 400, &h), 320);
    ck_assert(!h.exact);
    ck_assert_uint_eq(h.exact_rows, 100);
    /* who continues from there is not exact either */
    start(&r, 1, ids, 400);
    advance(&r, 384, false);
    ck_assert_int_eq(keep(&r, PREFIX_END), 0);
    stop(&r);
    ck_assert_uint_eq(find(1, ids, 400, &h), 384);
    ck_assert(!h.exact);
    /* a cold run's state replaces them */
    prefix_find(t, 1, &(struct prefix_text){ ids, 65, NULL, 0 }, &h);
    r = (struct run){ .used = true, .domain = 1, .n = 400, .exact = UINT32_MAX, .n_pages = 2 };
    memcpy(r.ids, ids, sizeof ids);
    ck_assert(get_pages(2, r.pages));
    advance(&r, 384, false);
    ck_assert_int_eq(keep(&r, PREFIX_END), 0);
    stop(&r);
    ck_assert_uint_eq(find(1, ids, 400, &h), 384);
    ck_assert(h.exact);
    check();
}
END_TEST

START_TEST(order_of_eviction) {
    uint32_t sys[1024], a[1024], b[1024];
    struct prefix_hit h;

    /* a system prompt, two conversations over it, one of them in its second turn, a third unrelated one */
    fill(sys, 512, 1);
    memcpy(a, sys, sizeof sys);
    memcpy(b, sys, sizeof sys);
    fill(a + 512, 512, 2);
    fill(b + 512, 512, 3);
    ask(1, sys, 600, 512, PREFIX_SYSTEM);
    ask(1, a, 700, 640, PREFIX_END);
    ask(1, a, 1000, 960, PREFIX_END);
    ask(1, b, 1000, 960, PREFIX_END);
    ck_assert(prefix_evict(t, PREFIX_WANT_SLOT)); /* the turn that was overtaken */
    ck_assert_uint_eq(find(1, a, 1000, &h), 960);
    ck_assert_uint_eq(find(1, a, 900, &h), 512);
    ck_assert(prefix_evict(t, PREFIX_WANT_SLOT)); /* the older end of a conversation */
    ck_assert_uint_eq(find(1, a, 1000, &h), 512);
    ck_assert_uint_eq(find(1, b, 1000, &h), 960);
    ck_assert(prefix_evict(t, PREFIX_WANT_SLOT));
    ck_assert_uint_eq(find(1, b, 1000, &h), 512);
    ck_assert(prefix_evict(t, PREFIX_WANT_SLOT));
    ck_assert(!prefix_evict(t, PREFIX_WANT_SLOT));
}
END_TEST

/* Sub-agents come and go by the dozen; the long conversation that called them stays. */
START_TEST(main_conversation_stays) {
    static uint32_t ids[MOST];
    struct prefix_hit h;

    fill(ids, MOST, 1);
    ask(1, ids, MOST, 1344, PREFIX_END);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t sub[100];

        fill(sub, 100, 10 + i);
        ask(1, sub, 100, 64, PREFIX_END);
    }
    ck_assert_uint_eq(find(1, ids, MOST, &h), 1344);
}
END_TEST

START_TEST(flooding_user_evicts_itself) {
    static uint32_t ids[400];
    struct prefix_hit h;

    fill(ids, 400, 1);
    ask(1, ids, 400, 384, PREFIX_END);
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t sub[400];

        fill(sub, 400, 10 + i);
        ask(2, sub, 400, 384, PREFIX_END);
    }
    ck_assert_uint_eq(find(1, ids, 400, &h), 384);
}
END_TEST

START_TEST(shared_block_stays) {
    static uint32_t ids[500];
    struct prefix_hit h;

    fill(ids, 300, 1);
    ask(1, ids, 500, 256, PREFIX_SYSTEM);
    for (uint32_t i = 0; i < 60; i++) {
        fill(ids + 300, 200, 10 + i);
        ck_assert_uint_eq(ask(1, ids, 500, 448, PREFIX_END), 256);
    }
    ck_assert_uint_eq(find(1, ids, 300, &h), 256);
}
END_TEST

START_TEST(pinned_stays) {
    uint32_t ids[300];
    struct mem_page path[2];
    struct prefix_hit h;

    fill(ids, 300, 1);
    ask(1, ids, 300, 256, PREFIX_END);
    find(1, ids, 300, &h);
    ck_assert_uint_eq(prefix_hold(t, h.checkpoint, path), 1);
    ck_assert_uint_eq(mem_page_pool_read(&pages).idle, 0);
    check();
    ck_assert(!prefix_evict(t, PREFIX_WANT_PAGE));
    prefix_clear(t);
    ck_assert_uint_eq(find(1, ids, 300, &h), 256);
    prefix_release(t, h.checkpoint);
    mem_pages_give(&pages, 1, path);
    ck_assert(prefix_evict(t, PREFIX_WANT_PAGE));
    ck_assert_uint_eq(find(1, ids, 300, &h), 0);
}
END_TEST

START_TEST(why_missed) {
    uint32_t ids[400], other[400];
    struct prefix_miss m[PREFIX_MISSES];
    struct prefix_text x = { ids, 400, NULL, 0 };
    struct prefix_counts c;

    fill(ids, 400, 1);
    ask(1, ids, 400, 384, PREFIX_END);
    ask(1, ids, 64, 0, PREFIX_END);
    memcpy(other, ids, sizeof ids);
    other[300] = 5;
    ask(1, other, 400, 0, PREFIX_END);
    ck_assert(prefix_evict(t, PREFIX_WANT_SLOT));
    ask(1, ids, 400, 0, PREFIX_END);
    /* what somebody else had is told to nobody, nor that it is gone */
    ask(2, ids, 400, 0, PREFIX_END);
    ck_assert_uint_eq(prefix_get_misses(t, m), 5);
    ck_assert_int_eq(m[0].why, PREFIX_WHY_NEW);
    prefix_count(t, 1, &x, &(struct prefix_hit){ .checkpoint = PREFIX_NONE }, true, 77);
    ck_assert_uint_eq(prefix_get_misses(t, m), 6);
    ck_assert_int_eq(m[5].why, PREFIX_WHY_NEW);
    ck_assert_int_eq(m[4].why, PREFIX_WHY_SHORT);
    ck_assert_int_eq(m[3].why, PREFIX_WHY_DIVERGED);
    ck_assert_uint_eq(m[3].shared, 300);
    ck_assert_int_eq(m[2].why, PREFIX_WHY_EVICTED);
    ck_assert_int_eq(m[0].why, PREFIX_WHY_REFUSED);
    ck_assert_uint_eq(m[0].when, 77);
    for (int i = 0; i < 20; i++)
        prefix_count(t, 1, &x, &(struct prefix_hit){ .checkpoint = PREFIX_NONE }, true, 100 + (uint64_t)i);
    ck_assert_uint_eq(prefix_get_misses(t, m), PREFIX_MISSES);
    ck_assert_uint_eq(m[0].when, 119);
    ck_assert_uint_eq(m[9].when, 110);
    prefix_get_counts(t, &c);
    ck_assert_uint_eq(c.why[PREFIX_WHY_REFUSED], 21);
    ck_assert_str_eq(prefix_why_name(PREFIX_WHY_DIVERGED), "diverged");
    ck_assert_str_eq(prefix_why_name(PREFIX_WHY_N), "?");
}
END_TEST

START_TEST(budgets) {
    uint32_t ids[1200];
    struct prefix_counts c;
    struct prefix_hit h;

    unmake();
    make(&(struct prefix_config){ .max_checkpoints = 12, .max_pages = PAGES, .slot_bytes = 1000, .page_bytes = 100,
                                  .max_bytes = 3300 });
    for (uint32_t i = 0; i < 6; i++) {
        fill(ids, 300, 1 + i);
        ask(1, ids, 300, 192, PREFIX_END);
        prefix_get_counts(t, &c);
        ck_assert_uint_le(c.bytes, 3300);
    }
    ck_assert_uint_eq(c.checkpoints, 3);
    /* one that could never fit is refused, and costs the others their places only as far as it must */
    unmake();
    make(&(struct prefix_config){ .max_checkpoints = 12, .max_pages = PAGES, .slot_bytes = 1000, .page_bytes = 100,
                                  .max_bytes = 1200 });
    fill(ids, 1200, 9);
    ask(1, ids, 1200, 1152, PREFIX_END);
    prefix_get_counts(t, &c);
    ck_assert_uint_eq(c.refused, 1);
    ck_assert_uint_eq(find(1, ids, 1200, &h), 0);
}
END_TEST

START_TEST(bad_input) {
    uint64_t bytes;
    struct mem_page page;
    uint32_t ids[128];
    struct prefix_new n = { .domain = 1, .text = { ids, 128, NULL, 0 }, .kind = PREFIX_END, .pages = &page };

    fill(ids, 128, 1);
    ck_assert_int_eq(prefix_bytes(&(struct prefix_config){ .max_pages = 1 }, &bytes), -EINVAL);
    ck_assert_int_eq(prefix_bytes(&(struct prefix_config){ .max_checkpoints = 1 }, &bytes), -EINVAL);
    ck_assert_int_eq(prefix_init(&(struct prefix_config){ 1, 1, 1, 1, 0 }, mem, 64, &pages, &slots, &t), -EINVAL);
    ck_assert_int_eq(prefix_insert(t, &n), -EINVAL);
    n.pos = 65;
    ck_assert_int_eq(prefix_insert(t, &n), -EINVAL);
    n.pos = 192;
    ck_assert_int_eq(prefix_insert(t, &n), -EINVAL);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cache_prefix");
    TCase *tc = tcase_create("prefix");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, random_moves);
    tcase_add_test(tc, grid_and_depth);
    tcase_add_test(tc, domains);
    tcase_add_test(tc, decoded_is_not_exact);
    tcase_add_test(tc, order_of_eviction);
    tcase_add_test(tc, main_conversation_stays);
    tcase_add_test(tc, flooding_user_evicts_itself);
    tcase_add_test(tc, shared_block_stays);
    tcase_add_test(tc, pinned_stays);
    tcase_add_test(tc, why_missed);
    tcase_add_test(tc, budgets);
    tcase_add_test(tc, bad_input);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
