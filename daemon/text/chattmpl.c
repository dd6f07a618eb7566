/* SPDX-License-Identifier: MIT */
/* A Jinja source is literals and tags. Only the cutting is done here, with the rules the reference
 * renderer sets: a '-' inside a tag eats the white space on its side, the newline behind a statement goes
 * (trim_blocks), and blanks before a statement that begins a line go (lstrip_blocks). */
#include "chattmpl.h"

#include "utf8.h"

#include <errno.h>

#define MAX_WORDS (64 << 10)

struct tag {
    size_t begin, end; /* in the source, delimiters included */
    char kind;         /* '%', '{' or '#'; 0 = end of the source */
    bool eat_left, keep_left, eat_right, keep_right;
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

/* The next tag at or behind `at`. Quotes inside expressions may hold anything. */
static struct tag next_tag(const char *s, size_t at, size_t n) {
    struct tag t = {.begin = n, .end = n};
    char close, quote = 0;

    while (at + 1 < n && !(s[at] == '{' && (s[at + 1] == '%' || s[at + 1] == '{' || s[at + 1] == '#')))
        at++;
    if (at + 1 >= n)
        return t;
    t.begin = at;
    t.kind = s[at + 1];
    close = t.kind == '{' ? '}' : t.kind;
    at += 2;
    if (at < n) {
        t.eat_left = s[at] == '-';
        t.keep_left = s[at] == '+';
    }
    for (; at + 1 < n; at++) {
        if (t.kind != '#' && quote) {
            if (s[at] == '\\')
                at++;
            else if (s[at] == quote)
                quote = 0;
        } else if (t.kind != '#' && (s[at] == '"' || s[at] == '\'')) {
            quote = s[at];
        } else if (s[at] == close && s[at + 1] == '}') {
            t.eat_right = s[at - 1] == '-' && at - 1 > t.begin + 1;
            t.keep_right = s[at - 1] == '+' && at - 1 > t.begin + 1;
            t.end = at + 2;
            return t;
        }
    }
    return t; /* never closed: the rest of the source is the tag */
}

/* The literal between two tags after white space control. */
static struct tstr literal(const char *s, const struct tag *before, const struct tag *after) {
    size_t from = before->end, to = after->begin, line;

    if (before->eat_right) {
        while (from < to && is_blank(s[from]))
            from++;
    } else if ((before->kind == '%' || before->kind == '#') && !before->keep_right && from < to &&
               s[from] == '\n') {
        from++;
    }
    if (after->eat_left) {
        while (to > from && is_blank(s[to - 1]))
            to--;
    } else if ((after->kind == '%' || after->kind == '#') && !after->keep_left) {
        line = to;
        while (line > from && (s[line - 1] == ' ' || s[line - 1] == '\t'))
            line--;
        if (line > from ? s[line - 1] == '\n' : line > 0 && s[line - 1] == '\n')
            to = line;
    } else if (after->kind == 0 && to > from && s[to - 1] == '\n') {
        to--; /* the renderer drops the last newline of the file */
    }
    return (struct tstr){s + from, to - from};
}

static const char *find(struct tstr in, const char *what) {
    return in.n ? memmem(in.p, in.n, what, strlen(what)) : NULL;
}

static const char *find_last(struct tstr in, const char *what) {
    const char *hit = NULL, *p;

    while ((p = find(in, what))) {
        hit = p;
        in.n -= (size_t)(p + 1 - in.p);
        in.p = p + 1;
    }
    return hit;
}

static bool ends_with(struct tstr in, const char *what) {
    size_t n = strlen(what);

    return in.n >= n && memcmp(in.p + in.n - n, what, n) == 0;
}

static void take_words(struct chattmpl *t, struct tstr lit, unsigned *heads, unsigned *tails) {
    static const char *const roles[] = {"<|user|>\n", "<|assistant|>\n", "<|observation|>\n"};
    const char *p;

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (find(lit, roles[i])) {
            tbuf_puts(&t->warn, "chat_template.jinja puts a newline behind ");
            tbuf_put(&t->warn, roles[i], strlen(roles[i]) - 1);
            tbuf_puts(&t->warn, ", as older formats did; prompts are written without it\n");
        }
    }
    if (ends_with(lit, "<tools>\n") && (p = find_last(lit, "<|system|>\n"))) {
        if ((*heads)++ == 0)
            tbuf_put(&t->head, p, lit.n - (size_t)(p - lit.p));
    }
    p = lit.n > 0 && lit.p[0] == '\n' ? lit.p + 1 : lit.p;
    if (*heads > 0 && lit.n >= 8 && (size_t)(lit.p + lit.n - p) >= 8 && memcmp(p, "</tools>", 8) == 0) {
        if ((*tails)++ == 0)
            tbuf_put(&t->tail, p, lit.n - (size_t)(p - lit.p));
    }
}

static void check_known_parts(struct chattmpl *t, struct tstr src) {
    static const char *const parts[] = {"[gMASK]<sop>",
                                        "Reasoning Effort: ",
                                        "<|system|>",
                                        "<|user|>",
                                        "<|assistant|>",
                                        "<|observation|>",
                                        "<think>",
                                        "</think>",
                                        "<tool_call>",
                                        "</tool_call>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "<tool_response>",
                                        "</tool_response>",
                                        "<|begin_of_image|><|image|><|end_of_image|>",
                                        "<|begin_of_video|><|video|><|end_of_video|>"};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (find(src, parts[i]))
            continue;
        tbuf_puts(&t->warn, "chat_template.jinja does not contain \"");
        tbuf_puts(&t->warn, parts[i]);
        tbuf_puts(&t->warn, "\", which the GLM-5.3 format has; prompts are written with it\n");
    }
}

static void check_tool_block(struct chattmpl *t, unsigned heads, unsigned tails) {
    if (heads == 0)
        tbuf_puts(&t->warn, "chat_template.jinja: no literal from \"<|system|>\" and a newline to "
                            "\"<tools>\" and a newline: the "
                            "tool block's first words were not found, requests with tools are refused\n");
    else if (tails == 0)
        tbuf_puts(&t->warn, "chat_template.jinja: no literal that begins with \"</tools>\" behind the tool "
                            "list: the tool block's "
                            "last words were not found, requests with tools are refused\n");
    else if (heads > 1 || tails > 1)
        tbuf_puts(&t->warn,
                  "chat_template.jinja has more than one tool block; the first one's words are used\n");
    if (tails > 0 && (find((struct tstr){t->tail.p, t->tail.n}, "<|")))
        tbuf_puts(&t->warn, "chat_template.jinja: the tool block's last words go on into a role marker; "
                            "expected the block to end "
                            "with its example call\n");
}

int chattmpl_read(const char *src, size_t n, struct chattmpl *ret) {
    struct tag before = {0}, after;
    unsigned heads = 0, tails = 0;
    struct tbuf unix_text;

    tbuf_init(&ret->head, MAX_WORDS);
    tbuf_init(&ret->tail, MAX_WORDS);
    tbuf_init(&ret->warn, MAX_WORDS);
    if (!utf8_is_valid(src, n)) {
        tbuf_puts(
            &ret->warn,
            "chat_template.jinja is not valid UTF-8; it is not used, requests with tools are refused\n");
        return ret->warn.err;
    }
    tbuf_init(&unix_text, n + 1);
    if (!tbuf_reserve(&unix_text, 1)) /* also an empty template has a place */
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (src[i] == '\r' && i + 1 < n && src[i + 1] == '\n')
            continue;
        tbuf_putc(&unix_text, src[i]);
    }
    check_known_parts(ret, (struct tstr){unix_text.p, unix_text.n});
    do {
        after = next_tag(unix_text.p, before.end, unix_text.n);
        take_words(ret, literal(unix_text.p, &before, &after), &heads, &tails);
        before = after;
    } while (after.kind != 0);
    check_tool_block(ret, heads, tails);
    if (heads == 0 || tails == 0 || ret->head.err || ret->tail.err) {
        ret->head.n = 0;
        ret->tail.n = 0;
    }
    if (unix_text.err)
        ret->warn.err = unix_text.err;
    tbuf_done(&unix_text);
    return ret->head.err == -ENOMEM || ret->tail.err == -ENOMEM || ret->warn.err == -ENOMEM ? -ENOMEM : 0;
}

void chattmpl_done(struct chattmpl *t) {
    tbuf_done(&t->head);
    tbuf_done(&t->tail);
    tbuf_done(&t->warn);
}
