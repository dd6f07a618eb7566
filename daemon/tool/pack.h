/* SPDX-License-Identifier: MIT */
/* pack.h: between the files of glm-pack. One thread, but for the rows of a matrix, which several encode;
 * prints progress to standard error, results to standard output. */
#ifndef GLMD_TOOL_PACK_H
#define GLMD_TOOL_PACK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "format.h"
#include "index.h"
#include "modeljson.h"
#include "siphash.h"
#include "xerr.h"

enum { PACK_OK = 0, PACK_DIFFERS = 1, PACK_TROUBLE = 2 }; /* exit statuses */
enum { PACK_MAX_PARTS = 32, PACK_MAX_TENSORS = 5 };

/* ---- formats (packformat.c) ---- */

/* Who writes checkpoints of this form, which decides names and configuration. */
enum pack_family { PACK_PLAIN, PACK_FP8, PACK_MODELOPT, PACK_COMPRESSED, PACK_EXL3, PACK_GGUF };

struct pack_format {
    const char *word; /* as in --format */
    struct kern_store store;
    enum pack_family family; /* of a checkpoint in which it is the only one */
    bool small;              /* fewer than eight bits */
};

/* NULL: no such word. */
const struct pack_format *pack_format_find(const char *word);
/* "bf16, fp8, ...": for the usage text. */
const char *pack_format_words(void);

/* One tensor of the output: where its bytes come from is the writer's business. */
struct pack_tensor {
    char name[256];
    enum st_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[3], bytes;
};

/* The tensors a module in this format consists of, for a checkpoint of this family. ret[0] has the codes; PACK_PLAIN:
 * the numbers the format makes of it, in F32. */
int pack_tensors(const struct pack_format *f, enum pack_family family, const char *module, uint64_t rows,
                 uint64_t cols, struct pack_tensor ret[PACK_MAX_TENSORS], uint32_t *ret_n);
/* One matrix of BF16, F16 or F32 numbers -> the bytes of those tensors, each malloc'ed and for the caller to
 * free, also after an error. *ret_diff, *ret_norm: sums of squares of the difference and of the source. */
int pack_encode(const struct pack_format *f, enum pack_family family, enum st_dtype from, const void *source,
                uint64_t rows, uint64_t cols, const struct pack_tensor *t, uint32_t n, uint8_t **ret_bytes,
                double *ret_diff, double *ret_norm);

/* ---- which tensor becomes what (packplan.c) ---- */

enum pack_part {
    PACK_EXPERTS,
    PACK_SHARED,
    PACK_DENSE,
    PACK_MLA,
    PACK_KDA,
    PACK_HEAD,
    PACK_EMBED,
    PACK_KVB,
    PACK_INDEXER,
    PACK_ROUTER,
    PACK_GATES,
    PACK_MHC,
    PACK_DRAFT,
    PACK_VISION,
    PACK_REST,
    PACK_PARTS
};
const char *pack_part_name(enum pack_part p);
enum pack_part pack_part_of(const char *tensor);

struct pack_rule {
    const char *pattern; /* a glob over module names, or the name of a part */
    const struct pack_format *f;
};

struct pack_options {
    const char *in, *out;
    const struct pack_format *format;
    struct pack_rule rule[PACK_MAX_PARTS];
    uint32_t n_rules;
    const char *text; /* compare answers on this file */
    const char *backend;
    bool json;
    bool numbers; /* write what the formats make of the weights as F32, not the formats */
};

/* What is made of tensor i of the index: NULL = copied as it is. */
struct pack_plan {
    const struct model_index *x;
    const struct pack_format **to; /* [model_index_count()] */
    uint8_t *part;                 /* enum pack_part of each */
    enum pack_family family;
    uint64_t n_converted, n_unfit; /* unfit: a rule wants it, its shape does not allow it */
    const char *first_unfit;
};

int pack_plan_make(const struct pack_options *o, const struct model_index *x, struct pack_plan *ret,
                   struct xerr *e);
void pack_plan_done(struct pack_plan *p);
/* ".weight" off; false when the name has none. */
bool pack_module_name(const char *tensor, char *ret, size_t len);

/* ---- the output (packwrite.c, packdir.c, packconf.c) ---- */

struct pack_totals {
    uint64_t from[PACK_PARTS], to[PACK_PARTS]; /* bytes */
    double diff[PACK_PARTS], norm[PACK_PARTS];
};

/* The output directory and the record of what is finished. */
struct pack_dir {
    const char *path;
    json_t *record; /* of all finished shards */
    int lock;
};

/* Makes the directory, or continues one that the same options made from the same source. -EEXIST: it is
 * something else. */
int pack_dir_open(struct pack_dir *ret, const struct pack_options *o, const struct pack_plan *p,
                  struct xerr *e);
/* Files that are neither weights nor their configuration. */
int pack_dir_copy(const struct pack_dir *d, const char *in, struct xerr *e);
/* Everything is there: the record becomes the summary. */
int pack_dir_finish(struct pack_dir *d, struct xerr *e);
void pack_dir_done(struct pack_dir *d);
/* A whole file under a temporary name, synced, then renamed. */
int pack_put_file(const char *dir, const char *name, const void *bytes, size_t n, struct xerr *e);
int pack_put_json(const char *dir, const char *name, const json_t *v, struct xerr *e);
/* A path as JSON: where it is no UTF-8, the hexadecimal of its bytes, so that two paths never look the same. */
json_t *pack_path_json(const char *path);
enum { PACK_MAX_JSON = 64 << 20 }; /* of a configuration or a record, which has a line for every shard */

/* Shard `file` of the source; adds names to weight_map. One that the record has and whose bytes are what it
 * says is not written again. */
int pack_shard(struct pack_dir *d, const struct pack_plan *p, uint32_t file, json_t *weight_map,
               struct pack_totals *t, bool *ret_kept, struct xerr *e);
/* The record's words for a finished file. NULL: no memory. */
json_t *pack_to_record(const char digest[33], const struct pack_totals *t);
void pack_sum_up(struct pack_totals *t, const struct pack_totals *more);
/* Of bytes, as they stand in the record. */
void pack_hash(const void *bytes, uint64_t n, char ret[33]);
#define PACK_RECORD_TENSORS "tensors" /* of the record: what of a GGUF file is finished, while it is not whole */
/* The digest of all tensors of a safetensors file, as it stands in the record. */
int pack_digest(const struct st_file *f, char ret[33], struct xerr *e);

/* Before anything is made: whether the model can be written as GGUF. */
int pack_gguf_can(const struct pack_options *o, struct xerr *e);
/* The whole model as OUT/model.gguf (packgguf.c, packggufkv.c, packggufout.c); progress by name; what an earlier call
 * finished is not made again. *ret_kept: that was all of it. *ret_left: tensors of the vision tower, which have no
 * place in it. */
int pack_gguf(struct pack_dir *d, const struct pack_options *o, const struct pack_plan *p,
              struct pack_totals *t, bool *ret_kept, uint32_t *ret_left, struct xerr *e);

/* config.json with its quantization_config, and the files beside it that a family has. */
int pack_config(const struct pack_dir *d, const struct pack_options *o, const struct pack_plan *p,
                struct xerr *e);

/* ---- looking at the result (packcheck.c, packkl.c) ---- */

/* Every tensor read as the daemon reads it; digests compared where there is a record. Prints; an exit status.
 */
int pack_check(const char *dir, bool json);

struct pack_kl {
    uint32_t n;               /* positions */
    double kl, worst;         /* mean and largest, nats */
    double same;              /* share of positions with the same most likely token */
    double loss_in, loss_out; /* mean -log p of the text */
};
int pack_compare(const struct pack_options *o, struct pack_kl *ret, struct xerr *e);

/* One file may take hours: each tenth of its `all` bytes that was not reached before is a line, but for the last,
 * which is told when the file has its name (packrun.c). */
void pack_tell(const char *file, uint64_t before, uint64_t now, uint64_t all);
/* The whole of it (packrun.c). Prints; an exit status. */
int pack_run(const struct pack_options *o);
/* The answers of two checkpoints, o->in and o->out, on o->text. Prints; an exit status. */
int pack_compare_run(const struct pack_options *o);

#endif
