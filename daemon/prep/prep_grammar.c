/* SPDX-License-Identifier: MIT */
/* The grammar of an answer: of its JSON schema, or of the calls that are demanded of it. Text workers only; allocates
 * what the request then owns. */
#include <errno.h>
#include <stdlib.h>

#include "grammar.h"
#include "prep_impl.h"

/* All grammars together are bounded, so one user's must not take it all. */
static bool count_in(struct prep_req *r) {
    uint64_t n = grammar_bytes(r->grammar);

    if (!r->usage)
        return true;
    if (atomic_fetch_add_explicit(&r->usage->grammar_bytes, n, memory_order_relaxed) + n <= GRAMMAR_USER_BYTES ||
        FAULT(prep_grammars_unbounded))
        return true;
    prep_grammar_drop(r);
    return false;
}

void prep_grammar_drop(struct prep_req *r) {
    if (r->grammar && r->usage)
        atomic_fetch_sub_explicit(&r->usage->grammar_bytes, grammar_bytes(r->grammar), memory_order_relaxed);
    r->grammar = grammar_free(r->grammar);
    r->sched.control.grammar = NULL;
}

static int of_schema(const struct prep_model *m, struct prep_req *r, struct xerr *err) {
    const struct reqdec_req *d = &r->dec;
    struct grammar_text text = {NULL, 0};
    int ret;

    if (!m->grammar)
        return xerr_set(err, -EOPNOTSUPP, "response schema: this model has no tokenizer, so no schema can be followed");
    if (r->sched.control.tools == SCHED_TOOLS_MUST)
        return xerr_set(err, -EINVAL,
                        "response schema: tool_choice demands a call, which no schema describes; use auto or none");
    if (r->sched.ignore_eos)
        return xerr_set(err, -EINVAL, "response schema: ignore_eos would go on behind the end that the schema sets");
    if (d->schema_kind == GLMW_SCHEMA_JSON_SCHEMA)
        text = (struct grammar_text){d->schema.ptr, d->schema.len};
    ret = grammar_new_schema(m->grammar, text, 0, &r->grammar, err);
    if (ret == 0 && !count_in(r))
        return xerr_set(err, -EDQUOT,
                        "response schema: with it the compiled schemas of your live requests would take more than the "
                        "%d MiB that one user may have; send it when some have ended",
                        GRAMMAR_USER_BYTES >> 20);
    return ret;
}

/* A list that cannot be compiled is never refused for it: names alone are demanded then. */
static int of_calls(const struct prep_model *m, struct prep_req *r, int only, struct xerr *err) {
    const struct reqdec_req *d = &r->dec;
    struct grammar_text *tools = calloc(d->n_tools, sizeof *tools);
    int ret;

    if (!tools)
        return xerr_set(err, -ENOMEM, "no memory for %u tools", d->n_tools);
    for (uint32_t i = 0; i < d->n_tools; i++)
        tools[i] = (struct grammar_text){d->tools[i].ptr, d->tools[i].len};
    ret = grammar_new_calls(m->grammar, tools, d->n_tools, GRAMMAR_CALLS_REQUIRED, only, !r->sched.control.one_call, 0,
                            &r->grammar, NULL);
    free(tools);
    if (ret == 0)
        count_in(r);
    return ret == -ENOMEM ? xerr_set(err, ret, "no memory for the grammar of %u tools", d->n_tools) : 0;
}

int prep_grammar(const struct prep_model *m, struct prep_req *r, int only, struct xerr *err) {
    int ret = 0;

    if (r->dec.has_schema)
        ret = of_schema(m, r, err);
    else if (m->grammar && r->sched.control.tools == SCHED_TOOLS_MUST)
        ret = of_calls(m, r, only, err);
    r->sched.control.grammar = r->grammar;
    return ret;
}
