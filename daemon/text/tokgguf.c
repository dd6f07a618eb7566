/* SPDX-License-Identifier: MIT */
/* tokenizer.ggml.* -> tokenizer.json. Normal tokens are the vocabulary, control and user-defined ones the
 * added tokens, unused ones are holes. Runs once at start; never logs. */
#include "tokgguf.h"

#include "gguf.h"
#include "show.h"
#include "split.h"
#include "tokenizer.h"
#include "utf8.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NORMAL = 1, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

static int read_at(void *ctx, uint64_t at, void *buf, uint64_t n) {
    uint64_t done = 0;

    while (done < n) {
        ssize_t got = pread(*(int *)ctx, (char *)buf + done, (size_t)(n - done), (off_t)(at + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
        done += (uint64_t)got;
    }
    return 0;
}

/* The first GGUF file by name: of a model in parts the one with the metadata. mmproj… is a vision tower's. */
static int first_file(const char *dir, char **ret, struct xerr *err) {
    char *best = NULL;
    struct dirent *de;
    DIR *d = opendir(dir);
    int r = 0;

    if (!d)
        return 0; /* said by whoever reads the directory for good */
    while ((de = readdir(d))) {
        size_t n = strlen(de->d_name);

        if (n <= 5 || strcmp(de->d_name + n - 5, ".gguf") != 0 || de->d_name[0] == '.' ||
            strncmp(de->d_name, "mmproj", 6) == 0 || (best && strcmp(best, de->d_name) <= 0))
            continue;
        free(best);
        best = strdup(de->d_name);
        if (!best) {
            r = -ENOMEM;
            break;
        }
    }
    closedir(d);
    if (best && asprintf(ret, "%s/%s", dir, best) < 0)
        r = -ENOMEM;
    r = r < 0 ? xerr_set(err, r, "%s: no memory", dir) : best != NULL;
    free(best);
    return r;
}

static int open_gguf(const char *path, struct gguf **ret, struct xerr *err) {
    struct show s;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), r;

    show_path(&s, path);
    if (fd < 0)
        return xerr_set(err, -errno, "%s: cannot be opened: %s", s.s, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        r = xerr_set(err, -EINVAL, "%s: found something that is no regular file, expected one", s.s);
    else
        r = gguf_read(read_at, &fd, (uint64_t)st.st_size, s.s, ret, err);
    close(fd);
    return r;
}

static int want_word(const struct gguf *g, const char *path, const char *key, const char *word,
                     struct xerr *err) {
    const char *s = NULL;
    struct show p, f;
    size_t n = 0;

    if (gguf_string(gguf_find(g, key), &s, &n) && n == strlen(word) && memcmp(s, word, n) == 0)
        return 0;
    return xerr_set(err, -EINVAL, "%s: %s: found %s, expected \"%s\"", show_path(&p, path), key,
                    s ? show_name(&f, s, n) : "nothing", word);
}

static int bad_token(const char *path, uint64_t id, const char *found, const char *expected,
                     struct xerr *err) {
    struct show p;

    return xerr_set(err, -EINVAL, "%s: tokenizer.ggml.tokens[%llu]: found %s, expected %s",
                    show_path(&p, path), (unsigned long long)id, found, expected);
}

static json_t *added(uint64_t id, const char *s, size_t n, bool special) {
    return json_pack("{s:I,s:s%,s:b,s:b,s:b,s:b,s:b}", "id", (json_int_t)id, "content", s, n, "special",
                     special, "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0);
}

static int tokens(const struct gguf *g, const char *path, json_t *vocab, json_t *list, struct xerr *err) {
    const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.tokens"),
                            *types = gguf_find(g, "tokenizer.ggml.token_type");
    uint64_t at = 0, type;
    struct show p;
    const char *s;
    size_t n;

    if (!v || !v->is_array || v->type != GGUF_STRING || v->n > TOK_MAX_IDS)
        return xerr_set(err, -EINVAL,
                        "%s: tokenizer.ggml.tokens: found no list of at most %u texts, expected one",
                        show_path(&p, path), TOK_MAX_IDS);
    if (!types || !types->is_array || types->n != v->n)
        return xerr_set(err, -EINVAL,
                        "%s: tokenizer.ggml.token_type: found %s, expected a number for each of %llu tokens",
                        show_path(&p, path), types ? "another length" : "nothing", (unsigned long long)v->n);
    for (uint64_t id = 0; gguf_next_string(v, &at, &s, &n); id++) {
        char *key;
        int r;

        if (!gguf_uint(types, id, &type) ||
            (type != NORMAL && type != CONTROL && type != USER && type != UNUSED && type != BYTE))
            return bad_token(path, id, "another type",
                             "1 (normal), 3 (control), 4 (user-defined), 5 (unused) or 6 (byte)", err);
        if (type == UNUSED)
            continue;
        if (n == 0 || memchr(s, 0, n) || !utf8_is_valid(s, n))
            return bad_token(path, id, "other bytes", "text in UTF-8 without zeros", err);
        if (type == CONTROL || type == USER) {
            if (json_array_append_new(list, added(id, s, n, type == CONTROL)) < 0)
                return xerr_set(err, -ENOMEM, "%s: no memory for its tokens", path);
            continue;
        }
        key = malloc(n + 1);
        if (key) {
            memcpy(key, s, n);
            key[n] = 0;
        }
        r = !key                          ? -ENOMEM
            : json_object_get(vocab, key) ? -EEXIST
                                          : json_object_set_new(vocab, key, json_integer((json_int_t)id));
        free(key);
        if (r == -EEXIST)
            return bad_token(path, id, "a text that another token has", "each once", err);
        if (r < 0)
            return xerr_set(err, -ENOMEM, "%s: no memory for its tokens", path);
    }
    return 0;
}

static int merges(const struct gguf *g, const char *path, json_t *list, struct xerr *err) {
    const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.merges");
    uint64_t at = 0;
    struct show p;
    const char *s;
    size_t n;

    if (!v || !v->is_array || v->type != GGUF_STRING)
        return xerr_set(err, -EINVAL, "%s: tokenizer.ggml.merges: found no list of texts, expected one",
                        show_path(&p, path));
    for (uint64_t i = 0; gguf_next_string(v, &at, &s, &n); i++) {
        if (memchr(s, 0, n) || !utf8_is_valid(s, n))
            return xerr_set(err, -EINVAL,
                            "%s: tokenizer.ggml.merges[%llu]: found other bytes, expected text in UTF-8",
                            show_path(&p, path), (unsigned long long)i);
        if (json_array_append_new(list, json_stringn_nocheck(s, n)) < 0)
            return xerr_set(err, -ENOMEM, "%s: no memory for its merges", path);
    }
    return 0;
}

static int translate(const struct gguf *g, const char *path, json_t **ret, struct xerr *err) {
    json_t *vocab = json_object(), *list = json_array(), *pairs = json_array(), *root;
    int r = want_word(g, path, "tokenizer.ggml.model", "gpt2", err);

    /* the name of a pattern; that it is ours is all it says */
    if (r == 0)
        r = want_word(g, path, "tokenizer.ggml.pre", "glm4", err);
    if (r == 0)
        r = tokens(g, path, vocab, list, err);
    if (r == 0)
        r = merges(g, path, pairs, err);
    if (r < 0) {
        json_decref(vocab);
        json_decref(list);
        json_decref(pairs);
        return r;
    }
    root = json_pack(
        "{s:s,s:o,s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]},s:{s:s},s:{s:s,s:b,s:b,s:b,s:o,s:o}}",
        "version", "1.0", "added_tokens", list, "pre_tokenizer", "type", "Sequence", "pretokenizers", "type",
        "Split", "pattern", "Regex", split_pattern, "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
        "add_prefix_space", 0, "use_regex", 0, "decoder", "type", "ByteLevel", "model", "type", "BPE",
        "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", pairs);
    if (!root)
        return xerr_set(err, -ENOMEM, "%s: no memory for its tokenizer", path);
    *ret = root;
    return 0;
}

int tokgguf_read(const char *dir, json_t **ret_root, char **ret_path, struct xerr *err) {
    struct gguf *g = NULL;
    char *path = NULL;
    int r = first_file(dir, &path, err);

    if (r <= 0)
        return r;
    r = open_gguf(path, &g, err);
    if (r == 0)
        r = translate(g, path, ret_root, err);
    gguf_free(g);
    if (r < 0) {
        free(path);
        return r;
    }
    *ret_path = path;
    return 1;
}

int tokgguf_template(const char *dir, char **ret, size_t *ret_n, struct xerr *err) {
    struct gguf *g = NULL;
    char *path = NULL;
    const char *s;
    size_t n;
    int r = first_file(dir, &path, err);

    if (r <= 0)
        return r;
    r = open_gguf(path, &g, err);
    if (r == 0 && gguf_string(gguf_find(g, "tokenizer.chat_template"), &s, &n)) {
        *ret = malloc(n ? n : 1);
        if (*ret) {
            memcpy(*ret, s, n);
            *ret_n = n;
            r = 1;
        } else {
            r = xerr_set(err, -ENOMEM, "%s: no memory for its chat template", path);
        }
    }
    gguf_free(g);
    free(path);
    return r;
}
