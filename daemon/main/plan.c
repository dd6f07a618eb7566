/* SPDX-License-Identifier: MIT */
/* What a checkpoint is made of and what it will take: in the start log, and for `glmd --plan`, which loads
 * nothing. Loader thread, or the starting thread before there are others. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon.h"
#include "log.h"
#include "traps.h"
#include "watch.h"

static double gib(uint64_t bytes) {
    return (double)bytes / 1073741824.0;
}

static size_t rows_of(const struct engine *e, struct model_summary_row rows[MODEL_MAX_ROWS]) {
    const struct model_config *cfg;
    const struct model_findings *f;
    uint32_t layers;
    const struct model_directory *dir = engine_directory(e, &cfg, &layers, &f);

    return dir ? model_summary(dir, cfg, layers, rows) : 0;
}

void plan_log(const struct engine *e) {
    struct model_summary_row rows[MODEL_MAX_ROWS];
    size_t n = rows_of(e, rows);
    struct engine_info info;

    engine_get_info(e, &info);
    for (uint32_t r = 0; info.ranks > 1 && r < info.ranks; r++)
        log_info("rank %u of %u: %.3f GiB", r, info.ranks, gib(info.rank_bytes[r]));
    for (size_t i = 0; i < n; i++)
        log_info("weights: %s: %s, %llu tensors, %.3f GiB", rows[i].group, rows[i].format,
                 (unsigned long long)rows[i].matrices, gib(rows[i].bytes));
}

void plan_log_findings(const struct engine *e) {
    const struct model_config *cfg;
    const struct model_findings *f;
    uint32_t layers;

    if (!engine_directory(e, &cfg, &layers, &f))
        return;
    if (f->unequal)
        log_notice("weights: %llu of %llu pairs of gate and up have different factors, up to %.3g times; "
                   "both are kept, so "
                   "this is right here, though not in every program",
                   (unsigned long long)f->unequal, (unsigned long long)f->pairs, f->worst_ratio);
    if (f->absurd)
        log_warning("weights: the scales of the experts differ by more than %.0f times in %u groups, by %.3g "
                    "in part %u of "
                    "layer %u: some experts were probably never calibrated, their answers are noise",
                    MODEL_ABSURD, f->absurd, f->absurd_ratio, f->absurd_part, f->absurd_layer);
}

/* ---- glmd --plan ---- */

static void print_string(const char *s) {
    putchar('"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void print_json(const struct engine_info *i, const struct model_summary_row *rows, size_t n,
                       bool fits) {
    printf("{\"model\":");
    print_string(i->model_name);
    printf(",\"backend\":\"%s\",\"context_tokens\":%u,\"sequences\":%u,\"cache\":\"%s\"", i->backend,
           i->context_tokens, i->max_seqs, i->cache);
    printf(",\"fits\":%s,\"available_bytes\":%llu", fits ? "true" : "false", (unsigned long long)i->available_bytes);
    if (i->device_free)
        printf(",\"device_bytes\":%llu,\"device_free_bytes\":%llu", (unsigned long long)i->device_bytes,
               (unsigned long long)i->device_free);
    printf(",\"weight_bytes\":%llu,\"page_bytes\":%llu,\"pages\":%u,\"slot_bytes\":%llu,\"slots\":%u,\"work_"
           "bytes\":%llu",
           (unsigned long long)i->weight_bytes, (unsigned long long)i->page_bytes, i->n_pages,
           (unsigned long long)i->slot_bytes, i->n_slots, (unsigned long long)i->work_bytes);
    printf(",\"rank_bytes\":[");
    for (uint32_t r = 0; r < i->ranks; r++)
        printf("%s%llu", r ? "," : "", (unsigned long long)i->rank_bytes[r]);
    printf("],\"weights\":[");
    for (size_t k = 0; k < n; k++)
        printf("%s{\"part\":\"%s\",\"format\":\"%s\",\"tensors\":%llu,\"numbers\":%llu,\"bytes\":%llu}",
               k ? "," : "", rows[k].group, rows[k].format, (unsigned long long)rows[k].matrices,
               (unsigned long long)rows[k].weights, (unsigned long long)rows[k].bytes);
    printf("]}\n");
}

static void print_text(const struct engine_info *i, const struct model_summary_row *rows, size_t n) {
    uint64_t pages = i->page_bytes * i->n_pages, slots = i->slot_bytes * i->n_slots, all = 0;

    printf("%-20s %-24s %9s %10s %12s\n", "part", "format", "tensors", "bits", "GiB");
    for (size_t k = 0; k < n; k++) {
        printf("%-20s %-24s %9llu %10.3f %12.3f\n", rows[k].group, rows[k].format,
               (unsigned long long)rows[k].matrices,
               rows[k].weights ? 8.0 * (double)rows[k].bytes / (double)rows[k].weights : 0.0,
               gib(rows[k].bytes));
        all += rows[k].bytes;
    }
    printf("%-66s %12.3f\n", "as stored", gib(all));
    printf("%-66s %12.3f\n", "weights in memory", gib(i->weight_bytes));
    printf("%-66s %12.3f\n", "cache pages", gib(pages));
    printf("%-66s %12.3f\n", "states", gib(slots));
    printf("%-66s %12.3f\n", "work", gib(i->work_bytes));
    printf("%-66s %12.3f\n", "in all",
           gib(i->weight_bytes + pages + slots + (FAULT(plan_sum_short) ? 0 : i->work_bytes)));
    printf("%-66s %12.3f\n", "available here", gib(i->available_bytes));
    if (i->device_free)
        printf("%-66s %12.3f\n%-66s %12.3f\n", "of all, in the device's own memory", gib(i->device_bytes),
               "free there", gib(i->device_free));
    for (uint32_t r = 0; i->ranks > 1 && r < i->ranks; r++)
        printf("rank %-61u %12.3f\n", r, gib(i->rank_bytes[r]));
    printf("%s on %s: a context of %u tokens, %u requests at once\n", i->model_name, i->backend,
           i->context_tokens, i->max_seqs);
}

int plan_print(struct daemon *d, bool json, struct xerr *err) {
    struct model_summary_row rows[MODEL_MAX_ROWS];
    struct engine *e = NULL;
    struct engine_info info;
    size_t n;
    int fits, r = loader_open(d, &e, err);

    if (r == 0) {
        engine_get_info(e, &info);
        n = rows_of(e, rows);
        fits = engine_fits(e, err);
        if (json)
            print_json(&info, rows, n, fits == 0);
        else
            print_text(&info, rows, n);
        if (fflush(stdout) != 0)
            r = xerr_set(err, -EIO, "the plan could not be written");
        else
            r = fits;
    }
    engine_close(e);
    return r;
}
