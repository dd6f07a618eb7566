/* SPDX-License-Identifier: MIT */
#include "chattest.h"

#include "chatreq.h"

#include <check.h>
#include <stdlib.h>

char *chattest_flat(const struct chat *c, const struct chat_out *out) {
    struct tbuf b;
    char *s;

    tbuf_init(&b, 64 << 20);
    ck_assert_int_eq(chat_flat(c, out, &b), 0);
    s = strndup(b.p, b.n);
    tbuf_done(&b);
    return s;
}

char *chattest_render(const struct chat *c, struct chat_out *out, const char *request, size_t n) {
    struct chatreq *r;
    struct xerr err = {0};

    ck_assert_msg(chatreq_parse(request, n, &r, &err) == 0, "%s: %.*s", err.msg, (int)n, request);
    ck_assert_msg(chat_render(c, chatreq_get(r), out, &err) == 0, "%s: %.*s", err.msg, (int)n, request);
    chatreq_free(r);
    return chattest_flat(c, out);
}

size_t chattest_controls(const struct chat_out *out, int64_t id) {
    size_t n = 0;

    for (size_t i = 0; i < out->n_segs; i++)
        n += out->segs[i].control && out->segs[i].id == id;
    return n;
}
