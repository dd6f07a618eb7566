/* SPDX-License-Identifier: MIT */
/* control.c: stop ids, stop strings, limits, reasoning and its budget, the loop guard, calls that must or must
 * not be made. Engine thread; control_check runs on the submitting thread. */
#include "control.h"

#include <errno.h>
#include <string.h>

#include "callplace.h"
#include "grammar.h"

enum { ROOM_PART = 4, ROOM_MOST = 1024 };

uint32_t control_limit(uint32_t n_ids, uint32_t max_tokens, uint32_t context_tokens) {
    uint32_t room = n_ids < context_tokens ? context_tokens - n_ids : 0;

    if (FAULT(engine_context_end))
        room++;
    return max_tokens && max_tokens < room ? max_tokens : room;
}

uint32_t control_budget(uint32_t budget, uint32_t n_close, uint32_t limit_tokens) {
    uint64_t kept = limit_tokens / ROOM_PART < ROOM_MOST ? limit_tokens / ROOM_PART : ROOM_MOST;

    if (FAULT(control_no_room))
        kept = 0;
    kept += (uint64_t)n_close + 1;
    if (kept >= limit_tokens)
        return 0;
    return budget < limit_tokens - kept ? budget : (uint32_t)(limit_tokens - kept);
}

/* ---- submitting thread ---- */

/* The same bounds as stopstr_set_init, without building its table. */
static int check_stops(const struct sched_req *req) {
    size_t total = 0;

    if (req->n_stops > STOPSTR_MAX_STRINGS)
        return -E2BIG;
    for (uint32_t i = 0; i < req->n_stops; i++) {
        if (!req->stops[i].len || !req->stops[i].s)
            return -EINVAL;
        total += req->stops[i].len;
        if (total > STOPSTR_MAX_TOTAL_BYTES)
            return -E2BIG;
    }
    return 0;
}

static int check_ids(const uint32_t *ids, uint32_t n, uint32_t vocab_tokens) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= vocab_tokens)
            return -EINVAL;
    return 0;
}

static int check_names(const struct sched_names *names, uint32_t vocab_tokens) {
    if (names->n > SCHED_MAX_NAMES)
        return -E2BIG;
    for (uint32_t i = 0; i < names->n; i++)
        if (names->offsets[i + 1] <= names->offsets[i])
            return -EINVAL;
    if (names->n && names->offsets[names->n] > SCHED_MAX_NAME_IDS)
        return -E2BIG;
    return names->n ? check_ids(names->ids, names->offsets[names->n], vocab_tokens) : -EINVAL;
}

int control_check(const struct sched_req *req, uint32_t vocab_tokens) {
    const struct sched_control *rules = &req->control;
    int r = check_stops(req);

    if (r == 0 && rules->n_close > SCHED_MAX_CLOSE_IDS)
        r = -E2BIG;
    if (r == 0)
        r = check_ids(rules->close, rules->n_close, vocab_tokens);
    if (r == 0 && rules->tools == SCHED_TOOLS_MUST)
        r = check_names(&rules->names, vocab_tokens);
    return r;
}

/* ---- the loop guard ---- */

static void guard_reset(struct control_guard *g) {
    g->n = 0;
    memset(g->same, 0, sizeof g->same);
}

static bool guard_half(const struct control_guard *g, uint32_t token) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < CONTROL_LOOP_SPAN; i++)
        count += g->last[i] == token;
    return count >= CONTROL_LOOP_SPAN / 2;
}

/* True when the text has become a loop. */
static bool guard_token(struct control_guard *g, uint32_t token) {
    bool loop = false;

    for (uint32_t p = 1; p <= CONTROL_LOOP_PERIOD; p++) {
        bool same = g->n >= p && g->last[(g->n - p) % CONTROL_LOOP_SPAN] == token;

        g->same[p - 1] = same ? g->same[p - 1] + 1 : 0;
        if (g->same[p - 1] + p >= CONTROL_LOOP_SPAN - (FAULT(control_loop_early) ? 1 : 0))
            loop = true;
    }
    g->last[g->n % CONTROL_LOOP_SPAN] = token;
    /* far from wrapping: only the remainder and whether there are enough count */
    if (++g->n == 1u << 30)
        g->n = 1u << 29;
    /* once there are enough, only the token that came can have become so many */
    if (g->n == CONTROL_LOOP_SPAN)
        for (uint32_t i = 0; i < CONTROL_LOOP_SPAN && !loop; i++)
            loop = guard_half(g, g->last[i]);
    return loop || (g->n > CONTROL_LOOP_SPAN && guard_half(g, token));
}

/* ---- names of calls that must be made ---- */

static bool must_call(const struct control *c) {
    return c->rules->tools == SCHED_TOOLS_MUST && !c->n_calls_done;
}

static bool must_name(const struct control *c) {
    return must_call(c) && !c->rules->grammar;
}

static bool in_call(const struct control *c) {
    return c->where != CONTROL_CONTENT && c->where != CONTROL_REASONING;
}

/* The grammar alone says what may come next, the end included. */
static bool is_ruled(const struct control *c) {
    if (!c->rules->grammar)
        return false;
    if (c->rules->tools == SCHED_TOOLS_MUST)
        return c->where != CONTROL_REASONING || FAULT(control_grammar_early);
    return c->where == CONTROL_CONTENT || (c->where == CONTROL_REASONING && FAULT(control_grammar_early));
}

/* Calls instead of the text that the grammar describes, before it begins. */
static bool may_call(const struct control *c) {
    return c->rules->tools == SCHED_TOOLS_FREE && c->rules->tools_offered && !c->began &&
           !(c->rules->one_call && c->n_calls);
}

static bool name_lives(const struct control *c, uint32_t i) {
    return c->names[i / 64] >> i % 64 & 1;
}

/* The id of name i behind those that stand, or CONTROL_NONE when it is whole. */
static uint32_t name_next(const struct control *c, uint32_t i) {
    const struct sched_names *names = &c->rules->names;
    uint32_t at = names->offsets[i] + c->name_at;

    return at < names->offsets[i + 1] ? names->ids[at] : CONTROL_NONE;
}

static void names_begin(struct control *c) {
    const uint32_t n = c->rules->names.n;

    memset(c->names, 0, sizeof c->names);
    for (uint32_t i = 0; i < n; i++)
        c->names[i / 64] |= UINT64_C(1) << i % 64;
    c->name_at = 0;
}

static void names_token(struct control *c, uint32_t token) {
    for (uint32_t i = 0; i < c->rules->names.n; i++)
        if (name_lives(c, i) && name_next(c, i) != token && !FAULT(control_any_name))
            c->names[i / 64] &= ~(UINT64_C(1) << i % 64);
    c->name_at++;
}

/* The only id the name can go on with, or CONTROL_NONE when there are several or it may end. */
static uint32_t name_forced(const struct control *c) {
    uint32_t only = CONTROL_NONE;

    for (uint32_t i = 0; i < c->rules->names.n; i++) {
        uint32_t id;

        if (!name_lives(c, i))
            continue;
        id = name_next(c, i);
        if (id == CONTROL_NONE || (only != CONTROL_NONE && only != id))
            return CONTROL_NONE;
        only = id;
    }
    return only;
}

static void allow(uint32_t *words, uint32_t n_words, uint32_t id) {
    if (id / 32 < n_words)
        words[id / 32] |= 1u << id % 32;
}

static void grammar_allow(const struct control *c, uint32_t *words, uint32_t n_words) {
    (void)grammar_mask(c->rules->grammar, c->work, c->state, words, n_words);
    if (!may_call(c))
        return;
    allow(words, n_words, c->vocab->tool_open);
    for (uint32_t i = 0; i < c->vocab->n_stop_ids && c->n_calls_done; i++)
        allow(words, n_words, c->vocab->stop_ids[i]);
}

void control_mask(const struct control *c, uint32_t *words, uint32_t n_words) {
    if (is_ruled(c)) {
        grammar_allow(c, words, n_words);
        return;
    }
    for (uint32_t i = 0; i < c->rules->names.n; i++) {
        uint32_t id;

        if (!name_lives(c, i))
            continue;
        id = name_next(c, i);
        if (id != CONTROL_NONE) {
            allow(words, n_words, id);
            continue;
        }
        allow(words, n_words, c->vocab->key_open);
        allow(words, n_words, c->vocab->tool_close);
    }
}

/* ---- before the sample ---- */

/* From here on the block's end is fed instead of what the model would say. A block in which nothing stands is
 * closed without words: that is how the format writes an answer without reasoning. */
static void close_begin(struct control *c) {
    c->closing = true;
    c->close_at = c->n_block ? 0 : c->rules->n_close;
}

static void budget_look(struct control *c) {
    if (c->where != CONTROL_REASONING || c->closing || c->budget == CONTROL_NONE ||
        c->n_thought < c->budget + (FAULT(control_close_late) ? 1 : 0))
        return;
    c->budget_closed++;
    close_begin(c);
}

void control_begin(struct control *c, const struct vocab_view *vocab, const struct sched_req *req,
                   uint32_t context_tokens) {
    const char *strings[STOPSTR_MAX_STRINGS];
    size_t lens[STOPSTR_MAX_STRINGS];

    c->vocab = vocab;
    c->rules = &req->control;
    c->limit_tokens = control_limit(req->n_ids, req->max_tokens, context_tokens);
    c->min_tokens = req->min_tokens;
    c->ignore_eos = req->ignore_eos;
    c->where = req->in_reasoning ? CONTROL_REASONING : CONTROL_CONTENT;
    c->closing = c->forced = false;
    c->budget_closed = c->loop_closed = 0;
    c->budget = CONTROL_NONE;
    if (req->control.has_budget)
        c->budget = control_budget(req->control.budget, req->control.n_close, c->limit_tokens);
    c->n_out = c->n_reasoning = c->n_thought = c->n_block = c->close_at = 0;
    c->n_calls = c->n_calls_done = c->n_calls_thought = c->name_at = 0;
    guard_reset(&c->guard);
    c->began = false;
    if (req->control.grammar)
        grammar_begin(req->control.grammar, c->state);
    for (uint32_t i = 0; i < req->n_stops && i < STOPSTR_MAX_STRINGS; i++) {
        strings[i] = req->stops[i].s;
        lens[i] = req->stops[i].len;
    }
    c->has_stops = req->n_stops && stopstr_set_init(&c->stops, strings, lens, req->n_stops) == 0;
    stopstr_begin(&c->cursor);
    budget_look(c);
}

static uint32_t forced_id(const struct control *c) {
    if (c->where == CONTROL_REASONING && c->closing)
        return c->close_at < c->rules->n_close ? c->rules->close[c->close_at] : c->vocab->think_close;
    if (must_name(c) && c->where == CONTROL_CONTENT)
        return c->vocab->tool_open;
    if (must_name(c) && c->where == CONTROL_NAME)
        return name_forced(c);
    return CONTROL_NONE;
}

static bool call_banned(const struct control *c) {
    return c->rules->tools == SCHED_TOOLS_NONE || (c->rules->one_call && c->n_calls + c->n_calls_thought) ||
           (must_call(c) && (c->where == CONTROL_REASONING || in_call(c)));
}

static void ban(struct control_next *n, uint32_t id) {
    if (id != CONTROL_NONE)
        n->ban[n->n_ban++] = id;
}

void control_next(const struct control *c, struct control_next *ret) {
    const struct vocab_view *v = c->vocab;
    bool ruled = is_ruled(c), thinks = c->where == CONTROL_REASONING;
    bool stops = !ruled && (c->ignore_eos || c->n_out < c->min_tokens || must_call(c) || (thinks && c->rules->grammar));

    ret->forced = forced_id(c);
    ret->masked = ruled || (must_name(c) && c->where == CONTROL_NAME && ret->forced == CONTROL_NONE);
    ret->n_ban = 0;
    /* Another speaker's turn out of the middle of a thought would leave an empty answer. Behind a call it is how the
     * model ends, and it may give up at any time. */
    bool turns = thinks && !c->n_calls_thought && !FAULT(control_ends_in_thought);

    for (uint32_t i = 0; (stops || turns) && i < v->n_stop_ids && i < CONTROL_MAX_STOP_IDS; i++)
        if (stops || v->stop_ids[i] != v->text_end)
            ban(ret, v->stop_ids[i]);
    if (call_banned(c))
        ban(ret, v->tool_open);
    /* the model would open block after block only to see them closed */
    if (c->where == CONTROL_CONTENT && (c->loop_closed || c->n_thought >= c->budget))
        ban(ret, v->think_open);
}

/* ---- after the sample ---- */

static bool is_stop_id(const struct vocab_view *v, uint32_t token) {
    for (uint32_t i = 0; i < v->n_stop_ids; i++)
        if (v->stop_ids[i] == token)
            return true;
    return false;
}

static void call_begin(struct control *c) {
    c->n_calls++;
    c->where = c->rules->tools_offered ? CONTROL_NAME : CONTROL_BLOCK;
    if (must_name(c))
        names_begin(c);
}

static void call_done(struct control *c) {
    c->n_calls_done++;
    c->where = CONTROL_CONTENT;
}

static void block_open(struct control *c) {
    c->where = CONTROL_REASONING;
    c->n_block = c->n_calls_thought = 0;
}

_Static_assert((int)CONTROL_KEY - (int)CONTROL_NAME == (int)CALL_KEY &&
                   (int)CONTROL_BETWEEN - (int)CONTROL_NAME == (int)CALL_BETWEEN &&
                   (int)CONTROL_VALUE - (int)CONTROL_NAME == (int)CALL_VALUE &&
                   (int)CONTROL_ARGS - (int)CONTROL_NAME == (int)CALL_ARGS,
               "places inside of a call are counted from its name on");

static enum call_mark mark_of(const struct vocab_view *v, uint32_t token) {
    return token == v->tool_close    ? CALL_MARK_CLOSE
           : token == v->tool_open   ? CALL_MARK_OPEN
           : token == v->value_close ? CALL_MARK_VALUE_END
           : token == v->key_open    ? CALL_MARK_KEY
           : token == v->value_open  ? CALL_MARK_VALUE
           : token == v->key_close   ? CALL_MARK_KEY_END
           : token == v->think_open || token == v->think_close ? CALL_MARK_THINK
                                                               : CALL_MARK_NONE;
}

/* A token inside of a call; true when it is a mark there. */
static bool call_token(struct control *c, uint32_t token) {
    enum call_mark m = mark_of(c->vocab, token);
    enum call_place to;

    if (c->where == CONTROL_BLOCK) {
        if (m == CALL_MARK_CLOSE)
            call_done(c);
        return m == CALL_MARK_CLOSE;
    }
    to = call_step((enum call_place)(c->where - CONTROL_NAME), m);
    switch (to) {
    case CALL_TEXT:
        return false;
    case CALL_OVER:
        call_done(c);
        if (token == c->vocab->think_open)
            block_open(c);
        break;
    case CALL_NEXT:
        call_done(c);
        call_begin(c);
        break;
    default:
        c->where = (uint8_t)(CONTROL_NAME + to);
        break;
    }
    return true;
}

/* Follows the token; true when it is a mark, of which no byte is text, and that a stop string does not reach
 * across. */
static bool follow(struct control *c, uint32_t token) {
    const struct vocab_view *v = c->vocab;

    if (token == CONTROL_NONE)
        return false;
    if (in_call(c))
        return call_token(c, token);
    if (c->where == CONTROL_REASONING) {
        if (token == v->think_close) {
            c->where = CONTROL_CONTENT;
            c->closing = false;
            c->n_calls_thought = 0;
        } else if (token == v->tool_open) {
            c->n_calls_thought++;
        }
        return token == v->think_close || token == v->think_open;
    }
    if (token == v->think_open)
        block_open(c);
    else if (token == v->tool_open)
        call_begin(c);
    else
        return false;
    stopstr_begin(&c->cursor);
    return true;
}

/* Marks in content that open nothing are not shown and not searched, and what stands before them goes on. */
static bool is_stray(const struct vocab_view *v, uint32_t token) {
    return token == v->think_close || token == v->tool_close || token == v->key_open || token == v->key_close ||
           token == v->value_open || token == v->value_close;
}

static bool stop_string_ends(struct control *c, uint32_t token) {
    const struct vocab_view *v = c->vocab;
    struct stopstr_out out;
    uint32_t a, b;

    if (!c->has_stops || token >= v->n_tokens || is_stray(v, token))
        return false;
    if (c->where != CONTROL_CONTENT && !(c->where == CONTROL_REASONING && FAULT(engine_stop_in_reasoning)))
        return false;
    a = v->offsets[token];
    b = v->offsets[token + 1];
    if (a == b)
        return false;
    stopstr_feed(&c->stops, &c->cursor, (const char *)v->bytes + a, b - a, &out);
    return out.hit >= 0;
}

/* Counts and closes; a loop outside of reasoning ends the answer. */
static bool loops(struct control *c, uint32_t token, bool mark) {
    if (!c->rules->loop_guard)
        return false;
    if (mark || c->closing) {
        guard_reset(&c->guard);
        return false;
    }
    if (!guard_token(&c->guard, token))
        return false;
    c->loop_closed++;
    if (c->where != CONTROL_REASONING)
        return true;
    close_begin(c);
    return false;
}

enum control_verdict control_token(struct control *c, uint32_t token) {
    bool was_reasoning = c->where == CONTROL_REASONING, in_name = c->where == CONTROL_NAME, mark, loop;
    bool ruled = is_ruled(c) && !(token == c->vocab->tool_open && may_call(c));

    c->forced = token == forced_id(c) && token != CONTROL_NONE;
    c->n_out++;
    if (is_stop_id(c->vocab, token))
        return CONTROL_STOP_ID;
    if (ruled && c->rules->grammar) {
        if (grammar_advance(c->rules->grammar, c->work, c->state, token) < 0)
            return CONTROL_BROKEN;
        c->began = true;
    }
    if (c->closing)
        c->close_at++;
    mark = follow(c, token);
    if (in_name && !mark && must_name(c))
        names_token(c, token);
    if (was_reasoning || c->where == CONTROL_REASONING)
        c->n_reasoning++;
    if (was_reasoning && c->where == CONTROL_REASONING && !c->closing && !mark) {
        c->n_thought++;
        c->n_block++;
    }
    loop = loops(c, token, mark);
    budget_look(c);
    if (!mark && stop_string_ends(c, token))
        return CONTROL_STOP_STRING;
    if (c->rules->one_call && c->n_calls_done && !c->ignore_eos)
        return CONTROL_CALLED;
    if (loop)
        return CONTROL_LOOP;
    return c->n_out >= c->limit_tokens ? CONTROL_LENGTH : CONTROL_GO;
}
