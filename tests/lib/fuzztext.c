/* SPDX-License-Identifier: MIT */
/* Fuzz body of the output parser: generated ids in, events out. Whatever the model says, pieces are valid
 * UTF-8, calls do not interleave, a complete call's pieces are one JSON object, limits hold, and a parser
 * that has seen another stream before says the same as a fresh one. */
#include <stdlib.h>
#include <string.h>

#include "detok.h"
#include "fuzz.h"
#include "jsonlite.h"
#include "outtest.h"
#include "stopstr.h"
#include "utf8.h"

enum { MAX_IDS = 2048 };

static bool ready;
static uint32_t marker[16], byte_id[256];

static void begin(void) {
    static const char *const names[16] = {"<think>",       "</think>",   "<tool_call>",   "</tool_call>",
                                          "<arg_key>",     "</arg_key>", "<arg_value>",   "</arg_value>",
                                          "<|user|>",      "<|system|>", "<|assistant|>", "<|observation|>",
                                          "<|endoftext|>", "[gMASK]",    "<sop>",         "<|image|>"};

    if (ready)
        return;
    outtest_setup();
    for (size_t i = 0; i < 16; i++) {
        int64_t id = tok_id(outtest_tok, names[i]);

        FUZZ_NEED(id >= 0);
        marker[i] = (uint32_t)id;
    }
    for (uint32_t id = 0; id < 256; id++) { /* the symbols of single bytes come first in this file */
        const uint8_t *b;
        size_t len;

        FUZZ_NEED(tok_bytes(outtest_tok, id, &b, &len) == 0 && len == 1);
        byte_id[b[0]] = id;
    }
    ready = true;
}

void fuzz_text_cleanup(void) {
    if (ready)
        outtest_teardown();
    ready = false;
}

struct heard {
    char args[1 << 16];
    size_t n_args;
    bool call_open;
    uint32_t n_complete;
    uint64_t hash; /* of everything said */
    size_t most;   /* bytes one event may carry */
};

static void mix(struct heard *h, const void *p, size_t n) {
    const uint8_t *b = p;

    for (size_t i = 0; i < n; i++)
        h->hash = (h->hash ^ b[i]) * UINT64_C(0x100000001b3);
}

static void on_event(void *arg, const struct outparse_ev *ev) {
    struct heard *h = arg;

    FUZZ_NEED(ev->n <= h->most);
    FUZZ_NEED(ev->n == 0 || utf8_is_valid(ev->text, ev->n));
    mix(h, &ev->kind, sizeof ev->kind);
    mix(h, &ev->channel, sizeof ev->channel);
    mix(h, ev->text, ev->n);
    switch (ev->kind) {
    case OUT_EV_TEXT:
        FUZZ_NEED(ev->n > 0 && (ev->channel == OUT_CONTENT || ev->channel == OUT_REASONING));
        break;
    case OUT_EV_CALL:
        FUZZ_NEED(!h->call_open && ev->call == h->n_complete && ev->n > 0);
        h->call_open = true;
        h->n_args = 0;
        break;
    case OUT_EV_ARGS:
        FUZZ_NEED(h->call_open && ev->call == h->n_complete);
        FUZZ_NEED(h->n_args + ev->n <= sizeof h->args);
        memcpy(h->args + h->n_args, ev->text, ev->n);
        h->n_args += ev->n;
        break;
    case OUT_EV_CALL_END:
        FUZZ_NEED(h->call_open);
        if (ev->complete)
            FUZZ_NEED(jl_check(h->args, h->n_args, JL_MAX_DEPTH, NULL, NULL) == JL_OBJECT);
        h->call_open = false;
        h->n_complete += ev->complete;
        break;
    }
}

static void play(struct outparse *p, struct outparse_req req, const uint32_t *ids, size_t n, int end,
                 struct heard *h) {
    const struct outparse_result *res;

    h->hash = UINT64_C(0xcbf29ce484222325);
    h->call_open = false;
    h->n_complete = 0;
    req.arg = h;
    outparse_start(p, &req);
    for (size_t i = 0; i < n; i++)
        outparse_push(p, ids[i]);
    outparse_end(p, end == 1);
    res = outparse_result(p);
    FUZZ_NEED(!h->call_open && res->n_calls == h->n_complete);
    FUZZ_NEED(res->finish != OUT_FINISH_NONE && res->n_tokens <= n &&
              res->n_reasoning_tokens <= res->n_tokens);
    FUZZ_NEED((res->finish == OUT_FINISH_STOP_STRING) == (res->stop_index >= 0));
    mix(h, &res->finish, sizeof res->finish);
    mix(h, &res->flags, sizeof res->flags);
}

/* Options (a byte), stop string (a length, bytes), then ids: 0 to 15 a marker, 255 an id of 16 bits, anything
 * else the token of that byte. */
int fuzz_parser_stream(const uint8_t *data, size_t size) {
    static const struct outparse_limits small = {.hold_bytes = 64, .key_bytes = 16, .hold_tokens = 8};
    static const struct outparse_limits usual = OUTPARSE_LIMITS_DEFAULT;
    static struct heard first, again;
    static struct stopstr_set stop;
    static uint32_t ids[MAX_IDS];
    struct fuzz_in in = {data, size};
    uint8_t opt = fuzz_u8(&in);
    size_t stop_len = fuzz_u8(&in) % 16, n = 0;
    const char *stop_text = (const char *)fuzz_bytes(&in, &stop_len);
    struct outparse_req req = {.vocab = &outtest_vocab,
                               .thinking_open = opt & 2,
                               .ignore_eos = opt & 4,
                               .raw = opt & 8,
                               .sink = on_event};
    struct outparse *p;
    void *mem;

    begin();
    req.tools = opt & 1 ? NULL : outtest_tools;
    if (stop_len > 0 && utf8_is_valid(stop_text, stop_len) &&
        stopstr_set_init(&stop, &stop_text, &stop_len, 1) == 0)
        req.stop = &stop;
    while (in.n > 0 && n < MAX_IDS) {
        uint8_t b = fuzz_u8(&in);

        ids[n++] = b < 16 ? marker[b] : b == 255 ? fuzz_u16(&in) % (tok_size(outtest_tok) + 2) : byte_id[b];
    }
    p = outtest_small(opt & 16 ? small : usual, &mem);
    first.most = 6 * DETOK_BOUND(tok_max_bytes(outtest_tok));
    if (first.most < (opt & 16 ? small : usual).hold_bytes)
        first.most = (opt & 16 ? small : usual).hold_bytes;
    again.most = first.most;
    play(p, req, ids, n, opt >> 6, &first);
    /* half of another stream, left as it is */
    req.thinking_open = !req.thinking_open;
    req.arg = &again;
    again.call_open = false;
    again.n_complete = 0;
    outparse_start(p, &req);
    for (size_t i = 0; i < n / 2; i++)
        outparse_push(p, ids[i]);
    req.thinking_open = !req.thinking_open;
    play(p, req, ids, n, opt >> 6, &again);
    FUZZ_NEED(first.hash == again.hash);
    free(mem);
    return 0;
}
