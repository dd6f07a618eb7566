/* SPDX-License-Identifier: MIT */
/* evalrun.c: all cases of a golden file on one loaded model, one line each. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evalgold.h"

struct run {
    const struct eval_options *o;
    struct st_file *f;
    char (*names)[GOLD_MAX_NAME];
    uint32_t n_names, ok, failed, pictures;
    bool drafts;      /* some case has MTP values */
    uint32_t context; /* the longest case with its continuation */
    json_t *json;     /* array of results, NULL without --json */
};

static bool selected(const struct run *u, uint32_t i) {
    return !u->o->only || strcmp(u->o->only, u->names[i]) == 0;
}

/* Looks through the selected cases for what the engine must be opened with. */
static int survey(struct run *u, struct xerr *err) {
    bool found = false;

    for (uint32_t i = 0; i < u->n_names; i++) {
        struct gold g;
        int r;

        if (!selected(u, i))
            continue;
        found = true;
        r = gold_read(u->f, u->names[i], &g, err);
        if (r < 0)
            return r;
        u->drafts = u->drafts || g.mtp_top1 || g.mtp_logits_last;
        if (g.n_ids + g.n_greedy + 1 > u->context)
            u->context = g.n_ids + g.n_greedy + 1;
        gold_done(&g);
    }
    if (!found)
        return xerr_set(err, -ENOENT, "%s: found no case \"%s\"; the first one is \"%s\"", st_path(u->f),
                        u->o->only, u->names[0]);
    return 0;
}

static void print_case(const struct gold *g, const struct gold_result *r) {
    uint32_t worst = 0;

    printf("%-10s %-4s ids %-5u logits %.1e  top1 %u/%u  lse %.1e", g->name, r->within ? "ok" : "FAIL", g->n_ids,
           r->logits, r->top1_same, r->n_top1, r->logsumexp);
    if (g->n_ids > 1)
        printf("  next %.1e", r->next_logit);
    for (uint32_t i = 1; i < r->n_hidden; i++)
        if (!(r->hidden[i] <= r->hidden[worst]))
            worst = i;
    if (r->n_hidden)
        printf("  hidden %.1e (worst: %u of 0-%u)", r->hidden[worst], worst, r->n_hidden - 1);
    if (r->n_mtp)
        printf("  mtp %u/%u", r->mtp_same, r->n_mtp);
    if (g->mtp_logits_last)
        printf(" %.1e", r->mtp_logits);
    if (r->n_greedy)
        printf("  greedy %u/%u", r->greedy_same, r->n_greedy);
    printf("\n");
    fflush(stdout);
}

/* JSON has no NaN: such an error is written as null, and the case has failed anyway. */
static json_t *real(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

static void add_json(json_t *list, const struct gold *g, const struct gold_result *r) {
    json_t *c = json_object(), *hidden = json_array();

    json_object_set_new(c, "case", json_string(g->name));
    json_object_set_new(c, "within", json_boolean(r->within));
    json_object_set_new(c, "ids", json_integer(g->n_ids));
    json_object_set_new(c, "logits", real(r->logits));
    json_object_set_new(c, "top1", json_pack("[i, i]", (int)r->top1_same, (int)r->n_top1));
    json_object_set_new(c, "logsumexp", real(r->logsumexp));
    if (g->n_ids > 1)
        json_object_set_new(c, "next_logit", real(r->next_logit));
    for (uint32_t i = 0; i < r->n_hidden; i++)
        json_array_append_new(hidden, real(r->hidden[i]));
    if (r->n_hidden)
        json_object_set(c, "hidden", hidden);
    json_decref(hidden);
    if (r->n_mtp)
        json_object_set_new(c, "mtp_top1", json_pack("[i, i]", (int)r->mtp_same, (int)r->n_mtp));
    if (g->mtp_logits_last)
        json_object_set_new(c, "mtp_logits", real(r->mtp_logits));
    if (r->n_greedy)
        json_object_set_new(c, "greedy", json_pack("[i, i]", (int)r->greedy_same, (int)r->n_greedy));
    json_array_append_new(list, c);
}

static int run_case(struct run *u, struct engine *e, const char *name, struct xerr *err) {
    struct gold_result res;
    struct gold g;
    int r = gold_read(u->f, name, &g, err);

    if (r < 0)
        return r;
    if (g.picture) {
        u->pictures++;
        if (u->json)
            json_array_append_new(u->json, json_pack("{s:s, s:s}", "case", name, "skipped",
                                                     "pictures are not yet supported"));
        else
            printf("%-10s --   a picture case: not yet supported\n", name);
    } else if ((r = gold_run(e, &g, u->o, &res, err)) >= 0) {
        u->ok += res.within;
        u->failed += !res.within;
        if (u->json)
            add_json(u->json, &g, &res);
        else
            print_case(&g, &res);
    }
    gold_done(&g);
    return r;
}

static int open_engine(struct run *u, struct engine **ret, struct xerr *err) {
    struct engine_options opt = { .model = u->o->model, .backend = u->o->backend, .isa = u->o->isa,
                                  .threads = u->o->threads, .ranks = u->o->ranks, .max_seqs = 1, .max_streams = 1,
                                  .score = true,
                                  .context_tokens = u->context, .draft = u->drafts,
                                  .prefill_tokens = u->o->chunk_tokens, .cache = u->o->cache,
                                  /* what is bad is to be measured, too */
                                  .allow_four_bit = true, .allow_low = "embed,kv_b,indexer,kda_gates" };
    struct engine *e;
    int r = engine_open(&opt, &e, err);

    if (r < 0)
        return r;
    r = engine_load(e, NULL, NULL, err);
    if (r < 0)
        engine_close(e);
    else
        *ret = e;
    return r;
}

static int run_all(struct run *u, struct xerr *err) {
    struct engine *e = NULL;
    struct engine_info info;
    int r;

    if ((r = gold_list(u->f, &u->names, &u->n_names, err)) < 0 || (r = survey(u, err)) < 0)
        return r;
    if (u->context && (r = open_engine(u, &e, err)) < 0)
        return r;
    if (u->o->json)
        u->json = json_array();
    for (uint32_t i = 0; i < u->n_names && r >= 0; i++)
        if (selected(u, i))
            r = run_case(u, e, u->names[i], err);
    memset(&info, 0, sizeof info);
    if (e)
        engine_get_info(e, &info);
    if (r >= 0 && u->json) {
        json_t *doc = json_pack("{s:s, s:s, s:f, s:b, s:O}", "model", u->o->model, "backend",
                                info.backend, "tolerance", u->o->tolerance, "within", u->ok && !u->failed, "cases",
                                u->json);

        if (doc) {
            json_dumpf(doc, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
            printf("\n");
        } else {
            r = xerr_set(err, -EINVAL, "--json: the model's path is no UTF-8 text");
        }
        json_decref(doc);
    } else if (r >= 0) {
        printf("%s on %s: %u ok, %u beyond tolerance %g, %u pictures not yet supported\n", info.model_name,
               info.backend, u->ok, u->failed, u->o->tolerance, u->pictures);
    }
    if (r >= 0 && !u->ok && !u->failed)
        r = xerr_set(err, -ENODATA, "%s: nothing was compared: pictures are not yet supported", st_path(u->f));
    engine_close(e);
    return r;
}

int eval_golden(const struct eval_options *o, const char *golden) {
    struct run u = { .o = o };
    struct xerr err = { 0 };
    int r = st_open(&u.f, golden, NULL, &err);

    if (r >= 0)
        r = run_all(&u, &err);
    free(u.names);
    json_decref(u.json);
    st_close(u.f);
    if (r < 0) {
        fprintf(stderr, "glm-eval: %s\n", err.msg);
        return EVAL_TROUBLE;
    }
    return u.failed ? EVAL_DIFFERS : EVAL_OK;
}
