/* SPDX-License-Identifier: MIT */
/* glm-eval: how far this machine's answers are from recorded ones. It contains no forward pass: it opens the
 * daemon's engine and lets it work. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "eval.h"

static const char usage[] =
    "usage: glm-eval MODEL_DIR GOLDEN.safetensors [options]\n"
    "       glm-eval MODEL_DIR --tokens FILE.json | --chat FILE.json\n"
    "\n"
    "Runs recorded cases on a checkpoint and prints how far the results are apart.\n"
    "\n"
    "  --backend ref|cpu|cuda  what computes (default cpu)\n"
    "  --isa NAME          instruction set of the cpu backend: scalar, avx2, avx512, neon\n"
    "  --threads N         threads (default: all processors)\n"
    "  --ranks N           shares the model is cut into, each with its part of the threads (default: 1)\n"
    "  --cache FORMAT      how latents are stored: f32 (default), bf16, fp8\n"
    "  --case NAME         only this case\n"
    "  --tol X             largest relative error that passes (default 1e-4)\n"
    "  --chunk N           prompt rows computed at once, a multiple of 64 (default 512)\n"
    "  --json              one JSON document instead of lines\n"
    "  --tokens FILE       check the tokenizer on {text, ids} pairs, both ways\n"
    "  --chat FILE         check the chat format on {request, prompt} pairs\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 everything within tolerance, 1 something beyond it, 2 it could not be run or nothing was\n"
    "compared.\n";

static int misuse(const char *what, const char *value) {
    fprintf(stderr, "glm-eval: %s%s%s%s; see glm-eval --help\n", what, value ? " \"" : "", value ? value : "",
            value ? "\"" : "");
    return EVAL_TROUBLE;
}

static bool number(const char *s, unsigned long hi, uint32_t *ret) {
    char *end;
    unsigned long v;

    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    v = strtoul(s, &end, 10);
    if (errno || *end || v > hi)
        return false;
    *ret = (uint32_t)v;
    return true;
}

static bool tolerance(const char *s, double *ret) {
    char *end;
    double v = strtod(s, &end);

    if (end == s || *end || !isfinite(v) || v < 0)
        return false;
    *ret = v;
    return true;
}

enum { OPT_BACKEND = 1, OPT_ISA, OPT_THREADS, OPT_RANKS, OPT_CASE, OPT_TOL, OPT_CHUNK, OPT_CACHE, OPT_JSON,
       OPT_TOKENS, OPT_CHAT, OPT_HELP, OPT_VERSION };

static const struct option longs[] = {
    { "backend", required_argument, NULL, OPT_BACKEND }, { "isa", required_argument, NULL, OPT_ISA },
    { "threads", required_argument, NULL, OPT_THREADS }, { "ranks", required_argument, NULL, OPT_RANKS },
    { "case", required_argument, NULL, OPT_CASE },       { "tol", required_argument, NULL, OPT_TOL },
    { "chunk", required_argument, NULL, OPT_CHUNK },
    { "json", no_argument, NULL, OPT_JSON },             { "tokens", required_argument, NULL, OPT_TOKENS },
    { "chat", required_argument, NULL, OPT_CHAT },       { "cache", required_argument, NULL, OPT_CACHE },
    { "help", no_argument, NULL, OPT_HELP },             { "version", no_argument, NULL, OPT_VERSION },
    { NULL, 0, NULL, 0 },
};

struct command {
    struct eval_options o;
    const char *tokens, *chat;
    int done; /* -1: go on, else the exit status */
};

static bool cache_format(const char *s, uint32_t *ret) {
    static const char *const names[] = { [ENGINE_CACHE_F32] = "f32", [ENGINE_CACHE_BF16] = "bf16",
                                         [ENGINE_CACHE_FP8] = "fp8" };

    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(s, names[i]) == 0) {
            *ret = i;
            return true;
        }
    return false;
}

static int set_option(struct command *c, int opt) {
    switch (opt) {
    case OPT_BACKEND:
        c->o.backend = optarg;
        if (strcmp(optarg, "ref") != 0 && strcmp(optarg, "cpu") != 0 && strcmp(optarg, "cuda") != 0)
            return misuse("--backend: expected ref, cpu or cuda, found", optarg);
        return EVAL_OK;
    case OPT_ISA:
        c->o.isa = optarg;
        return EVAL_OK;
    case OPT_THREADS:
        return number(optarg, 1024, &c->o.threads) ? EVAL_OK
                                                   : misuse("--threads: expected 0 to 1024, found", optarg);
    case OPT_RANKS:
        return number(optarg, 8, &c->o.ranks) && c->o.ranks ? EVAL_OK
                                                            : misuse("--ranks: expected 1 to 8, found", optarg);
    case OPT_CASE:
        c->o.only = optarg;
        return EVAL_OK;
    case OPT_TOL:
        return tolerance(optarg, &c->o.tolerance) ? EVAL_OK
                                                  : misuse("--tol: expected a number, found", optarg);
    case OPT_CHUNK:
        if (!number(optarg, 8192, &c->o.chunk_tokens) || !c->o.chunk_tokens || c->o.chunk_tokens % 64)
            return misuse("--chunk: expected a multiple of 64 up to 8192, found", optarg);
        return EVAL_OK;
    case OPT_CACHE:
        return cache_format(optarg, &c->o.cache) ? EVAL_OK
                                                 : misuse("--cache: expected f32, bf16 or fp8, found", optarg);
    case OPT_JSON:
        c->o.json = true;
        return EVAL_OK;
    case OPT_TOKENS:
        c->tokens = optarg;
        return EVAL_OK;
    case OPT_CHAT:
        c->chat = optarg;
        return EVAL_OK;
    case 'h':
    case OPT_HELP:
        fputs(usage, stdout);
        c->done = EVAL_OK;
        return EVAL_OK;
    case OPT_VERSION:
        printf("glm-eval %s\n", GLMD_VERSION);
        c->done = EVAL_OK;
        return EVAL_OK;
    default:
        fprintf(stderr, "see glm-eval --help\n");
        return EVAL_TROUBLE;
    }
}

static int worse(int a, int b) {
    return a > b ? a : b;
}

int main(int argc, char **argv) {
    struct command c = { .o = { .tolerance = 1e-4 }, .done = -1 };
    const char *golden;
    int opt, r = EVAL_OK;

    while ((opt = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        r = set_option(&c, opt);
        if (r != EVAL_OK || c.done >= 0)
            return r != EVAL_OK ? r : c.done;
    }
    if (optind == argc)
        return misuse("no model directory", NULL);
    c.o.model = argv[optind++];
    golden = optind < argc ? argv[optind++] : NULL;
    if (optind < argc)
        return misuse("one argument too many:", argv[optind]);
    if (!golden && !c.tokens && !c.chat)
        return misuse("nothing to check: no golden file, no --tokens, no --chat", NULL);
    if (c.tokens)
        r = worse(r, eval_tokens(&c.o, c.tokens));
    if (c.chat)
        r = worse(r, eval_chat(&c.o, c.chat));
    if (golden)
        r = worse(r, eval_golden(&c.o, golden));
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "glm-eval: cannot write the results: %s\n", strerror(errno));
        return EVAL_TROUBLE;
    }
    return r;
}
