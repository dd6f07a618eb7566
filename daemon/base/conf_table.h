/* SPDX-License-Identifier: MIT */
/* The rows of the configuration table; used by conf.c and conf_print.c only. */
#ifndef GLMD_CONF_TABLE_H
#define GLMD_CONF_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conf.h"

enum conf_type {
    CONF_T_STRING, /* char[size] */
    CONF_T_PATH,   /* char[size]; absolute */
    CONF_T_U32,
    CONF_T_U64,
    CONF_T_BYTES, /* uint64_t; suffixes K, M, G */
    CONF_T_WORD,  /* uint32_t; one of words */
};

struct conf_word {
    const char *name;
    uint32_t value;
};

struct conf_row {
    const char *section, *key;
    enum conf_type type;
    size_t off, size;
    const char *def;
    uint64_t min, max;
    bool pow2;                     /* only powers of two */
    bool reload;                   /* SIGHUP takes it over */
    bool zero_is_none;             /* 0 is no limit at all */
    const struct conf_word *words; /* ends with a NULL name */
    const char *doc;               /* plain sentences */
};

extern const struct conf_row conf_rows[];
extern const size_t conf_n_rows;

/* Formats the value of a row that lies at `at`. */
void conf_format(const void *at, const struct conf_row *row, char *ret, size_t cap);

/* conf.c: stores a value at `at`, which has the type of the row; where: "file:line" or an option's name. */
int conf_store(void *at, const struct conf_row *row, const char *value, const char *where, struct xerr *err);

/* conf.c: the key that was probably meant, NULL: none is similar */
const struct conf_row *conf_similar(const char *section, const char *key);

/* conf_quota.c: the sections of users and groups */
bool conf_rule_names(const char *section); /* it has the form of one */
/* The rule of "Quota uid:NAME", made when there is none yet. The pointer is good until the next call. */
int conf_rule_open(struct conf *c, const char *section, const char *where, struct conf_rule **ret,
                   struct xerr *err);
/* path is kept by reference. */
int conf_rule_set(struct conf_rule *r, const char *key, const char *value, const char *path, uint32_t line,
                  struct xerr *err);
int conf_rules_check(const struct conf *c, struct xerr *err);
int conf_rules_reload(struct conf *c, struct conf *from); /* how many values differ */
void conf_rules_print(const struct conf *c, FILE *f);

#endif
