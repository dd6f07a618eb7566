/* SPDX-License-Identifier: MIT */
/* Bounded, printable copies of paths and names for error messages. No state, no allocation. */
#include "show.h"

#include <stdbool.h>
#include <string.h>

static const char ELLIPSIS[] = "\xe2\x80\xa6";

static bool is_continuation(char c) {
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* C0, DEL, and C1 in its two-byte UTF-8 form all steer terminals. */
static void defuse(char *s) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)s[0], d = (unsigned char)s[1];

        if (c < 0x20 || c == 0x7f)
            s[0] = '?';
        else if (c == 0xc2 && d >= 0x80 && d <= 0x9f)
            s[0] = s[1] = '?';
    }
}

const char *show_path(struct show *s, const char *path) {
    size_t len = strlen(path);

    if (len < sizeof s->s) {
        memcpy(s->s, path, len + 1);
    } else {
        const char *tail = path + len - (sizeof s->s - sizeof ELLIPSIS);

        while (is_continuation(*tail))
            tail++;
        memcpy(s->s, ELLIPSIS, sizeof ELLIPSIS - 1);
        memcpy(s->s + sizeof ELLIPSIS - 1, tail, strlen(tail) + 1);
    }
    defuse(s->s);
    return s->s;
}

const char *show_name(struct show *s, const char *name, size_t len) {
    size_t keep = len;

    if (len < sizeof s->s) {
        memcpy(s->s, name, len);
        s->s[len] = 0;
    } else {
        keep = sizeof s->s - sizeof ELLIPSIS;
        while (keep > 0 && is_continuation(name[keep]))
            keep--;
        memcpy(s->s, name, keep);
        memcpy(s->s + keep, ELLIPSIS, sizeof ELLIPSIS);
    }
    /* An embedded NUL would hide the rest of the name; the one behind it must stay. */
    if (FAULT(show_ends_lost))
        keep = len < sizeof s->s ? len : sizeof s->s - 1;
    for (size_t i = 0; i < keep; i++)
        if (!s->s[i])
            s->s[i] = '?';
    defuse(s->s);
    return s->s;
}

const char *show_str(struct show *s, const char *name) {
    return show_name(s, name, strlen(name));
}
