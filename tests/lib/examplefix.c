/* SPDX-License-Identifier: MIT */
/* The daemon of the example tests; see examplefix.h.  Test processes only. */
#include "examplefix.h"

#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

void example_daemon(struct daemonfix *f, const char *script) {
    char all[PATH_MAX + 2048], models[PATH_MAX];

    ck_assert_msg(realpath(daemonfix_models(), models) != NULL, "no directory %s: run make models",
                  daemonfix_models());
    daemonfix_init(f);
    ck_assert_int_lt(snprintf(all, sizeof all, "model %s/nano\nloop\n%s", models, script), (int)sizeof all);
    daemonfix_script(f, all);
    daemonfix_start(f, NULL);
}
