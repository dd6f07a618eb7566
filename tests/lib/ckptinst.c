/* SPDX-License-Identifier: MIT */
#include "ckptinst.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "directory.h"
#include "loader.h"

static int sink(void *ctx, const struct kern_tensor_id *id, const struct kern_tensor *t, uint64_t offset,
                const void *bytes, uint64_t n) {
    return kern_pack(ctx, id, t, offset, bytes, n);
}

static void must(int r, const struct xerr *e) {
    ck_assert_msg(r == 0, "%d: %s", r, e->msg);
}

static void load_weights(struct kern *k, const struct model_index *index, const struct model_directory *d) {
    struct xerr e = {0};
    struct model_load l = {.staging_bytes = 1 << 20, .sink = sink, .sink_ctx = k};
    l.staging = aligned_alloc(64, l.staging_bytes);
    ck_assert_ptr_nonnull(l.staging);
    must(model_load(index, d, &l, &e), &e);
    free(l.staging);
    int r = kern_pack_done(k);
    ck_assert_msg(r == 0, "%s", kern_last_error(k));
}

struct km_inst *ckptinst_open(const char *dir, const char *backend, const struct kern_config *engine) {
    struct km_inst *i = calloc(1, sizeof(*i));
    struct model_config cfg;
    struct model_index *index;
    struct model_directory d;
    struct xerr e = {0};
    ck_assert_ptr_nonnull(i);
    must(model_config_read(dir, &cfg, &e), &e);
    must(model_index_open(&index, dir, NULL, &e), &e);
    must(model_directory_build(&d, &cfg, index, &e), &e);
    i->cfg = *engine;
    must(model_config_describe(&cfg, cfg.vocab_size, d.has_draft, &i->cfg.model, &e), &e);
    struct kern_store *stores = calloc(kern_part_count(&i->cfg.model), sizeof(*stores));
    ck_assert_ptr_nonnull(stores);
    for (size_t t = 0; t < d.n_tensors; t++)
        stores[kern_part_slot(&i->cfg.model, &d.tensor[t].id)] = d.tensor[t].k.store;
    i->cfg.stores = stores;
    snprintf(i->backend, sizeof(i->backend), "%s", backend);
    i->pages_per_slot = i->cfg.n_pages / i->cfg.n_slots;
    km_start(i);
    free(stores);
    i->cfg.stores = NULL; /* the backend has its copy */
    load_weights(i->k, index, &d);
    model_directory_done(&d);
    model_index_close(index);
    km_capture(i);
    return i;
}
