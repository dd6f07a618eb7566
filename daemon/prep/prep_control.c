/* SPDX-License-Identifier: MIT */
/* What decides over an answer's tokens besides the model: budget, loop guard, calls. Text workers only; allocates
 * what the request then owns. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "outtools.h"
#include "prep_impl.h"
#include "tokenizer.h"

_Static_assert((int)PREP_MAX_TOOLS <= (int)SCHED_MAX_NAMES &&
                   PREP_MAX_TOOLS * GLMW_TOOL_NAME_MAX <= (unsigned)SCHED_MAX_NAME_IDS,
               "the engine takes the names of all tools");

static struct tstr tool_text(const struct reqdec_req *d, uint32_t i) {
    return (struct tstr){d->tools[i].ptr, d->tools[i].len};
}

int prep_tools(struct prep_req *r, int only, struct xerr *err) {
    uint32_t n = only < 0 ? r->dec.n_tools : 1;
    struct tstr *list = calloc(n, sizeof *list);
    int ret;

    if (!list)
        return xerr_set(err, -ENOMEM, "no memory for %u tools", n);
    for (uint32_t i = 0; i < n; i++)
        list[i] = tool_text(&r->dec, only < 0 ? i : (uint32_t)only);
    r->tools = outtools_free(r->tools);
    ret = outtools_new(list, n, &r->tools, err);
    free(list);
    return ret;
}

int prep_choice(struct prep_req *r, bool *ret_tools, int *ret_only, struct xerr *err) {
    const struct reqdec_req *d = &r->dec;
    int ret;

    *ret_tools = d->n_tools > 0 && !(d->has_choice && d->choice.mode == GLMW_CHOICE_NONE);
    *ret_only = -1;
    if (!d->has_choice || d->choice.mode != GLMW_CHOICE_NAMED)
        return 0;
    ret = prep_tools(r, -1, err);
    if (ret < 0)
        return ret;
    *ret_only = outtools_find(r->tools, (struct tstr){d->choice_name.ptr, d->choice_name.len});
    if (*ret_only < 0)
        return xerr_set(err, -EINVAL,
                        "tool_choice names the tool \"%.*s\", which is none of the %u tools of the request",
                        (int)d->choice_name.len, d->choice_name.ptr, d->n_tools);
    return prep_tools(r, *ret_only, err);
}

/* Tool names as the model would write them behind the mark that opens a call. */
static int make_names(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r, struct xerr *err) {
    struct sched_names *names = &r->sched.control.names;
    size_t n = outtools_count(r->tools), bytes = 0, got = 0;
    uint32_t *offsets, *ids;

    for (size_t i = 0; i < n; i++) {
        struct tstr name = outtools_name(r->tools, (int)i);

        if (name.n > GLMW_TOOL_NAME_MAX)
            return xerr_set(err, -EINVAL,
                            "tool_choice: the name of tool %zu has %zu bytes; a tool that must be called can have at "
                            "most %u",
                            i, name.n, GLMW_TOOL_NAME_MAX);
        bytes += name.n;
    }
    /* a name has no more ids than bytes */
    offsets = r->names = calloc(n + 1 + bytes, sizeof *offsets);
    if (!offsets)
        return xerr_set(err, -ENOMEM, "no memory for the names of %zu tools", n);
    ids = offsets + n + 1;
    for (size_t i = 0; i < n; i++) {
        struct tstr name = outtools_name(r->tools, (int)i);
        int ret = tok_encode(m->tok, s->tok, name.p, name.n, 0, ids + offsets[i], bytes - offsets[i], &got);

        if (ret < 0)
            return xerr_set(err, ret, "tool_choice: the name of tool %zu could not be tokenized: %s", i,
                            strerror(-ret));
        offsets[i + 1] = offsets[i] + (uint32_t)got;
    }
    *names = (struct sched_names){.ids = ids, .offsets = offsets, .n = (uint32_t)n};
    return 0;
}

int prep_control(const struct prep_model *m, struct prep_scratch *s, struct prep_req *r, struct xerr *err) {
    const struct glmw_sampling *in = &r->dec.sampling;
    uint32_t has = r->dec.has_sampling ? in->has : 0, mode = r->dec.has_choice ? r->dec.choice.mode : 0;
    struct sched_control *out = &r->sched.control;

    out->has_budget = has & GLMW_HAS_THINKING_BUDGET || m->thinking_budget;
    out->budget = has & GLMW_HAS_THINKING_BUDGET ? in->thinking_budget : m->thinking_budget;
    out->loop_guard = has & GLMW_HAS_LOOP_GUARD ? in->loop_guard == 1 : m->loop_guard;
    if (out->has_budget || out->loop_guard) {
        out->close = m->close;
        out->n_close = m->n_close;
    }
    out->tools_offered = r->tools != NULL;
    out->one_call = r->dec.has_choice && r->dec.choice.flags & GLMW_CHOICE_ONE_CALL;
    if (mode == GLMW_CHOICE_NONE)
        out->tools = SCHED_TOOLS_NONE;
    if (mode != GLMW_CHOICE_REQUIRED && mode != GLMW_CHOICE_NAMED)
        return 0;
    if (!m->tok || m->tool_open == UINT32_MAX)
        return xerr_set(err, -EOPNOTSUPP, "tool_choice: this model has no tokenizer, so no call can be demanded of it; "
                                          "use auto or none");
    out->tools = SCHED_TOOLS_MUST;
    return make_names(m, s, r, err);
}
