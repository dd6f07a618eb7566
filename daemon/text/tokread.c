/* SPDX-License-Identifier: MIT */
/* Outer form of tokenizer.json. Runs once at start; every text of the file that reaches a message is made
 * printable first. */
#include "tokread.h"

#include "split.h"
#include "tokgguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE_BYTES ((off_t)256 << 20)

const char *tokread_kind(json_t *v) {
    static const char *const names[] = {"an object", "an array", "a string", "a whole number",
                                        "a number",  "true",     "false",    "null"};

    return v ? names[json_typeof(v)] : "nothing";
}

const char *tokread_show(struct tokread *l, const char *s) {
    size_t w = 0;

    for (; *s && w + 8 < sizeof l->shown; s++) {
        uint8_t c = (uint8_t)*s;

        if (c < 0x20 || c >= 0x7f)
            w += (size_t)snprintf(l->shown + w, sizeof l->shown - w, "\\x%02x", c);
        else
            l->shown[w++] = (char)c;
    }
    l->shown[w] = 0;
    if (*s)
        memcpy(l->shown + w, "...", 4);
    return l->shown;
}

int tokread_nomem(struct tokread *l) {
    return xerr_set(l->err, -ENOMEM, "%s: not enough memory to read it",
                    l->path ? l->path : "tokenizer.json");
}

/* The value itself when it is short, its kind otherwise. */
static const char *describe(struct tokread *l, json_t *v, char *buf, size_t n) {
    if (json_is_string(v))
        snprintf(buf, n, "\"%s\"", tokread_show(l, json_string_value(v)));
    else if (json_is_integer(v))
        snprintf(buf, n, "%lld", (long long)json_integer_value(v));
    else
        snprintf(buf, n, "%s", tokread_kind(v));
    return buf;
}

int tokread_bad(struct tokread *l, const char *where, const char *key, json_t *found, const char *expected) {
    char buf[80], name[80];

    snprintf(name, sizeof name, "%s", key); /* key may be l->shown, which describe() overwrites */
    return xerr_set(l->err, -EINVAL, "%s: %s%s%s: found %s; expected %s", l->path, where,
                    *where && *name ? "." : "", name, describe(l, found, buf, sizeof buf), expected);
}

int tokread_bad_at(struct tokread *l, const char *array, size_t i, const char *key, json_t *found,
                   const char *expected) {
    char where[64];

    snprintf(where, sizeof where, "%s[%zu]", array, i);
    return tokread_bad(l, where, key, found, expected);
}

int tokread_only(struct tokread *l, json_t *object, const char *where, const char *const *known) {
    const char *key;
    json_t *v;

    json_object_foreach(object, key, v) {
        size_t i = 0;

        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i])
            return xerr_set(l->err, -EINVAL,
                            "%s: %s%s%s: unknown setting, it could change what the tokenizer does; "
                            "expected only those of a GLM-5.3 tokenizer",
                            l->path, where, *where ? "." : "", tokread_show(l, key));
    }
    return 0;
}

static int want_null(struct tokread *l, json_t *o, const char *where, const char *key) {
    json_t *v = json_object_get(o, key);

    return !v || json_is_null(v) ? 0 : tokread_bad(l, where, key, v, "null");
}

static int want_false(struct tokread *l, json_t *o, const char *where, const char *key) {
    json_t *v = json_object_get(o, key);

    return json_is_false(v) ? 0 : tokread_bad(l, where, key, v, "false");
}

static int want_text(struct tokread *l, json_t *o, const char *where, const char *key, const char *text) {
    json_t *v = json_object_get(o, key);
    char expected[64];

    if (json_is_string(v) && strcmp(json_string_value(v), text) == 0)
        return 0;
    snprintf(expected, sizeof expected, "\"%s\"", text);
    return tokread_bad(l, where, key, v, expected);
}

/* null or "" */
static int want_no_text(struct tokread *l, json_t *o, const char *where, const char *key) {
    json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0))
        return 0;
    return tokread_bad(l, where, key, v, "null");
}

static int check_model(struct tokread *l) {
    json_t *m = json_object_get(l->root, "model"), *v;
    int r;

    if (!json_is_object(m))
        return tokread_bad(l, "", "model", m, "an object");
    r = tokread_only(l, m, "model",
                     (const char *const[]){"type", "dropout", "unk_token", "continuing_subword_prefix",
                                           "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                                           "vocab", "merges", NULL});
    if (r < 0 || (r = want_text(l, m, "model", "type", "BPE")) < 0 ||
        (r = want_null(l, m, "model", "dropout")) < 0 || (r = want_null(l, m, "model", "unk_token")) < 0 ||
        (r = want_no_text(l, m, "model", "continuing_subword_prefix")) < 0 ||
        (r = want_no_text(l, m, "model", "end_of_word_suffix")) < 0 ||
        (r = want_false(l, m, "model", "fuse_unk")) < 0 ||
        (r = want_false(l, m, "model", "byte_fallback")) < 0)
        return r;
    v = json_object_get(m, "ignore_merges"); /* files older than the setting do not have it: off */
    if (v && !json_is_boolean(v))
        return tokread_bad(l, "model", "ignore_merges", v, "true or false");
    v = json_object_get(m, "vocab");
    if (!json_is_object(v))
        return tokread_bad(l, "model", "vocab", v, "an object");
    v = json_object_get(m, "merges");
    return json_is_array(v) ? 0 : tokread_bad(l, "model", "merges", v, "an array");
}

static int check_split(struct tokread *l, json_t *s) {
    static const char where[] = "pre_tokenizer.pretokenizers[0]";
    json_t *pattern = json_object_get(s, "pattern"), *v;
    char shown[64];
    int r = want_text(l, s, where, "type", "Split");

    if (r < 0 || (r = want_text(l, s, where, "behavior", "Isolated")) < 0 ||
        (r = want_false(l, s, where, "invert")) < 0 ||
        (r = tokread_only(l, s, where,
                          (const char *const[]){"type", "pattern", "behavior", "invert", NULL})) < 0)
        return r;
    v = json_object_get(pattern, "Regex");
    if (!json_is_string(v))
        return tokread_bad(l, where, "pattern.Regex", v, "a regular expression");
    if (strcmp(json_string_value(v), split_pattern) == 0)
        return 0;
    snprintf(shown, sizeof shown, "%s", tokread_show(l, json_string_value(v)));
    return xerr_set(l->err, -EINVAL,
                    "%s: %s.pattern.Regex: found %s; expected %s; this tokenizer splits text in a way "
                    "that this program does not know",
                    l->path, where, shown, split_pattern);
}

static int check_pre_tokenizer(struct tokread *l) {
    static const char where[] = "pre_tokenizer.pretokenizers[1]";
    json_t *p = json_object_get(l->root, "pre_tokenizer"), *list, *b;
    int r;

    if (!json_is_object(p))
        return tokread_bad(l, "", "pre_tokenizer", p, "an object");
    if ((r = want_text(l, p, "pre_tokenizer", "type", "Sequence")) < 0 ||
        (r = tokread_only(l, p, "pre_tokenizer", (const char *const[]){"type", "pretokenizers", NULL})) < 0)
        return r;
    list = json_object_get(p, "pretokenizers");
    if (!json_is_array(list) || json_array_size(list) != 2)
        return xerr_set(l->err, -EINVAL,
                        "%s: pre_tokenizer.pretokenizers: found %s with %zu entries; expected an array of "
                        "two, Split and ByteLevel",
                        l->path, tokread_kind(list), json_array_size(list));
    r = check_split(l, json_array_get(list, 0));
    if (r < 0)
        return r;
    b = json_array_get(list, 1);
    if ((r = want_text(l, b, where, "type", "ByteLevel")) < 0 ||
        (r = want_false(l, b, where, "add_prefix_space")) < 0)
        return r;
    return want_false(l, b, where, "use_regex");
}

int tokread_check(struct tokread *l) {
    json_t *v;
    int r;

    if (!json_is_object(l->root))
        return tokread_bad(l, "", "the whole file", l->root, "an object");
    r = tokread_only(l, l->root, "",
                     (const char *const[]){"version", "truncation", "padding", "added_tokens", "normalizer",
                                           "pre_tokenizer", "post_processor", "decoder", "model", NULL});
    if (r < 0 || (r = want_text(l, l->root, "", "version", "1.0")) < 0 ||
        (r = want_null(l, l->root, "", "truncation")) < 0 || (r = want_null(l, l->root, "", "padding")) < 0 ||
        (r = want_null(l, l->root, "", "normalizer")) < 0)
        return r;
    v = json_object_get(l->root, "post_processor");
    if (v && !json_is_null(v) && (r = want_text(l, v, "post_processor", "type", "ByteLevel")) < 0)
        return r;
    r = want_text(l, json_object_get(l->root, "decoder"), "decoder", "type", "ByteLevel");
    if (r < 0)
        return r;
    v = json_object_get(l->root, "added_tokens");
    if (!json_is_array(v))
        return tokread_bad(l, "", "added_tokens", v, "an array");
    if ((r = check_model(l)) < 0)
        return r;
    return check_pre_tokenizer(l);
}

/* The byte-level alphabet: printable bytes stand for themselves, the other 68 take U+0100 and up in byte
 * order. */
static void init_alphabet(struct tokread *l) {
    int next = 0x100;

    for (unsigned i = 0; i < TOKREAD_ALPHABET; i++)
        l->byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;

        l->byte_of[itself ? b : next++] = (int16_t)b;
    }
}

int tokread_open(struct tokread *l, const char *dir) {
    json_error_t je;
    struct stat st;
    FILE *f;
    int fd, r;

    init_alphabet(l);
    if (asprintf(&l->path, "%s/tokenizer.json", dir) < 0) {
        l->path = NULL;
        return tokread_nomem(l);
    }
    /* O_NONBLOCK: a pipe put in the file's place must not hang the start. */
    fd = open(l->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) {
        char *path = NULL;

        r = tokgguf_read(dir, &l->root, &path, l->err);
        if (r > 0) {
            free(l->path);
            l->path = path;
        }
        if (r != 0)
            return r < 0 ? r : 0;
        errno = ENOENT;
    }
    f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f) {
        r = -errno;
        if (fd >= 0)
            close(fd);
        return xerr_set(l->err, r, "%s: cannot be opened: %s; a checkpoint directory needs this file",
                        l->path, strerror(-r));
    }
    if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_FILE_BYTES) {
        fclose(f);
        return xerr_set(l->err, -EINVAL, "%s: is not a regular file of at most 256 MiB", l->path);
    }
    l->root = json_loadf(f, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    fclose(f);
    if (!l->root)
        return xerr_set(l->err, -EINVAL, "%s: line %d: not valid JSON: %s", l->path, je.line,
                        tokread_show(l, je.text));
    return 0;
}

void tokread_close(struct tokread *l) {
    json_decref(l->root);
    free(l->word);
    free(l->path);
}
