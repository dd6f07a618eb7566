/* SPDX-License-Identifier: MIT */
/* The table of fuzz targets and what they share; see fuzz.h. */
#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct fuzz_target fuzz_targets[] = {
    {"hello", ipc_fuzz_hello, 4200, 20000},
    {"reqdec", ipc_fuzz_reqdec, 8192, 20000},
    {"ring_hostile", fuzz_ring_hostile, 2048, 300},
    {"client_ring", fuzz_client_ring, 2048, 500},
    {"client_hello", fuzz_client_hello, 1024, 500},
    {"conf", fuzz_conf, 4096, 5000},
    {"safetensors_header", fuzz_safetensors_header, 4096, 5000},
    {"config_json", fuzz_config_json, 6000, 2000},
    {"tokenizer_json", fuzz_tokenizer_json, 12000, 500},
    {"template_literals", fuzz_template_literals, 6000, 5000},
    {"parser_stream", fuzz_parser_stream, 2048, 2000},
    {"grammar", fuzz_grammar, 4096, 1500},
    {"spill_block", fuzz_spill_block, 16384, 1000},
    {"gguf", fuzz_gguf, 12000, 2000},
    {"detect", fuzz_detect, 256, 3000},
};
const size_t fuzz_n_targets = sizeof fuzz_targets / sizeof fuzz_targets[0];

const struct fuzz_target *fuzz_find(const char *name) {
    for (size_t i = 0; name && i < fuzz_n_targets; i++)
        if (strcmp(fuzz_targets[i].name, name) == 0)
            return &fuzz_targets[i];
    return NULL;
}

void fuzz_cleanup(void) {
    fuzz_ring_cleanup();
    fuzz_text_cleanup();
    fuzz_grammar_cleanup();
    fuzz_files_cleanup();
}

void fuzz_need(bool ok, const char *what, const char *file, int line) {
    if (ok)
        return;
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    abort();
}

/* ---- inputs -------------------------------------------------------------------------------------------- */

uint8_t fuzz_u8(struct fuzz_in *in) {
    if (in->n == 0)
        return 0;
    in->n--;
    return *in->p++;
}

uint16_t fuzz_u16(struct fuzz_in *in) {
    uint16_t lo = fuzz_u8(in);

    return (uint16_t)(lo | fuzz_u8(in) << 8);
}

uint32_t fuzz_u32(struct fuzz_in *in) {
    uint32_t lo = fuzz_u16(in);

    return lo | (uint32_t)fuzz_u16(in) << 16;
}

const uint8_t *fuzz_bytes(struct fuzz_in *in, size_t *n) {
    const uint8_t *p = in->p;

    if (*n > in->n)
        *n = in->n;
    in->p += *n;
    in->n -= *n;
    return p;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static char dir[256];
static char last[4][64]; /* names made so far */

const char *fuzz_file(const char *name, const uint8_t *data, size_t n) {
    static char path[600];
    size_t i = 0;
    int fd;

    if (!dir[0]) {
        const char *tmp = getenv("TMPDIR");

        snprintf(dir, sizeof dir, "%s/glmd-fuzz-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        FUZZ_NEED(mkdtemp(dir) != NULL);
    }
    if (!name[0])
        return dir;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    while (i < 4 && last[i][0] && strcmp(last[i], name) != 0)
        i++;
    FUZZ_NEED(i < 4);
    snprintf(last[i], sizeof last[i], "%s", name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_NEED(fd >= 0);
    FUZZ_NEED(write(fd, data, n) == (ssize_t)n);
    close(fd);
    return path;
}

void fuzz_files_cleanup(void) {
    char path[600];

    if (!dir[0])
        return;
    for (size_t i = 0; i < 4 && last[i][0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, last[i]);
        unlink(path);
        last[i][0] = 0;
    }
    rmdir(dir);
    dir[0] = 0;
}

/* ---- mutations without clang --------------------------------------------------------------------------- */

static size_t mutate_once(struct ipc_rng *r, uint8_t *b, size_t len, size_t cap) {
    static const uint32_t nasty[] = {0,          1,          7,          8,          4096,
                                     0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff, 0x7fc00000};
    size_t at = len ? ipc_below(r, (uint32_t)len) : 0, n;
    uint32_t v;

    if (len == 0) {
        b[0] = (uint8_t)ipc_rand(r);
        return cap ? 1 : 0;
    }
    switch (ipc_below(r, 7)) {
    case 0:
        b[at] = (uint8_t)ipc_rand(r);
        return len;
    case 1:
        b[at] ^= (uint8_t)(1u << ipc_below(r, 8));
        return len;
    case 2: /* a word becomes a nasty or a small one */
    case 6:
        v = ipc_below(r, 2) ? ipc_below(r, 40) : nasty[ipc_below(r, sizeof nasty / 4)];
        if (len - at >= 4)
            memcpy(b + at, &v, 4);
        return len;
    case 3: /* cut, rarely: it loses most of the input */
        return ipc_below(r, 4) ? len : at;
    case 4: /* remove some bytes, often whole words */
        n = ipc_below(r, 2) ? 8 : 1 + ipc_below(r, 40);
        n = n < len - at ? n : len - at;
        memmove(b + at, b + at + n, len - at - n);
        return len - n;
    default: /* repeat some */
        n = ipc_below(r, 2) ? 8 * (1 + ipc_below(r, 8)) : 1 + ipc_below(r, 16);
        if (n > len - at || len + n > cap)
            return len;
        memmove(b + at + n, b + at, len - at);
        return len + n;
    }
}

size_t fuzz_mutate(struct ipc_rng *r, uint8_t *b, size_t len, size_t cap) {
    for (unsigned n = 1 + ipc_below(r, 4); n > 0; n--)
        len = mutate_once(r, b, len, cap);
    return len;
}
