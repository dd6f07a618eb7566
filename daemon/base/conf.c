/* SPDX-License-Identifier: MIT */
/* Reads configuration files against the table in conf_table.c. Starting thread, and the io thread on SIGHUP.
 *
 * The line reader is our own and not libeconf's: measured with libeconf 0.5.1, of two equal keys the first
 * wins without a word, a line without "=" is accepted, and a value is cut at "#", so that a path would be
 * changed silently. Here each of these is refused or kept, with file and line. */
#include "conf.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "conf_table.h"
#include "size.h"
#include "textfile.h"

#define CONF_FILE_MAX    (1u << 20)
#define CONF_MAX_DROPINS 256

static const char *const search_dirs[] = {"/etc/glmd", "/run/glmd", "/usr/local/lib/glmd", "/usr/lib/glmd"};
#define N_SEARCH_DIRS (sizeof search_dirs / sizeof search_dirs[0])

static const struct conf_row *find_row(const char *section, const char *key) {
    for (size_t i = 0; i < conf_n_rows; i++)
        if (strcmp(conf_rows[i].section, section) == 0 && strcmp(conf_rows[i].key, key) == 0)
            return &conf_rows[i];
    return NULL;
}

/* One of this name elsewhere or written otherwise, else one of this section that begins so. */
const struct conf_row *conf_similar(const char *section, const char *key) {
    const struct conf_row *longer = NULL;

    for (size_t i = 0; i < conf_n_rows; i++) {
        const struct conf_row *r = &conf_rows[i];
        bool here = strcmp(r->section, section) == 0;

        if (strcasecmp(r->key, key) == 0 && !(longer && here))
            return r;
        if (here && !longer && *key && strncasecmp(r->key, key, strlen(key)) == 0)
            longer = r;
    }
    return longer;
}

static bool has_section(const char *section) {
    for (size_t i = 0; i < conf_n_rows; i++)
        if (strcmp(conf_rows[i].section, section) == 0)
            return true;
    return false;
}

/* Digits with an optional suffix K, M or G (1024 steps) when suffix is set; nothing else, no sign, no sum
 * that wraps. */
static int parse_number(const char *s, bool suffix, uint64_t *ret) {
    uint64_t v = 0;

    if (!isdigit((unsigned char)*s))
        return -EINVAL;
    for (; isdigit((unsigned char)*s); s++)
        if (!size_mul(v, 10, &v) || !size_add(v, (uint64_t)(*s - '0'), &v))
            return -ERANGE;
    if (suffix && *s) {
        static const char units[] = "KMG";
        const char *u = strchr(units, *s);

        if (!u || s[1])
            return -EINVAL;
        if (!size_mul(v, UINT64_C(1) << (10 * (u - units + 1)), &v))
            return -ERANGE;
        s++;
    }
    if (*s)
        return -EINVAL;
    *ret = v;
    return 0;
}

static void list_words(const struct conf_row *row, char *ret, size_t cap) {
    size_t n = 0;

    ret[0] = 0;
    for (const struct conf_word *w = row->words; w->name && n < cap; w++)
        n += (size_t)snprintf(ret + n, cap - n, "%s%s", w == row->words ? "" : ", ", w->name);
}

/* where: "file:line" or an option's name */
static int store_number(void *at, const struct conf_row *row, const char *value, const char *where,
                        struct xerr *err) {
    uint64_t v;

    if (parse_number(value, row->type == CONF_T_BYTES, &v) < 0)
        return xerr_set(err, -EINVAL, "%s: [%s] %s=%s is not a whole number%s from %llu to %llu", where, row->section,
                        row->key, value, row->type == CONF_T_BYTES ? " of bytes (suffixes: K, M, G)" : "",
                        (unsigned long long)row->min, (unsigned long long)row->max);
    if (v < row->min || v > row->max)
        return xerr_set(err, -ERANGE, "%s: [%s] %s=%s is out of range: expected %llu to %llu", where,
                        row->section, row->key, value, (unsigned long long)row->min,
                        (unsigned long long)row->max);
    if (row->pow2 && (v & (v - 1)))
        return xerr_set(err, -ERANGE, "%s: [%s] %s=%s is not a power of two", where, row->section, row->key,
                        value);
    if (row->size == sizeof v) {
        memcpy(at, &v, sizeof v);
    } else {
        uint32_t v32 = (uint32_t)v;

        memcpy(at, &v32, sizeof v32);
    }
    return 0;
}

int conf_store(void *at, const struct conf_row *row, const char *value, const char *where, struct xerr *err) {
    size_t n;
    char words[128];

    if (!*value)
        value = row->def;
    switch (row->type) {
    case CONF_T_PATH:
        if (*value != '/' && (*value || *row->def))
            return xerr_set(err, -EINVAL, "%s: [%s] %s=%s is not an absolute path", where, row->section,
                            row->key, value);
        /* fall through */
    case CONF_T_STRING:
        n = strlen(value);
        if (n >= row->size)
            return xerr_set(err, -ENAMETOOLONG, "%s: [%s] %s is %zu bytes long, at most %zu are possible",
                            where, row->section, row->key, n, row->size - 1);
        memcpy(at, value, n + 1);
        return 0;
    case CONF_T_WORD:
        for (const struct conf_word *w = row->words; w->name; w++)
            if (strcmp(w->name, value) == 0) {
                memcpy(at, &w->value, sizeof w->value);
                return 0;
            }
        list_words(row, words, sizeof words);
        return xerr_set(err, -EINVAL, "%s: [%s] %s=%s is not known: expected one of %s", where, row->section,
                        row->key, value, words);
    case CONF_T_U32:
    case CONF_T_U64:
    case CONF_T_BYTES:
        return store_number(at, row, value, where, err);
    }
    return -EINVAL;
}

static int store(struct conf *c, const struct conf_row *row, const char *value, const char *where,
                 struct xerr *err) {
    return conf_store((uint8_t *)c + row->off, row, value, where, err);
}

void conf_init(struct conf *c) {
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < conf_n_rows; i++)
        if (conf_rows[i].type != CONF_T_STRING || *conf_rows[i].def)
            store(c, &conf_rows[i], conf_rows[i].def, "default", NULL);
}

void conf_done(struct conf *c) {
    for (uint32_t i = 0; i < c->n_files; i++)
        free(c->files[i]);
    free(c->rules);
    memset(c, 0, sizeof *c);
}

static const char *keep_name(struct conf *c, const char *name) {
    for (uint32_t i = 0; i < c->n_files; i++)
        if (strcmp(c->files[i], name) == 0)
            return c->files[i];
    if (c->n_files == sizeof c->files / sizeof c->files[0])
        return NULL;
    c->files[c->n_files] = strdup(name);
    return c->files[c->n_files] ? c->files[c->n_files++] : NULL;
}

static void set_origin(struct conf *c, const struct conf_row *row, const char *name, uint32_t line) {
    c->origin[row - conf_rows] = name;
    c->origin_line[row - conf_rows] = line;
}

int conf_set(struct conf *c, const char *section, const char *key, const char *value, const char *origin,
             struct xerr *err) {
    const struct conf_row *row = find_row(section, key);
    int r;

    if (!row)
        return xerr_set(err, -EINVAL, "%s: there is no key %s in [%s]", origin, key, section);
    r = store(c, row, value, origin, err);
    if (r == 0)
        set_origin(c, row, keep_name(c, origin), 0);
    return r;
}

static char *trim(char *s) {
    char *e;

    while (isspace((unsigned char)*s))
        s++;
    e = s + strlen(s);
    while (e > s && isspace((unsigned char)e[-1]))
        e--;
    *e = 0;
    return s;
}

struct reader {
    struct conf *c;
    const char *path; /* as kept in conf.files */
    char section[96];
    struct conf_rule *rule; /* the section is one of a user or group; NULL: it is one of the table */
    uint32_t line;
    uint32_t seen[CONF_MAX_KEYS]; /* line of the key in this file, 0 = not yet */
    struct xerr *err;
};

static int read_section(struct reader *rd, char *s) {
    char where[CONF_PATH_MAX + 16];
    size_t n = strlen(s);

    if (s[n - 1] != ']')
        return xerr_set(rd->err, -EINVAL, "%s:%u: the section's name is not closed with a bracket", rd->path,
                        rd->line);
    s[n - 1] = 0;
    rd->rule = NULL;
    if (conf_rule_names(s + 1)) {
        snprintf(where, sizeof where, "%s:%u", rd->path, rd->line);
        snprintf(rd->section, sizeof rd->section, "%s", s + 1);
        return conf_rule_open(rd->c, s + 1, where, &rd->rule, rd->err);
    }
    if (!has_section(s + 1))
        return xerr_set(rd->err, -EINVAL, "%s:%u: unknown section [%.60s]; see glmd.conf(5)", rd->path,
                        rd->line, s + 1);
    snprintf(rd->section, sizeof rd->section, "%s", s + 1);
    return 0;
}

static int unknown_key(struct reader *rd, const char *key) {
    const struct conf_row *near = conf_similar(rd->section, key);

    if (!near)
        return xerr_set(rd->err, -EINVAL, "%s:%u: unknown key %.60s in [%s]; see glmd.conf(5)", rd->path,
                        rd->line, key, rd->section);
    return xerr_set(rd->err, -EINVAL, "%s:%u: unknown key %.60s in [%s]; is [%s] %s meant? See glmd.conf(5)",
                    rd->path, rd->line, key, rd->section, near->section, near->key);
}

static int read_key(struct reader *rd, char *s) {
    char *eq = strchr(s, '='), *key, *value, where[CONF_PATH_MAX + 16];
    const struct conf_row *row;
    int r;

    if (!eq)
        return xerr_set(rd->err, -EINVAL, "%s:%u: expected Key=Value, [Section] or a comment", rd->path,
                        rd->line);
    *eq = 0;
    key = trim(s);
    value = trim(eq + 1);
    if (!rd->section[0])
        return xerr_set(rd->err, -EINVAL, "%s:%u: key %.60s stands before the first section", rd->path,
                        rd->line, key);
    if (rd->rule)
        return conf_rule_set(rd->rule, key, value, rd->path, rd->line, rd->err);
    row = find_row(rd->section, key);
    if (!row)
        return unknown_key(rd, key);
    if (rd->seen[row - conf_rows])
        return xerr_set(rd->err, -EINVAL, "%s:%u: [%s] %s was set in line %u already", rd->path, rd->line,
                        rd->section, key, rd->seen[row - conf_rows]);
    rd->seen[row - conf_rows] = rd->line;
    snprintf(where, sizeof where, "%s:%u", rd->path, rd->line);
    r = store(rd->c, row, value, where, rd->err);
    if (r == 0)
        set_origin(rd->c, row, *value ? rd->path : NULL, rd->line);
    return r;
}

static int read_lines(struct reader *rd, char *text, size_t n) {
    char *end = text + n, *next;
    int r;

    for (char *s = text; s < end; s = next) {
        char *nl = memchr(s, '\n', (size_t)(end - s));

        next = nl ? nl + 1 : end;
        *(nl ? nl : end) = 0;
        rd->line++;
        s = trim(s);
        if (!*s || *s == '#' || *s == ';')
            continue;
        r = *s == '[' ? read_section(rd, s) : read_key(rd, s);
        if (r < 0)
            return r;
    }
    return 0;
}

int conf_read_file(struct conf *c, const char *path, struct xerr *err) {
    struct reader rd = {.c = c, .err = err};
    char *text;
    size_t n;
    FILE *f = NULL;
    int r = textfile_open(path, "", &f, err);

    if (r < 0)
        return r;
    text = malloc(CONF_FILE_MAX + 1);
    rd.path = keep_name(c, path);
    if (!text || !rd.path) {
        r = xerr_set(err, -ENOMEM, "%s: no memory, or more than %zu configuration files", path,
                     sizeof c->files / sizeof c->files[0]);
        goto out;
    }
    n = fread(text, 1, CONF_FILE_MAX + 1, f);
    if (ferror(f))
        r = xerr_set(err, -EIO, "%s: cannot be read: %s", path, strerror(errno));
    else if (n > CONF_FILE_MAX)
        r = xerr_set(err, -EFBIG, "%s: larger than 1 MiB, which no configuration is", path);
    else if (memchr(text, 0, n))
        r = xerr_set(err, -EINVAL, "%s: holds a NUL byte, so it is not a text file", path);
    else
        r = read_lines(&rd, text, n);
out:
    free(text);
    fclose(f);
    return r;
}

struct dropin {
    char path[CONF_PATH_MAX + 300];
    const char *name; /* in path */
};

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct dropin *)a)->name, ((const struct dropin *)b)->name);
}

static bool is_dropin_name(const char *name) {
    size_t n = strlen(name);

    return n > 5 && name[0] != '.' && strcmp(name + n - 5, ".conf") == 0;
}

/* Adds dir's *.conf whose names are not in the list yet. */
static int collect(struct dropin **list, size_t *n, const char *dir, struct xerr *err) {
    DIR *d = opendir(dir);
    struct dirent *e;
    int r = 0;

    if (!d)
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : xerr_set(err, -errno, "%s: cannot be listed: %s", dir, strerror(errno));
    while (r == 0 && (e = readdir(d))) {
        bool hidden = false;
        struct dropin *grown;

        if (!is_dropin_name(e->d_name))
            continue;
        for (size_t i = 0; i < *n; i++)
            hidden = hidden || strcmp(strrchr((*list)[i].path, '/') + 1, e->d_name) == 0;
        if (hidden)
            continue;
        if (*n == CONF_MAX_DROPINS) {
            r = xerr_set(err, -E2BIG, "%s: more than %d drop-in files", dir, CONF_MAX_DROPINS);
            break;
        }
        grown = realloc(*list, (*n + 1) * sizeof **list);
        if (!grown) {
            r = xerr_set(err, -ENOMEM, "%s: no memory", dir);
            break;
        }
        *list = grown;
        snprintf(grown[*n].path, sizeof grown[*n].path, "%s/%s", dir, e->d_name);
        ++*n;
    }
    closedir(d);
    return r;
}

static int read_dropins(struct conf *c, struct dropin *list, size_t n, struct xerr *err) {
    int r = 0;

    for (size_t i = 0; i < n; i++)
        list[i].name = strrchr(list[i].path, '/') + 1;
    if (n)
        qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < n && r == 0; i++)
        r = conf_read_file(c, list[i].path, err);
    return r;
}

int conf_load(struct conf *c, const char *file, struct xerr *err) {
    struct dropin *list = NULL;
    size_t n = 0;
    char path[CONF_PATH_MAX + 32];
    struct stat st;
    int r = 0;

    if (file) {
        if (strlen(file) >= CONF_PATH_MAX)
            return xerr_set(err, -ENAMETOOLONG, "the name of the configuration file is too long");
        r = conf_read_file(c, file, err);
        snprintf(path, sizeof path, "%s.d", file);
        if (r == 0)
            r = collect(&list, &n, path, err);
    } else {
        for (size_t i = 0; i < N_SEARCH_DIRS; i++) {
            snprintf(path, sizeof path, "%s/glmd.conf", search_dirs[i]);
            if (stat(path, &st) < 0)
                continue;
            r = conf_read_file(c, path, err);
            break;
        }
        for (size_t i = 0; i < N_SEARCH_DIRS && r == 0; i++) {
            snprintf(path, sizeof path, "%s/glmd.conf.d", search_dirs[i]);
            r = collect(&list, &n, path, err);
        }
    }
    if (r == 0)
        r = read_dropins(c, list, n, err);
    free(list);
    return r;
}

const char *conf_where(const struct conf *c, const char *section, const char *key, char *ret, size_t cap) {
    const struct conf_row *row = find_row(section, key);
    const char *origin = row ? c->origin[row - conf_rows] : NULL;
    uint32_t line = row ? c->origin_line[row - conf_rows] : 0;

    if (origin && line)
        snprintf(ret, cap, "%s:%u", origin, line);
    else
        snprintf(ret, cap, "%s", origin ? origin : "default");
    return ret;
}

int conf_check(const struct conf *c, struct xerr *err) {
    if (c->prefill_tokens % 64)
        return xerr_set(err, -EINVAL, "[Engine] PrefillTokens=%u is not a multiple of 64", c->prefill_tokens);
    if (c->max_sequences > c->max_requests)
        return xerr_set(err, -EINVAL, "[Memory] MaxSequences=%u is larger than MaxRequests=%u",
                        c->max_sequences, c->max_requests);
    /* every live request keeps slots back for its last words; half the ring must remain for tokens */
    if ((uint64_t)c->quota.requests_per_connection * 8 > c->tq_records)
        return xerr_set(
            err, -EINVAL,
            "[IPC] TokenRingRecords=%u is too small for [Quota] MaxRequestsPerConnection=%u: at least "
            "8 records a request are needed",
            c->tq_records, c->quota.requests_per_connection);
    return conf_rules_check(c, err);
}

int conf_reload(struct conf *c, struct conf *from, char *ret_restart, size_t cap) {
    size_t used = 0;
    int changed = conf_rules_reload(c, from);

    ret_restart[0] = 0;
    for (size_t i = 0; i < conf_n_rows; i++) {
        const struct conf_row *row = &conf_rows[i];
        uint8_t *at = (uint8_t *)c + row->off;
        const uint8_t *new_at = (const uint8_t *)from + row->off;

        if (memcmp(at, new_at, row->size) == 0)
            continue;
        if (row->reload) {
            memcpy(at, new_at, row->size);
            changed++;
        } else if (used < cap) {
            used += (size_t)snprintf(ret_restart + used, cap - used, "%s%s", used ? ", " : "", row->key);
        }
    }
    return changed;
}
