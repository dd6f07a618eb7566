/* SPDX-License-Identifier: MIT */
/* JSON as far as the daemon needs it: tool definitions, call arguments, schemas. Text in, text out: key
 * order, number text and string content are kept, only spacing and escapes are normalised (separators ", "
 * and ": ", non-ASCII as UTF-8, nothing sorted, '<' '>' '&' '/' not escaped). Strict RFC 8259 on input: no
 * NaN, no Infinity, no leading zeros, no comments. No recursion, no tree, no allocation of its own.
 *
 * Text goes through jl_check() first; everything else works on checked text and cannot fail on its form. */
#ifndef GLMD_JSONLITE_H
#define GLMD_JSONLITE_H

#include "tbuf.h"

#include <stdint.h>

#define JL_MAX_DEPTH 128 /* nesting; deeper text is refused */

enum jl_type {
    JL_OBJECT = 1,
    JL_ARRAY,
    JL_STRING,
    JL_NUMBER,
    JL_BOOL,
    JL_NULL,
};

struct jl_fault {
    size_t at;       /* byte offset of the fault */
    const char *why; /* static text */
};

/* One JSON value with white space around it, nothing else, at most max_depth (1..JL_MAX_DEPTH) levels
 * deep, valid UTF-8. Returns its type, or -EINVAL / -EILSEQ / -E2BIG (too deep) with *ret_fault filled
 * (NULL allowed). On success *ret_value (NULL allowed) is the text without the white space around it. */
int jl_check(const char *s, size_t n, unsigned max_depth, struct tstr *ret_value, struct jl_fault *ret_fault);

enum jl_type jl_type(struct tstr value); /* of checked text */
bool jl_is_integer(struct tstr number);  /* checked number text without fraction, or with a zero fraction */

/* Walks an object or array: start with jl_first(), then jl_next() until it returns false. key is the
 * quoted key text (objects) or absent (arrays). */
struct jl_iter {
    const char *p, *end;
    struct tstr key, value;
    bool object;
};
bool jl_first(struct jl_iter *it, struct tstr container);
bool jl_next(struct jl_iter *it);

/* Last member with this key (the last one wins, as everywhere), or an absent string. */
struct tstr jl_get(struct tstr object, const char *key);

/* Decoded content of a quoted string appended to out; lone surrogates become U+FFFD. */
void jl_unquote(struct tstr quoted, struct tbuf *out);
/* Compares the decoded content without writing it anywhere. */
bool jl_str_is(struct tstr quoted, const char *text, size_t n);

/* Appends n bytes of valid UTF-8 as the inside of a JSON string (no quotes around). */
void jl_escape(const char *text, size_t n, struct tbuf *out);

/* Appends a checked value in the normal form described above. */
void jl_rewrite(struct tstr value, struct tbuf *out);

#endif
