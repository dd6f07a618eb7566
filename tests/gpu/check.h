/* SPDX-License-Identifier: MIT */
/* check.h: as much of the library Check as the tests of the CUDA backend use, for machines with a GPU that have nothing
 * but a compiler and CUDA. Each test runs in a process of its own (CK_FORK=no: in this one, which ends at the first
 * failure, for tools that look into processes). Only in the include path of programs for `make check-gpu`. */
#ifndef GLMD_GPU_CHECK_H
#define GLMD_GPU_CHECK_H

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CK_NORMAL, CK_ENV, CK_MOST = 64 };

typedef void (*ck_test)(int);
typedef struct TCase {
    const char *name;
    unsigned timeout;
    uint32_t n;
    struct ck_one {
        const char *name;
        ck_test fn;
        int from, to;
    } test[CK_MOST];
} TCase;
typedef struct Suite {
    const char *name;
    uint32_t n;
    TCase *tcase[CK_MOST];
} Suite;
typedef struct SRunner {
    Suite *s;
    int failed;
} SRunner;

#define START_TEST(test) static void test(int _i __attribute__((unused)))
#define END_TEST

__attribute__((noreturn, format(printf, 3, 4))) static inline void ck_fail(const char *file, int line, const char *fmt,
                                                                           ...) {
    va_list ap;
    va_start(ap, fmt);
    fflush(stdout);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    fflush(stderr);
    _exit(1);
}

#define ck_assert_msg(cond, ...)                                                                                       \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            ck_fail(__FILE__, __LINE__, __VA_ARGS__);                                                                  \
    } while (0)
#define ck_assert(cond) ck_assert_msg(cond, "%s", #cond)
#define CK_COMPARE(type, fmt, a, op, b)                                                                                \
    do {                                                                                                               \
        const type ck_a = (type)(a), ck_b = (type)(b);                                                                 \
        if (!(ck_a op ck_b))                                                                                           \
            ck_fail(__FILE__, __LINE__, "%s %s %s: %" fmt ", %" fmt, #a, #op, #b, ck_a, ck_b);                         \
    } while (0)
#define ck_assert_int_eq(a, b) CK_COMPARE(intmax_t, PRIdMAX, a, ==, b)
#define ck_assert_uint_eq(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, ==, b)
#define ck_assert_uint_ne(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, !=, b)
#define ck_assert_uint_lt(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, <, b)
#define ck_assert_uint_le(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, <=, b)
#define ck_assert_uint_gt(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, >, b)
#define ck_assert_uint_ge(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, >=, b)
#define ck_assert_ptr_nonnull(p) ck_assert_msg((p) != NULL, "%s is NULL", #p)
#define ck_assert_str_ne(a, b) ck_assert_msg(strcmp(a, b) != 0, "%s: \"%s\"", #a, a)
#define ck_assert_str_eq(a, b) ck_assert_msg(strcmp(a, b) == 0, "%s: \"%s\", not \"%s\"", #a, a, b)
#define ck_assert_mem_eq(a, b, n) ck_assert_msg(memcmp(a, b, n) == 0, "%s and %s differ", #a, #b)
#define ck_assert_float_eq_tol(a, b, tol)                                                                              \
    ck_assert_msg(fabs((double)(a) - (double)(b)) < (double)(tol), "%s and %s: %g, %g", #a, #b, (double)(a),           \
                  (double)(b))

static inline Suite *suite_create(const char *name) {
    Suite *s = (Suite *)calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->name = name;
    return s;
}
static inline TCase *tcase_create(const char *name) {
    TCase *t = (TCase *)calloc(1, sizeof(*t));
    if (!t)
        abort();
    t->name = name;
    t->timeout = 60;
    return t;
}
static inline void tcase_set_timeout(TCase *t, double seconds) {
    t->timeout = (unsigned)seconds;
}
static inline void ck_add(TCase *t, const char *name, ck_test fn, int from, int to) {
    if (t->n == CK_MOST)
        abort();
    t->test[t->n++] = (struct ck_one){name, fn, from, to};
}
#define tcase_add_test(t, fn) ck_add(t, #fn, fn, 0, 1)
#define tcase_add_loop_test(t, fn, from, to) ck_add(t, #fn, fn, from, (int)(to))
static inline void suite_add_tcase(Suite *s, TCase *t) {
    if (s->n == CK_MOST)
        abort();
    s->tcase[s->n++] = t;
}
static inline SRunner *srunner_create(Suite *s) {
    SRunner *r = (SRunner *)calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->s = s;
    return r;
}

/* 0: passed */
static inline int ck_run_one(const TCase *t, const struct ck_one *o, int i, int fork_it) {
    int status = 0;
    fflush(stdout);
    pid_t pid = fork_it ? fork() : 0;
    if (pid < 0)
        abort();
    if (!pid) {
        if (fork_it)
            alarm(t->timeout);
        o->fn(i);
        if (!fork_it)
            return 0;
        fflush(stdout);
        _exit(0);
    }
    while (waitpid(pid, &status, 0) != pid)
        continue;
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s:%d: ended by signal %d%s\n", o->name, i, WTERMSIG(status),
                WTERMSIG(status) == SIGALRM ? ", its time was over" : "");
    else if (status)
        fprintf(stderr, "%s:%d: failed\n", o->name, i);
    return status != 0;
}
static inline void srunner_run_all(SRunner *r, int mode) {
    const char *no = getenv("CK_FORK");
    int n = 0, fork_it = !no || strcmp(no, "no");
    (void)mode;
    for (uint32_t c = 0; c < r->s->n; c++)
        for (uint32_t k = 0; k < r->s->tcase[c]->n; k++)
            for (int i = r->s->tcase[c]->test[k].from; i < r->s->tcase[c]->test[k].to; i++, n++)
                r->failed += ck_run_one(r->s->tcase[c], &r->s->tcase[c]->test[k], i, fork_it);
    printf("%d%%: Checks: %d, Failures: %d, Errors: 0\n", n ? 100 * (n - r->failed) / n : 0, n, r->failed);
}
static inline int srunner_ntests_failed(const SRunner *r) {
    return r->failed;
}
static inline void srunner_free(SRunner *r) {
    for (uint32_t c = 0; c < r->s->n; c++)
        free(r->s->tcase[c]);
    free(r->s);
    free(r);
}

#endif
