/* SPDX-License-Identifier: MIT */
/* packplan.c: which matrix of the source is written in which format. By default the routed experts; in
 * formats of eight bits also the large matrices of attention and of the other feed-forward layers. What
 * steers the model (router, indexer, gates, residual streams, norms) and kv_b, embedding, head and vision
 * change only for a rule of their own. */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack.h"

const char *pack_part_name(enum pack_part p) {
    static const char *const names[PACK_PARTS] = {
        [PACK_EXPERTS] = "experts", [PACK_SHARED] = "shared", [PACK_DENSE] = "dense", [PACK_MLA] = "mla",
        [PACK_KDA] = "kda",         [PACK_HEAD] = "lm_head",  [PACK_EMBED] = "embed", [PACK_KVB] = "kv_b",
        [PACK_INDEXER] = "indexer", [PACK_ROUTER] = "router", [PACK_GATES] = "gates", [PACK_MHC] = "hc",
        [PACK_DRAFT] = "draft",     [PACK_VISION] = "vision", [PACK_REST] = "rest",
    };

    return names[p];
}

/* The first that fits. */
enum pack_part pack_part_of(const char *name) {
    static const struct {
        const char *has;
        enum pack_part part;
    } words[] = {
        { "model.visual.", PACK_VISION },
        { "lm_head.", PACK_HEAD },
        { ".embed_tokens.", PACK_EMBED },
        { ".mlp.experts.", PACK_EXPERTS },
        { ".mlp.shared_experts.", PACK_SHARED },
        { ".mlp.gate.", PACK_ROUTER },
        { ".mlp.gate_proj.", PACK_DENSE },
        { ".mlp.up_proj.", PACK_DENSE },
        { ".mlp.down_proj.", PACK_DENSE },
        { ".indexer.", PACK_INDEXER },
        { ".hc_", PACK_MHC },
        { ".eh_proj.", PACK_DRAFT },
        { ".kv_b_proj.", PACK_KVB },
        { ".self_attn.q_a_proj.", PACK_MLA },
        { ".self_attn.q_b_proj.", PACK_MLA },
        { ".self_attn.kv_a_proj_with_mqa.", PACK_MLA },
        { ".self_attn.f_a_proj.", PACK_GATES },
        { ".self_attn.f_b_proj.", PACK_GATES },
        { ".self_attn.g_a_proj.", PACK_GATES },
        { ".self_attn.g_b_proj.", PACK_GATES },
        { ".self_attn.b_proj.", PACK_GATES },
        { ".self_attn.q_proj.", PACK_KDA },
        { ".self_attn.k_proj.", PACK_KDA },
        { ".self_attn.v_proj.", PACK_KDA },
        { ".self_attn.o_proj.", PACK_KDA }, /* of which kind the layer is, pack_plan_make() finds out */
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i].has))
            return words[i].part;
    return PACK_REST;
}

/* o_proj of a layer that has a q_a_proj is of MLA. */
static enum pack_part part_in(const struct model_index *x, const char *name) {
    enum pack_part p = pack_part_of(name);
    const char *at = strstr(name, ".self_attn.o_proj.");
    char other[300];

    if (!at || (size_t)(at - name) + 40 > sizeof other)
        return p;
    snprintf(other, sizeof other, "%.*s.self_attn.q_a_proj.weight", (int)(at - name), name);
    return model_index_find(x, other) ? PACK_MLA : p;
}

bool pack_module_name(const char *tensor, char *ret, size_t len) {
    size_t n = strlen(tensor);

    if (n <= 7 || strcmp(tensor + n - 7, ".weight") != 0)
        return false; /* no other spelling has a name for its scales */
    snprintf(ret, len, "%.*s", (int)(n - 7), tensor);
    return true;
}

static bool by_default(const struct pack_format *f, enum pack_part p) {
    return p == PACK_EXPERTS ||
           (!f->small && (p == PACK_SHARED || p == PACK_DENSE || p == PACK_MLA || p == PACK_KDA));
}

/* The last rule that fits decides. */
static const struct pack_format *choose(const struct pack_options *o, const char *module, enum pack_part p) {
    const struct pack_format *f = by_default(o->format, p) ? o->format : NULL;

    for (uint32_t i = 0; i < o->n_rules; i++)
        if (strcmp(o->rule[i].pattern, pack_part_name(p)) == 0 || fnmatch(o->rule[i].pattern, module, 0) == 0)
            f = o->rule[i].f;
    return f;
}

/* What one file of configuration can describe. */
static int find_family(const struct pack_plan *p, size_t n, enum pack_family *ret, struct xerr *e) {
    const struct pack_format *first = NULL, *other = NULL;
    bool modelopt = true, compressed = true, gguf = true;

    for (size_t i = 0; i < n; i++) {
        const struct pack_format *f = p->to[i];

        if (!f)
            continue;
        first = first ? first : f;
        other = f != first ? f : other;
        modelopt = modelopt &&
                   (f->store.format == KERN_NVFP4 || f->store.format == KERN_MXFP8 ||
                    f->store.format == KERN_FP8 || f->store.format == KERN_MXFP4) &&
                   strcmp(f->word, "nvfp4-ct") != 0;
        gguf = gguf && f->family == PACK_GGUF;
        compressed = compressed && f->store.format < KERN_EXL3 && strcmp(f->word, "nvfp4") != 0;
    }
    *ret = !first           ? PACK_PLAIN
           : !other || gguf ? first->family
           : compressed     ? PACK_COMPRESSED
                            : PACK_MODELOPT;
    if (!other || compressed || modelopt || gguf)
        return 0;
    return xerr_set(
        e, -EINVAL,
        "found %s and %s together, which no configuration describes; expected formats of compressed-tensors "
        "(nvfp4-ct), of ModelOpt (nvfp4), of GGUF, or EXL3 alone",
        first->word, other->word);
}

static bool number_type(enum st_dtype d) {
    return d == ST_BF16 || d == ST_F16 || d == ST_F32;
}

static int decide(struct pack_plan *p, const struct pack_options *o, size_t i, uint32_t *used,
                  struct xerr *e) {
    const struct st_tensor *t = model_index_at(p->x, i)->t;
    const struct pack_format *f;
    struct pack_tensor parts[PACK_MAX_TENSORS];
    char module[300];
    uint32_t n;
    enum pack_part part = part_in(p->x, t->name);

    p->part[i] = (uint8_t)part;
    if (strlen(t->name) >= sizeof module)
        return xerr_set(e, -ENAMETOOLONG, "%s: found a tensor name of %zu bytes", model_index_dir(p->x),
                        strlen(t->name));
    if (!pack_module_name(t->name, module, sizeof module) || t->n_dims != 2)
        return 0;
    for (uint32_t k = 0; k < o->n_rules; k++)
        if (strcmp(o->rule[k].pattern, pack_part_name(part)) == 0 ||
            fnmatch(o->rule[k].pattern, module, 0) == 0)
            *used |= 1u << k;
    f = choose(o, module, part);
    if (!f || f->store.format == KERN_BF16)
        return 0;
    if (!number_type(t->dtype))
        return xerr_set(e, -EINVAL,
                        "%s: %s: found %s, expected BF16, F16 or F32: only such a checkpoint is converted",
                        model_index_dir(p->x), t->name, st_dtype_name(t->dtype));
    if (pack_tensors(f, f->family, module, t->shape[0], t->shape[1], parts, &n) < 0) {
        p->first_unfit = p->n_unfit++ ? p->first_unfit : t->name;
        return 0;
    }
    p->to[i] = f;
    p->n_converted++;
    return 0;
}

int pack_plan_make(const struct pack_options *o, const struct model_index *x, struct pack_plan *ret,
                   struct xerr *e) {
    struct pack_plan p = { .x = x };
    size_t n = model_index_count(x);
    uint32_t used = 0;
    int r = 0;

    p.to = calloc(n + 1, sizeof *p.to);
    p.part = calloc(n + 1, sizeof *p.part);
    if (!p.to || !p.part) {
        pack_plan_done(&p);
        return xerr_set(e, -ENOMEM, "%s: no memory for the plan", o->in);
    }
    for (size_t i = 0; i < n && r >= 0; i++)
        r = decide(&p, o, i, &used, e);
    for (uint32_t k = 0; k < o->n_rules && r >= 0; k++)
        if (!(used & 1u << k))
            r = xerr_set(e, -ENOENT,
                         "--part %s: found no matrix it fits, expected a part (%s, ...) or a glob over names",
                         o->rule[k].pattern, pack_part_name(PACK_EXPERTS));
    if (r >= 0 && o->numbers)
        p.family = PACK_PLAIN;
    else if (r >= 0)
        r = find_family(&p, n, &p.family, e);
    if (r >= 0 && !p.n_converted)
        r = xerr_set(e, -ENODATA, "%s: found no matrix that %s can hold; first that cannot: %s", o->in,
                     o->format->word, p.first_unfit ? p.first_unfit : "none");
    if (r < 0) {
        pack_plan_done(&p);
        return r;
    }
    *ret = p;
    return 0;
}

void pack_plan_done(struct pack_plan *p) {
    free(p->to);
    free(p->part);
    p->to = NULL;
    p->part = NULL;
}
