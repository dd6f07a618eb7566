/* SPDX-License-Identifier: MIT */
/* Configuration of the daemon. One table in conf_table.c is the source of the parser, of the default file
 * (`glmd --print-default-config`) and of the key list in glmd.conf(5).
 *
 * Files are INI in systemd's dialect: sections in brackets, Key=Value, comments on lines of their own, an
 * empty value gives the default back. An unknown section, an unknown key, a key set twice in one file or a
 * value out of range refuses to start and names file and line. The starting thread only. */
#ifndef GLMD_CONF_H
#define GLMD_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "xerr.h"

#define CONF_PATH_MAX 1024
#define CONF_MAX_KEYS 64
#define CONF_MAX_QUOTA_KEYS 16
#define CONF_MAX_RULES 256

enum conf_io { CONF_IO_AUTO = 0, CONF_IO_URING, CONF_IO_EPOLL };
enum conf_backend { CONF_BACKEND_CPU = 0, CONF_BACKEND_REF, CONF_BACKEND_CUDA };
enum conf_cache { CONF_CACHE_F32 = 0, CONF_CACHE_BF16, CONF_CACHE_FP8 };

/* What one user may have at the same time. */
struct conf_quota {
    uint32_t connections_per_uid;
    uint32_t requests_per_uid;
    uint32_t requests_per_connection;
    uint32_t kept_per_uid;
    uint64_t region_bytes_per_uid;
    uint64_t bulk_bytes_per_uid;
    uint64_t queued_tokens_per_uid; /* this and the next two: 0 = no limit */
    uint64_t kv_tokens_per_uid;
    uint32_t submit_rate; /* a second */
    uint32_t weight;      /* of the user's share */
    uint32_t cache_group; /* 0 = the user's own */
};

/* [Quota uid:NAME] or [Quota gid:NAME]: the keys of [Quota] that differ for one user or group. */
struct conf_rule {
    bool is_group;
    uint32_t id;
    char name[64]; /* as written */
    struct conf_quota quota;
    /* per row of [Quota], in the order of the table */
    bool set[CONF_MAX_QUOTA_KEYS];
    const char *origin[CONF_MAX_QUOTA_KEYS]; /* also of a key that was set back to nothing */
    uint32_t line[CONF_MAX_QUOTA_KEYS];
};

struct conf {
    char model_path[CONF_PATH_MAX];
    uint32_t backend;        /* enum conf_backend */
    uint32_t threads;        /* 0 = online processors */
    uint32_t ranks;
    uint32_t context_tokens; /* 0 = the model's, or what fits */
    uint32_t allow_four_bit_dense; /* 0 no, 1 yes */
    char allow_low_precision[64];  /* words, empty = nothing */
    char convert[128];             /* GROUP:FORMAT, …, empty = nothing */

    uint64_t keep_free_bytes;
    uint32_t cache_format; /* enum conf_cache */
    uint32_t max_sequences;
    uint32_t max_requests;

    uint32_t prefill_tokens;
    uint32_t target_gap_ms;
    uint32_t max_queued;          /* 0 = what max_requests leaves */
    uint32_t background_wait_sec; /* 0 = no limit */

    uint32_t cache_slots;
    uint64_t cache_bytes; /* 0 = no limit */
    char spill_dir[CONF_PATH_MAX]; /* empty = none */
    uint64_t spill_bytes, spill_keep_free;
    uint32_t spill_min_tokens;
    uint32_t spill_survive; /* 0 no, 1 yes */

    char socket_path[CONF_PATH_MAX];
    char socket_group[64];
    uint32_t io_backend; /* enum conf_io */
    uint32_t max_connections;
    uint32_t sq_entries, tq_records;
    uint64_t payload_bytes, text_bytes;
    uint64_t max_bulk_bytes; /* 0 = not offered */
    uint32_t inline_connections;
    uint32_t handshake_timeout_sec;
    uint32_t stall_timeout_sec;
    uint32_t park_timeout_sec; /* 0 = never */
    uint32_t keep_disconnected_sec;
    uint32_t max_kept;

    struct conf_quota quota; /* of users without a section of their own */
    struct conf_rule *rules; /* the sections of users and groups, owned */
    uint32_t n_rules;

    uint32_t text_workers;
    uint64_t max_prompt_bytes;
    uint64_t remember_bytes, remember_bytes_per_uid; /* 0 = nothing is remembered */
    uint32_t thinking_budget; /* 0 = none */
    char thinking_close[256];
    uint32_t loop_guard; /* 0 or 1 */

    uint32_t drain_timeout_sec;
    uint32_t log_level; /* enum log_level */

    /* per row of the table: where the value came from, NULL = default */
    const char *origin[CONF_MAX_KEYS];
    uint32_t origin_line[CONF_MAX_KEYS];
    char *files[64]; /* names the origins point to, owned */
    uint32_t n_files;
};

void conf_init(struct conf *c); /* all defaults */
void conf_done(struct conf *c);

/* Reads file and then file.d/ *.conf in order of name. file == NULL: the first of /etc/glmd, /run/glmd and
 * {/usr/local,/usr}/lib/glmd that has glmd.conf, and the drop-ins of all in order of name, where a name in an
 * earlier directory hides the same name in a later one; nothing there is no error. A named file must exist.
 */
int conf_load(struct conf *c, const char *file, struct xerr *err);

/* One file without drop-ins. */
int conf_read_file(struct conf *c, const char *path, struct xerr *err);

/* One value from the command line; origin is the option's name. */
int conf_set(struct conf *c, const char *section, const char *key, const char *value, const char *origin,
             struct xerr *err);

/* What must hold between keys. */
int conf_check(const struct conf *c, struct xerr *err);

/* Where the value of a key comes from: "FILE:LINE", an option's name, or "default". */
const char *conf_where(const struct conf *c, const char *section, const char *key, char *ret, size_t cap);

/* Takes over the reloadable keys and the sections of users and groups of `from`; names (comma-separated) of
 * other keys that differ go to ret_restart, which is emptied first. Returns how many values changed. */
int conf_reload(struct conf *c, struct conf *from, char *ret_restart, size_t cap);

/* What holds for a user with these groups: each key from the section of the user, else the largest of those of
 * its groups, else from [Quota]. */
void conf_quota_for(const struct conf *c, uint32_t uid, const uint32_t *gids, size_t n_gids,
                    struct conf_quota *ret);

void conf_print_default(FILE *f); /* the default file, every key commented out */
void conf_print_merged(const struct conf *c, FILE *f);
void conf_print_mdoc(FILE *f); /* the list of keys for glmd.conf(5) */

#endif
