/* SPDX-License-Identifier: MIT */
/* Reads tokenizer.json into struct tok. Runs once at start; every value is checked against what the
 * encoder does, and the first one it would not reproduce exactly is refused with file, key, found and
 * expected. */
#include "tokpriv.h"

#include "split.h"
#include "tokread.h"
#include "utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ADDED  4096
#define MAX_MERGES (1u << 23)
/* Looking for all cuts takes time that grows with the square of an entry's length; real ones are shorter. */
#define MAX_CHECKED_BYTES 512
/* Every stream has room for the text of the longest one. */
#define MAX_ENTRY_BYTES 4096

static int decode_symbols(const struct tokread *l, const char *s, size_t n, uint8_t *ret, size_t *ret_n) {
    size_t w = 0;

    for (size_t at = 0; at < n;) {
        uint32_t cp;
        int len = utf8_next((const uint8_t *)s + at, n - at, &cp);

        if (len <= 0 || cp >= TOKREAD_ALPHABET || l->byte_of[cp] < 0)
            return -EINVAL;
        ret[w++] = (uint8_t)l->byte_of[cp];
        at += (size_t)len;
    }
    *ret_n = w;
    return 0;
}

static int vocab_size(struct tokread *l, json_t *vocab, uint32_t *ret_size, size_t *ret_bytes) {
    const char *key;
    json_t *v;

    *ret_size = 0;
    *ret_bytes = 0;
    json_object_foreach(vocab, key, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOK_MAX_IDS)
            return tokread_bad(l, "model.vocab", tokread_show(l, key), v, "an id from 0 to 2097151");
        if (json_integer_value(v) >= *ret_size)
            *ret_size = (uint32_t)json_integer_value(v) + 1;
        *ret_bytes += strlen(key);
    }
    return 0;
}

static int too_long(struct tokread *l, const char *where, uint32_t id, size_t n) {
    return xerr_set(l->err, -EINVAL, "%s: %s: token %u: found a text of %zu bytes; expected at most %d",
                    l->path, where, id, n, MAX_ENTRY_BYTES);
}

static int load_vocab(struct tokread *l, json_t *vocab) {
    struct tok *t = l->t;
    const char *key;
    json_t *v;

    json_object_foreach(vocab, key, v) {
        uint32_t id = (uint32_t)json_integer_value(v);
        struct tok_entry *e = &t->entries[id];
        size_t n;

        if (e->used)
            return xerr_set(l->err, -EINVAL,
                            "%s: model.vocab: id %u is given twice, the second time to \"%s\"; "
                            "every id must name one token",
                            l->path, id, tokread_show(l, key));
        if (!key[0] || decode_symbols(l, key, strlen(key), t->blob + l->blob_bytes, &n) < 0)
            return xerr_set(l->err, -EINVAL,
                            "%s: model.vocab: entry \"%s\" (id %u) is not written in the byte-level "
                            "alphabet",
                            l->path, tokread_show(l, key), id);
        if (n > MAX_ENTRY_BYTES)
            return too_long(l, "model.vocab", id, n);
        *e = (struct tok_entry){.off = (uint32_t)l->blob_bytes, .len = (uint32_t)n, .used = true};
        l->blob_bytes += n;
        t->count++;
        if (n > t->max_bytes)
            t->max_bytes = n;
    }
    return 0;
}

static int hash_vocab(struct tokread *l) {
    struct tok *t = l->t;
    uint32_t slots = 1024;

    while (slots < t->count * 2)
        slots *= 2;
    t->vocab = malloc(slots * sizeof *t->vocab);
    if (!t->vocab)
        return tokread_nomem(l);
    memset(t->vocab, 0xff, slots * sizeof *t->vocab);
    t->vocab_mask = slots - 1;
    for (uint32_t id = 0; id < t->size; id++) {
        const struct tok_entry *e = &t->entries[id];
        uint32_t i;

        if (!e->used)
            continue;
        i = tok_hash_bytes(t->blob + e->off, e->len) & t->vocab_mask;
        while (t->vocab[i] != TOK_NONE)
            i = (i + 1) & t->vocab_mask;
        t->vocab[i] = id;
    }
    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;

        t->byte_id[b] = tok_vocab_find(t, &byte, 1);
        if (t->byte_id[b] == TOK_NONE)
            return xerr_set(l->err, -EINVAL,
                            "%s: model.vocab: no token for the single byte 0x%02x; expected all 256 "
                            "of them",
                            l->path, b);
    }
    return 0;
}

/* The two operands of a merge: ["a", "b"], or "a b" as older files write it. The alphabet has no space. */
static bool merge_operands(json_t *m, const char *ret_s[2], size_t ret_n[2]) {
    const char *space;

    if (json_is_string(m)) {
        ret_s[0] = json_string_value(m);
        space = strchr(ret_s[0], ' ');
        if (!space)
            return false;
        ret_n[0] = (size_t)(space - ret_s[0]);
        ret_s[1] = space + 1;
        ret_n[1] = strlen(space + 1);
        return ret_n[0] > 0 && ret_n[1] > 0;
    }
    if (!json_is_array(m) || json_array_size(m) != 2)
        return false;
    for (size_t i = 0; i < 2; i++) {
        json_t *s = json_array_get(m, i);

        if (!json_is_string(s) || json_string_length(s) == 0)
            return false;
        ret_s[i] = json_string_value(s);
        ret_n[i] = json_string_length(s);
    }
    return true;
}

static int load_merge(struct tokread *l, json_t *m, uint32_t rank) {
    struct tok *t = l->t;
    const char *s[2];
    size_t n[2], bytes = 0;
    uint32_t id[2], whole, i;

    if (!merge_operands(m, s, n))
        return xerr_set(l->err, -EINVAL,
                        "%s: model.merges[%u]: found %s; expected a pair of tokens, as [\"a\", \"b\"] "
                        "or \"a b\"",
                        l->path, rank, tokread_kind(m));
    for (unsigned k = 0; k < 2; k++) {
        size_t w;

        if (n[k] > t->max_bytes * 2 || decode_symbols(l, s[k], n[k], l->word + bytes, &w) < 0 ||
            (id[k] = tok_vocab_find(t, l->word + bytes, w)) == TOK_NONE)
            return xerr_set(l->err, -EINVAL,
                            "%s: model.merges[%u]: operand \"%s\" is not in model.vocab; the file is "
                            "damaged or cut",
                            l->path, rank, tokread_show(l, s[k]));
        bytes += w;
    }
    whole = tok_vocab_find(t, l->word, bytes);
    if (whole == TOK_NONE)
        return xerr_set(l->err, -EINVAL,
                        "%s: model.merges[%u]: the result of joining \"%s\" and its partner is not in "
                        "model.vocab; the file is damaged or cut",
                        l->path, rank, tokread_show(l, s[0]));
    i = tok_hash_pair(id[0], id[1]) & t->pairs_mask;
    while (t->pairs[i].left != TOK_NONE) {
        if (t->pairs[i].left == id[0] && t->pairs[i].right == id[1])
            return xerr_set(l->err, -EINVAL,
                            "%s: model.merges[%u]: the same pair is already merge %u; expected every "
                            "pair once",
                            l->path, rank, t->pairs[i].rank);
        i = (i + 1) & t->pairs_mask;
    }
    t->pairs[i] = (struct tok_pair){id[0], id[1], rank, whole};
    t->entries[whole].made = true;
    return 0;
}

/* Ways to cut an entry into two that are entries too, and one of them that is no merge (*ret_cut, 0: none).
 */
static uint32_t count_cuts(const struct tok *t, const struct tok_entry *e, uint32_t *ret_cut) {
    const uint8_t *s = t->blob + e->off;
    uint32_t n = 0;

    *ret_cut = 0;
    for (uint32_t cut = 1; cut < e->len; cut++) {
        uint32_t left = tok_vocab_find(t, s, cut), right;

        if (left == TOK_NONE || (right = tok_vocab_find(t, s + cut, e->len - cut)) == TOK_NONE)
            continue;
        n++;
        if (!tok_pair_find(t, left, right))
            *ret_cut = cut;
    }
    return n;
}

static int missing_merge(struct tokread *l, uint32_t id, uint32_t cut) {
    const struct tok_entry *e = &l->t->entries[id];
    char text[2][64];

    for (unsigned k = 0; k < 2; k++) {
        size_t n = k == 0 ? cut : e->len - cut;

        n = n < sizeof text[k] - 1 ? n : sizeof text[k] - 1;
        memcpy(text[k], l->t->blob + e->off + (k == 0 ? 0 : cut), n);
        text[k][n] = 0;
        snprintf(text[k], sizeof text[k], "%.40s", tokread_show(l, text[k]));
    }
    return xerr_set(l->err, -EINVAL,
                    "%s: model.merges: found no merge of the bytes \"%s\" and \"%s\", which make token %u; "
                    "expected it; the file is damaged or cut",
                    l->path, text[0], text[1], id);
}

/* A merge that is missing changes how some texts are split, and nothing else shows it. Two kinds of lists are
 * complete: one merge for every entry of several bytes, or one for each way to make an entry out of two
 * others. A list that has nearly all of the second kind has lost the rest. */
static int check_merges(struct tokread *l, size_t n_merges) {
    const struct tok *t = l->t;
    uint32_t cut, lost_id = 0, lost_cut = 0;
    size_t n_cuts = 0, n_made = 0;

    for (uint32_t id = 0; id < t->size; id++) {
        const struct tok_entry *e = &t->entries[id];

        if (!e->used || e->len < 2)
            continue;
        n_made += e->made;
        if (e->len > MAX_CHECKED_BYTES)
            continue;
        n_cuts += count_cuts(t, e, &cut);
        if (!e->made && (cut || !t->ignore_merges))
            return missing_merge(l, id, cut ? cut : e->len - 1);
        if (cut && !lost_cut) {
            lost_id = id;
            lost_cut = cut;
        }
    }
    if (lost_cut && n_merges > n_made && n_cuts - n_merges < n_cuts / 100)
        return missing_merge(l, lost_id, lost_cut);
    return 0;
}

static int load_merges(struct tokread *l, json_t *merges) {
    struct tok *t = l->t;
    size_t n = json_array_size(merges), slots = 1024, i;
    json_t *m;

    if (n > MAX_MERGES)
        return xerr_set(l->err, -EINVAL, "%s: model.merges: found %zu entries; expected at most %u", l->path,
                        n, MAX_MERGES);
    while (slots < n * 2)
        slots *= 2;
    t->pairs = malloc(slots * sizeof *t->pairs);
    l->word = malloc(t->max_bytes * 4 + 8); /* two operands of at most max_bytes * 2 characters each */
    if (!t->pairs || !l->word)
        return tokread_nomem(l);
    memset(t->pairs, 0xff, slots * sizeof *t->pairs);
    t->pairs_mask = (uint32_t)slots - 1;
    json_array_foreach(merges, i, m) {
        int r = load_merge(l, m, (uint32_t)i);

        if (r < 0)
            return r;
    }
    return check_merges(l, n);
}

static int load_added_token(struct tokread *l, json_t *a, size_t i) {
    static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
    struct tok *t = l->t;
    json_t *id_v = json_object_get(a, "id"), *text = json_object_get(a, "content");
    json_t *special = json_object_get(a, "special");
    struct tok_entry *e;
    uint32_t id;
    size_t n;
    int r;

    if (!json_is_integer(id_v) || json_integer_value(id_v) < 0 || json_integer_value(id_v) >= TOK_MAX_IDS)
        return tokread_bad_at(l, "added_tokens", i, "id", id_v, "an id from 0 to 2097151");
    if (!json_is_string(text) || json_string_length(text) == 0)
        return tokread_bad_at(l, "added_tokens", i, "content", text, "a text");
    if (!json_is_boolean(special))
        return tokread_bad_at(l, "added_tokens", i, "special", special, "true or false");
    for (size_t k = 0; k < sizeof off / sizeof off[0]; k++) {
        if (!json_is_false(json_object_get(a, off[k])))
            return tokread_bad_at(l, "added_tokens", i, off[k], json_object_get(a, off[k]), "false");
    }
    r = tokread_only(l, a, "added_tokens",
                     (const char *const[]){"id", "content", "special", "single_word", "lstrip", "rstrip",
                                           "normalized", NULL});
    if (r < 0)
        return r;
    id = (uint32_t)json_integer_value(id_v);
    n = json_string_length(text);
    e = &t->entries[id];
    if (e->used)
        return xerr_set(l->err, -EINVAL, "%s: added_tokens[%zu].id: %u is already the id of another token",
                        l->path, i, id);
    if (n > MAX_ENTRY_BYTES)
        return too_long(l, "added_tokens", id, n);
    *e = (struct tok_entry){.off = (uint32_t)l->blob_bytes, .len = (uint32_t)n, .used = true};
    e->flags = (uint8_t)(TOK_ADDED | (json_is_true(special) ? TOK_SPECIAL : 0));
    memcpy(t->blob + l->blob_bytes, json_string_value(text), n);
    l->blob_bytes += n;
    t->count++;
    if (n > t->max_bytes)
        t->max_bytes = n;
    t->added[t->n_added++] = id;
    return 0;
}

static int by_first_then_longest(const void *pa, const void *pb, void *arg) {
    const struct tok *t = arg;
    const struct tok_entry *a = &t->entries[*(const uint32_t *)pa], *b = &t->entries[*(const uint32_t *)pb];
    size_t n = a->len < b->len ? a->len : b->len;
    int r;

    if (t->blob[a->off] != t->blob[b->off])
        return t->blob[a->off] < t->blob[b->off] ? -1 : 1;
    if (a->len != b->len)
        return a->len > b->len ? -1 : 1;
    r = memcmp(t->blob + a->off, t->blob + b->off, n);
    return r;
}

static int index_added(struct tokread *l) {
    struct tok *t = l->t;
    uint32_t at = 0;

    qsort_r(t->added, t->n_added, sizeof *t->added, by_first_then_longest, t);
    for (unsigned b = 0; b < 256; b++) {
        t->added_start[b] = at;
        while (at < t->n_added && t->blob[t->entries[t->added[at]].off] == b)
            at++;
    }
    t->added_start[256] = at;
    for (uint32_t i = 1; i < t->n_added; i++) {
        if (by_first_then_longest(&t->added[i - 1], &t->added[i], t) == 0)
            return xerr_set(l->err, -EINVAL,
                            "%s: added_tokens: ids %u and %u have the same content; expected every "
                            "content once",
                            l->path, t->added[i - 1], t->added[i]);
    }
    return 0;
}

static int load_tables(struct tokread *l) {
    json_t *model = json_object_get(l->root, "model"), *added = json_object_get(l->root, "added_tokens"), *a;
    json_t *vocab = json_object_get(model, "vocab");
    struct tok *t = l->t;
    size_t bytes = 0, i;
    int r = vocab_size(l, vocab, &t->size, &bytes);

    if (r < 0)
        return r;
    if (json_array_size(added) > MAX_ADDED)
        return xerr_set(l->err, -EINVAL, "%s: added_tokens: found %zu entries; expected at most %d", l->path,
                        json_array_size(added), MAX_ADDED);
    json_array_foreach(added, i, a) {
        json_int_t id = json_integer_value(json_object_get(a, "id"));

        if (id >= 0 && id < TOK_MAX_IDS && id >= t->size)
            t->size = (uint32_t)id + 1;
        bytes += json_string_length(json_object_get(a, "content"));
    }
    t->blob = malloc(bytes + 1);
    t->entries = calloc((size_t)t->size + 1, sizeof *t->entries);
    t->added = calloc(json_array_size(added) + 1, sizeof *t->added);
    if (!t->blob || !t->entries || !t->added)
        return tokread_nomem(l);
    if ((r = load_vocab(l, vocab)) < 0 || (r = hash_vocab(l)) < 0 ||
        (r = load_merges(l, json_object_get(model, "merges"))) < 0)
        return r;
    json_array_foreach(added, i, a) {
        r = load_added_token(l, a, i);
        if (r < 0)
            return r;
    }
    return index_added(l);
}

struct tok *tok_free(struct tok *t) {
    if (t) {
        free(t->blob);
        free(t->entries);
        free(t->vocab);
        free(t->pairs);
        free(t->added);
    }
    free(t);
    return NULL;
}

int tok_open(const char *dir, struct tok **ret, struct xerr *err) {
    struct tokread l = {.err = err};
    int r = tokread_open(&l, dir);

    if (r == 0) {
        l.t = calloc(1, sizeof *l.t);
        r = l.t ? tokread_check(&l) : tokread_nomem(&l);
    }
    if (r == 0) {
        l.t->ignore_merges = json_is_true(json_object_get(json_object_get(l.root, "model"), "ignore_merges"));
        r = load_tables(&l);
    }
    if (r == 0)
        *ret = l.t;
    else
        tok_free(l.t);
    tokread_close(&l);
    return r;
}
