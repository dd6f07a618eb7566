/* SPDX-License-Identifier: MIT */
/* glm-pack: a BF16 checkpoint into any format the daemon reads, in the form other programs read, too. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack.h"

static const char usage[] =
    "usage: glm-pack IN_DIR OUT_DIR --format FORMAT [options]\n"
    "       glm-pack --check DIR [--json]\n"
    "       glm-pack --compare DIR OTHER_DIR --text FILE [--backend ref|cpu|cuda] [--json]\n"
    "\n"
    "Writes the BF16 checkpoint IN_DIR into OUT_DIR in another weight format.\n"
    "\n"
    "  --format FORMAT     of the routed experts and, from eight bits on, of attention, shared experts and "
    "dense layers:\n"
    "                      %s\n"
    "  --part PATTERN=F    another format, or bf16, for a part (experts, shared, dense, mla, kda, lm_head, "
    "embed, kv_b,\n"
    "                      indexer, gates, draft) or for all modules whose names fit a glob; the last that "
    "fits\n"
    "                      decides; may be given 32 times\n"
    "  --numbers           write the numbers the formats stand for as F32, not the formats: what they lose,\n"
    "                      whatever reads them\n"
    "  --text FILE         afterwards compare the answers of both on this text\n"
    "  --backend ref|cpu|cuda  what computes them (default cpu)\n"
    "  --json              one JSON document instead of lines\n"
    "  --check DIR         read a checkpoint in any format as the daemon does, and compare it with what was "
    "written\n"
    "  --compare           compare the answers of two checkpoints, in whatever format, on the text\n"
    "  --help, --version\n"
    "\n"
    "Nothing is overwritten. After an interruption the same command goes on where it was.\n"
    "Exit status: 0 done, or good; 1 not good; 2 it could not be done.\n";

static int misuse(const char *what, const char *value) {
    fprintf(stderr, "glm-pack: %s%s%s%s; see glm-pack --help\n", what, value ? " \"" : "", value ? value : "",
            value ? "\"" : "");
    return PACK_TROUBLE;
}

enum { OPT_FORMAT = 1, OPT_PART, OPT_TEXT, OPT_BACKEND, OPT_JSON, OPT_CHECK, OPT_NUMBERS,
       OPT_COMPARE, OPT_HELP, OPT_VERSION };

static const struct option longs[] = {
    { "format", required_argument, NULL, OPT_FORMAT },
    { "part", required_argument, NULL, OPT_PART },
    { "text", required_argument, NULL, OPT_TEXT },
    { "backend", required_argument, NULL, OPT_BACKEND },
    { "json", no_argument, NULL, OPT_JSON },
    { "check", required_argument, NULL, OPT_CHECK },
    { "numbers", no_argument, NULL, OPT_NUMBERS },
    { "compare", no_argument, NULL, OPT_COMPARE },
    { "help", no_argument, NULL, OPT_HELP },
    { "version", no_argument, NULL, OPT_VERSION },
    { NULL, 0, NULL, 0 },
};

struct command {
    struct pack_options o;
    const char *check;
    bool compare;
    int done; /* -1: go on, else the exit status */
};

static int add_rule(struct pack_options *o, char *arg) {
    char *eq = strrchr(arg, '=');
    const struct pack_format *f = eq ? pack_format_find(eq + 1) : NULL;

    if (!eq || eq == arg)
        return misuse("--part: expected PATTERN=FORMAT, found", arg);
    if (!f)
        return misuse("--part: found an unknown format,", eq + 1);
    if (o->n_rules == PACK_MAX_PARTS)
        return misuse("--part: more than 32 of them", NULL);
    *eq = 0;
    o->rule[o->n_rules++] = (struct pack_rule){ .pattern = arg, .f = f };
    return PACK_OK;
}

static int set_option(struct command *c, int opt) {
    switch (opt) {
    case OPT_FORMAT:
        c->o.format = pack_format_find(optarg);
        return c->o.format ? PACK_OK : misuse("--format: found an unknown format,", optarg);
    case OPT_PART:
        return add_rule(&c->o, optarg);
    case OPT_TEXT:
        c->o.text = optarg;
        return PACK_OK;
    case OPT_BACKEND:
        c->o.backend = optarg;
        if (strcmp(optarg, "ref") != 0 && strcmp(optarg, "cpu") != 0 && strcmp(optarg, "cuda") != 0)
            return misuse("--backend: expected ref, cpu or cuda, found", optarg);
        return PACK_OK;
    case OPT_JSON:
        c->o.json = true;
        return PACK_OK;
    case OPT_CHECK:
        c->check = optarg;
        return PACK_OK;
    case OPT_NUMBERS:
        c->o.numbers = true;
        return PACK_OK;
    case OPT_COMPARE:
        c->compare = true;
        return PACK_OK;
    case 'h':
    case OPT_HELP:
        printf(usage, pack_format_words());
        c->done = PACK_OK;
        return PACK_OK;
    case OPT_VERSION:
        printf("glm-pack %s\n", GLMD_VERSION);
        c->done = PACK_OK;
        return PACK_OK;
    default:
        fprintf(stderr, "see glm-pack --help\n");
        return PACK_TROUBLE;
    }
}

static int wrong_together(const struct command *c, int names) {
    bool packs = c->o.format || c->o.n_rules || c->o.numbers;

    if (c->check && (names || packs || c->o.text || c->compare))
        return misuse("--check stands alone, but for --json", NULL);
    if (c->compare && packs)
        return misuse("--compare writes nothing: only --text, --backend and --json go with it", NULL);
    if (c->compare && (names != 2 || !c->o.text))
        return misuse("--compare: expected two directories and --text FILE", NULL);
    if (!c->check && names != 2)
        return misuse("expected two directories, the source and a new one", NULL);
    if (!c->check && !c->compare && !c->o.format)
        return misuse("no --format", NULL);
    return PACK_OK;
}

/* "" would be taken for the root directory. */
static int without_name(const struct command *c) {
    return (c->o.in && !*c->o.in) || (c->o.out && !*c->o.out) ? misuse("a directory without a name", "") : PACK_OK;
}

int main(int argc, char **argv) {
    struct command c = { .o = { .backend = "cpu" }, .done = -1 };
    int opt, r;

    while ((opt = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        r = set_option(&c, opt);
        if (r != PACK_OK || c.done >= 0)
            return r != PACK_OK ? r : c.done;
    }
    r = wrong_together(&c, argc - optind);
    if (r != PACK_OK)
        return r;
    c.o.in = c.check ? c.check : argv[optind];
    c.o.out = c.check ? NULL : argv[optind + 1];
    if ((r = without_name(&c)) != PACK_OK)
        return r;
    r = c.check ? pack_check(c.check, c.o.json) : c.compare ? pack_compare_run(&c.o) : pack_run(&c.o);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "glm-pack: cannot write the results: %s\n", strerror(errno));
        return PACK_TROUBLE;
    }
    return r;
}
