/* SPDX-License-Identifier: MIT */
/* One call for scripts: submit, collect the content, wait for the END.  Built on the public calls only. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "clconn.h"

struct answer {
    char *text;
    size_t len;
    size_t cap;
    int status; /* of END, or the first own failure */
    bool ended;
    bool stopping;
    struct glmd_usage usage;
};

static int append(struct answer *a, const char *text, size_t len) {
    if (len >= a->cap - a->len) { /* one byte stays for the NUL */
        size_t cap = a->cap ? a->cap : 256;
        while (len >= cap - a->len) {
            if (cap > SIZE_MAX / 2)
                return -ENOMEM;
            cap *= 2;
        }
        char *p = realloc(a->text, cap);
        if (!p)
            return -ENOMEM;
        a->text = p;
        a->cap = cap;
    }
    if (len)
        memcpy(a->text + a->len, text, len);
    a->len += len;
    a->text[a->len] = 0;
    return 0;
}

/* The request must be seen to its END whatever happens, or its events would meet the next caller. */
static void stop(glmd_conn *c, uint64_t tag, struct answer *a, int why) {
    if (!a->stopping) {
        a->stopping = true;
        a->status = why;
        glmd_cancel(c, tag);
    }
}

static void collect(glmd_conn *c, uint64_t tag, struct answer *a) {
    struct glmd_event e = {.size = sizeof e};
    while (!a->ended && glmd_next(c, &e) == 1) {
        if (e.tag != tag)
            continue;
        if (e.type == GLMD_EV_END) {
            a->ended = true;
            if (!a->stopping)
                a->status = e.status;
            if (e.usage)
                a->usage = *e.usage;
        } else if (e.text_len && e.channel == GLMD_CHANNEL_CONTENT &&
                   (e.type == GLMD_EV_TOKEN || e.type == GLMD_EV_TEXT)) {
            if (append(a, e.text, e.text_len) < 0)
                stop(c, tag, a, -ENOMEM);
        }
    }
}

int glmd_complete(glmd_conn *c, glmd_req *r, char **ret_text, size_t *ret_len, struct glmd_usage *ret_usage) {
    struct answer a = {.usage = {.size = sizeof a.usage}};
    uint64_t tag = 0;
    int e = cl_check(c);
    if (e == 0 && c->tags.n_live)
        e = -EBUSY;
    if (e == 0 && ret_usage && ret_usage->size < sizeof ret_usage->size)
        e = -EINVAL;
    if (e == 0)
        e = append(&a, "", 0);
    while (e == 0 && (e = glmd_submit(c, r, &tag)) == -ENOBUFS) {
        /* room comes back when the daemon has read earlier entries; ask again soon */
        e = glmd_wait(c, 5 * (int64_t)CL_NS_PER_MS);
        e = e > 0 ? 0 : e;
    }
    if (e < 0) {
        free(a.text);
        glmd_req_free(r);
        return e;
    }
    while (!a.ended) {
        e = glmd_wait(c, -1);
        if (e == -EINTR)
            stop(c, tag, &a, e);
        else if (e < 0)
            break;
        collect(c, tag, &a);
    }
    glmd_release(c);
    if (e < 0 && e != -EINTR && !a.ended)
        a.status = e;
    if (a.status < 0) {
        free(a.text);
        return a.status;
    }
    if (ret_usage) {
        uint32_t size = ret_usage->size;
        memcpy(ret_usage, &a.usage, size < sizeof a.usage ? size : sizeof a.usage);
        ret_usage->size = size;
    }
    if (ret_len)
        *ret_len = a.len;
    *ret_text = a.text;
    return 0;
}

void glmd_free(void *p) {
    free(p);
}
