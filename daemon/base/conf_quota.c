/* SPDX-License-Identifier: MIT */
/* Sections [Quota uid:NAME] and [Quota gid:NAME]: read, checked, printed, and asked for what holds for a user.
 * Names are looked up once, when the file is read. Starting thread, and the io thread on SIGHUP. */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "conf.h"
#include "conf_table.h"

static const char user_prefix[] = "Quota uid:", group_prefix[] = "Quota gid:";

bool conf_rule_names(const char *section) {
    return strncmp(section, user_prefix, sizeof user_prefix - 1) == 0 ||
           strncmp(section, group_prefix, sizeof group_prefix - 1) == 0;
}

/* Rows of [Quota] stand together in the table. */
static const struct conf_row *quota_row(size_t i) {
    for (const struct conf_row *row = conf_rows; row < conf_rows + conf_n_rows; row++)
        if (strcmp(row->section, "Quota") == 0 && i-- == 0)
            return row;
    return NULL;
}

static void *value_in(struct conf_quota *q, const struct conf_row *row) {
    return (uint8_t *)q + (row->off - offsetof(struct conf, quota));
}

static uint64_t read_value(const struct conf_quota *q, const struct conf_row *row) {
    const uint8_t *at = (const uint8_t *)q + (row->off - offsetof(struct conf, quota));
    uint64_t v = 0;
    uint32_t v32;

    if (row->size == sizeof v) {
        memcpy(&v, at, sizeof v);
        return v;
    }
    memcpy(&v32, at, sizeof v32);
    return v32;
}

/* The entry of a group holds the names of all its members, so its size has no bound worth trusting. */
static int look_up(bool is_group, const char *name, uint32_t *ret) {
    char *buf = NULL, *grown;
    uint32_t id = 0;
    bool found = false;
    int r = ERANGE;

    for (size_t n = 4096; r == ERANGE && n <= (16u << 20); n *= 4) {
        struct passwd pw, *p = NULL;
        struct group gr, *g = NULL;

        grown = realloc(buf, n);
        if (!grown) {
            r = ENOMEM;
            break;
        }
        buf = grown;
        r = is_group ? getgrnam_r(name, &gr, buf, n, &g) : getpwnam_r(name, &pw, buf, n, &p);
        if (r == 0 && (g || p)) {
            id = g ? gr.gr_gid : pw.pw_uid;
            found = true;
        }
    }
    free(buf);
    /* "not there" comes as several errors, depending on where names are looked up */
    if (r == ENOENT || r == ESRCH || r == EBADF || r == EPERM || (r == 0 && !found))
        return -ENOENT;
    if (r == 0)
        *ret = id;
    return -r;
}

/* Digits are a number, everything else is a name. */
static int find_id(bool is_group, const char *name, uint32_t *ret) {
    uint64_t v = 0;

    if (!*name)
        return -ENOENT;
    if (strspn(name, "0123456789") != strlen(name))
        return look_up(is_group, name, ret);
    if (strlen(name) > 10)
        return -ERANGE;
    for (const char *s = name; *s; s++)
        v = v * 10 + (uint64_t)(*s - '0');
    if (v >= UINT32_MAX) /* the last one means "no id" to the kernel */
        return -ERANGE;
    *ret = (uint32_t)v;
    return 0;
}

int conf_rule_open(struct conf *c, const char *section, const char *where, struct conf_rule **ret,
                   struct xerr *err) {
    bool is_group = strncmp(section, group_prefix, sizeof group_prefix - 1) == 0;
    const char *name = section + sizeof user_prefix - 1, *what = is_group ? "group" : "user";
    struct conf_rule *grown;
    uint32_t id = 0;
    int r;

    if (strlen(name) >= sizeof grown->name)
        return xerr_set(err, -ENAMETOOLONG, "%s: [%.60s…]: the name of the %s is too long", where, section,
                        what);
    r = find_id(is_group, name, &id);
    if (r == -ENOENT)
        return xerr_set(err, -EINVAL, "%s: [%s]: there is no such %s; give its name or its number", where,
                        section, what);
    if (r == -ERANGE)
        return xerr_set(err, -EINVAL, "%s: [%s]: no %s has that number", where, section, what);
    if (r < 0)
        return xerr_set(err, r, "%s: [%s]: the %s cannot be looked up: %s", where, section, what,
                        strerror(-r));
    for (uint32_t i = 0; i < c->n_rules; i++)
        if (c->rules[i].is_group == is_group && c->rules[i].id == id) {
            *ret = &c->rules[i];
            return 0;
        }
    if (c->n_rules == CONF_MAX_RULES)
        return xerr_set(err, -E2BIG, "%s: more than %d sections of users and groups; give groups a section "
                        "instead of users", where, CONF_MAX_RULES);
    grown = realloc(c->rules, (c->n_rules + 1) * sizeof *grown);
    if (!grown)
        return xerr_set(err, -ENOMEM, "%s: no memory", where);
    c->rules = grown;
    grown += c->n_rules++;
    *grown = (struct conf_rule){.is_group = is_group, .id = id};
    memcpy(grown->name, name, strlen(name) + 1);
    *ret = grown;
    return 0;
}

int conf_rule_set(struct conf_rule *rule, const char *key, const char *value, const char *path, uint32_t line,
                  struct xerr *err) {
    const char *kind = rule->is_group ? "gid" : "uid";
    char where[CONF_PATH_MAX + 16];
    const struct conf_row *row;
    size_t i = 0;
    int r = 0;

    while ((row = quota_row(i)) && strcmp(row->key, key) != 0)
        i++;
    if (!row) {
        const struct conf_row *near = conf_similar("Quota", key);
        bool here = near && strcmp(near->section, "Quota") == 0;

        if (near)
            return xerr_set(err, -EINVAL, "%s:%u: unknown key %.60s in [Quota %s:%s]; is %s%s%s%s meant? See "
                            "glmd.conf(5)", path, line, key, kind, rule->name, here ? "" : "[",
                            here ? "" : near->section, here ? "" : "] ", near->key);
        return xerr_set(err, -EINVAL, "%s:%u: unknown key %.60s in [Quota %s:%s]; see glmd.conf(5)", path, line,
                        key, kind, rule->name);
    }
    if (rule->origin[i] == path)
        return xerr_set(err, -EINVAL, "%s:%u: [Quota %s:%s] %s was set in line %u already", path, line, kind,
                        rule->name, key, rule->line[i]);
    snprintf(where, sizeof where, "%s:%u", path, line);
    if (*value) /* nothing: what would hold without this section */
        r = conf_store(value_in(&rule->quota, row), row, value, where, err);
    if (r < 0)
        return r;
    rule->set[i] = *value != 0;
    rule->origin[i] = path;
    rule->line[i] = line;
    return 0;
}

int conf_rules_check(const struct conf *c, struct xerr *err) {
    for (uint32_t i = 0; i < c->n_rules; i++) {
        const struct conf_rule *r = &c->rules[i];

        if ((uint64_t)r->quota.requests_per_connection * 8 > c->tq_records)
            return xerr_set(err, -EINVAL,
                            "[IPC] TokenRingRecords=%u is too small for [Quota %s:%s] "
                            "MaxRequestsPerConnection=%u: at least 8 records a request are needed",
                            c->tq_records, r->is_group ? "gid" : "uid", r->name,
                            r->quota.requests_per_connection);
    }
    return 0;
}

static const struct conf_rule *find_rule(const struct conf *c, bool is_group, uint32_t id) {
    for (uint32_t i = 0; i < c->n_rules; i++)
        if (c->rules[i].is_group == is_group && c->rules[i].id == id)
            return &c->rules[i];
    return NULL;
}

static int differences(const struct conf_rule *a, const struct conf_rule *b) {
    const struct conf_row *row;
    int n = 0;

    for (size_t i = 0; (row = quota_row(i)); i++)
        n += (a && a->set[i]) != (b && b->set[i]) ||
             (a && b && a->set[i] && read_value(&a->quota, row) != read_value(&b->quota, row));
    return n;
}

int conf_rules_reload(struct conf *c, struct conf *from) {
    struct conf_rule *old = c->rules;
    uint32_t n_old = c->n_rules;
    int n = 0;

    for (uint32_t i = 0; i < from->n_rules; i++)
        n += differences(find_rule(c, from->rules[i].is_group, from->rules[i].id), &from->rules[i]);
    for (uint32_t i = 0; i < c->n_rules; i++)
        if (!find_rule(from, c->rules[i].is_group, c->rules[i].id))
            n += differences(&c->rules[i], NULL);
    c->rules = from->rules;
    c->n_rules = from->n_rules;
    from->rules = old;
    from->n_rules = n_old;
    for (uint32_t i = 0; i < c->n_rules; i++) /* the names belong to `from` */
        memset(c->rules[i].origin, 0, sizeof c->rules[i].origin);
    return n;
}

void conf_rules_print(const struct conf *c, FILE *f) {
    char value[32];

    for (uint32_t k = 0; k < c->n_rules; k++) {
        struct conf_rule *r = &c->rules[k];
        const struct conf_row *row;

        fprintf(f, "\n[Quota %s:%s]\n", r->is_group ? "gid" : "uid", r->name);
        for (size_t i = 0; (row = quota_row(i)); i++) {
            if (!r->set[i])
                continue;
            conf_format(value_in(&r->quota, row), row, value, sizeof value);
            fprintf(f, "# %s:%u\n%s=%s\n", r->origin[i] ? r->origin[i] : "reload", r->line[i], row->key, value);
        }
    }
}

static bool is_larger(const struct conf_row *row, uint64_t a, uint64_t b) {
    if (row->zero_is_none && (a == 0 || b == 0))
        return a == 0 && b != 0;
    return a > b;
}

static void copy_value(struct conf_quota *to, const struct conf_rule *from, const struct conf_row *row) {
    memcpy(value_in(to, row), (const uint8_t *)&from->quota + (row->off - offsetof(struct conf, quota)),
           row->size);
}

static bool is_member(uint32_t gid, const uint32_t *gids, size_t n_gids) {
    for (size_t i = 0; i < n_gids; i++)
        if (gids[i] == gid)
            return true;
    return false;
}

void conf_quota_for(const struct conf *c, uint32_t uid, const uint32_t *gids, size_t n_gids,
                    struct conf_quota *ret) {
    const struct conf_rule *user = find_rule(c, false, uid);
    bool by_group[CONF_MAX_QUOTA_KEYS] = {false};
    const struct conf_row *row;

    *ret = c->quota;
    for (uint32_t k = 0; k < c->n_rules; k++) {
        const struct conf_rule *r = &c->rules[k];

        if (!r->is_group || !is_member(r->id, gids, n_gids))
            continue;
        for (size_t i = 0; (row = quota_row(i)); i++)
            if (r->set[i] &&
                (!by_group[i] || is_larger(row, read_value(&r->quota, row), read_value(ret, row)))) {
                copy_value(ret, r, row);
                by_group[i] = true;
            }
    }
    for (size_t i = 0; user && (row = quota_row(i)); i++)
        if (user->set[i] && !(FAULT(quota_group_wins) && by_group[i]))
            copy_value(ret, user, row);
}
