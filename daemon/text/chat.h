/* SPDX-License-Identifier: MIT */
/* Chat rendering: messages, tools and options in, a list of segments out, each one control id or a run of
 * text.
 *
 * Only the renderer makes control segments. Text that came from a client is never searched for markers, so
 * a typed "<|user|>" or "/nothink" stays text. The words of the tool block are the checkpoint's own
 * (chat_template.jinja, read but never evaluated); all other structure is code.
 *
 * struct chat is immutable after chat_open() and shared by threads. Rendering allocates inside struct
 * chat_out: text workers and tools only. */
#ifndef GLMD_CHAT_H
#define GLMD_CHAT_H

#include "siphash.h"
#include "tbuf.h"
#include "tokenizer.h"
#include "xerr.h"

struct chat;

/* Borrows tok for its life. Reads dir/chat_template.jinja. A missing or unfamiliar template is no error:
 * it gives a warning, and tools are refused when the tool block could not be found. Errors: a control
 * token the format needs is not in the tokenizer, an unreadable file. */
int chat_open(const char *dir, const struct tok *tok, struct chat **ret, struct xerr *err);
struct chat *chat_free(struct chat *c);

/* What is unfamiliar about the template, one sentence a line, or NULL when nothing is. Lives as long as c. */
const char *chat_warning(const struct chat *c);
bool chat_has_tools(const struct chat *c);

enum chat_role { CHAT_SYSTEM = 1, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };
enum chat_part_kind { CHAT_TEXT = 1, CHAT_IMAGE, CHAT_VIDEO };
enum chat_effort { CHAT_EFFORT_DEFAULT = 0, CHAT_EFFORT_LOW, CHAT_EFFORT_HIGH, CHAT_EFFORT_MAX };
enum chat_thinking { CHAT_THINK_UNSET = 0, CHAT_THINK_ON, CHAT_THINK_OFF };

struct chat_part { /* pictures and videos are placeholders here; their text is ignored */
    enum chat_part_kind kind;
    struct tstr text;
};

struct chat_call {
    struct tstr id;        /* absent or empty = none; never shown to the model */
    struct tstr name;      /* a history with an empty one is rendered, and counted */
    struct tstr arguments; /* JSON text; anything but an object is rendered as no arguments and counted */
};

struct chat_result {
    struct tstr id; /* of the call it answers; absent or empty = none */
    const struct chat_part *parts;
    size_t n_parts;
};

struct chat_msg {
    enum chat_role role;
    const struct chat_part *parts; /* system, user, assistant */
    size_t n_parts;
    struct tstr reasoning;         /* assistant; absent (p == NULL) differs from empty */
    const struct chat_call *calls; /* assistant */
    size_t n_calls;
    const struct chat_result *results; /* tool; consecutive tool messages form one run */
    size_t n_results;
};

/* An assistant message of the history, as it is about to be rendered: what whoever remembers the model's answers
 * needs to know it again. All borrowed. */
struct chat_turn {
    /* What stands before it but for the effort line: an answer that followed the same prompt has these. */
    struct siphash after_open, after_closed; /* with the think block open, and closed */
    struct tstr think;                       /* absent: the client did not send it */
    bool cleared;                            /* its reasoning is not to be shown */
    struct tstr body;                        /* without white space around it; not UTF-8 when it holds pictures */
    const struct chat_call *calls;
    size_t n_calls;
};

/* The ids that the model wrote, to stand in place of what would be rendered. */
struct chat_hit {
    const uint32_t *ids; /* until the next question */
    size_t n;
    bool whole; /* they follow "<think>"; else they follow "</think>", and reasoning is rendered as ever */
};

struct chat_replay {
    void *ctx;
    struct siphash key; /* of after_open and after_closed */
    /* Text worker. False: not known, or not certainly the same. */
    bool (*find)(void *ctx, const struct chat_turn *turn, struct chat_hit *ret);
};

struct chat_req { /* all borrowed */
    const struct chat_msg *msgs;
    size_t n_msgs;
    const struct tstr *tools; /* one JSON object text each, as the client sent it */
    size_t n_tools;
    enum chat_effort effort;
    enum chat_thinking thinking;
    bool clear_thinking;
    bool add_generation_prompt;
    const struct chat_replay *replay; /* NULL: everything is rendered */
};

/* The known spellings of a client's effort word: low, high, max; minimal = low; none and off = thinking
 * off. Every other word is max, as in the checkpoint's template, and returns 1 so that the caller can say
 * so; known words return 0. */
int chat_effort_from_word(const char *word, size_t n, enum chat_effort *ret_effort,
                          enum chat_thinking *ret_thinking);

struct chat_seg {
    bool control;
    uint32_t id;     /* control */
    size_t off, len; /* text: bytes of chat_out.text */
};

enum { CHAT_MAX_MARKS = 4 };

struct chat_mark { /* where a message begins */
    size_t seg;
    size_t pos; /* ids before it; filled by chat_encode */
};

struct chat_out {
    struct tbuf text;
    struct chat_seg *segs;
    size_t n_segs, cap_segs;
    bool thinking_open; /* the prompt ends inside an open think block: the output parser starts there */
    size_t n_bad_calls; /* calls of the history without a name, or whose arguments were not a JSON object */
    size_t n_images, n_videos;
    /* The end of the system messages and tools, when something follows, then at most the last three messages of
     * the last turn, which is what stands behind the last assistant message. */
    struct chat_mark marks[CHAT_MAX_MARKS];
    size_t n_marks;
    size_t n_replayed;      /* assistant messages that stand in the model's own ids */
    struct siphash before;  /* with replay: of the whole prompt, as chat_turn.after_* will have it */
    size_t n_hashed;        /* segments in it */
};

/* The object that a call's arguments are, also when it was encoded twice; then its text lies in inner, which the
 * caller gives back with tbuf_done (a zeroed one will do). -EINVAL: it has no such thing. */
int chat_call_args(const struct chat_call *call, struct tbuf *inner, struct tstr *ret);

/* Without the white space around it, as assistant content is rendered. */
struct tstr chat_strip(struct tstr s);

/* max_bytes bounds the rendered text. */
void chat_out_init(struct chat_out *o, size_t max_bytes);
void chat_out_done(struct chat_out *o);

/* Renders into an initialised o (what it held is dropped). -EINVAL (no message, a tool that is not a JSON
 * object, an unknown role), -EILSEQ (invalid UTF-8), -E2BIG, -ENOTSUP (tools with a template whose tool
 * block was not found): err says which message or tool. */
int chat_render(const struct chat *c, const struct chat_req *req, struct chat_out *o, struct xerr *err);

/* The prompt as one string, markers written out: for comparison and display, never for encoding. */
int chat_flat(const struct chat *c, const struct chat_out *o, struct tbuf *ret);

/* Ids of the prompt; the rules of tok_encode() for ids, cap and ret_n. Fills the marks' positions. */
int chat_encode(const struct chat *c, struct chat_out *o, struct tok_scratch *s, uint32_t *ids, size_t cap,
                size_t *ret_n);

#endif
