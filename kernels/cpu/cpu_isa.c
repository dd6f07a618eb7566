/* SPDX-License-Identifier: MIT */
/* cpu_isa.c: which arithmetic this processor and this system can run. */
#include "cpu_ops.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Not by __builtin_cpu_supports(): the clang of make fuzz (14) does not know that word. AVX2's check has asked for the
 * registers. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static int runs(const struct cpu_ops *ops) {
#if defined(__x86_64__)
    /* The compiler's checks include the operating system's part (saved registers). */
    if (ops == &cpu_ops_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("fma");
    if (ops == &cpu_ops_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#endif
    (void)ops;
    return 1;
}

const struct cpu_ops *cpu_ops_find(const char *name) {
    static const struct cpu_ops *const best_first[] = {
#if defined(__x86_64__)
        &cpu_ops_avx512,
        &cpu_ops_avx2,
#elif defined(__aarch64__)
        &cpu_ops_neon,
#endif
        &cpu_ops_scalar,
    };
    for (size_t i = 0; i < sizeof(best_first) / sizeof(best_first[0]); i++)
        if ((!name || strcmp(best_first[i]->isa, name) == 0) && runs(best_first[i]))
            return best_first[i];
    return NULL;
}
