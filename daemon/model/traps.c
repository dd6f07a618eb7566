/* SPDX-License-Identifier: MIT */
/* The histogram of formats, and the two refusals that experience teaches. Pure functions over a directory.
 *
 * Outside of the routed experts four bits make a model that ends its answers early and writes wrong letters
 * in languages other than English; embeddings, kv_b (which both queries and outputs go through), the indexer
 * (which decides what is attended to) and the projections that feed the exponents of the recurrent state are
 * small and multiply whatever error they have. */
#include "traps.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "show.h"

enum group {
    G_EXPERTS,
    G_DRAFT_EXPERTS,
    G_SHARED,
    G_DENSE,
    G_KDA,
    G_KDA_GATES,
    G_MLA,
    G_KVB,
    G_INDEXER,
    G_ROUTER,
    G_EMBED,
    G_HEAD,
    G_DRAFT,
    G_VECTORS,
    N_GROUPS
};

static const char *const GROUP[N_GROUPS] = {
    [G_EXPERTS] = "routed experts", [G_DRAFT_EXPERTS] = "MTP routed experts",
    [G_SHARED] = "shared experts",  [G_DENSE] = "dense MLP",
    [G_KDA] = "KDA projections",    [G_KDA_GATES] = "KDA gates",
    [G_MLA] = "MLA projections",    [G_KVB] = "MLA kv_b",
    [G_INDEXER] = "indexer",        [G_ROUTER] = "router and mHC",
    [G_EMBED] = "embedding",        [G_HEAD] = "head",
    [G_DRAFT] = "MTP eh_proj",      [G_VECTORS] = "norms and vectors",
};

static enum group group_of(const struct model_config *cfg, const struct model_tensor *t) {
    bool draft = t->id.layer >= cfg->num_hidden_layers;

    if (!t->is_matrix)
        return G_VECTORS;
    switch (t->id.part) {
    case KERN_EMBED:
        return G_EMBED;
    case KERN_HEAD:
        return G_HEAD;
    case KERN_HC_ATTN_FN:
    case KERN_HC_FFN_FN:
    case KERN_ROUTER:
        return G_ROUTER;
    case KERN_KDA_FA:
    case KERN_KDA_FB:
    case KERN_KDA_GA:
    case KERN_KDA_GB:
    case KERN_KDA_B:
        return G_KDA_GATES;
    case KERN_KDA_Q:
    case KERN_KDA_K:
    case KERN_KDA_V:
    case KERN_KDA_O:
        return G_KDA;
    case KERN_MLA_KVB:
    case KERN_MLA_KB:
    case KERN_MLA_VB:
        return G_KVB;
    case KERN_IDX_QB:
    case KERN_IDX_K:
    case KERN_IDX_W:
    case KERN_IDX_GATE:
        return G_INDEXER;
    case KERN_MLP_GATE:
    case KERN_MLP_UP:
    case KERN_MLP_DOWN:
        return G_DENSE;
    case KERN_EXP_GATE:
    case KERN_EXP_UP:
    case KERN_EXP_DOWN:
        return draft ? G_DRAFT_EXPERTS : G_EXPERTS;
    case KERN_SH_GATE:
    case KERN_SH_UP:
    case KERN_SH_DOWN:
        return G_SHARED;
    case KERN_DRAFT_EH:
        return G_DRAFT;
    default:
        return G_MLA;
    }
}

size_t model_summary(const struct model_directory *d, const struct model_config *cfg, uint32_t layers,
                     struct model_summary_row ret[MODEL_MAX_ROWS]) {
    static const struct kern_store VECTORS = {.format = KERN_F32};
    struct kern_store store[MODEL_MAX_ROWS];
    size_t n = 0, from;

    for (int g = 0; g < N_GROUPS; g++) {
        from = n;
        for (size_t i = 0; i < d->n_tensors; i++) {
            const struct model_tensor *t = &d->tensor[i];
            const struct kern_store *s = t->is_matrix ? &t->k.store : &VECTORS;
            size_t k = from;

            if (t->id.layer >= layers || group_of(cfg, t) != (enum group)g)
                continue;
            while (k < n && memcmp(&store[k], s, sizeof *s) != 0)
                k++;
            if (k == MODEL_MAX_ROWS)
                return n;
            if (k == n) {
                store[n] = *s;
                ret[n] = (struct model_summary_row){.group = GROUP[g]};
                kern_store_name(s, ret[n].format, sizeof ret[n].format);
                n++;
            }
            ret[k].matrices++;
            ret[k].weights += t->k.rows * t->k.cols;
            ret[k].bytes += t->bytes;
        }
    }
    return n;
}

/* ---- refusals ---- */

enum { LOW_EMBED, LOW_KV_B, LOW_INDEXER, LOW_KDA_GATES, N_LOW };
static const char *const LOW[N_LOW] = {"embed", "kv_b", "indexer", "kda_gates"};

static int low_of(enum group g) {
    return g == G_EMBED       ? LOW_EMBED
           : g == G_KVB       ? LOW_KV_B
           : g == G_INDEXER   ? LOW_INDEXER
           : g == G_KDA_GATES ? LOW_KDA_GATES
                              : -1;
}

static int allowed_words(const char *list, uint32_t *ret, struct xerr *e) {
    uint32_t bits = 0;
    struct show s;

    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ", "), k = 0;

        while (k < N_LOW && !(strlen(LOW[k]) == n && memcmp(p, LOW[k], n) == 0))
            k++;
        if (n > 0 && k == N_LOW)
            return xerr_set(e, -EINVAL, "[Model] AllowLowPrecision: found \"%s\", expected words of: %s",
                            show_name(&s, p, n), MODEL_LOW_WORDS);
        bits |= n > 0 ? 1u << k : 0;
        p += n;
        p += strspn(p, ", ");
    }
    *ret = bits;
    return 0;
}

int model_allowed_words(const char *list, struct xerr *e) {
    uint32_t bits;

    return allowed_words(list, &bits, e);
}

static bool is_narrow(const struct model_tensor *t) {
    const struct kern_store *s = &t->k.store;

    return t->is_matrix && s->format != KERN_F32 && s->format != KERN_BF16 && s->format != KERN_F16;
}

/* Fewer than five bits a weight, scales and all. */
static bool is_four_bits(const struct model_tensor *t) {
    return is_narrow(t) && (double)t->bytes * 8 < 5.0 * (double)t->k.rows * (double)t->k.cols;
}

/* GLM-5.3 was published with kv_b and two of the indexer's matrices in blocks of FP8, and nothing better of it exists:
 * these are its weights. */
static bool is_published(const struct model_config *cfg, const struct model_tensor *t) {
    const struct kern_store *s = &t->k.store;
    const uint32_t part = t->id.part;
    bool one_of_them = part == KERN_MLA_KVB || part == KERN_IDX_QB || part == KERN_IDX_K;

    return one_of_them && (cfg->family == MODEL_GLM53 || FAULT(traps_published_everywhere)) &&
           s->format == KERN_FP8 && s->block_rows == 128 && s->block_cols == 128;
}

int model_allowed(const char *dir, const struct model_config *cfg, const struct model_directory *d, uint32_t layers,
                  const struct model_allow *allow, struct xerr *e) {
    uint32_t may = 0, low = 0;
    const struct model_tensor *four = NULL;
    uint64_t n_four = 0;
    char words[80] = "", name[64];
    struct show s;
    int r = allowed_words(allow->low_precision ? allow->low_precision : "", &may, e);

    if (r < 0)
        return r;
    for (size_t i = 0; i < d->n_tensors; i++) {
        const struct model_tensor *t = &d->tensor[i];
        enum group g = group_of(cfg, t);
        int k = low_of(g);

        if (t->id.layer >= layers || !is_narrow(t) || is_published(cfg, t))
            continue;
        if (k >= 0) {
            low |= 1u << k;
        } else if (g != G_EXPERTS && g != G_DRAFT_EXPERTS && is_four_bits(t)) {
            four = four ? four : t;
            n_four++;
        }
    }
    for (int k = 0; k < N_LOW; k++)
        if (low >> k & 1)
            snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", *words ? "," : "", LOW[k]);
    if (low & ~may && !FAULT(traps_low_unchecked))
        return xerr_set(e, -EPERM,
                        "%s: found %s in less than 16 bits, expected BF16, F16 or F32, because their errors "
                        "multiply; [Model] AllowLowPrecision=%s takes them as they are",
                        show_path(&s, dir), words, words);
    if (four && !allow->four_bit_dense && !FAULT(traps_four_unchecked))
        return xerr_set(
            e, -EPERM,
            "%s: found %llu matrices outside of the routed experts in four bits or fewer (%s of layer "
            "%u: %s), expected eight: answers end early; [Model] AllowFourBitDense=yes takes them",
            show_path(&s, dir), (unsigned long long)n_four, kern_part_name(four->id.part), four->id.layer,
            kern_store_name(&four->k.store, name, sizeof name));
    return 0;
}
