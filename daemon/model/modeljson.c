/* SPDX-License-Identifier: MIT */
/* Strict reading of the JSON files of a checkpoint. Owns nothing beyond a call; runs at start-up on the
 * loading thread; never logs. Shard headers have a parser of their own (stheader.c), because they are large.
 */
#include "modeljson.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* jansson recurses per level, so depth is bounded before it sees the text. Brackets inside strings do not
 * count; whether the text is JSON at all is jansson's business. */
static bool too_deep(const char *text, size_t len) {
    int depth = 0;
    bool in_string = false;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > MODELJSON_MAX_DEPTH)
                return true;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return false;
}

static int read_all(int fd, char *buf, size_t len) {
    size_t done = 0;

    while (done < len) {
        ssize_t n = pread(fd, buf + done, len - done, (off_t)done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO;
        done += (size_t)n;
    }
    return 0;
}

static int read_file(const char *path, uint64_t max_bytes, char **ret, size_t *ret_len, struct xerr *e) {
    struct show p;
    struct stat st;
    char *buf = NULL;
    int fd, r;

    /* O_NONBLOCK: a FIFO put where a file belongs must not hang the start. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        r = -errno;
        return xerr_set(e, r, "%s: cannot open: %s; is this a complete checkpoint directory?",
                        show_path(&p, path), strerror(-r));
    }
    if (fstat(fd, &st) < 0) {
        r = -errno;
        xerr_set(e, r, "%s: cannot stat: %s", show_path(&p, path), strerror(-r));
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        r = xerr_set(e, -EINVAL, "%s: found something that is not a regular file, expected one",
                     show_path(&p, path));
        goto out;
    }
    if (st.st_size < 0 || (uint64_t)st.st_size > max_bytes) {
        r = xerr_set(e, -EFBIG, "%s: found %lld bytes, expected at most %llu", show_path(&p, path),
                     (long long)st.st_size, (unsigned long long)max_bytes);
        goto out;
    }
    buf = malloc((size_t)st.st_size + 1);
    if (!buf) {
        r = xerr_set(e, -ENOMEM, "%s: no memory for %lld bytes", show_path(&p, path), (long long)st.st_size);
        goto out;
    }
    r = read_all(fd, buf, (size_t)st.st_size);
    if (r < 0) {
        xerr_set(e, r, "%s: reading %lld bytes failed: %s", show_path(&p, path), (long long)st.st_size,
                 strerror(-r));
        goto out;
    }
    buf[st.st_size] = 0;
    *ret = buf;
    *ret_len = (size_t)st.st_size;
    buf = NULL;
out:
    free(buf);
    close(fd);
    return r;
}

int modeljson_load(const char *path, uint64_t max_bytes, json_t **ret, struct xerr *e) {
    struct show p, what;
    json_error_t je;
    char *text = NULL;
    size_t len = 0;
    json_t *root;
    int r;

    r = read_file(path, max_bytes, &text, &len, e);
    if (r < 0)
        return r;
    if (too_deep(text, len)) {
        free(text);
        return xerr_set(e, -EBADMSG, "%s: found nesting deeper than %d levels, expected at most that",
                        show_path(&p, path), MODELJSON_MAX_DEPTH);
    }
    root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    free(text);
    if (!root)
        return xerr_set(e, -EBADMSG, "%s: line %d: expected strict JSON, found: %s", show_path(&p, path),
                        je.line, show_str(&what, je.text));
    if (!json_is_object(root)) {
        json_decref(root);
        return xerr_set(e, -EBADMSG, "%s: found a JSON array, expected an object at the top",
                        show_path(&p, path));
    }
    *ret = root;
    return 0;
}

const char *modeljson_show(struct show *s, const json_t *v) {
    struct show t;
    size_t n;

    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        snprintf(s->s, sizeof s->s, "an object");
        break;
    case JSON_ARRAY:
        snprintf(s->s, sizeof s->s, "a list of %zu", json_array_size(v));
        break;
    case JSON_STRING:
        show_name(&t, json_string_value(v), json_string_length(v));
        s->s[0] = '"';
        n = strlen(t.s) < sizeof s->s - 3 ? strlen(t.s) : sizeof s->s - 3;
        while (n > 0 && ((unsigned char)t.s[n] & 0xc0) == 0x80)
            n--;
        memcpy(s->s + 1, t.s, n);
        memcpy(s->s + 1 + n, "\"", 2);
        break;
    case JSON_INTEGER:
        snprintf(s->s, sizeof s->s, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        snprintf(s->s, sizeof s->s, "%.17g", json_real_value(v));
        break;
    case JSON_TRUE:
        snprintf(s->s, sizeof s->s, "true");
        break;
    case JSON_FALSE:
        snprintf(s->s, sizeof s->s, "false");
        break;
    case JSON_NULL:
        snprintf(s->s, sizeof s->s, v ? "null" : "nothing");
        break;
    }
    return s->s;
}
