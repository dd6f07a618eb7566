/* SPDX-License-Identifier: MIT */
/* libFuzzer's entry to every target; FUZZ_TARGET in the environment names the one to run
 * ("list" lists them with the bytes an input may have). Built by `make fuzz`
 * with clang; the bodies are in tests/lib and run without it in tests/unit/fuzz_corpus.c. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void _mark_point(const char *file, int line);
_Noreturn void _ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...);

static const struct fuzz_target *target;

/* The helpers of tests/lib speak Check, which wants a running test; here these stand in its place. */
void _mark_point(const char *file, int line) {
    (void)file;
    (void)line;
}

_Noreturn void _ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...) {
    va_list ap;

    fprintf(stderr, "%s:%d: %s ", file, line, expr);
    va_start(ap, msg);
    if (msg)
        vfprintf(stderr, msg, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("FUZZ_TARGET");

    (void)argc;
    (void)argv;
    if (name && strcmp(name, "list") == 0) {
        for (size_t i = 0; i < fuzz_n_targets; i++)
            printf("%s %zu\n", fuzz_targets[i].name, fuzz_targets[i].max_bytes);
        exit(0);
    }
    target = fuzz_find(name);
    if (!target) {
        fprintf(stderr, "FUZZ_TARGET must name one of:");
        for (size_t i = 0; i < fuzz_n_targets; i++)
            fprintf(stderr, " %s", fuzz_targets[i].name);
        fprintf(stderr, "\n");
        exit(2);
    }
    atexit(fuzz_cleanup);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return size <= target->max_bytes ? target->run(data, size) : 0;
}
