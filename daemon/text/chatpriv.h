/* SPDX-License-Identifier: MIT */
/* Inside of the chat renderer: control tokens, and the primitives that append to a struct chat_out. */
#ifndef GLMD_CHATPRIV_H
#define GLMD_CHATPRIV_H

#include "chat.h"

enum chat_control {
    CC_GMASK,
    CC_SOP,
    CC_SYSTEM,
    CC_USER,
    CC_ASSISTANT,
    CC_OBSERVATION,
    CC_THINK,
    CC_THINK_END,
    CC_CALL,
    CC_CALL_END,
    CC_KEY,
    CC_KEY_END,
    CC_VALUE,
    CC_VALUE_END,
    CC_RESPONSE,
    CC_RESPONSE_END,
    CC_IMAGE_BEGIN,
    CC_IMAGE,
    CC_IMAGE_END,
    CC_VIDEO_BEGIN,
    CC_VIDEO,
    CC_VIDEO_END,
    CC_COUNT,
};

struct chat {
    const struct tok *tok;
    uint32_t ids[CC_COUNT];
    char *head, *tail; /* the tool block's words, NULL when not found */
    size_t head_n, tail_n;
    char *warning; /* NULL: none */
};

/* Depth of tool definitions and arguments: far above what schemas need, far below JL_MAX_DEPTH. */
#define CHAT_JSON_DEPTH 64

/* Failures stick in o->text.err. */
void chat_put_control(const struct chat *c, struct chat_out *o, enum chat_control k);
void chat_put_id(struct chat_out *o, uint32_t id);
void chat_put_text(struct chat_out *o, const char *p, size_t n);
/* Text written through o->text directly since `from` joins the last text segment. */
void chat_close_text(struct chat_out *o, size_t from);
void chat_put_parts(const struct chat *c, struct chat_out *o, const struct chat_part *parts, size_t n);

void chat_put_picture(const struct chat *c, struct chat_out *o);
void chat_put_video(const struct chat *c, struct chat_out *o);

/* chatturn.c */
void chat_put_assistant(const struct chat *c, const struct chat_req *req, struct chat_out *o,
                        const struct chat_msg *m, bool clear);
void chat_hash_begin(struct chat_out *o, const struct chat_replay *replay); /* behind the effort line */
void chat_hash(struct chat_out *o, const struct chat_replay *replay);      /* all segments so far are in it */

int chat_put_tools(const struct chat *c, const struct chat_req *req, struct chat_out *o, struct xerr *err);
void chat_put_call(const struct chat *c, struct chat_out *o, const struct chat_call *call);
/* The run of tool messages msgs[first .. end): in call order when the ids allow it, else as given. */
void chat_put_results(const struct chat *c, struct chat_out *o, const struct chat_msg *msgs, size_t first,
                      size_t end);

#endif
