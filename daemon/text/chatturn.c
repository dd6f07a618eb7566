/* SPDX-License-Identifier: MIT */
/* The assistant messages of the history: reasoning and content told apart, or the ids that the model wrote put
 * in their place. Text workers and tools (allocates). */
#include "chatpriv.h"

#include "utf8.h"

/* Placeholders inside the flattened body of an assistant turn. 0xff never occurs in the valid UTF-8 around
 * them. */
#define BODY_MARK  '\xff'
#define BODY_IMAGE 'i'

/* A stretch of an assistant body, placeholders back to control ids. */
static void put_body(const struct chat *c, struct chat_out *o, struct tstr s) {
    size_t from = 0;

    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != BODY_MARK)
            continue;
        chat_put_text(o, s.p + from, i - from);
        if (s.p[++i] == BODY_IMAGE)
            chat_put_picture(c, o);
        else
            chat_put_video(c, o);
        from = i + 1;
    }
    chat_put_text(o, s.p + from, s.n - from);
}

static const char *find(struct tstr in, const char *what) {
    return in.n ? memmem(in.p, in.n, what, strlen(what)) : NULL;
}

/* What stands behind the last `what`, or all of it. */
static struct tstr after_last(struct tstr in, const char *what) {
    const char *p;

    while ((p = find(in, what))) {
        in.n -= (size_t)(p - in.p) + strlen(what);
        in.p = p + strlen(what);
    }
    return in;
}

/* White space as the reference's strip() sees it: the separators 1C-1F belong to it, U+200B and U+FEFF do
 * not. */
static bool strips(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

struct tstr chat_strip(struct tstr s) {
    uint32_t cp;
    int len;

    while (s.n > 0 && (len = utf8_next((const uint8_t *)s.p, s.n, &cp)) > 0 && strips(cp)) {
        s.p += len;
        s.n -= (size_t)len;
    }
    while (s.n > 0) {
        size_t back = 1;

        while (back < 3 && back < s.n && ((uint8_t)s.p[s.n - back] & 0xc0) == 0x80)
            back++;
        if (utf8_next((const uint8_t *)s.p + s.n - back, back, &cp) != (int)back || !strips(cp))
            break;
        s.n -= back;
    }
    return s;
}

/* ---- what stands before a turn, as a chain of hashes of segments ----------------------------------------
 */

static struct siphash hash_control(struct siphash h, uint32_t id) {
    h.h[0] ^= 1; /* no text has the hash of a marker */
    return siphash(h, &id, sizeof id);
}

void chat_hash_begin(struct chat_out *o, const struct chat_replay *replay) {
    if (!replay)
        return;
    o->before = replay->key;
    o->n_hashed = o->n_segs;
}

void chat_hash(struct chat_out *o, const struct chat_replay *replay) {
    if (!replay || o->text.err)
        return;
    for (; o->n_hashed < o->n_segs; o->n_hashed++) {
        const struct chat_seg *s = &o->segs[o->n_hashed];

        o->before =
            s->control ? hash_control(o->before, s->id) : siphash(o->before, o->text.p + s->off, s->len);
    }
}

/* ---- one turn -------------------------------------------------------------------------------------------
 */

/* Behind "<think>". False: it is to be rendered. */
static bool put_replayed(const struct chat *c, const struct chat_replay *replay, struct chat_out *o,
                         struct chat_turn *t) {
    struct chat_hit hit;

    if (!replay)
        return false;
    chat_hash(o, replay);
    if (o->text.err)
        return false;
    t->after_open = o->before;
    t->after_closed = hash_control(o->before, c->ids[CC_THINK_END]);
    if (!replay->find(replay->ctx, t, &hit))
        return false;
    if (!hit.whole) {
        if (t->think.p && !t->cleared)
            put_body(c, o, t->think);
        chat_put_control(c, o, CC_THINK_END);
    }
    for (size_t i = 0; i < hit.n; i++)
        chat_put_id(o, hit.ids[i]);
    o->n_replayed++;
    return true;
}

void chat_put_assistant(const struct chat *c, const struct chat_req *req, struct chat_out *o,
                        const struct chat_msg *m, bool clear) {
    struct chat_turn t = {.think = m->reasoning, .cleared = clear, .calls = m->calls, .n_calls = m->n_calls};
    struct tbuf flat;
    struct tstr body;
    const char *end;

    tbuf_init(&flat, SIZE_MAX / 2);
    for (size_t i = 0; i < m->n_parts; i++) {
        const struct chat_part *p = &m->parts[i];

        if (p->kind == CHAT_TEXT)
            tbuf_put(&flat, p->text.p, p->text.n);
        else
            tbuf_put(&flat, p->kind == CHAT_IMAGE ? "\xffi" : "\xffv", 2);
    }
    if (flat.err)
        o->text.err = flat.err;
    body = (struct tstr){flat.p ? flat.p : "", flat.n};
    end = find(body, "</think>");
    if (!t.think.p && end)
        t.think = after_last((struct tstr){body.p, (size_t)(end - body.p)}, "<think>");
    t.body = chat_strip(after_last(body, "</think>"));
    chat_put_control(c, o, CC_ASSISTANT);
    chat_put_control(c, o, CC_THINK);
    if (!put_replayed(c, req->replay, o, &t)) {
        if (t.think.p && !clear)
            put_body(c, o, t.think);
        chat_put_control(c, o, CC_THINK_END);
        put_body(c, o, t.body);
        for (size_t i = 0; i < m->n_calls; i++)
            chat_put_call(c, o, &m->calls[i]);
    }
    tbuf_done(&flat);
}
