/* SPDX-License-Identifier: MIT */
#include "outtest.h"

#include "texttest.h"
#include "utf8.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct tok *outtest_tok;
struct tok_scratch *outtest_scratch;
struct outparse_vocab outtest_vocab;
struct outtools *outtest_tools;
struct outparse *outtest_parser;
static void *parser_mem;

static const char *const tool_texts[] = {
    "{\"type\": \"function\", \"function\": {\"name\": \"wx\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": "
    "{\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}, \"required\": [\"city\"]}}}",
    "{\"name\": \"ping\"}",
    "{\"name\": \"run_in\", \"parameters\": {\"properties\": {\"command\": {\"type\": \"string\"}}}}",
    "{\"name\": \"run_in_terminal\", \"parameters\": {\"properties\": {\"command\": {\"type\": \"string\"}, "
    "\"opts\": "
    "{\"type\": \"object\"}}, \"required\": [\"command\"]}}",
    "{\"name\": \"any\", \"parameters\": {\"$defs\": {\"D\": {\"type\": \"integer\"}}, \"properties\": "
    "{\"x\": {}, \"u\": "
    "{\"type\": [\"string\", \"null\"]}, \"n\": {\"type\": [\"integer\", \"null\"]}, \"e\": {\"enum\": [1, "
    "2]}, \"es\": "
    "{\"enum\": [\"1\", \"2\"]}, \"an\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"boolean\"}]}, "
    "\"one\": {\"oneOf\": "
    "[{\"type\": \"string\"}, {\"type\": \"array\"}]}, \"all\": {\"allOf\": [{\"type\": [\"string\", "
    "\"number\"]}, {\"type\": "
    "[\"number\", \"null\"]}]}, \"ref\": {\"$ref\": \"#/$defs/D\"}, \"bad\": {\"$ref\": \"#/nowhere\"}, "
    "\"arr\": {\"type\": "
    "\"array\"}, \"obj\": {\"type\": \"object\"}, \"b\": {\"type\": \"boolean\"}, \"nul\": {\"type\": "
    "\"null\"}, \"c\": "
    "{\"const\": 5}, \"num\": {\"type\": \"number\"}, \"i\": {\"type\": \"integer\"}}}}",
    "{\"name\": \"open\", \"parameters\": {\"properties\": {}, \"additionalProperties\": {\"type\": "
    "\"string\"}}}",
};

void outtest_setup(void) {
    static const uint32_t eos[] = {4060, 4067, 4069};
    struct outparse_limits lim = OUTPARSE_LIMITS_DEFAULT;
    struct tstr t[16];
    struct xerr err = {0};
    size_t n = sizeof tool_texts / sizeof *tool_texts, bytes;

    ck_assert_msg(tok_open(texttest_model("nano"), &outtest_tok, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(tok_scratch_new(0, &outtest_scratch), 0);
    ck_assert_msg(outparse_vocab_init(&outtest_vocab, outtest_tok, eos, 3, &err) == 0, "%s", err.msg);
    for (size_t i = 0; i < n; i++)
        t[i] = tstr_of(tool_texts[i]);
    ck_assert_msg(outtools_new(t, n, &outtest_tools, &err) == 0, "%s", err.msg);
    bytes = outparse_bytes(&lim, outtest_tok);
    parser_mem = malloc(bytes);
    ck_assert_int_eq(outparse_init(parser_mem, bytes - 1, &lim, outtest_tok, &outtest_parser), -ENOSPC);
    ck_assert_int_eq(outparse_init(parser_mem, bytes, &lim, outtest_tok, &outtest_parser), 0);
}

void outtest_teardown(void) {
    outtest_tok = tok_free(outtest_tok);
    outtest_scratch = tok_scratch_free(outtest_scratch);
    outtest_tools = outtools_free(outtest_tools);
    free(parser_mem);
}

/* Everything the outtest_parser says as one line: R(reasoning) C(content) name{arguments}. or name{cut! */
static void say(struct outtest_heard *h, const char *s, size_t n) {
    must(h->n + n < sizeof h->text - 8);
    memcpy(h->text + h->n, s, n);
    h->n += n;
    h->text[h->n] = 0;
}

static void on_event(void *arg, const struct outparse_ev *ev) {
    struct outtest_heard *h = arg;
    int now = ev->kind == OUT_EV_TEXT ? (int)ev->channel : -1;

    h->events++;
    must(ev->n == 0 || utf8_is_valid(ev->text, ev->n));
    if (h->last >= 0 && h->last != now)
        say(h, ")", 1);
    switch (ev->kind) {
    case OUT_EV_TEXT:
        must(ev->n > 0);
        must(ev->channel == OUT_CONTENT || ev->channel == OUT_REASONING);
        if (h->last != now)
            say(h, ev->channel == OUT_CONTENT ? "C(" : "R(", 2);
        say(h, ev->text, ev->n);
        break;
    case OUT_EV_CALL:
        must(h->open_calls++ == 0);
        must(ev->call == h->next_call);
        must(outtools_find(outtest_tools, (struct tstr){ev->text, ev->n}) == ev->tool);
        say(h, ev->text, ev->n);
        break;
    case OUT_EV_ARGS:
        must(h->open_calls == 1);
        must(ev->call == h->next_call);
        say(h, ev->text, ev->n);
        break;
    case OUT_EV_CALL_END:
        must(h->open_calls-- == 1);
        h->next_call += ev->complete;
        say(h, ev->complete ? "." : "!", 1);
        break;
    }
    h->last = now;
}

size_t outtest_ids(const char *text, uint32_t *ids, size_t cap) {
    size_t n = 0, got;

    while (*text) {
        bool plain = *text == 1;
        size_t len = strcspn(plain ? text + 1 : text, plain ? "\2" : "\1");

        ck_assert_int_eq(tok_encode(outtest_tok, outtest_scratch, plain ? text + 1 : text, len,
                                    plain ? 0 : TOK_MARKERS, ids + n, cap - n, &got),
                         0);
        n += got;
        text += plain ? len + 2 : len;
    }
    return n;
}

const struct outparse_result *outtest_run(struct outparse *p, const uint32_t *ids, size_t n,
                                          struct outtest_options o, struct outtest_heard *h) {
    struct outparse_req req = {.vocab = &outtest_vocab,
                               .tools = o.no_tools ? NULL : outtest_tools,
                               .stop = o.stop,
                               .thinking_open = o.open,
                               .ignore_eos = o.ignore_eos,
                               .raw = o.raw,
                               .sink = on_event,
                               .arg = h};

    h->n = h->events = h->open_calls = h->next_call = 0;
    h->text[0] = 0;
    h->last = -1;
    outparse_start(p, &req);
    for (size_t i = 0; i < n; i++)
        must(outparse_push(p, ids[i]) >= 0);
    if (o.end)
        outparse_end(p, o.end == 'L');
    if (h->last >= 0)
        say(h, ")", 1);
    must(outparse_result(p)->n_calls == h->next_call);
    return outparse_result(p);
}

struct outparse *outtest_small(struct outparse_limits lim, void **ret_mem) {
    struct outparse *p;
    size_t bytes = outparse_bytes(&lim, outtest_tok);

    *ret_mem = malloc(bytes);
    ck_assert_int_eq(outparse_init(*ret_mem, bytes, &lim, outtest_tok, &p), 0);
    return p;
}
