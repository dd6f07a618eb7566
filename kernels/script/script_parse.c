/* SPDX-License-Identifier: MIT */
/* script_parse.c: the text format of glmd-script(5), strictly: every unknown word, double setting, missing or
 * surplus value is refused with its line. Two passes over the same text: one counts, one fills arrays of the
 * counted size. Pure functions, no allocation. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

enum { WORD_BYTES = 512, MAX_LAYERS = KERN_MAX_LAYERS - 1 };

struct parser {
    const char *p;
    uint32_t line;
    uint32_t bound; /* ids must be below */
    struct script *s;
    struct script_block *block; /* open block, in counting passes `spare` */
    struct script_block spare;
    uint32_t set; /* bit per word seen outside blocks, and from SET_BLOCK on inside the open block */
    uint32_t n_unkeyed;
    uint64_t keyed_low; /* ids below 64 that a request is bound to */
    float first_z;      /* best logit of the first unbound request's first output */
    bool first_logits, leading_fails;
    char *err;
    size_t err_len;
    char word[WORD_BYTES];
};

static int fault(struct parser *q, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fault(struct parser *q, const char *fmt, ...) {
    va_list ap;
    int n = snprintf(q->err, q->err_len, "line %u: ", q->line);

    if (n > 0 && (size_t)n < q->err_len) {
        va_start(ap, fmt);
        vsnprintf(q->err + n, q->err_len - (size_t)n, fmt, ap);
        va_end(ap);
    }
    return -EINVAL;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* 1: a word of this line is in q->word; 0: the line has no more. */
static int next_word(struct parser *q) {
    size_t n = 0;

    while (is_blank(*q->p))
        q->p++;
    if (*q->p == '#')
        while (*q->p && *q->p != '\n')
            q->p++;
    while (*q->p && *q->p != '\n' && !is_blank(*q->p)) {
        unsigned char c = (unsigned char)*q->p++;

        if (c < 0x20 || c == 0x7f)
            return fault(q, "a control character (0x%02x)", c);
        if (n == WORD_BYTES - 1)
            return fault(q, "a word longer than %d bytes", WORD_BYTES - 1);
        q->word[n++] = (char)c;
    }
    q->word[n] = 0;
    return n != 0;
}

static int need_word(struct parser *q, const char *what) {
    int r = next_word(q);

    return r == 0 ? fault(q, "found the end of the line, expected %s", what) : r;
}

static int number(struct parser *q, const char *text, const char *what, uint64_t lo, uint64_t hi, uint64_t *ret) {
    uint64_t v = 0;
    const char *p = text;

    for (; *p >= '0' && *p <= '9' && v <= UINT64_MAX / 16; p++)
        v = v * 10 + (uint64_t)(*p - '0');
    if (*p || p == text || v < lo || v > hi)
        return fault(q, "found \"%.40s\", expected %s from %llu to %llu", text, what, (unsigned long long)lo,
                     (unsigned long long)hi);
    *ret = v;
    return 1;
}

static int need_number(struct parser *q, const char *what, uint64_t lo, uint64_t hi, uint64_t *ret) {
    int r = need_word(q, what);

    return r < 0 ? r : number(q, q->word, what, lo, hi, ret);
}

static int need_id(struct parser *q, const char *text, uint32_t *ret) {
    uint64_t v = 0;
    int r = number(q, text, "a token id", 0, q->bound - 1, &v);

    if (r > 0)
        *ret = (uint32_t)v;
    return r;
}

static int need_fail(struct parser *q, uint8_t *ret) {
    int r = need_word(q, "lost or nan");

    if (r < 0)
        return r;
    if (strcmp(q->word, "lost") == 0)
        *ret = SCRIPT_FAIL_LOST;
    else if (strcmp(q->word, "nan") == 0)
        *ret = SCRIPT_FAIL_NAN;
    else
        return fault(q, "found \"%.40s\", expected lost or nan", q->word);
    return 1;
}

/* ---- words before the first request ---- */

static int do_model(struct parser *q) {
    int r = need_word(q, "a directory");

    if (r < 0)
        return r;
    if (q->s->info.vocab_tokens)
        return fault(q, "both vocab and model; one of them names the vocabulary");
    memcpy(q->s->info.model, q->word, sizeof q->s->info.model);
    return 1;
}

static int do_vocab(struct parser *q) {
    uint64_t v = 0;
    int r = need_number(q, "a number of tokens", 1, 1u << 21, &v);

    if (r < 0)
        return r;
    if (q->s->info.model[0])
        return fault(q, "both model and vocab; one of them names the vocabulary");
    q->s->info.vocab_tokens = (uint32_t)v;
    if (v < q->bound)
        q->bound = (uint32_t)v;
    return 1;
}

static int do_context(struct parser *q) {
    uint64_t v = 0;
    int r = need_number(q, "a number of tokens", 2, 1u << 24, &v);

    q->s->info.context_tokens = (uint32_t)v;
    return r;
}

static int do_stop(struct parser *q) {
    struct kern_script_info *i = &q->s->info;
    int r = need_word(q, "token ids");

    for (; r > 0; r = next_word(q)) {
        if (i->n_stops == KERN_SCRIPT_MAX_STOPS)
            return fault(q, "more than %d stop ids", KERN_SCRIPT_MAX_STOPS);
        if ((r = need_id(q, q->word, &i->stops[i->n_stops++])) < 0)
            return r;
    }
    return r < 0 ? r : 1;
}

static int do_layers(struct parser *q) {
    uint64_t v = 0;
    int r = need_number(q, "a number of layers", 1, MAX_LAYERS, &v);

    q->s->info.layers = (uint32_t)v;
    return r;
}

static int micros(struct parser *q, uint64_t *ret_ns) {
    uint64_t v = 0;
    int r = need_number(q, "microseconds", 0, 3600000000u, &v);

    *ret_ns = v * 1000;
    return r;
}

static int do_prefill(struct parser *q) {
    return micros(q, &q->s->fill_ns);
}

static int do_step(struct parser *q) {
    return micros(q, &q->s->step_ns);
}

static int do_fail_step(struct parser *q) {
    int r = need_number(q, "a step", 1, UINT32_MAX, &q->s->fail_step);

    return r < 0 ? r : need_fail(q, &q->s->fail);
}

static int do_loop(struct parser *q) {
    q->s->loop = true;
    return 1;
}

/* ---- requests ---- */

static int do_request(struct parser *q) {
    struct script *s = q->s;
    int r;

    if (s->n_blocks == 1u << 20)
        return fault(q, "more than %u requests", 1u << 20);
    q->block = s->blocks ? &s->blocks[s->n_blocks] : &q->spare;
    s->n_blocks++;
    *q->block = (struct script_block){ .first = KERN_NONE, .tok0 = s->n_toks, .logit0 = s->n_logits };
    r = next_word(q);
    if (r < 0)
        return r;
    if (r == 0) {
        q->n_unkeyed++;
        return 1;
    }
    if (strcmp(q->word, "first") != 0)
        return fault(q, "found \"%.40s\", expected first or the end of the line", q->word);
    r = need_word(q, "a token id");
    if (r > 0 && (r = need_id(q, q->word, &q->block->first)) > 0 && q->block->first < 64)
        q->keyed_low |= UINT64_C(1) << q->block->first;
    return r;
}

/* The open request is the first that goes by order of arrival. */
static bool is_leading(const struct parser *q) {
    return q->n_unkeyed == 1 && q->block->first == KERN_NONE;
}

static int do_tokens(struct parser *q) {
    struct script *s = q->s;
    int r = need_word(q, "token ids");

    for (; r > 0; r = next_word(q)) {
        uint32_t id = 0;

        if ((r = need_id(q, q->word, &id)) < 0)
            return r;
        if (s->toks)
            s->toks[s->n_toks] = id;
        if (is_leading(q) && !q->block->n_tok && !q->first_logits)
            s->info.first_token = id;
        s->n_toks++;
        q->block->n_tok++;
    }
    return r < 0 ? r : 1;
}

static int do_logits(struct parser *q) {
    struct script *s = q->s;
    uint64_t at = 0;
    int r = need_number(q, "an output number", 0, UINT32_MAX - 1, &at);

    if (r > 0)
        r = need_word(q, "ID:LOGIT");
    for (; r > 0; r = next_word(q)) {
        struct script_logit l = { .at = (uint32_t)at };
        char *colon = strchr(q->word, ':'), *end;

        if (!colon || !colon[1])
            return fault(q, "found \"%.40s\", expected ID:LOGIT", q->word);
        *colon = 0;
        if ((r = need_id(q, q->word, &l.token)) < 0)
            return r;
        l.z = strtof(colon + 1, &end);
        if (*end || !isfinite(l.z) || fabsf(l.z) > 1e6f)
            return fault(q, "found \"%.40s\", expected a finite logit", colon + 1);
        if (s->logits)
            s->logits[s->n_logits] = l;
        if (is_leading(q) && !at &&
            (!q->first_logits || l.z > q->first_z || (l.z == q->first_z && l.token < s->info.first_token))) {
            q->first_logits = true;
            q->first_z = l.z;
            s->info.first_token = l.token;
        }
        s->n_logits++;
        q->block->n_logit++;
    }
    return r < 0 ? r : 1;
}

static int do_fail(struct parser *q) {
    uint64_t at = 0;
    int r = need_number(q, "an output number", 0, UINT32_MAX - 1, &at);

    q->block->fail_at = (uint32_t)at;
    q->leading_fails |= is_leading(q) && !at;
    return r < 0 ? r : need_fail(q, &q->block->fail);
}

static int do_repeat(struct parser *q) {
    q->block->repeat = true;
    return 1;
}

static const struct {
    const char *name;
    int (*run)(struct parser *q);
    bool in_block, many;
} words[] = {
    { "model", do_model, false, false },     { "vocab", do_vocab, false, false },
    { "context", do_context, false, false }, { "stop", do_stop, false, false },
    { "layers", do_layers, false, false },   { "prefill-us", do_prefill, false, false },
    { "step-us", do_step, false, false },    { "fail-step", do_fail_step, false, false },
    { "loop", do_loop, false, false },       { "tokens", do_tokens, true, true },
    { "logits", do_logits, true, true },     { "fail", do_fail, true, false },
    { "repeat", do_repeat, true, false },
};
enum { N_WORDS = sizeof words / sizeof words[0] };

static int directive(struct parser *q) {
    uint32_t i = 0;

    if (strcmp(q->word, "request") == 0) {
        for (uint32_t w = 0; w < N_WORDS; w++)
            if (words[w].in_block)
                q->set &= ~(1u << w);
        return do_request(q);
    }
    while (i < N_WORDS && strcmp(q->word, words[i].name) != 0)
        i++;
    if (i == N_WORDS)
        return fault(q, "unknown word \"%.40s\"", q->word);
    if (words[i].in_block && !q->block)
        return fault(q, "\"%s\" belongs into a request", words[i].name);
    if (!words[i].in_block && q->block)
        return fault(q, "\"%s\" belongs before the first request", words[i].name);
    if (q->set & 1u << i && !words[i].many)
        return fault(q, "\"%s\" a second time", words[i].name);
    q->set |= 1u << i;
    return words[i].run(q);
}

static int header(struct parser *q) {
    int r = strcmp(q->word, "glmd-script") == 0 ? next_word(q) : 0;

    if (r < 0)
        return r;
    if (r == 0 || strcmp(q->word, "1") != 0)
        return fault(q, "the first line must read \"glmd-script 1\"");
    return 1;
}

static int finish(struct parser *q, bool had_header) {
    if (!had_header)
        return fault(q, "the script is empty; its first line must read \"glmd-script 1\"");
    if (!q->s->info.model[0] && !q->s->info.vocab_tokens)
        return fault(q, "the script ends without a model or vocab line");
    if (!q->n_unkeyed)
        return fault(q, "the script ends without a request that has no \"first\"");
    if (q->s->info.first_token == KERN_NONE)
        q->s->info.first_token = q->s->info.n_stops ? q->s->info.stops[0] : 0;
    q->s->info.probe = ~q->keyed_low ? (uint32_t)__builtin_ctzll(~q->keyed_low) : KERN_NONE;
    if (q->leading_fails || q->s->info.probe >= q->bound)
        q->s->info.probe = q->s->info.first_token = KERN_NONE;
    return 0;
}

int script_parse(const char *text, uint32_t vocab_tokens, struct script *s, char *err, size_t err_len) {
    struct parser q = { .p = text, .s = s, .err = err, .err_len = err_len,
                        .bound = vocab_tokens ? vocab_tokens : 1u << 21 };
    bool had_header = false;
    int r;

    s->info = (struct kern_script_info){ .layers = 4, .probe = KERN_NONE, .first_token = KERN_NONE };
    s->n_blocks = s->n_toks = s->n_logits = 0;
    s->fill_ns = s->step_ns = s->fail_step = 0;
    s->fail = SCRIPT_FAIL_NONE;
    s->loop = false;
    for (q.line = 1; *q.p; q.line++) {
        r = next_word(&q);
        if (r > 0) {
            r = had_header ? directive(&q) : header(&q);
            had_header = true;
            if (r > 0 && (r = next_word(&q)) > 0)
                r = fault(&q, "found \"%.40s\" after the end of the line's words", q.word);
        }
        if (r < 0)
            return r;
        if (*q.p == '\n')
            q.p++;
    }
    return finish(&q, had_header);
}

int kern_script_info(const char *text, struct kern_script_info *ret, char *err, size_t err_len) {
    struct script s = { .blocks = NULL };
    int r = script_parse(text, 0, &s, err, err_len);

    if (r == 0)
        *ret = s.info;
    return r;
}
