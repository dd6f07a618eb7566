/* SPDX-License-Identifier: MIT */
/* Structured log lines: the journal's native protocol when standard error is the journal, otherwise lines
 * that begin with <N> so that any supervisor can read the priority. One datagram or one write per line, no
 * allocation, any thread.
 *
 * What is never logged, at any level: prompts, outputs, stop strings, and names or texts a client sent. */
#ifndef GLMD_LOG_H
#define GLMD_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level {
    LOG_LEVEL_ERROR = 3,
    LOG_LEVEL_WARNING = 4,
    LOG_LEVEL_NOTICE = 5,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7,
};

/* Events an administrator may want to match; each has a fixed MESSAGE_ID in the journal. */
enum log_event {
    LOG_EV_NONE = 0,
    LOG_EV_READY,
    LOG_EV_DRAINING,
    LOG_EV_CONN_REJECTED,
    LOG_EV_PROTOCOL,
    LOG_EV_QUOTA,
    LOG_EV_STALLED,
    LOG_EV_DEVICE_LOST,
    LOG_EV_IO_FALLBACK,
    LOG_EV_COUNT,
};

/* Zero or UINT64_MAX where a field does not apply; see LOG_NONE. */
struct log_fields {
    enum log_event event;
    uint32_t conn; /* 0 = none */
    uint64_t uid;  /* UINT64_MAX = none */
    uint64_t tag;  /* 0 = none */
};

#define LOG_NO_UID UINT64_MAX

/* One bucket per source (a connection, a user): at most LOG_RATE_BURST lines in LOG_RATE_NS, then one line
 * that says how many were left out. Zero-initialised. Used by one thread at a time. */
#define LOG_RATE_BURST 20u
#define LOG_RATE_NS    UINT64_C(30000000000)
struct log_rate {
    uint64_t since_ns;
    uint32_t lines, dropped;
};

/* Decides where lines go. fd: normally 2. journal_path: NULL for the system's socket. Call before threads. */
void log_init(int fd, const char *journal_path);
void log_set_level(enum log_level max);
enum log_level log_get_level(void);
/* "error", "warning", "notice", "info", "debug"; 0 or -EINVAL */
int log_level_from_name(const char *name, enum log_level *ret);

/* rate and f may be NULL. */
void log_write(enum log_level level, const char *file, int line, const struct log_fields *f,
               struct log_rate *rate, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

#define log_full(level, f, rate, ...) log_write((level), __FILE__, __LINE__, (f), (rate), __VA_ARGS__)
#define log_error(...)                log_full(LOG_LEVEL_ERROR, NULL, NULL, __VA_ARGS__)
#define log_warning(...)              log_full(LOG_LEVEL_WARNING, NULL, NULL, __VA_ARGS__)
#define log_notice(...)               log_full(LOG_LEVEL_NOTICE, NULL, NULL, __VA_ARGS__)
#define log_info(...)                 log_full(LOG_LEVEL_INFO, NULL, NULL, __VA_ARGS__)
#define log_debug(...)                log_full(LOG_LEVEL_DEBUG, NULL, NULL, __VA_ARGS__)

#endif
