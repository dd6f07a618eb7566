/* SPDX-License-Identifier: MIT */
/* Memory and start of the output parser. outparse_init() runs before the daemon is ready, outparse_start() on
 * the emit thread: nothing here allocates. */
#include "outpriv.h"

#include "size.h"

#include <errno.h>

int outparse_vocab_init(struct outparse_vocab *v, const struct tok *tok, const uint32_t *eos, size_t n_eos,
                        struct xerr *err) {
    const struct {
        const char *text;
        uint32_t *id;
    } need[] = {
        {"<think>", &v->think},         {"</think>", &v->think_end},     {"<tool_call>", &v->call},
        {"</tool_call>", &v->call_end}, {"<arg_key>", &v->key},          {"</arg_key>", &v->key_end},
        {"<arg_value>", &v->value},     {"</arg_value>", &v->value_end}, {"<|assistant|>", &v->eos[0]}};

    if (n_eos > OUTPARSE_MAX_EOS - 1)
        return xerr_set(err, -E2BIG, "eos_token_id: found %zu ids; expected at most %d", n_eos,
                        OUTPARSE_MAX_EOS - 1);
    *v = (struct outparse_vocab){.tok = tok, .n_eos = 1};
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) {
        int64_t id = tok_id(tok, need[i].text);

        if (id < 0)
            return xerr_set(
                err, -EINVAL,
                "tokenizer.json: added_tokens: no \"%s\"; the output format of this model family needs it",
                need[i].text);
        *need[i].id = (uint32_t)id;
    }
    for (size_t i = 0; i < n_eos; i++)
        v->eos[v->n_eos++] = eos[i];
    return 0;
}

static bool sizes(const struct outparse_limits *lim, const struct tok *tok, uint64_t *ret_out,
                  uint64_t *ret_total) {
    uint64_t out = DETOK_BOUND(tok_max_bytes(tok)), esc, ids, total = sizeof(struct outparse);

    if (!size_mul(out, 6, &esc) || !size_mul(lim->hold_tokens, sizeof(uint32_t), &ids) ||
        !size_add(total, ids, &total) || !size_add(total, out, &total) || !size_add(total, esc, &total) ||
        !size_add(total, lim->hold_bytes, &total) || !size_add(total, lim->key_bytes, &total) ||
        total > SIZE_MAX)
        return false;
    *ret_out = out;
    *ret_total = total;
    return true;
}

size_t outparse_bytes(const struct outparse_limits *lim, const struct tok *tok) {
    uint64_t out, total;

    return sizes(lim, tok, &out, &total) ? (size_t)total : SIZE_MAX;
}

int outparse_init(void *mem, size_t bytes, const struct outparse_limits *lim, const struct tok *tok,
                  struct outparse **ret) {
    struct outparse *p = mem;
    uint64_t out, total;

    if (lim->hold_bytes == 0 || lim->key_bytes == 0 || lim->hold_tokens == 0 ||
        !sizes(lim, tok, &out, &total))
        return -EINVAL;
    if (total > bytes)
        return -ENOSPC;
    *p = (struct outparse){.lim = *lim, .state = ST_DONE, .out_cap = (size_t)out, .esc_cap = (size_t)out * 6};
    p->ids = (uint32_t *)(void *)(p + 1);
    p->out = (char *)(p->ids + lim->hold_tokens);
    p->esc = p->out + p->out_cap;
    p->hold = p->esc + p->esc_cap;
    p->key = p->hold + lim->hold_bytes;
    *ret = p;
    return 0;
}

void outparse_start(struct outparse *p, const struct outparse_req *req) {
    p->req = *req;
    p->result = (struct outparse_result){.stop_index = -1};
    p->state = req->raw ? ST_RAW : req->thinking_open ? ST_REASONING : ST_CONTENT;
    p->home = ST_CONTENT;
    p->committed = p->hold_in_call = false;
    p->open = p->streams = p->key_over = false;
    p->hold_n = p->key_n = p->n_ids = 0;
    p->tool = -1;
    detok_init(&p->detok);
    stopstr_begin(&p->stop);
}
