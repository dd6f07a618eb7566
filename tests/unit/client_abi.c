/* SPDX-License-Identifier: MIT */
/* What other people build against: the header alone, the symbols of the library, the examples. */
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clienttest.h"
#include "fakedaemon.h"
#include "runprog.h"

#define LIB TEST_BUILD "/libglmd.so.1"

#if defined(__aarch64__)
#define CC  "aarch64-linux-gnu-gcc"
#define CXX "g++" /* syntax only */
#else
#define CC  "gcc"
#define CXX "g++"
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SAN "-fsanitize=address,undefined"
#elif defined(__SANITIZE_THREAD__)
#define SAN "-fsanitize=thread"
#else
#define SAN "-g"
#endif

static void compiles(const char *const *argv) {
    static struct runprog p;
    int r = runprog(&p, argv, NULL, true, NULL);
    ck_assert_msg(r == 0, "%s %s: status %d\n%s%s", argv[0], argv[1], r, p.out_text, p.err_text);
    ck_assert_msg(p.err_len == 0, "%s %s: %s", argv[0], argv[1], p.err_text);
}

START_TEST(header_alone) {
    static const char *const c99[] = {
        CC,        "-std=c99",      "-Wpedantic", "-Wall", "-Wextra",       "-Wconversion",
        "-Werror", "-fsyntax-only", "-x",         "c",     "client/glmd.h", NULL};
    static const char *const c11[] = {CC,        "-std=c11",      "-Wpedantic", "-Wall", "-Wextra",
                                      "-Werror", "-fsyntax-only", "-x",         "c",     "client/glmd.h",
                                      NULL};
    static const char *const cxx98[] = {CXX,       "-std=c++11",    "-Wpedantic", "-Wall", "-Wextra",
                                        "-Werror", "-fsyntax-only", "-x",         "c++",   "client/glmd.h",
                                        NULL};
    static const char *const cxx20[] = {CXX,       "-std=c++20",    "-Wpedantic", "-Wall", "-Wextra",
                                        "-Werror", "-fsyntax-only", "-x",         "c++",   "client/glmd.h",
                                        NULL};
    compiles(c99);
    compiles(c11);
    compiles(cxx98);
    compiles(cxx20);
}
END_TEST

static void *slurp(const char *path, size_t *ret_len) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    ck_assert_msg(fd >= 0, "%s is missing: build it first", path);
    ck_assert_int_eq(fstat(fd, &st), 0);
    void *p = malloc((size_t)st.st_size + 1);
    ck_assert_int_eq((int)read(fd, p, (size_t)st.st_size), (int)st.st_size);
    ((char *)p)[st.st_size] = 0;
    close(fd);
    if (ret_len)
        *ret_len = (size_t)st.st_size;
    return p;
}

/* A public header is for other languages too: nothing that needs a C compiler to be called. */
START_TEST(header_is_for_every_language) {
    char *h = slurp("client/glmd.h", NULL);
    static const char *const bad[] = {"static inline", ", ...)", "FILE *", "union ", "jmp_buf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!strstr(h, bad[i]), "client/glmd.h holds \"%s\"", bad[i]);
    free(h);
}
END_TEST

/* Names behind every "global:" of the version script, up to "local:" or the end of the node. */
static unsigned map_names(char *map, const char **ret, unsigned max) {
    unsigned n = 0;
    for (char *from = strstr(map, "global:"), *next; from; from = next) {
        char *to = strchr(from, '}'), *local = strstr(from, "local:");
        ck_assert_ptr_nonnull(to);
        next = strstr(to, "global:");
        *(local && local < to ? local : to) = 0;
        for (char *w = strtok(from + 7, " ;\n\t"); w; w = strtok(NULL, " ;\n\t")) {
            ck_assert_uint_lt(n, max);
            ret[n++] = w;
        }
    }
    return n;
}

static int has(const char *const *names, unsigned n, const char *name) {
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return 1;
    return 0;
}

/* Defined dynamic symbols of an ELF file of this machine's word size and byte order. */
static unsigned elf_names(const char *elf, size_t len, const char **ret, unsigned max) {
    const Elf64_Ehdr *h = (const void *)elf;
    const Elf64_Shdr *s = (const void *)(elf + h->e_shoff);
    unsigned n = 0;
    ck_assert(len > sizeof *h && !memcmp(h->e_ident, ELFMAG, SELFMAG) && h->e_shoff < len);
    for (int i = 0; i < h->e_shnum; i++) {
        if (s[i].sh_type != SHT_DYNSYM)
            continue;
        const Elf64_Sym *y = (const void *)(elf + s[i].sh_offset);
        const char *str = elf + s[s[i].sh_link].sh_offset;
        for (size_t k = 1; k < s[i].sh_size / sizeof *y; k++) {
            if (y[k].st_shndx == SHN_UNDEF || y[k].st_shndx == SHN_ABS || !y[k].st_name)
                continue; /* SHN_ABS is the name of the version itself; sections have no name */
            ck_assert_uint_lt(n, max);
            ret[n++] = str + y[k].st_name;
        }
    }
    return n;
}

START_TEST(symbols) {
    enum { MAX = 256 };
    static const char *in_map[MAX], *in_lib[MAX];
    size_t len;
    char *map = slurp("client/libglmd.map", NULL), *lib = slurp(LIB, &len),
         *header = slurp("client/glmd.h", NULL);
    unsigned n_map = map_names(map, in_map, MAX), n_lib = elf_names(lib, len, in_lib, MAX), n_header = 0;
    ck_assert_uint_gt(n_map, 30);
    for (unsigned i = 0; i < n_map; i++)
        ck_assert_msg(has(in_lib, n_lib, in_map[i]), "%s is in libglmd.map but not in the library",
                      in_map[i]);
    for (unsigned i = 0; i < n_lib; i++)
        ck_assert_msg(has(in_map, n_map, in_lib[i]),
                      "the library exports %s, which libglmd.map does not name", in_lib[i]);
    for (const char *at = header; (at = strstr(at, "GLMD_API ")); at++) {
        const char *end = strchr(at, '('), *from = end;
        char name[64];
        if (at != header && at[-1] != '\n')
            continue; /* the macro's own definition */
        while (from[-1] == '_' || (from[-1] >= 'a' && from[-1] <= 'z') ||
               (from[-1] >= '0' && from[-1] <= '9'))
            from--;
        snprintf(name, sizeof name, "%.*s", (int)(end - from), from);
        ck_assert_msg(has(in_map, n_map, name), "glmd.h declares %s, which libglmd.map does not name", name);
        n_header++;
    }
    ck_assert_uint_eq(n_header, n_map);
    free(map);
    free(lib);
    free(header);
}
END_TEST

/* Every exported name links, with nothing but the public header. */
START_TEST(every_symbol_links) {
    char dir[] = "/tmp/glmd-abi-XXXXXX", src[64], exe[64];
    size_t len;
    static const char *names[256];
    char *lib = slurp(LIB, &len);
    unsigned n = elf_names(lib, len, names, 256);
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(src, sizeof src, "%s/all.c", dir);
    snprintf(exe, sizeof exe, "%s/all", dir);
    FILE *f = fopen(src, "we");
    ck_assert(f != NULL);
    fprintf(f, "#include <glmd.h>\nvoid (*const all[])(void) = {\n");
    for (unsigned i = 0; i < n; i++)
        fprintf(f, "(void (*)(void))%s,\n", names[i]);
    fprintf(f, "};\nint main(void) { return sizeof all / sizeof all[0] != %u || !all[0]; }\n", n);
    fclose(f);
    const char *const argv[] = {CC, "-std=c99", SAN, "-Iclient", "-o", exe, src, LIB, NULL};
    compiles(argv);
    unlink(src);
    unlink(exe);
    rmdir(dir);
    free(lib);
}
END_TEST

/* The example is built as its own first lines say, against the shared library, and run. */
START_TEST(example_poll) {
    char dir[] = "/tmp/glmd-example-XXXXXX", exe[64], link[64], env_lib[96], env_sock[128], lib_path[PATH_MAX];
    static struct runprog p;
    static const struct fake_script script = {.echo = true, .delay_us = 200, .progress_steps = 2};
    struct fakeserver s;
    ck_assert(realpath(LIB, lib_path) != NULL);
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(exe, sizeof exe, "%s/poll", dir);
    snprintf(link, sizeof link, "%s/libglmd.so.1", dir);
    ck_assert_int_eq(symlink(lib_path, link), 0);
    const char *const argv[] = {CC,        "-std=c99", "-D_POSIX_C_SOURCE=200809L",
                                "-Wall",   "-Wextra",  "-Wpedantic",
                                "-Werror", SAN,        "-Iclient",
                                "-o",      exe,        "client/examples/poll.c",
                                LIB,       NULL};
    compiles(argv);
    fakeserver_start(&s, &script, NULL);
    snprintf(env_lib, sizeof env_lib, "LD_LIBRARY_PATH=%s", dir);
    snprintf(env_sock, sizeof env_sock, "GLMD_SOCKET=%s", s.path);
    const char *const env[] = {env_lib, env_sock, NULL};
    const char *const ask[] = {exe,
                               "Why is the sky bl\xc3\xbc"
                               "e?",
                               NULL};
    int r = runprog(&p, ask, env, false, NULL);
    ck_assert_msg(r == 0, "status %d: %s%s", r, p.out_text, p.err_text);
    ck_assert_str_eq(p.out_text, "Why is the sky bl\xc3\xbc"
                                 "e?\n");
    ck_assert_str_eq(p.err_text, "");
    fakeserver_stop(&s);
    /* nobody there now */
    r = runprog(&p, ask, env, false, NULL);
    ck_assert_int_eq(r, 3);
    ck_assert(strstr(p.err_text, "no daemon at ") != NULL);
    /* a line on standard input cancels */
    static const struct fake_token word[] = {{GLMW_CH_CONTENT, "word "}};
    static const struct fake_script endless = {
        .tokens = word, .n_tokens = 1, .repeat = 1u << 30, .delay_us = 2000};
    fakeserver_start(&s, &endless, NULL);
    snprintf(env_sock, sizeof env_sock, "GLMD_SOCKET=%s", s.path);
    runprog_start(&p, ask, env, false, false);
    runprog_expect(&p, "word word ");
    runprog_type(&p, "\n");
    ck_assert_int_eq(runprog_finish(&p), 1);
    ck_assert(strstr(p.err_text, "cancelled") != NULL);
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_cancels, 1);
    unlink(exe);
    unlink(link);
    rmdir(dir);
}
END_TEST

/* Every call has a page, every option of every command is explained, and the example is a program. */
START_TEST(man_pages) {
    static const char *const pages[] = {"libglmd.3",   "glmd_connect.3", "glmd_dispatch.3",
                                        "glmd_next.3", "glmd_req_new.3", "glmd_submit.3"};
    static const char *const commands[] = {"run", "chat", "status", "resume", "top", "probe"};
    static const char *names[256];
    static struct runprog p;
    char path[64], word[96];
    size_t len;
    char *lib = slurp(LIB, &len), *all = calloc(1, 1 << 20), *tool = slurp("client/man/glmctl.1", NULL);
    unsigned n = elf_names(lib, len, names, 256);
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        snprintf(path, sizeof path, "client/man/%s", pages[i]);
        char *t = slurp(path, NULL);
        ck_assert_uint_lt(strlen(all) + strlen(t), (1 << 20) - 1);
        strcat(all, t);
        free(t);
    }
    for (unsigned i = 0; i < n; i++) {
        int found = 0;
        snprintf(word, sizeof word, "\n.Fn %s \"", names[i]);
        found += strstr(all, word) != NULL;
        snprintf(word, sizeof word, "\n.Fo %s\n", names[i]);
        found += strstr(all, word) != NULL;
        snprintf(word, sizeof word, " Fn %s ", names[i]);
        found += strstr(all, word) != NULL;
        ck_assert_msg(found, "%s is in no manual page", names[i]);
    }
    for (int i = 0; i < 6; i++) {
        const char *const argv[] = {TEST_BUILD "/glmctl", commands[i], "--help", NULL};
        ck_assert_int_eq(runprog(&p, argv, NULL, false, NULL), 0);
        int found = 0;
        for (char *o = p.out_text; (o = strstr(o, "\n  --")); o++, found++) {
            snprintf(word, sizeof word, "Fl -%.*s", (int)strcspn(o + 5, " "), o + 5);
            ck_assert_msg(strstr(tool, word) != NULL, "glmctl.1 does not explain \"%s\"", word);
        }
        ck_assert_int_ge(found, 3);
    }
    free(all);
    free(lib);
    free(tool);
}
END_TEST

START_TEST(example_in_the_manual) {
    char dir[] = "/tmp/glmd-manual-XXXXXX", src[64], exe[64];
    char *t = slurp("client/man/libglmd.3", NULL);
    char *from = strstr(t, ".Bd -literal\n"), *to = strstr(t, ".Ed");
    ck_assert(from && to && from < to);
    *to = 0;
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(src, sizeof src, "%s/m.c", dir);
    snprintf(exe, sizeof exe, "%s/m", dir);
    FILE *f = fopen(src, "we");
    ck_assert(f != NULL);
    fputs(strchr(from, '\n'), f);
    fclose(f);
    const char *const argv[] = {CC,         "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", SAN,
                                "-Iclient", "-o",       exe,     src,       LIB,          NULL};
    compiles(argv);
    unlink(src);
    unlink(exe);
    rmdir(dir);
    free(t);
}
END_TEST

START_TEST(versions) {
    char text[32];
    uint32_t v = glmd_version();
    snprintf(text, sizeof text, "%u.%u.%u", v >> 16, v >> 8 & 255, v & 255);
    ck_assert_str_eq(text, GLMD_VERSION); /* what glmd.pc says */
    ck_assert_uint_eq(v, GLMD_VERSION_MAJOR << 16 | GLMD_VERSION_MINOR << 8 | GLMD_VERSION_PATCH);
    for (int i = -200; i <= 200; i++) {
        const char *t = glmd_strerror(i);
        ck_assert_ptr_nonnull(t);
        ck_assert_uint_gt(strlen(t), 0);
    }
    ck_assert_str_eq(glmd_strerror(INT32_MIN), "unknown error");
    ck_assert_str_eq(glmd_strerror(0), "success");
    ck_assert_str_eq(glmd_strerror(32), glmd_strerror(-32));
    ck_assert_str_eq(glmd_strerror(-32), "the daemon is gone");
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_abi");
    TCase *t = ct_case(s, "abi", 60);
    tcase_add_test(t, header_alone);
    tcase_add_test(t, header_is_for_every_language);
    tcase_add_test(t, symbols);
    tcase_add_test(t, every_symbol_links);
    tcase_add_test(t, example_poll);
    tcase_add_test(t, man_pages);
    tcase_add_test(t, example_in_the_manual);
    tcase_add_test(t, versions);
    return ct_main(s);
}
