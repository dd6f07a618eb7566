/* SPDX-License-Identifier: MIT */
#include "texttest.h"

#include "utf8.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

const char *texttest_model(const char *name) {
    static char path[4096];
    const char *root = getenv("GLMD_MODELS");
    struct stat st;

    snprintf(path, sizeof path, "%s/%s", root && *root ? root : "build/models", name);
    ck_assert_msg(stat(path, &st) == 0, "%s is missing: run `make models`", path);
    return path;
}

char *texttest_file(const char *path, size_t *ret_n) {
    FILE *f = fopen(path, "rb");
    char *p;
    long n;

    ck_assert_msg(f != NULL, "%s is missing", path);
    ck_assert(fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0);
    p = malloc((size_t)n + 1);
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(fread(p, 1, (size_t)n, f), (size_t)n);
    p[n] = 0;
    fclose(f);
    if (ret_n)
        *ret_n = (size_t)n;
    return p;
}

char *texttest_golden(const char *name, size_t *ret_n) {
    char path[256];

    snprintf(path, sizeof path, "tests/golden/%s", name);
    return texttest_file(path, ret_n);
}

uint64_t texttest_rand(struct texttest_rng *r) { /* splitmix64 */
    uint64_t z = r->s += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t texttest_below(struct texttest_rng *r, uint32_t n) {
    return (uint32_t)((texttest_rand(r) >> 32) * n >> 32);
}

static uint32_t some_code_point(struct texttest_rng *r) {
    static const uint32_t spaces[] = {0x09,   0x0a,   0x0a,   0x0b,   0x0c,   0x0d,   0x20,   0x20,
                                      0x20,   0x85,   0xa0,   0x1680, 0x2000, 0x2003, 0x200a, 0x200b,
                                      0x2028, 0x2029, 0x202f, 0x205f, 0x2060, 0x3000, 0xfeff};
    static const uint32_t numbers[] = {'0', '5', '9', 0xbd, 0xb2, 0x2163, 0x0665, 0x1d7d8, 0x3007, 0x2460};
    static const uint32_t blocks[][2] = {
        {0x21, 0x7e},     {0xa1, 0x24f},      {0x300, 0x36f},   {0x370, 0x52f},     {0x590, 0x6ff},
        {0x900, 0xdff},   {0x1100, 0x11ff},   {0x2010, 0x2bff}, {0x3041, 0x30ff},   {0x4e00, 0x9fff},
        {0xac00, 0xd7a3}, {0x1f300, 0x1faff}, {0x0, 0xd7ff},    {0xe000, 0x10ffff}, {0x10000, 0x323af}};
    uint32_t b;

    switch (texttest_below(r, 8)) {
    case 0:
    case 1:
        return spaces[texttest_below(r, sizeof spaces / sizeof *spaces)];
    case 2:
        return numbers[texttest_below(r, sizeof numbers / sizeof *numbers)];
    case 3:
    case 4:
        return 'a' + texttest_below(r, 26) - (texttest_below(r, 4) ? 0 : 32);
    default:
        b = texttest_below(r, sizeof blocks / sizeof *blocks);
        return blocks[b][0] + texttest_below(r, blocks[b][1] - blocks[b][0] + 1);
    }
}

size_t texttest_text(struct texttest_rng *r, char *buf, size_t n) {
    static const char *const bits[] = {"'s",  "'S",   "'re",  "'LL",  "'ve",   "'d",        "'\xc5\xbf",
                                       "''t", " '",   "\r\n", "\n\n", "  ",    "   \n",     "\t\t",
                                       "123", "4567", "...",  "()",   " word", " Two words"};
    size_t w = 0;

    for (;;) {
        char one[32];
        size_t len;

        if (texttest_below(r, 4) == 0) {
            const char *s = bits[texttest_below(r, sizeof bits / sizeof *bits)];

            len = strlen(s);
            memcpy(one, s, len);
        } else {
            uint32_t cp = some_code_point(r), k = texttest_below(r, 4) == 0 ? texttest_below(r, 5) : 1;

            len = 0;
            for (uint32_t i = 0; i < k; i++)
                len += utf8_put(cp, one + len);
        }
        if (w + len > n)
            return w;
        memcpy(buf + w, one, len);
        w += len;
    }
}

double texttest_now(void) {
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

double texttest_slow(void) {
    double f = 1;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    f *= 15;
#endif
#if !defined(__x86_64__) /* emulated in the tests */
    f *= 20;
#endif
    return f;
}
