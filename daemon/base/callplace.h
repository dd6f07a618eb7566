/* SPDX-License-Identifier: MIT */
/* Where the next token stands inside of a tool call, as far as its marks alone tell: whether the tool exists makes no
 * difference. The engine's control and the output parser both ask here, so that they cannot disagree on where a call
 * ends. Pure. */
#ifndef GLMD_CALLPLACE_H
#define GLMD_CALLPLACE_H

enum call_place {
    CALL_NAME = 0,
    CALL_KEY,
    CALL_BETWEEN, /* behind a key */
    CALL_VALUE,
    CALL_ARGS, /* behind a pair */
    CALL_OVER, /* it has ended */
    CALL_NEXT, /* it has ended, and another begins */
    CALL_TEXT, /* the token means nothing at that place: it is text of it */
};

enum call_mark {
    CALL_MARK_NONE = 0,
    CALL_MARK_OPEN,
    CALL_MARK_CLOSE,
    CALL_MARK_KEY,
    CALL_MARK_KEY_END,
    CALL_MARK_VALUE,
    CALL_MARK_VALUE_END,
    CALL_MARK_THINK, /* either of the two */
};

/* Only the marks that have a meaning at that place are marks; every other one is text of the call: it may be the
 * source of a program like this. */
static inline enum call_place call_step(enum call_place at, enum call_mark m) {
    int pairs = at == CALL_BETWEEN || at == CALL_ARGS;

    switch (m) {
    case CALL_MARK_CLOSE:
        return CALL_OVER;
    case CALL_MARK_OPEN:
        return CALL_NEXT;
    case CALL_MARK_VALUE_END:
        return at == CALL_NAME ? CALL_TEXT : CALL_ARGS;
    case CALL_MARK_NONE:
        return CALL_TEXT;
    default:
        break;
    }
    if (at == CALL_VALUE && !FAULT(control_mark_in_value))
        return CALL_TEXT;
    switch (m) {
    case CALL_MARK_KEY:
        return CALL_KEY;
    case CALL_MARK_VALUE:
        return CALL_VALUE;
    case CALL_MARK_KEY_END:
        return pairs ? CALL_TEXT : CALL_BETWEEN;
    default: /* a think mark between pairs: the call's end is missing */
        return pairs ? CALL_OVER : CALL_TEXT;
    }
}

#endif
