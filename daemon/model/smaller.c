/* SPDX-License-Identifier: MIT */
/* Which matrices are made smaller while they are loaded, from the words of [Model] Convert. Starting thread; changes
 * descriptions alone, no weight is read here. */
#include "smaller.h"

#include <errno.h>
#include <string.h>

#include "show.h"

static const struct {
    const char *word;
    enum kern_part part[4];
} GROUP[] = {
    {"shared", {KERN_SH_GATE, KERN_SH_UP, KERN_SH_DOWN}},
    {"dense", {KERN_MLP_GATE, KERN_MLP_UP, KERN_MLP_DOWN}},
    /* not q_a and kv_a, which feed everything behind them */
    {"mla", {KERN_MLA_QB, KERN_MLA_O}},
    {"kda_in", {KERN_KDA_Q, KERN_KDA_K, KERN_KDA_V}},
    {"kda_o", {KERN_KDA_O}},
    {"lm_head", {KERN_HEAD}},
};

/* What people may ask for and must not get. */
static const char *const KEPT[] = {"experts", "embed",     "kv_b",   "q_a", "kv_a", "indexer",
                                   "router",  "kda_gates", "hc",     "mhc", "norms", "vision"};

static const struct {
    const char *word;
    struct kern_store store;
} FORMAT[] = {
    {"int8", {.format = KERN_INT8, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128}},
    {"int4", {.format = KERN_INT4, .scale = KERN_SCALE_BF16, .block_rows = 1, .block_cols = 128}},
    {"mxfp8", {.format = KERN_MXFP8, .scale = KERN_SCALE_E8M0, .block_rows = 1, .block_cols = 32}},
};

#define N(a) (sizeof(a) / sizeof((a)[0]))

static bool is_word(const char *word, const char *text, size_t n) {
    return strlen(word) == n && memcmp(word, text, n) == 0;
}

static int find_group(const char *text, size_t n, size_t *ret, struct xerr *e) {
    struct show s;

    for (size_t i = 0; i < N(GROUP); i++)
        if (is_word(GROUP[i].word, text, n)) {
            *ret = i;
            return 0;
        }
    for (size_t i = 0; i < N(KEPT); i++)
        if (is_word(KEPT[i], text, n))
            return xerr_set(e, -EINVAL,
                            "[Model] Convert: found %s, which stays as the checkpoint has it; expected words of: %s",
                            KEPT[i], MODEL_SMALLER_GROUPS);
    return xerr_set(e, -EINVAL, "[Model] Convert: found \"%s\", expected words of: %s", show_name(&s, text, n),
                    MODEL_SMALLER_GROUPS);
}

static int find_format(const char *text, size_t n, const struct kern_store **ret, struct xerr *e) {
    struct show s;

    for (size_t i = 0; i < N(FORMAT); i++)
        if (is_word(FORMAT[i].word, text, n)) {
            *ret = &FORMAT[i].store;
            return 0;
        }
    return xerr_set(e, -EINVAL, "[Model] Convert: found format \"%s\", expected one of: %s", show_name(&s, text, n),
                    MODEL_SMALLER_FORMATS);
}

static bool in_group(size_t group, uint32_t part) {
    for (size_t i = 0; i < N(GROUP[group].part); i++)
        if (part && GROUP[group].part[i] == part)
            return true;
    return false;
}

static int convert_group(struct model_directory *d, size_t group, const struct kern_store *to, struct xerr *e) {
    char name[40];
    size_t n = 0;

    for (size_t i = 0; i < d->n_tensors; i++) {
        struct model_tensor *t = &d->tensor[i];
        uint64_t bytes;

        if (!in_group(group, t->id.part) || t->k.store.format != KERN_BF16)
            continue;
        if (kern_store_bytes(to, t->k.rows, t->k.cols, &bytes) < 0)
            return xerr_set(e, -EINVAL,
                            "[Model] Convert: found %s of layer %u, %llu x %llu, expected a shape that %s can hold",
                            kern_part_name(t->id.part), t->id.layer, (unsigned long long)t->k.rows,
                            (unsigned long long)t->k.cols, kern_store_name(to, name, sizeof name));
        d->resident = d->resident - t->bytes + bytes;
        t->bytes = bytes;
        t->k.store = *to;
        n++;
    }
    return n ? 0
             : xerr_set(e, -EINVAL, "[Model] Convert: found no matrix of %s in BF16 in this checkpoint, expected one",
                        GROUP[group].word);
}

/* d == NULL: the words alone. *ret_four: one of them makes four bits. */
static int each_word(struct model_directory *d, const char *list, bool *ret_four, struct xerr *e) {
    const struct kern_store *to = NULL;
    uint32_t seen = 0;
    bool four = false;
    struct show s;

    for (const char *p = list ? list : ""; *p;) {
        size_t n = strcspn(p, ", "), word = strcspn(p, ":, "), group = 0;
        int r;

        if (n && word == n)
            return xerr_set(e, -EINVAL, "[Model] Convert: found \"%s\", expected GROUP:FORMAT, as in shared:int8",
                            show_name(&s, p, n));
        if (n && ((r = find_group(p, word, &group, e)) < 0 ||
                  (r = find_format(p + word + 1, n - word - 1, &to, e)) < 0))
            return r;
        if (n && seen & 1u << group)
            return xerr_set(e, -EINVAL, "[Model] Convert: found %s twice, expected it once", GROUP[group].word);
        if (n && d && (r = convert_group(d, group, to, e)) < 0)
            return r;
        seen |= n ? 1u << group : 0;
        four = four || (n && to->format == KERN_INT4);
        p += n;
        p += strspn(p, ", ");
    }
    *ret_four = four;
    return 0;
}

int model_smaller(struct model_directory *d, const char *list, struct xerr *e) {
    bool four;

    return each_word(d, list, &four, e);
}

int model_smaller_words(const char *list, bool four_bit, struct xerr *e) {
    bool four;
    int r = each_word(NULL, list, &four, e);

    if (r == 0 && four && !four_bit)
        r = xerr_set(e, -EPERM,
                     "[Model] Convert: found int4, expected int8 or mxfp8: answers end early when anything but routed "
                     "experts has four bits; [Model] AllowFourBitDense=yes takes it");
    return r;
}
