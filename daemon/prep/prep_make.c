/* SPDX-License-Identifier: MIT */
/* From a decoded request to token ids and sampling settings. Text workers only; allocates what the request
 * then owns. Every refusal says what is wrong with which part of the request. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "outtools.h"
#include "prep_impl.h"
#include "random.h"
#include "size.h"
#include "turns.h"

_Static_assert(PREP_MAX_TOOLS <= OUTTOOLS_MAX_TOOLS, "more tools are let in than the parser takes");

int prep_scratch_new(const struct prep_model *m, struct prep_scratch **ret) {
    struct prep_scratch *s = calloc(1, sizeof *s);
    int r = 0;

    if (!s)
        return -ENOMEM;
    if (m->tok)
        r = tok_scratch_new(0, &s->tok);
    if (r == 0 && m->tok && m->turns)
        r = prep_parser_new(m, s);
    if (r < 0) {
        prep_scratch_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

struct prep_scratch *prep_scratch_free(struct prep_scratch *s) {
    if (!s)
        return NULL;
    tok_scratch_free(s->tok);
    free(s->parser_mem);
    free(s->ids);
    free(s);
    return NULL;
}

static struct tstr str(struct reqdec_str s) {
    /* absent and empty differ for the renderer: a part that was sent is never absent */
    return (struct tstr){s.len ? s.ptr : "", s.len};
}

/* The renderer's view of the messages: arrays in one block, texts borrowed from the payload. */
struct chat_build {
    struct chat_msg *msgs;
    struct chat_part *parts;
    struct chat_call *calls;
    struct chat_result *results;
    struct tstr *tools;
    void *block;
};

static int build_alloc(const struct reqdec_req *d, struct chat_build *b) {
    size_t parts = d->n_parts, bytes;

    /* counts were bounded by the decoder; every part is at most one of the three kinds */
    bytes = d->n_msgs * sizeof *b->msgs + parts * (sizeof *b->parts + sizeof *b->calls + sizeof *b->results) +
            d->n_tools * sizeof *b->tools;
    b->block = calloc(1, bytes ? bytes : 1);
    if (!b->block)
        return -ENOMEM;
    b->msgs = b->block;
    b->parts = (void *)(b->msgs + d->n_msgs);
    b->calls = (void *)(b->parts + parts);
    b->results = (void *)(b->calls + parts);
    b->tools = (void *)(b->results + parts);
    return 0;
}

static const enum chat_role roles[] = {
    [GLMW_ROLE_SYSTEM] = CHAT_SYSTEM,
    [GLMW_ROLE_USER] = CHAT_USER,
    [GLMW_ROLE_ASSISTANT] = CHAT_ASSISTANT,
    [GLMW_ROLE_TOOL] = CHAT_TOOL,
};

/* Parts are laid out in order of appearance: a message's own parts first, then each result's. */
static int build_message(const struct reqdec_req *d, uint32_t i, struct chat_build *b, size_t *at,
                         struct xerr *err) {
    const struct reqdec_msg *in = &d->msgs[i];
    struct chat_msg *out = &b->msgs[i];
    struct chat_result *result = NULL;

    *out = (struct chat_msg){
        .role = roles[in->role],
        .parts = b->parts + at[0],
        .calls = b->calls + at[1],
        .results = b->results + at[2],
    };
    for (uint32_t k = 0; k < in->n_parts; k++) {
        const struct reqdec_part *p = &d->parts[in->first_part + k];

        switch (p->type) {
        case GLMW_TLV_PART_REASONING:
            out->reasoning = str(p->text);
            break;
        case GLMW_TLV_PART_TOOL_CALL:
            b->calls[at[1]++] = (struct chat_call){str(p->id), str(p->name), str(p->text)};
            out->n_calls++;
            break;
        case GLMW_TLV_PART_TOOL_RESULT:
            result = &b->results[at[2]++];
            out->n_results++;
            *result = (struct chat_result){.id = str(p->id), .parts = b->parts + at[0], .n_parts = 1};
            b->parts[at[0]++] = (struct chat_part){CHAT_TEXT, str(p->text)};
            break;
        case GLMW_TLV_PART_TEXT:
            b->parts[at[0]++] = (struct chat_part){CHAT_TEXT, str(p->text)};
            if (result)
                result->n_parts++;
            else
                out->n_parts++;
            break;
        default:
            return xerr_set(err, -EOPNOTSUPP, "message %u, part %u: this daemon does not read pictures",
                            i + 1, k + 1);
        }
    }
    return 0;
}

/* Whether an answer is an assistant message of its own. */
static bool generates(const struct reqdec_req *d) {
    return !d->has_chat || d->chat.add_generation_prompt != GLMW_OFF;
}

static void chat_options(const struct reqdec_req *d, struct chat_req *q) {
    q->add_generation_prompt = generates(d);
    if (!d->has_chat)
        return;
    switch (d->chat.effort) {
    case GLMW_EFFORT_LOW:
        q->effort = CHAT_EFFORT_LOW;
        break;
    case GLMW_EFFORT_HIGH:
        q->effort = CHAT_EFFORT_HIGH;
        break;
    case GLMW_EFFORT_MAX:
        q->effort = CHAT_EFFORT_MAX;
        break;
    case GLMW_EFFORT_WORD:
        chat_effort_from_word(d->effort_word.ptr, d->effort_word.len, &q->effort, &q->thinking);
        break;
    default:
        break;
    }
    if (d->chat.thinking != GLMW_UNSET)
        q->thinking = d->chat.thinking == GLMW_ON ? CHAT_THINK_ON : CHAT_THINK_OFF;
    q->clear_thinking = d->chat.clear_thinking == GLMW_ON;
}

static int encode(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r,
                  struct chat_out *out, struct xerr *err) {
    size_t cap = out->text.n + out->n_segs, n = 0;
    uint32_t *ids;
    int ret;

    ids = calloc(cap ? cap : 1, sizeof *ids);
    if (!ids)
        return xerr_set(err, -ENOMEM, "no memory to tokenize a prompt of %zu bytes", out->text.n);
    ret = chat_encode(m->chat, out, s->tok, ids, cap, &n);
    if (ret < 0 || n > UINT32_MAX) {
        free(ids);
        return xerr_set(err, ret < 0 ? ret : -E2BIG, "the prompt of %zu bytes could not be tokenized: %s",
                        out->text.n, strerror(ret < 0 ? -ret : E2BIG));
    }
    r->ids = realloc(ids, (n ? n : 1) * sizeof *ids);
    if (!r->ids)
        r->ids = ids;
    r->n_ids = (uint32_t)n;
    for (size_t i = 0; i < out->n_marks; i++)
        r->marks[i] = (uint32_t)out->marks[i].pos;
    r->sched.marks = r->marks;
    r->sched.n_marks = (uint32_t)out->n_marks;
    return 0;
}

/* Where the engine leaves the answer. Without memory for it the request goes on. */
static void make_answer(const struct prep_model *m, struct prep_req *r) {
    uint32_t cap = turns_answer_cap(m->turns), most = r->max_tokens;

    if (r->n_ids < m->context_tokens && (!most || most > m->context_tokens - r->n_ids))
        most = m->context_tokens - r->n_ids;
    cap = most < cap ? most : cap;
    r->answer = malloc(((size_t)cap + 1) * sizeof *r->answer);
    if (!r->answer)
        return;
    r->sched.answer = r->answer;
    r->sched.answer_cap = cap;
}

static int from_messages(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r,
                         bool with_tools, int only, struct xerr *err) {
    const struct reqdec_req *d = &r->dec;
    struct chat_build b;
    struct chat_req q = {0};
    struct chat_out out;
    struct prep_replay replay;
    size_t at[3] = {0, 0, 0};
    int ret = 0;

    if (!m->tok || !m->chat)
        return xerr_set(err, -EOPNOTSUPP,
                        "this model has no tokenizer: send the prompt as token ids instead of messages");
    if (build_alloc(d, &b) < 0)
        return xerr_set(err, -ENOMEM, "no memory for %u messages", d->n_msgs);
    for (uint32_t i = 0; i < d->n_msgs && ret == 0; i++)
        ret = build_message(d, i, &b, at, err);
    for (uint32_t i = 0; i < d->n_tools; i++)
        b.tools[i] = str(d->tools[i]);
    q.msgs = b.msgs;
    q.n_msgs = d->n_msgs;
    q.tools = only < 0 ? b.tools : b.tools + only;
    q.n_tools = !with_tools ? 0 : only < 0 ? d->n_tools : 1;
    chat_options(d, &q);
    if (m->turns) {
        prep_replay_init(&replay, m, s, r->uid);
        q.replay = &replay.replay;
    }
    chat_out_init(&out, m->max_prompt_bytes);
    if (ret == 0) {
        ret = chat_render(m->chat, &q, &out, err);
        if (ret == -E2BIG)
            xerr_set(err, -EMSGSIZE, "the prompt is larger than the %llu bytes this daemon renders",
                     (unsigned long long)m->max_prompt_bytes);
    }
    if (ret == 0) {
        r->thinking_open = out.thinking_open;
        r->before = out.before;
        ret = encode(m, s, r, &out, err);
    }
    chat_out_done(&out);
    free(b.block);
    return ret;
}

static int from_tokens(const struct prep_model *m, struct prep_req *r, struct xerr *err) {
    const struct reqdec_req *d = &r->dec;

    if (d->n_tokens == 0)
        return xerr_set(err, -EINVAL, "the prompt is empty: it has no token");
    r->ids = calloc(d->n_tokens, sizeof *r->ids);
    if (!r->ids)
        return xerr_set(err, -ENOMEM, "no memory for a prompt of %u tokens", d->n_tokens);
    for (uint32_t i = 0; i < d->n_tokens; i++) {
        uint32_t id = d->tokens[i];

        if (id >= m->vocab_tokens)
            return xerr_set(err, -EINVAL, "prompt token %u is %u, but ids of this model are below %u", i, id,
                            m->vocab_tokens);
        if (id == m->think_open)
            r->thinking_open = true;
        else if (id == m->think_close)
            r->thinking_open = false;
        r->ids[i] = id;
    }
    r->n_ids = d->n_tokens;
    return 0;
}

static int make_sampling(const struct prep_model *m, struct prep_req *r, struct xerr *err) {
    const struct glmw_sampling *in = &r->dec.sampling;
    uint32_t has = r->dec.has_sampling ? in->has : 0;
    struct sched_sampling *out = &r->sched.sampling;

    *out = m->defaults;
    if (has & GLMW_HAS_TEMPERATURE)
        out->temperature = in->temperature;
    if (has & GLMW_HAS_TOP_P)
        out->top_p = in->top_p;
    if (has & GLMW_HAS_MIN_P)
        out->min_p = in->min_p;
    if (has & GLMW_HAS_TOP_K)
        out->top_k = in->top_k;
    if (has & GLMW_HAS_REPETITION)
        out->repetition = in->repetition_penalty;
    if (has & GLMW_HAS_PRESENCE)
        out->presence = in->presence_penalty;
    if (has & GLMW_HAS_FREQUENCY)
        out->frequency = in->frequency_penalty;
    if (has & GLMW_HAS_N_ALTS)
        out->n_alts = in->n_alts;
    if (r->dec.has_sampling) {
        out->logprobs = in->flags & GLMW_SAMP_LOGPROBS || out->n_alts > 0;
        r->sched.ignore_eos = in->flags & GLMW_SAMP_IGNORE_EOS;
    }
    if (has & GLMW_HAS_MIN_TOKENS)
        r->sched.min_tokens = in->min_tokens;
    if (r->max_tokens && r->sched.min_tokens > r->max_tokens)
        return xerr_set(err, -EINVAL, "min_tokens is %u, more than max_tokens, which is %u",
                        r->sched.min_tokens, r->max_tokens);
    if (has & GLMW_HAS_SEED)
        out->seed = in->seed;
    else if (random_u64(&out->seed) < 0)
        return xerr_set(err, -EIO, "no random seed could be had");
    return 0;
}

static int make_bias(const struct prep_model *m, struct prep_req *r, struct xerr *err) {
    uint32_t n = r->dec.n_bias;

    if (!n)
        return 0;
    r->bias = calloc(n, sizeof *r->bias);
    if (!r->bias)
        return xerr_set(err, -ENOMEM, "no memory for %u entries of logit_bias", n);
    for (uint32_t i = 0; i < n; i++) {
        if (r->dec.bias[i].token >= m->vocab_tokens)
            return xerr_set(err, -EINVAL,
                            "logit_bias entry %u names token %u, but ids of this model are below %u", i,
                            r->dec.bias[i].token, m->vocab_tokens);
        r->bias[i] = (struct sched_bias){r->dec.bias[i].token, r->dec.bias[i].bias};
    }
    r->sched.sampling.bias = r->bias;
    r->sched.sampling.n_bias = n;
    return 0;
}

static int make_stops(struct prep_req *r, struct xerr *err) {
    const char *strings[STOPSTR_MAX_STRINGS];
    size_t lens[STOPSTR_MAX_STRINGS], total = 0;
    uint32_t n = r->dec.n_stops;
    char *at;
    int ret;

    if (!n)
        return 0;
    if (n > STOPSTR_MAX_STRINGS)
        return xerr_set(err, -EMSGSIZE, "%u stop strings, at most %d are possible", n, STOPSTR_MAX_STRINGS);
    r->stop = calloc(1, sizeof *r->stop);
    if (!r->stop)
        return xerr_set(err, -ENOMEM, "no memory for %u stop strings", n);
    for (uint32_t i = 0; i < n; i++) {
        strings[i] = r->dec.stops[i].ptr;
        lens[i] = r->dec.stops[i].len;
        total += lens[i];
    }
    ret = stopstr_set_init(r->stop, strings, lens, n);
    if (ret < 0)
        return xerr_set(err, ret == -E2BIG ? -EMSGSIZE : ret,
                        ret == -E2BIG ? "the stop strings have more than %d bytes together"
                                      : "a stop string is empty (at most %d bytes together are possible)",
                        STOPSTR_MAX_TOTAL_BYTES);
    /* a copy behind the array: the engine must not wait for pages of a client's memory file */
    r->stops = calloc(1, n * sizeof *r->stops + total);
    if (!r->stops)
        return xerr_set(err, -ENOMEM, "no memory for %u stop strings", n);
    at = (char *)(r->stops + n);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(at, strings[i], lens[i]);
        r->stops[i] = (struct sched_text){at, (uint32_t)lens[i]};
        at += lens[i];
    }
    r->sched.stops = r->stops;
    r->sched.n_stops = n;
    return 0;
}

int prep_make(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r, struct xerr *err) {
    bool with_tools;
    int only, ret = prep_choice(r, &with_tools, &only, err);

    if (ret == 0)
        ret = r->dec.tokens ? from_tokens(m, r, err) : from_messages(m, s, r, with_tools, only, err);
    if (ret < 0 || r->op != PREP_SUBMIT)
        return ret;
    if (r->n_ids >= m->context_tokens)
        return xerr_set(
            err, -EOVERFLOW,
            "the prompt has %u tokens, but the context of this daemon takes %u, with at least one for "
            "the answer",
            r->n_ids, m->context_tokens);
    ret = make_sampling(m, r, err);
    if (ret == 0)
        ret = make_bias(m, r, err);
    if (ret == 0)
        ret = make_stops(r, err);
    if (ret == 0 && with_tools && !r->tools)
        ret = prep_tools(r, -1, err);
    if (ret == 0)
        ret = prep_control(m, s, r, err);
    if (ret == 0)
        ret = prep_grammar(m, r, only, err);
    if (ret < 0)
        return ret;
    if (m->turns && (!r->no_cache || FAULT(prep_remembers_all)) && !r->dec.tokens && !r->sched.ignore_eos &&
        generates(&r->dec))
        make_answer(m, r);
    r->sched.stream = r->stream;
    r->sched.uid = r->uid;
    r->sched.ids = r->ids;
    r->sched.n_ids = r->n_ids;
    r->sched.max_tokens = r->max_tokens;
    r->sched.usage = r->usage;
    r->sched.queued_quota = r->queued_quota;
    r->sched.kv_quota = r->kv_quota;
    r->sched.weight = r->weight;
    r->sched.background = r->background;
    r->sched.no_cache = r->no_cache;
    r->sched.share = r->cache_group;
    /* whoever states no longest answer gets what the quota leaves, not a refusal */
    if (!r->max_tokens && r->kv_quota > r->n_ids && r->kv_quota < m->context_tokens)
        r->sched.max_tokens = (uint32_t)(r->kv_quota - r->n_ids);
    r->sched.in_reasoning = r->thinking_open;
    r->sched.quiet = r->quiet;
    r->sched.received_ns = r->received_ns;
    r->sched.deadline_ns = r->deadline_ns;
    r->sched.owner = r;
    return 0;
}
