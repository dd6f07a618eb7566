/* SPDX-License-Identifier: MIT */
/* Prints the configuration table: as the default file, as the merged result with origins, and as the list of
 * keys in glmd.conf(5). Starting thread only. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "conf.h"
#include "conf_table.h"

void conf_format(const void *at, const struct conf_row *row, char *ret, size_t cap) {
    uint64_t v = 0;
    uint32_t v32 = 0;

    switch (row->type) {
    case CONF_T_STRING:
    case CONF_T_PATH:
        snprintf(ret, cap, "%s", (const char *)at);
        return;
    case CONF_T_BYTES:
        memcpy(&v, at, sizeof v);
        if (v && v % (UINT64_C(1) << 30) == 0)
            snprintf(ret, cap, "%" PRIu64 "G", v >> 30);
        else if (v && v % (UINT64_C(1) << 20) == 0)
            snprintf(ret, cap, "%" PRIu64 "M", v >> 20);
        else if (v && v % (UINT64_C(1) << 10) == 0)
            snprintf(ret, cap, "%" PRIu64 "K", v >> 10);
        else
            snprintf(ret, cap, "%" PRIu64, v);
        return;
    case CONF_T_U64:
        memcpy(&v, at, sizeof v);
        snprintf(ret, cap, "%" PRIu64, v);
        return;
    case CONF_T_U32:
        memcpy(&v32, at, sizeof v32);
        snprintf(ret, cap, "%" PRIu32, v32);
        return;
    case CONF_T_WORD:
        memcpy(&v32, at, sizeof v32);
        ret[0] = 0;
        for (const struct conf_word *w = row->words; w->name; w++)
            if (w->value == v32)
                snprintf(ret, cap, "%s", w->name);
        return;
    }
}

/* Words of doc in lines of at most 76 columns, each behind prefix. */
static void print_wrapped(FILE *f, const char *prefix, const char *doc) {
    size_t col = 0;

    while (*doc) {
        size_t n = strcspn(doc, " ");

        if (col == 0) {
            col = strlen(prefix);
            fputs(prefix, f);
        } else if (col + 1 + n > 76) {
            fprintf(f, "\n%s", prefix);
            col = strlen(prefix);
        } else {
            fputc(' ', f);
            col++;
        }
        fwrite(doc, 1, n, f);
        col += n;
        doc += n;
        while (*doc == ' ')
            doc++;
    }
    fputc('\n', f);
}

void conf_print_default(FILE *f) {
    const char *section = "";

    fputs("# Configuration of glmd, see glmd.conf(5). Every key shows its default.\n"
          "# Changes belong in files of your own in /etc/glmd/glmd.conf.d/.\n",
          f);
    for (size_t i = 0; i < conf_n_rows; i++) {
        const struct conf_row *row = &conf_rows[i];

        if (strcmp(section, row->section) != 0) {
            section = row->section;
            fprintf(f, "\n[%s]\n", section);
        }
        print_wrapped(f, "# ", row->doc);
        fprintf(f, "#%s=%s\n", row->key, row->def);
    }
}

void conf_print_merged(const struct conf *c, FILE *f) {
    const char *section = "";
    char value[CONF_PATH_MAX], where[CONF_PATH_MAX + 16];

    for (size_t i = 0; i < conf_n_rows; i++) {
        const struct conf_row *row = &conf_rows[i];

        if (strcmp(section, row->section) != 0) {
            fprintf(f, "%s[%s]\n", *section ? "\n" : "", row->section);
            section = row->section;
        }
        fprintf(f, "# %s\n", conf_where(c, row->section, row->key, where, sizeof where));
        conf_format((const uint8_t *)c + row->off, row, value, sizeof value);
        fprintf(f, "%s=%s\n", row->key, value);
    }
    conf_rules_print(c, f);
}

static void print_range(FILE *f, const struct conf_row *row) {
    if (row->words) {
        fputs("One of", f);
        for (const struct conf_word *w = row->words; w->name; w++)
            fprintf(f, "%s\n.Cm %s", w == row->words ? "" : " ,", w->name);
        fputs(" .\n", f);
    } else if (row->type == CONF_T_U32 || row->type == CONF_T_U64) {
        fprintf(f, "From %" PRIu64 " to %" PRIu64 ".\n", row->min, row->max);
    } else if (row->type == CONF_T_BYTES) {
        fprintf(f, "From %" PRIu64 " to %" PRIu64 " bytes.\n", row->min, row->max);
    }
    if (row->reload)
        fputs("Taken over by a reload.\n", f);
}

/* mdoc wants every sentence to begin on a line of its own, and no line over 80 columns. */
static void print_sentences(FILE *f, const char *doc) {
    while (*doc) {
        const char *end = strstr(doc, ". ");
        char sentence[512];

        snprintf(sentence, sizeof sentence, "%.*s", (int)(end ? end - doc + 1 : (ptrdiff_t)strlen(doc)), doc);
        print_wrapped(f, "", sentence);
        doc += strlen(sentence);
        while (*doc == ' ')
            doc++;
    }
}

void conf_print_mdoc(FILE *f) {
    const char *section = "";

    for (size_t i = 0; i < conf_n_rows; i++) {
        const struct conf_row *row = &conf_rows[i];

        if (strcmp(section, row->section) != 0) {
            if (*section)
                fputs(".El\n", f);
            section = row->section;
            fprintf(f, ".Ss [%s] section\n.Bl -tag -width Ds\n", section);
        }
        fprintf(f, ".It Ic %s Ns =%s%s\n", row->key, *row->def ? " Ns Ar " : "", row->def);
        print_sentences(f, row->doc);
        print_range(f, row);
    }
    fputs(".El\n", f);
}
