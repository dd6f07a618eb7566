/* SPDX-License-Identifier: MIT */
/* The lists that say what each layer is. The file says it up to three times (layer_types,
 * linear_attn_config, first_k_dense_replace); a disagreement is refused, because either reading gives a
 * model that runs. Start-up only; never logs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "configread.h"

static const char *entry_word(const json_t *list, uint32_t i) {
    const char *s = json_string_value(json_array_get(list, i));

    return s ? s : "";
}

static int entry_refuse(const struct cread *c, const char *key, uint32_t i, const json_t *list,
                        const char *expected) {
    char at[64];

    snprintf(at, sizeof at, "%s[%u]", key, i);
    return cread_refuse(c, -ENOTSUP, at, json_array_get(list, i), "%s", expected);
}

static int read_mix(const struct cread *c, struct model_config *cfg) {
    const json_t *list;
    int r = cread_list(c, "layer_types", cfg->num_hidden_layers, "num_hidden_layers", &list);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < cfg->num_hidden_layers; i++) {
        const char *s = entry_word(list, i);

        if (strcmp(s, "linear_attention") == 0)
            cfg->layer[i].mix = MODEL_MIX_KDA;
        else if (strcmp(s, "deepseek_sparse_attention") == 0)
            cfg->layer[i].mix = MODEL_MIX_DSA;
        else
            return entry_refuse(c, "layer_types", i, list,
                                "\"linear_attention\" or \"deepseek_sparse_attention\"");
    }
    return 0;
}

int cread_mlp_types(const struct cread *c, struct model_config *cfg) {
    const json_t *list;
    int r = cread_list(c, "mlp_layer_types", cfg->num_hidden_layers, "num_hidden_layers", &list);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < cfg->num_hidden_layers; i++) {
        const char *s = entry_word(list, i);
        bool dense = i < cfg->first_k_dense_replace;
        char at[64];

        if (strcmp(s, "dense") != 0 && strcmp(s, "sparse") != 0)
            return entry_refuse(c, "mlp_layer_types", i, list, "\"dense\" or \"sparse\"");
        if (strcmp(s, dense ? "dense" : "sparse") != 0) {
            snprintf(at, sizeof at, "mlp_layer_types[%u]", i);
            return cread_refuse(c, -EINVAL, at, json_array_get(list, i),
                                "\"%s\", as first_k_dense_replace is %u", dense ? "dense" : "sparse",
                                cfg->first_k_dense_replace);
        }
        cfg->layer[i].mlp = dense ? MODEL_MLP_DENSE : MODEL_MLP_SPARSE;
    }
    return 0;
}

int cread_indexer_types(const struct cread *c, struct model_config *cfg) {
    const json_t *list;
    bool have_full = false;
    int r = cread_list(c, "indexer_types", cfg->num_hidden_layers, "num_hidden_layers", &list);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < cfg->num_hidden_layers; i++) {
        const char *s = entry_word(list, i);
        bool shared = strcmp(s, "shared") == 0;
        char at[64];

        if (!shared && strcmp(s, "full") != 0)
            return entry_refuse(c, "indexer_types", i, list, "\"full\" or \"shared\"");
        /* Entries at KDA layers mean nothing. */
        if (cfg->layer[i].mix != MODEL_MIX_DSA)
            continue;
        if (shared && !have_full) {
            snprintf(at, sizeof at, "indexer_types[%u]", i);
            return cread_refuse(c, -EINVAL, at, json_array_get(list, i),
                                "\"full\": no sparse attention layer before it has a selection to share");
        }
        cfg->layer[i].index_shared = shared;
        have_full = have_full || !shared;
    }
    return 0;
}

/* kda_layers and full_attn_layers of linear_attn_config: each must name exactly the layers layer_types does.
 */
static int check_members(const struct cread *c, const char *key, enum model_mix mix, const char *word,
                         const struct model_config *cfg) {
    const json_t *list = json_object_get(c->obj, key);
    bool named[KERN_MAX_LAYERS] = {false};
    char want[96];

    if (!list)
        return cread_missing(c, key, "a list of layer numbers");
    if (!json_is_array(list))
        return cread_refuse(c, -EINVAL, key, list, "a list of layer numbers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t n = json_integer_value(v);

        if (!json_is_integer(v) || n < 0 || n >= (json_int_t)cfg->num_hidden_layers || named[n])
            return cread_refuse(c, -EINVAL, key, v, "layer numbers below %u, each once",
                                cfg->num_hidden_layers);
        if (cfg->layer[n].mix != mix)
            return cread_refuse(c, -EINVAL, key, v, "only layers that layer_types calls \"%s\"", word);
        named[n] = true;
    }
    for (uint32_t i = 0; i < cfg->num_hidden_layers; i++)
        if (cfg->layer[i].mix == mix && !named[i]) {
            snprintf(want, sizeof want, "layer %u in it, which layer_types calls \"%s\"", i, word);
            return cread_refuse(c, -EINVAL, key, list, "%s", want);
        }
    return 0;
}

int cread_layers(const struct cread *text, const struct cread *linear, struct model_config *cfg) {
    int r = read_mix(text, cfg);

    if (r == 0)
        r = cread_mlp_types(text, cfg);
    if (r == 0)
        r = cread_indexer_types(text, cfg);
    if (r == 0)
        r = check_members(linear, "kda_layers", MODEL_MIX_KDA, "linear_attention", cfg);
    if (r == 0)
        r = check_members(linear, "full_attn_layers", MODEL_MIX_DSA, "deepseek_sparse_attention", cfg);
    return r;
}
