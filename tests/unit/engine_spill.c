/* SPDX-License-Identifier: MIT */
/* The tier on disk under a real model: a prompt that comes back after a restart, or after memory had no room for it,
 * is answered with the same bits as one that is read from its first token, and only for the user whose it was;
 * damage, other models and directories that cannot be used cost a reading and nothing else. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "engine_priv.h"
#include "engrun.h"
#include "ipctest.h"
#include "leakcheck.h"
#include "spill_priv.h"
#include "spilltest.h"

enum { LONGEST = 1200 };

static struct spilltest t;
static struct engrun run;
static uint32_t gens[ENGRUN_STREAMS];
static struct engine_options opt;
static uint32_t ids[LONGEST];
static const char *model;

static void setup(void) {
    leakcheck_setup();
    spilltest_init(&t, NULL);
    memset(gens, 0, sizeof gens);
    model = "twin-a"; /* every kind of layer, and a quarter of nano's work */
    opt = (struct engine_options){ .backend = "cpu",
                                   .threads = 1, /* a team that shares the cores mostly waits for its members */
                                   .context_tokens = 2048,
                                   .max_seqs = 2,
                                   .cache_slots = 8,
                                   .spill_dir = t.dir,
                                   .spill_bytes = 1 << 30,
                                   .spill_min_tokens = 128,
                                   .spill_survive = true };
    spilltest_text(3, ids, LONGEST);
}

static void teardown(void) {
    spilltest_done(&t);
    leakcheck_teardown();
}

static void open_it(void) {
    engrun_open(&run, ckpt_model(model), &opt);
    engrun_start(&run);
}

static struct engine_tier tier(void) {
    struct engine_tier r;

    engine_get_tier(run.e, &r);
    return r;
}

static void close_it(void) {
    engrun_settle(&run);
    ck_assert_int_eq(engrun_close(&run), 0);
}

static struct sched_req request(uint32_t stream, uint32_t uid, const uint32_t *text, uint32_t n) {
    struct sched_req q = engrun_req(stream, text, n, 3);

    q.stream.gen = ++gens[stream];
    q.uid = uid;
    q.ignore_eos = true;
    q.sampling.logprobs = true;
    q.sampling.n_alts = STREAM_MAX_ALTS;
    return q;
}

/* Tokens that were found ready. The answer must be that of a request that may find nothing. */
static uint32_t ask(uint32_t uid, const uint32_t *text, uint32_t n) {
    struct sched_req q = request(0, uid, text, n), plain = request(1, uid, text, n);
    const struct engrun_stream *s, *c;

    engrun_submit(&run, &q);
    s = engrun_wait_gen(&run, 0, gens[0]);
    plain.no_cache = true;
    engrun_submit(&run, &plain);
    c = engrun_wait_gen(&run, 1, gens[1]);
    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_eq(s->n_tokens, 3);
    ck_assert_mem_eq(s->tokens, c->tokens, 3 * sizeof s->tokens[0]);
    ck_assert_mem_eq(&s->logprob, &c->logprob, sizeof s->logprob);
    for (uint32_t i = 0; i < s->n_alts; i++)
        ck_assert(s->alts[i].token == c->alts[i].token && s->alts[i].logprob == c->alts[i].logprob);
    ck_assert_uint_eq(c->end.u.usage.cached, 0);
    return s->end.u.usage.cached;
}

START_TEST(it_survives_a_restart) {
    model = _i & 1 ? "twin-a" : "nano";
    opt.cache = _i & 1 ? ENGINE_CACHE_FP8 : ENGINE_CACHE_F32;
    opt.spill_plain = _i & 1;
    open_it();
    ck_assert_msg(tier().on, "%s", tier().text);
    ck_assert_uint_eq(ask(7, ids, 700), 0);
    close_it();
    ck_assert_uint_gt(spilltest_files(&t, ".state"), 0);
    open_it();
    ck_assert_uint_gt(tier().checkpoints, 0);
    ck_assert_uint_eq(ask(8, ids, 700), 0); /* somebody else's */
    ck_assert_uint_eq(tier().read, 0);
    ck_assert_uint_eq(ask(7, ids, 700), 640);
    ck_assert_uint_eq(tier().read, 1);
    ck_assert_uint_eq(ask(7, ids, 700), 640); /* from memory this time */
    ck_assert_uint_eq(tier().read, 1);
    ck_assert_uint_eq(ask(7, ids, 1000), 640); /* and a longer one begins there */
    close_it();
    open_it();
    ck_assert_uint_gt(ask(7, ids, 1000), 900);
    ck_assert_uint_eq(tier().damaged, 0);
    close_it();
}
END_TEST

START_TEST(the_reference_backend_too) {
    opt.backend = "ref";
    open_it();
    ck_assert_uint_eq(ask(7, ids, 272), 0);
    close_it();
    open_it();
    ck_assert_uint_eq(ask(7, ids, 272), 256);
    ck_assert_uint_eq(tier().read, 1);
    close_it();
}
END_TEST

/* Usage tells what came from the disk, for the request that waited for it and no other. */
START_TEST(usage_says_so) {
    struct sched_req q;

    open_it();
    ask(7, ids, 700);
    close_it();
    open_it();
    q = request(0, 7, ids, 700);
    engrun_submit(&run, &q);
    ck_assert_uint_eq(engrun_wait_gen(&run, 0, gens[0])->end.u.usage.tier, 640);
    q = request(0, 7, ids, 700);
    engrun_submit(&run, &q);
    ck_assert_uint_eq(engrun_wait_gen(&run, 0, gens[0])->end.u.usage.tier, 0);
    ck_assert_uint_eq(run.s[0].end.u.usage.cached, 640);
    close_it();
}
END_TEST

/* Too little memory for what users come back to: the disk has it, without anything of an earlier daemon. Which limit
 * it is that memory ends at makes no difference: the states of all, those of the cache beside many seats, its bytes. */
START_TEST(what_memory_has_no_room_for) {
    uint32_t found = 0;

    opt.spill_survive = false;
    opt.cache_slots = _i == 2 ? 16 : 3;
    opt.max_seqs = _i ? 16 : 2;
    open_it();
    if (_i == 2) { /* for three prompts, of 320 tokens that are kept */
        opt.cache_bytes = 3 * (kern_slot_bytes(run.e->k) + 2 * kern_page_bytes(run.e->k));
        close_it();
        open_it();
    }
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = 0; i < 5; i++) {
            spilltest_text(8 * i, ids, 400);
            found += ask(7, ids, 400) >= 320;
            engrun_settle(&run);
        }
    ck_assert_uint_ge(found, 6);
    ck_assert_uint_gt(tier().read, 3);
    close_it();
    ck_assert_uint_eq(spilltest_files(&t, ".page") + spilltest_files(&t, ".state"), 0);
}
END_TEST

/* Branches, re-sent prompts, edits at the end, in too little memory, over restarts. */
START_TEST(any_prompts) {
    struct ipc_rng r = { .s = (uint64_t)_i + 11 };
    uint32_t hits = 0;

    opt.cache_slots = 4;
    opt.n_pages = 16;
    opt.spill_bytes = 4 << 20; /* the tier itself throws things out */
    for (uint32_t life = 0; life < 2; life++) {
        opt.spill_plain = life == 1;
        open_it();
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t n = 270 + ipc_below(&r, 500);

            spilltest_text(ipc_below(&r, 6), ids, 1000); /* halves in common */
            if (ipc_below(&r, 3) == 0)
                ids[n - 1 - ipc_below(&r, 100)] ^= 1;
            hits += ask(7 + ipc_below(&r, 2), ids, n) > 0;
        }
        close_it();
    }
    ck_assert_uint_gt(hits, 2);
    ck_assert_uint_le(spilltest_bytes(&t), opt.spill_bytes);
}
END_TEST

static bool find_point(uint32_t pos, struct prefix_info *ret) {
    for (uint32_t i = 0; i < opt.cache_slots; i++)
        if (prefix_get(run.e->prefix, i, ret) && ret->pos == pos)
            return true;
    return false;
}

/* An answer comes back in a prompt. What decode steps wrote is right within rounding, and stays known as that. */
START_TEST(what_decode_wrote) {
    uint32_t text[LONGEST], n = 300;
    const struct engrun_stream *s;
    struct prefix_info in;
    struct sched_req q;

    memcpy(text, ids, sizeof text);
    open_it();
    q = request(0, 7, text, n);
    q.max_tokens = 150;
    engrun_submit(&run, &q);
    s = engrun_wait_gen(&run, 0, gens[0]);
    memcpy(text + n, s->tokens, s->n_tokens * sizeof text[0]);
    n += s->n_tokens;
    memcpy(text + n, ids + n, 20 * sizeof text[0]); /* the next message */
    close_it();
    open_it();
    q = request(0, 7, text, n + 20);
    engrun_submit(&run, &q);
    s = engrun_wait_gen(&run, 0, gens[0]);
    ck_assert_int_eq(s->end.status, 0);
    ck_assert_uint_eq(s->end.u.usage.tier, 448 - 448 % KERN_GRID);
    ck_assert(find_point(448, &in) && !in.exact);
    close_it();
}
END_TEST

/* Of a checkpoint of n_pages pages of which the first n_known are in memory. */
static uint64_t bytes_of(uint32_t pos, uint32_t n_known) {
    uint64_t page = spill_block_bytes(KERN_PAGE_TOKENS, kern_page_bytes(run.e->k)), full = pos / KERN_PAGE_TOKENS,
             last = spill_block_bytes(pos % KERN_PAGE_TOKENS, kern_page_bytes(run.e->k));

    return spill_block_bytes(pos, kern_slot_bytes(run.e->k)) + (full - n_known) * page +
           n_known * spill_ids_bytes(KERN_PAGE_TOKENS) + (pos % KERN_PAGE_TOKENS ? last : 0);
}

/* Pages that are in memory are not read, and the checkpoint is worth what it was before. */
START_TEST(what_is_missing_is_read) {
    struct prefix_info in;
    uint64_t before;

    open_it();
    ask(7, ids, 700);
    ask(7, ids, 1000);
    ck_assert(find_point(960, &in) && in.kind == PREFIX_END);
    close_it();
    open_it();
    ck_assert_uint_eq(ask(7, ids, 700), 640);
    ck_assert_uint_eq(tier().read_bytes, bytes_of(640, 0));
    ck_assert(find_point(640, &in) && in.kind == PREFIX_END && in.exact);
    before = tier().read_bytes;
    ck_assert_uint_eq(ask(7, ids, 1000), 960);
    ck_assert_uint_eq(tier().read_bytes - before, bytes_of(960, 2));
    ck_assert(find_point(960, &in) && in.kind == PREFIX_END && in.exact);
    close_it();
}
END_TEST

/* Rows in memory that a decode step wrote are no part of a checkpoint that is exact. */
START_TEST(exact_ones_stay_exact) {
    uint32_t text[LONGEST], n = 300;
    const struct engrun_stream *s;
    struct prefix_info in;
    struct sched_req q;
    uint64_t before;

    memcpy(text, ids, sizeof text);
    for (uint32_t life = 0; life < 2; life++) {
        opt.spill_dir = life ? t.dir : NULL;
        open_it();
        if (life) {
            ck_assert_uint_eq(ask(7, text, 900), 0);
            close_it();
            open_it();
        }
        q = request(0, 7, text, n);
        q.max_tokens = 270;
        engrun_submit(&run, &q);
        s = engrun_wait_gen(&run, 0, gens[0]);
        ck_assert_uint_eq(s->n_tokens, 270);
        memcpy(text + n, s->tokens, s->n_tokens * sizeof text[0]);
        if (life) {
            engrun_settle(&run);
            ck_assert(find_point(512, &in) && !in.exact);
            before = tier().read_bytes;
            ck_assert_uint_eq(ask(7, text, 900), 832);
            ck_assert_uint_eq(tier().read_bytes - before, bytes_of(832, 1));
            ck_assert(find_point(832, &in) && in.exact);
        }
        close_it();
    }
}
END_TEST

/* What was fetched for a request is one of the four that it may leave. */
START_TEST(what_is_fetched_counts) {
    static uint32_t marks[] = { 704, 832, 960, 1088 };
    struct prefix_counts c;
    struct sched_req q;

    open_it();
    ask(7, ids, 700);
    close_it();
    open_it();
    q = request(0, 7, ids, 1200);
    q.marks = marks;
    q.n_marks = 4;
    q.max_tokens = 140;
    engrun_submit(&run, &q);
    ck_assert_uint_eq(engrun_wait_gen(&run, 0, gens[0])->end.u.usage.tier, 640);
    engrun_settle(&run);
    prefix_get_counts(run.e->prefix, &c);
    ck_assert_uint_eq(c.checkpoints, ECACHE_MARKS);
    close_it();
}
END_TEST

static void flip(const char *ending, off_t at) {
    char path[400];
    uint8_t b;
    int fd;

    ck_assert(spilltest_first(&t, ending, path, sizeof path));
    fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &b, 1, at), 1);
    b ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

START_TEST(damage_is_a_miss) {
    for (int i = 0; i < 2; i++) {
        open_it();
        ask(7, ids, 300);
        close_it();
        ck_assert_uint_eq(spilltest_files(&t, ".state"), 1);
        flip(i ? ".page" : ".state", 9000);
        open_it();
        ck_assert_uint_eq(ask(7, ids, 300), 0); /* the same text all the same */
        ck_assert_uint_eq(tier().damaged, 1);
        close_it(); /* and it was written anew */
        open_it();
        ck_assert_uint_eq(ask(7, ids, 300), 256);
        close_it();
        spilltest_empty(&t);
    }
}
END_TEST

START_TEST(another_model_or_backend) {
    open_it();
    ask(7, ids, 300);
    close_it();
    opt.backend = "ref";
    open_it();
    ck_assert_uint_eq(ask(7, ids, 140), 0);
    ck_assert_uint_gt(tier().foreign, 0);
    close_it();
    opt.backend = "cpu";
    opt.cache = ENGINE_CACHE_BF16;
    open_it();
    ck_assert_uint_eq(ask(7, ids, 300), 0);
    close_it();
    model = "nano";
    open_it();
    ck_assert_uint_eq(ask(7, ids, 300), 0);
    close_it();
    model = "twin-a";
    ck_assert_ptr_nonnull(strstr(spilltest_log(&t), "of another model or version"));
    opt.cache = ENGINE_CACHE_F32;
    open_it(); /* the first one's are still there */
    ck_assert_uint_eq(ask(7, ids, 300), 256);
    close_it();
}
END_TEST

/* A client that goes away while its prompt is fetched, and an engine that stops then. */
START_TEST(ends_while_it_is_fetched) {
    struct sched_req q[4];

    open_it();
    for (uint32_t i = 0; i < 4; i++) {
        spilltest_text(8 * i, ids + 300 * i, 300);
        ask(7, ids + 300 * i, 300);
    }
    close_it();
    for (uint32_t round = 0; round < 6; round++) {
        open_it();
        for (uint32_t i = 0; i < 4; i++) {
            q[i] = request(i, 7, ids + 300 * i, 300);
            engrun_submit(&run, &q[i]);
        }
        for (uint32_t i = 0; i < 4; i++)
            if ((round + i) % 2)
                engine_cancel(run.e, q[i].stream);
        for (uint32_t i = 0; round < 4 && i < 4; i++)
            engrun_wait_gen(&run, i, gens[i]);
        if (round < 4) {
            ck_assert_uint_eq(run.e->spill.n_fetching, 0);
            ck_assert_uint_eq(ask(7, ids, 300), 256);
            engrun_settle(&run);
        }
        ck_assert_int_eq(engrun_close(&run), 0);
    }
    ck_assert_uint_eq(spilltest_files(&t, ".tmp"), 0);
}
END_TEST

/* Nothing ever comes: the buffer that a state is read into is never free. */
START_TEST(a_disk_that_hangs) {
    struct sched_req q;

    open_it();
    ask(7, ids, 300);
    close_it();
    engrun_open(&run, ckpt_model(model), &opt);
    run.e->spill.tier->state_busy = true;
    engrun_start(&run);
    q = request(0, 7, ids, 300);
    engrun_submit(&run, &q);
    ck_assert_int_eq(engrun_wait_gen(&run, 0, gens[0])->end.status, 0);
    ck_assert_uint_eq(run.s[0].end.u.usage.cached, 0);
    ck_assert_ptr_nonnull(strstr(spilltest_log(&t), "nothing came from there"));
    close_it();
}
END_TEST

static void rounds_until_end(uint32_t stream) {
    for (uint32_t i = 0; !run.s[stream].ends; i++) {
        ck_assert_int_ge(engine_round(run.e, false), 0);
        ck_assert_uint_lt(i, 100000);
    }
    ck_assert_int_eq(run.s[stream].end.status, 0);
}

/* Whom something is read for goes while the read is under way: the next one's begins when it has come back, without
 * anything else that would look. */
START_TEST(a_read_that_is_given_up) {
    struct sched_req q[2];

    open_it();
    for (uint32_t i = 0; i < 2; i++) {
        spilltest_text(8 * i, ids + 300 * i, 300);
        ask(7, ids + 300 * i, 300);
    }
    close_it();
    engrun_open(&run, ckpt_model(model), &opt);
    engrun_attach(&run);
    for (uint32_t i = 0; i < 2; i++) {
        q[i] = request(i, 7, ids + 300 * i, 300);
        engrun_submit(&run, &q[i]);
    }
    while (run.e->spill.in_stream != 0)
        ck_assert_int_ge(engine_round(run.e, false), 0);
    engine_cancel(run.e, q[0].stream);
    for (uint32_t i = 0; i < 5000 && !run.s[1].ends; i++) {
        ck_assert_int_ge(engine_round(run.e, false), 0);
        if (run.e->spill.n_fetching)
            engrun_sleep_ms(1);
    }
    ck_assert_uint_eq(run.s[1].end.u.usage.cached, 256);
    ck_assert_int_eq(engrun_close(&run), 0);
}
END_TEST

/* A checkpoint is still being written when a longer text takes the place of its last page in the cache. That page
 * counts among what can be had; the next request needs it, and has it: the checkpoint is not written. */
START_TEST(a_sequence_comes_before_the_disk) {
    static uint32_t other[LONGEST];
    struct sched_req q[3];

    opt.max_seqs = 1;
    opt.context_tokens = 1024;
    opt.n_pages = 4;
    spilltest_text(80, other, LONGEST);
    q[0] = request(0, 7, ids, 330);
    q[1] = request(1, 7, ids, 500);
    q[2] = request(2, 7, other, 400);
    engrun_open(&run, ckpt_model(model), &opt);
    engrun_attach(&run);
    run.e->spill.tier->state_busy = true; /* nothing is ever written whole */
    engrun_submit(&run, &q[0]);
    rounds_until_end(0);
    for (uint32_t i = 0; i < 100000 && run.e->spill.out_point == PREFIX_NONE; i++)
        ck_assert_int_ge(engine_round(run.e, false), 0);
    ck_assert_uint_eq(run.e->spill.out_n, 2);
    engrun_submit(&run, &q[1]);
    rounds_until_end(1);
    ck_assert_uint_eq(run.s[1].end.u.usage.cached, 320);
    ck_assert_uint_ne(run.e->spill.out_point, PREFIX_NONE);
    engrun_submit(&run, &q[2]);
    rounds_until_end(2);
    run.e->spill.tier->state_busy = false;
    engrun_close(&run);
}
END_TEST

START_TEST(what_is_too_short_stays_out) {
    opt.spill_min_tokens = 1024;
    open_it();
    ask(7, ids, 700);
    close_it();
    ck_assert_uint_eq(spilltest_files(&t, ".state"), 0);
}
END_TEST

START_TEST(directories_that_cannot_be_used) {
    char nowhere[100];
    struct spilltest other = t;
    struct xerr note, err = { 0 };

    snprintf(nowhere, sizeof nowhere, "%s/nowhere", t.dir);
    opt.spill_dir = nowhere;
    open_it();
    ask(7, ids, 300);
    ck_assert(!tier().on && tier().wanted);
    ck_assert_ptr_nonnull(strstr(tier().text, "No such file"));
    close_it();
    opt.spill_dir = t.dir;
    ck_assert_int_eq(spill_open(&other.o, &other.s, &note, &err), 0);
    open_it();
    ask(7, ids, 300);
    ck_assert_ptr_nonnull(strstr(tier().text, "another glmd uses it"));
    close_it();
    spill_close(other.s);
    opt.cache_slots = 0;
    open_it();
    ask(7, ids, 300);
    ck_assert_ptr_nonnull(strstr(tier().text, "no prefix cache"));
    close_it();
    opt.cache_slots = 8;
    opt.spill_keep_free = UINT64_MAX; /* full */
    open_it();
    ask(7, ids, 300);
    ask(7, ids, 700);
    close_it();
    ck_assert_ptr_nonnull(strstr(spilltest_log(&t), "is full"));
    opt.spill_dir = NULL;
    open_it();
    ck_assert(!tier().wanted);
    close_it();
}
END_TEST

int main(void) {
    Suite *s = suite_create("engine_spill");
    TCase *tc = tcase_create("spill");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 1800);
    tcase_add_loop_test(tc, it_survives_a_restart, 0, 2);
    tcase_add_test(tc, the_reference_backend_too);
    tcase_add_test(tc, usage_says_so);
    tcase_add_loop_test(tc, what_memory_has_no_room_for, 0, 3);
    tcase_add_loop_test(tc, any_prompts, 0, 1);
    tcase_add_test(tc, what_decode_wrote);
    tcase_add_test(tc, damage_is_a_miss);
    tcase_add_test(tc, another_model_or_backend);
    tcase_add_test(tc, ends_while_it_is_fetched);
    tcase_add_test(tc, a_disk_that_hangs);
    tcase_add_test(tc, a_sequence_comes_before_the_disk);
    tcase_add_test(tc, what_is_too_short_stays_out);
    tcase_add_test(tc, directories_that_cannot_be_used);
    suite_add_tcase(s, tc);
    tc = tcase_create("fetch");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 1800);
    tcase_add_test(tc, what_is_missing_is_read);
    tcase_add_test(tc, exact_ones_stay_exact);
    tcase_add_test(tc, what_is_fetched_counts);
    tcase_add_test(tc, a_read_that_is_given_up);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
