/* SPDX-License-Identifier: MIT */
/* evalread.c: cases out of a golden file. Types and shapes are checked against each other: a golden file that
 * is cut short must not pass for a short case. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evalgold.h"

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

int gold_list(const struct st_file *f, char (**ret_names)[GOLD_MAX_NAME], uint32_t *ret_n, struct xerr *e) {
    char (*names)[GOLD_MAX_NAME] = calloc(st_count(f) + 1, sizeof *names);
    uint32_t n = 0;

    if (!names)
        return xerr_set(e, -ENOMEM, "%s: no memory for the list of cases", st_path(f));
    for (size_t i = 0; i < st_count(f); i++) {
        const char *name = st_at(f, i)->name;
        size_t len = strlen(name);

        if (len < 5 || strcmp(name + len - 4, ".ids") != 0)
            continue;
        for (size_t j = 0; j < len; j++)
            if (name[j] <= ' ' || name[j] > '~') {
                free(names);
                return xerr_set(e, -EINVAL, "%s: found a case name with a byte 0x%02x, expected printable ASCII",
                                st_path(f), (unsigned)(unsigned char)name[j]);
            }
        if (len - 4 >= GOLD_MAX_NAME) {
            free(names);
            return xerr_set(e, -EINVAL, "%s: found a case name of %zu bytes, expected under %d", st_path(f),
                            len - 4, GOLD_MAX_NAME);
        }
        memcpy(names[n], name, len - 4);
        names[n++][len - 4] = 0;
    }
    if (!n) {
        free(names);
        return xerr_set(e, -ENODATA, "%s: found no case, expected tensors named NAME.ids", st_path(f));
    }
    qsort(names, n, sizeof *names, by_name);
    *ret_names = names;
    *ret_n = n;
    return 0;
}

static const struct st_tensor *find(const struct st_file *f, const char *name, const char *key) {
    char full[GOLD_MAX_NAME + 40];

    snprintf(full, sizeof full, "%s.%s", name, key);
    return st_find(f, full);
}

/* A tensor of 4-byte numbers, whole. Missing: *ret stays NULL and 0 is returned unless it is required. */
static int take(const struct st_file *f, const char *name, const char *key, enum st_dtype dtype, bool required,
                void *ret, uint64_t *ret_n, struct xerr *e) {
    const struct st_tensor *t = find(f, name, key);
    void *mem;
    int r;

    *ret_n = 0;
    if (!t)
        return required ? xerr_set(e, -ENODATA, "%s: found no %s.%s, expected one in every case", st_path(f), name,
                                   key)
                        : 0;
    if (t->dtype != dtype)
        return xerr_set(e, -EINVAL, "%s: %s: found %s, expected %s", st_path(f), t->name,
                        st_dtype_name(t->dtype), st_dtype_name(dtype));
    mem = malloc(t->bytes ? t->bytes : 1);
    if (!mem)
        return xerr_set(e, -ENOMEM, "%s: %s: no memory for %llu bytes", st_path(f), t->name,
                        (unsigned long long)t->bytes);
    r = st_read(f, t, 0, mem, t->bytes, e);
    if (r < 0) {
        free(mem);
        return r;
    }
    memcpy(ret, &mem, sizeof mem);
    *ret_n = t->bytes / 4;
    return 0;
}

/* Ids a checkpoint can have; anything else could only agree with an answer that is none. */
static int want_ids(const struct st_file *f, const char *name, const char *key, const uint32_t *ids, uint64_t n,
                    uint64_t vocab, struct xerr *e) {
    for (uint64_t i = 0; ids && i < n; i++)
        if (ids[i] >= vocab)
            return xerr_set(e, -EINVAL, "%s: %s.%s: found %d at %llu, expected 0 to %llu", st_path(f), name, key,
                            (int)ids[i], (unsigned long long)i, (unsigned long long)vocab - 1);
    return 0;
}

static int want(const struct st_file *f, const char *name, const char *key, const void *p, uint64_t n,
                uint64_t expected, struct xerr *e) {
    if (!p || n == expected)
        return 0;
    return xerr_set(e, -EINVAL, "%s: %s.%s: found %llu numbers, expected %llu", st_path(f), name, key,
                    (unsigned long long)n, (unsigned long long)expected);
}

static int read_hidden(const struct st_file *f, struct gold *g, struct xerr *e) {
    for (uint32_t i = 0; i <= KERN_MAX_LAYERS; i++) {
        char key[32];
        int r;

        snprintf(key, sizeof key, "hidden.%u", i);
        r = take(f, g->name, key, ST_F32, false, &g->hidden[i], &g->hidden_floats[i], e);
        if (r < 0)
            return r;
        if (!g->hidden[i])
            break;
        g->n_hidden = i + 1;
    }
    return 0;
}

/* A tensor of the case under a name nobody reads would be a value nobody compares. */
static int no_others(const struct st_file *f, const struct gold *g, struct xerr *e) {
    static const char *const keys[] = { "ids",    "logits_last", "top1",           "logsumexp", "next_logit",
                                        "greedy", "mtp_top1",    "mtp_logits_last" };
    size_t n = strlen(g->name);

    for (size_t i = 0; i < st_count(f); i++) {
        const char *name = st_at(f, i)->name, *key = name + n + 1;
        bool known = false;
        unsigned layer;
        char rest;

        if (strncmp(name, g->name, n) != 0 || name[n] != '.')
            continue;
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            known = known || strcmp(key, keys[k]) == 0;
        known = known || (sscanf(key, "hidden.%u%c", &layer, &rest) == 1 && layer < g->n_hidden);
        if (!known)
            return xerr_set(e, -EINVAL, "%s: found %s, which is no part of a case or follows a gap; expected only "
                                        "values that can be compared", st_path(f), name);
    }
    return 0;
}

static int read_mtp(const struct st_file *f, struct gold *g, struct xerr *e) {
    uint64_t n, v;
    int r;

    if ((r = take(f, g->name, "mtp_top1", ST_I32, false, &g->mtp_top1, &n, e)) < 0 ||
        (r = want(f, g->name, "mtp_top1", g->mtp_top1, n, g->n_ids - 1, e)) < 0 ||
        (r = want_ids(f, g->name, "mtp_top1", g->mtp_top1, n, g->vocab, e)) < 0 ||
        (r = take(f, g->name, "mtp_logits_last", ST_F32, false, &g->mtp_logits_last, &v, e)) < 0)
        return r;
    if (g->mtp_logits_last && g->n_ids < 2)
        return xerr_set(e, -EINVAL, "%s: found %s.mtp_logits_last, but one id leaves nothing to draft from",
                        st_path(f), g->name);
    return want(f, g->name, "mtp_logits_last", g->mtp_logits_last, v, g->vocab, e);
}

static int read_all(const struct st_file *f, struct gold *g, struct xerr *e) {
    uint64_t n, v, t, l, x, greedy;
    int r;

    if ((r = take(f, g->name, "ids", ST_I32, true, &g->ids, &n, e)) < 0)
        return r;
    if (!n || n > 1u << 24)
        return xerr_set(e, -EINVAL, "%s: %s.ids: found %llu ids, expected 1 to %u", st_path(f), g->name,
                        (unsigned long long)n, 1u << 24);
    g->n_ids = (uint32_t)n;
    if ((r = take(f, g->name, "logits_last", ST_F32, true, &g->logits_last, &v, e)) < 0 ||
        (r = take(f, g->name, "top1", ST_I32, true, &g->top1, &t, e)) < 0 ||
        (r = take(f, g->name, "logsumexp", ST_F32, true, &g->logsumexp, &l, e)) < 0 ||
        (r = take(f, g->name, "next_logit", ST_F32, n > 1, &g->next_logit, &x, e)) < 0 ||
        (r = take(f, g->name, "greedy", ST_I32, false, &g->greedy, &greedy, e)) < 0 ||
        (r = want(f, g->name, "top1", g->top1, t, n, e)) < 0 ||
        (r = want(f, g->name, "logsumexp", g->logsumexp, l, n, e)) < 0 ||
        (r = want(f, g->name, "next_logit", g->next_logit, x, n - 1, e)) < 0)
        return r;
    if (!v || v > 1u << 24 || greedy > 1u << 24)
        return xerr_set(e, -EINVAL, "%s: %s: found %llu logits and %llu greedy ids, expected 1 to %u and at most as "
                                    "many", st_path(f), g->name, (unsigned long long)v, (unsigned long long)greedy,
                        1u << 24);
    g->vocab = (uint32_t)v;
    g->n_greedy = (uint32_t)greedy;
    if ((r = want_ids(f, g->name, "top1", g->top1, t, v, e)) < 0 ||
        (r = want_ids(f, g->name, "greedy", g->greedy, greedy, v, e)) < 0 || (r = read_mtp(f, g, e)) < 0 ||
        (r = read_hidden(f, g, e)) < 0)
        return r;
    return no_others(f, g, e);
}

int gold_read(const struct st_file *f, const char *name, struct gold *ret, struct xerr *e) {
    int r;

    memset(ret, 0, sizeof *ret);
    snprintf(ret->name, sizeof ret->name, "%s", name);
    ret->picture = find(f, name, "grid") != NULL;
    if (ret->picture)
        return 0;
    r = read_all(f, ret, e);
    if (r < 0)
        gold_done(ret);
    return r;
}

void gold_done(struct gold *g) {
    free(g->ids);
    free(g->logits_last);
    free(g->top1);
    free(g->logsumexp);
    free(g->next_logit);
    free(g->mtp_top1);
    free(g->mtp_logits_last);
    free(g->greedy);
    for (uint32_t i = 0; i <= KERN_MAX_LAYERS; i++)
        free(g->hidden[i]);
    memset(g, 0, sizeof *g);
}
