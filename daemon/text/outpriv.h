/* SPDX-License-Identifier: MIT */
/* Inside of the output parser: the object, the text channels (outparse.c) and one call's name and
 * arguments (outcall.c). */
#ifndef GLMD_OUTPRIV_H
#define GLMD_OUTPRIV_H

#include "callplace.h"
#include "detok.h"
#include "outparse.h"

enum out_state {
    ST_REASONING,
    ST_CONTENT,
    ST_NAME, /* behind <tool_call>: the name, held until it is whole */
    ST_KEY,
    ST_BETWEEN, /* behind </arg_key> */
    ST_VALUE,
    ST_DROP,  /* a value without a key, or whose key did not fit */
    ST_ARGS,  /* behind a pair */
    ST_BLOCK, /* a call block that is no call: its text goes out */
    ST_HOLD,  /* ids kept from a <tool_call> inside the think block on, until the reply's end decides */
    ST_RAW,
    ST_DONE,
};

/* What plain text touches comes first, two cache lines of it: a step looks at the parsers of all streams. */
struct outparse {
    struct outparse_req req;
    struct detok detok; /* of the text that is being read, whatever its channel */
    enum out_state state;
    enum out_state home; /* where a call began, and where its end leads: ST_CONTENT or ST_REASONING */
    bool committed;      /* calls inside the think block count from now on */
    bool hold_in_call;   /* ST_HOLD: the last id was inside a call */
    struct outparse_result result;

    /* one token's text where it is not just its bytes, and the same escaped for JSON */
    char *out, *esc;
    size_t out_cap, esc_cap;
    struct outparse_limits lim;
    struct stopstr stop;

    /* the call being read */
    enum call_place place; /* ST_BLOCK: where a call would stand */
    char *hold; /* its name with what follows, later a value that is not a string */
    size_t hold_n;
    char *key;
    size_t key_n;
    bool key_over;
    bool open;    /* OUT_EV_CALL went out */
    bool streams; /* the value goes out as it comes, as a JSON string */
    unsigned types;
    int tool;
    uint32_t n_pairs;
    size_t n_required_seen;
    uint8_t seen[OUTTOOLS_MAX_PARAMS / 8];

    uint32_t *ids; /* ST_HOLD */
    size_t n_ids;
};

void out_text(struct outparse *p, enum outparse_channel channel, const char *text, size_t n);

/* The text of the call's block, so far, becomes text of the channel it began in. */
void out_call_as_text(struct outparse *p);

void out_name_begin(struct outparse *p);
void out_name_text(struct outparse *p, const char *text, size_t n);
int out_name_tool(const struct outparse *p); /* the offered tool with exactly this name, or -ENOENT */
/* The name ended: announces the call, or makes the block text (ST_BLOCK) and returns false. */
bool out_name_end(struct outparse *p);
/* Name and key without <arg_key> between them: announces the call and sets the key, or returns false. */
bool out_name_with_key(struct outparse *p);
/* The block ended inside its name: a call without arguments, or one with JSON arguments, or false. */
bool out_name_is_call(struct outparse *p);

void out_key_begin(struct outparse *p);
void out_key_text(struct outparse *p, const char *text, size_t n);
void out_value_begin(struct outparse *p);
void out_value_text(struct outparse *p, const char *text, size_t n);
void out_value_end(struct outparse *p);
bool out_has_required(const struct outparse *p);
void out_call_complete(struct outparse *p); /* writes the arguments' end */
void out_call_void(struct outparse *p);     /* nothing more of it; OUT_CALL_CUT */

#endif
