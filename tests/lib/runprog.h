/* SPDX-License-Identifier: MIT */
/* Runs a program as a child and collects what it prints.  Programs built for another machine are started
 * through the words of $GLMD_TEST_RUN (for example "qemu-aarch64 -L /usr/aarch64-linux-gnu"). */
#ifndef GLMD_RUNPROG_H
#define GLMD_RUNPROG_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct runprog {
    pid_t pid;
    int in;  /* its standard input, -1 when closed */
    int out; /* its standard output, or both on a terminal */
    int err;
    char out_text[65536];
    size_t out_len;
    char err_text[16384];
    size_t err_len;
};

/* argv[0] is a path.  native: never through $GLMD_TEST_RUN.  tty: standard input, output and error are one
 * pseudo terminal.  env: "NAME=value" strings added to the environment, NULL-terminated, or NULL. */
void runprog_start(struct runprog *p, const char *const *argv, const char *const *env, bool native, bool tty);
/* Reads until the collected output holds text, or fails the test after 10 s. */
void runprog_expect(struct runprog *p, const char *text);
void runprog_type(struct runprog *p, const char *text);
/* Closes its input, reads to the end, waits.  Exit status, or -signal. */
int runprog_finish(struct runprog *p);
/* start and finish with input */
int runprog(struct runprog *p, const char *const *argv, const char *const *env, bool native,
            const char *input);

#endif
