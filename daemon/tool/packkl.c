/* SPDX-License-Identifier: MIT */
/* packkl.c: what the conversion does to answers: the same text through the source and through the result,
 * position by position, by the daemon's engine. One model is in memory at a time; the logits of the first are
 * kept. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "eval.h"
#include "pack.h"
#include "score.h"
#include "tokenizer.h"

enum { MAX_POSITIONS = 1024 };

struct side {
    const struct pack_options *o;
    uint32_t ids[MAX_POSITIONS], n, vocab;
    float *logits; /* of the source, [n][vocab] */
    bool second;
    struct pack_kl *k;
};

static double log_sum(const float *v, uint32_t n, uint32_t *ret_top) {
    double sum = 0;
    uint32_t top = 0;

    for (uint32_t i = 1; i < n; i++)
        top = v[i] > v[top] ? i : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)v[i] - (double)v[top]);
    *ret_top = top;
    return (double)v[top] + log(sum);
}

static void on_logits(void *ctx, uint32_t pos, const float *b) {
    struct side *s = ctx;
    const float *a = s->logits + (uint64_t)pos * s->vocab;
    uint32_t top_a, top_b;
    double la, lb, kl = 0;

    if (!s->second) {
        memcpy(s->logits + (uint64_t)pos * s->vocab, b, s->vocab * sizeof *b);
        return;
    }
    la = log_sum(a, s->vocab, &top_a);
    lb = log_sum(b, s->vocab, &top_b);
    for (uint32_t i = 0; i < s->vocab; i++) {
        double p = (double)a[i] - la;

        kl += exp(p) * (p - ((double)b[i] - lb));
    }
    s->k->kl += kl;
    s->k->worst = kl > s->k->worst || isnan(kl) ? kl : s->k->worst;
    s->k->same += top_a == top_b;
    s->k->n++;
    if (pos + 1 < s->n) {
        s->k->loss_in += la - (double)a[s->ids[pos + 1]];
        s->k->loss_out += lb - (double)b[s->ids[pos + 1]];
    }
}

static int run(struct side *s, const char *dir, struct xerr *e) {
    struct engine_options opt = { .model = dir,
                                  .backend = s->o->backend,
                                  .max_seqs = 1,
                                  .max_streams = 1,
                                  .score = true,
                                  .context_tokens = s->n + 1,
                                  .allow_four_bit = true,
                                  .allow_low = "embed,kv_b,indexer,kda_gates" };
    struct score_query q = { .ids = s->ids, .n_ids = s->n, .logits = on_logits, .ctx = s };
    struct score_row *rows = calloc(s->n, sizeof *rows);
    struct score_out out = { .rows = rows };
    struct score_shape shape;
    struct engine *g = NULL;
    int r = rows ? engine_open(&opt, &g, e) : xerr_set(e, -ENOMEM, "no memory");

    if (r >= 0)
        r = engine_load(g, NULL, NULL, e);
    if (r >= 0) {
        score_get_shape(g, &shape);
        if (!s->second) {
            s->vocab = shape.vocab_tokens;
            s->logits = calloc((uint64_t)s->n * s->vocab, sizeof *s->logits);
        }
        if (s->vocab != shape.vocab_tokens)
            r = xerr_set(e, -EINVAL, "%s: found a vocabulary of %u tokens, expected %u as %s has: only answers over "
                                     "the same tokens are compared", dir, shape.vocab_tokens, s->vocab, s->o->in);
        else if (!s->logits)
            r = xerr_set(e, -ENOMEM, "%s: no memory for the logits of %u positions", dir, s->n);
        else
            r = score_prompt(g, &q, &out, e);
    }
    engine_close(g);
    free(rows);
    return r;
}

static int read_ids(struct side *s, struct xerr *e) {
    struct tok_scratch *scratch = NULL;
    struct tok *tok = NULL;
    uint64_t bytes = 0;
    size_t n = 0, room;
    uint32_t *ids = NULL;
    char *text = eval_read_file(s->o->text, &bytes);
    int r;

    if (!text)
        return xerr_set(e, -EIO, "%s: cannot be read", s->o->text);
    room = bytes < MAX_POSITIONS * 16 ? (size_t)bytes : MAX_POSITIONS * 16;
    while (room < bytes && room && ((unsigned char)text[room] & 0xc0) == 0x80)
        room--; /* whole characters */
    r = tok_open(s->o->in, &tok, e);
    if (r >= 0 && ((r = tok_scratch_new(0, &scratch)) < 0 || !(ids = calloc(room + 1, sizeof *ids))))
        r = xerr_set(e, -ENOMEM, "no memory");
    if (r >= 0 && (r = tok_encode(tok, scratch, text, room, 0, ids, room + 1, &n)) < 0)
        xerr_set(e, r, "%s: cannot be tokenized: %s", s->o->text,
                 r == -EILSEQ ? "found bytes that are no UTF-8, expected a text in UTF-8" : strerror(-r));
    if (r >= 0 && n < 2)
        r = xerr_set(e, -ENODATA, "%s: found %zu tokens, expected 2 at least", s->o->text, n);
    if (r >= 0) {
        s->n = n < MAX_POSITIONS ? (uint32_t)n : MAX_POSITIONS;
        memcpy(s->ids, ids, s->n * sizeof *ids);
    }
    free(ids);
    tok_scratch_free(scratch);
    tok_free(tok);
    free(text);
    return r < 0 ? r : 0;
}

int pack_compare(const struct pack_options *o, struct pack_kl *ret, struct xerr *e) {
    struct pack_kl k = { .n = 0 };
    struct side *s = calloc(1, sizeof *s);
    int r;

    if (!s)
        return xerr_set(e, -ENOMEM, "no memory");
    s->o = o;
    s->k = &k;
    r = read_ids(s, e);
    if (r >= 0)
        r = run(s, o->in, e);
    s->second = true;
    if (r >= 0)
        r = run(s, o->out, e);
    if (r >= 0 && k.n != s->n)
        r = xerr_set(e, -EBADMSG, "%s: found %u positions compared, expected %u", o->text, k.n, s->n);
    if (r >= 0) {
        k.kl /= k.n;
        k.same /= k.n;
        k.loss_in /= k.n - 1;
        k.loss_out /= k.n - 1;
        *ret = k;
    }
    free(s->logits);
    free(s);
    return r < 0 ? r : 0;
}
