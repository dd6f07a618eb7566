/* SPDX-License-Identifier: MIT */
/* The fuzz targets. Each body takes one input and aborts when a promise of the code under test is broken.
 * The same bodies run under libFuzzer (tests/fuzz, `make fuzz`) and, without clang, over the corpus and
 * seeded mutations of it (tests/unit/fuzz_corpus.c). One thread; a body leaves nothing behind but what it
 * made once per process. */
#ifndef GLMD_TEST_FUZZ_H
#define GLMD_TEST_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipctest.h"

struct fuzz_target {
    const char *name; /* tests/fuzz/corpus/NAME */
    int (*run)(const uint8_t *data, size_t size);
    size_t max_bytes; /* of an input */
    unsigned rounds;  /* mutations in the unit test */
};
extern const struct fuzz_target fuzz_targets[];
extern const size_t fuzz_n_targets;
const struct fuzz_target *fuzz_find(const char *name); /* NULL: none */

/* What was made once per process: sockets, tokenizer, temporary directory. Called once, at the end. */
void fuzz_cleanup(void);

void fuzz_need(bool ok, const char *what, const char *file, int line);
#define FUZZ_NEED(cond) fuzz_need((cond), #cond, __FILE__, __LINE__)

/* Reads an input from its front; zeros behind its end. */
struct fuzz_in {
    const uint8_t *p;
    size_t n;
};
uint8_t fuzz_u8(struct fuzz_in *in);
uint16_t fuzz_u16(struct fuzz_in *in);
uint32_t fuzz_u32(struct fuzz_in *in);
const uint8_t *fuzz_bytes(struct fuzz_in *in, size_t *n); /* at most *n, which becomes what there is */

/* A file in a temporary directory of this process, rewritten for every input. Returns its path; the
 * directory's with name "". */
const char *fuzz_file(const char *name, const uint8_t *data, size_t n);

size_t fuzz_mutate(struct ipc_rng *r, uint8_t *b, size_t len, size_t cap);

/* fuzzfiles.c: what is read from files at start */
int fuzz_conf(const uint8_t *data, size_t size);
int fuzz_safetensors_header(const uint8_t *data, size_t size);
int fuzz_config_json(const uint8_t *data, size_t size);
int fuzz_tokenizer_json(const uint8_t *data, size_t size);
int fuzz_template_literals(const uint8_t *data, size_t size);
void fuzz_files_cleanup(void);
/* fuzzformats.c: what tells formats */
int fuzz_gguf(const uint8_t *data, size_t size);
int fuzz_detect(const uint8_t *data, size_t size);
/* fuzzspill.c: blocks of the spill tier */
int fuzz_spill_block(const uint8_t *data, size_t size);
/* fuzztext.c */
int fuzz_parser_stream(const uint8_t *data, size_t size);
void fuzz_text_cleanup(void);
/* fuzzgrammar.c */
int fuzz_grammar(const uint8_t *data, size_t size);
void fuzz_grammar_cleanup(void);
/* fuzzring.c: the daemon's conn and emit against a client that writes what the input says */
int fuzz_ring_hostile(const uint8_t *data, size_t size);
void fuzz_ring_cleanup(void);
/* fuzzclient.c: libglmd against a daemon that writes what the input says */
int fuzz_client_ring(const uint8_t *data, size_t size);
int fuzz_client_hello(const uint8_t *data, size_t size);

#endif
