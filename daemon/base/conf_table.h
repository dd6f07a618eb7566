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
    const struct conf_word *words; /* ends with a NULL name */
    const char *doc;               /* plain sentences */
};

extern const struct conf_row conf_rows[];
extern const size_t conf_n_rows;

/* Formats a row's current value. */
void conf_format(const struct conf *c, const struct conf_row *row, char *ret, size_t cap);

#endif
