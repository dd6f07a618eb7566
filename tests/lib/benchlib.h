/* SPDX-License-Identifier: MIT */
/* What the bench programs share: clock, medians, verdict lines, a daemon of their own. */
#ifndef GLMD_TEST_BENCHLIB_H
#define GLMD_TEST_BENCHLIB_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

uint64_t bench_now_ns(void);
double bench_median(double *v, size_t n);   /* sorts v */
double bench_quartile(double *v, size_t n); /* the first; sorts v: beside other work the slower ones waited */
int bench_handicap(void);                 /* BENCH_HANDICAP=1 */

/* Before others of this machine, where that is allowed: a reader or a daemon that is put off its core for a time
 * slice measures the scheduler. Without the right nothing happens. */
void bench_step_forward(void);

enum bench_sense { BENCH_AT_MOST, BENCH_AT_LEAST };
/* Prints `NAME figure UNIT bar BAR UNIT holds|misses`; 0 when it holds, 1 when it misses. */
int bench_verdict(const char *name, double figure, const char *unit, double bar, enum bench_sense sense);

/* A planted fault that really slows or breaks what a bench measures, and the lines that must miss with it. */
struct bench_handicap {
    const char *fault, *lines;
};
/* What main() returns. Without BENCH_HANDICAP run(). With it run() once for each fault, in a child of the mutation
 * build, of whose verdicts those in `lines` are shown and must be there; GLMD_FAULT picks one of them. The largest of
 * what run() returned. */
int bench_main(int (*run)(void), const struct bench_handicap *h, size_t n);

struct bench_daemon {
    pid_t pid;
    char dir[64], socket[96];
};
/* Starts glmd with model and waits until it is ready; conf, when not NULL, is the text of its configuration
 * file. Under BENCH_HANDICAP it is the mutation build with `fault` switched on. Negative errno, with the
 * reason on stderr. */
int bench_daemon_start(struct bench_daemon *d, const char *model, const char *fault, const char *conf);
void bench_daemon_stop(struct bench_daemon *d);

#endif
