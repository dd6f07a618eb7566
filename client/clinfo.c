/* SPDX-License-Identifier: MIT */
/* Version, words for errors, debug lines, and what a connection knows about its daemon. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clconn.h"

uint32_t glmd_version(void) {
    return GLMD_VERSION_MAJOR << 16 | GLMD_VERSION_MINOR << 8 | GLMD_VERSION_PATCH;
}

const char *glmd_strerror(int r) {
    switch (r < 0 ? r : -r) {
    case 0:
        return "success";
    case -EAGAIN:
        return "nothing now";
    case -EBADMSG:
        return "the request is malformed";
    case -EBUSY:
        return "too many live requests";
    case -ECANCELED:
        return "cancelled";
    case -ECHILD:
        return "the connection was made before fork() and belongs to the parent";
    case -EDQUOT:
        return "the quota of this user is used up";
    case -EILSEQ:
        return "text that is not UTF-8";
    case -EINVAL:
        return "a value that is not allowed";
    case -EMSGSIZE:
        return "too large";
    case -ERANGE:
        return "a number that is out of range";
    case -ENOBUFS:
        return "the rings are full";
    case -ENODATA:
        return "the point to go on from is gone";
    case -EOPNOTSUPP:
        return "not offered by this daemon";
    case -EOVERFLOW:
        return "longer than the context";
    case -EPIPE:
        return "the daemon is gone";
    case -EPROTO:
        return "the daemon broke the protocol";
    case -EPROTONOSUPPORT:
        return "no common protocol version";
    case -ESHUTDOWN:
        return "the daemon is draining";
    case -ETIMEDOUT:
        return "timed out";
    default:
        break;
    }
    /* strerrordesc_np gives static storage whatever the thread, unlike strerror */
    const char *s = r == (int)0x80000000 ? NULL : strerrordesc_np(r < 0 ? -r : r);
    return s ? s : "unknown error";
}

static glmd_log_fn log_fn;
static void *log_userdata;

void glmd_set_log(glmd_log_fn fn, void *userdata) {
    log_fn = fn;
    log_userdata = userdata;
}

void cl_log(const char *fmt, ...) {
    char line[512];
    if (!log_fn)
        return;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0)
        log_fn(log_userdata, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

/* Fewer bytes for an older caller; the size it stated is left as it is. */
int cl_give(void *ret, const void *from, size_t known) {
    uint32_t size;
    memcpy(&size, ret, sizeof size);
    if (size < sizeof size)
        return -EINVAL;
    memcpy((char *)ret + sizeof size, (const char *)from + sizeof size,
           (size < known ? size : known) - sizeof size);
    return 0;
}

int glmd_get_info(glmd_conn *c, struct glmd_info *ret) {
    int r = cl_check(c);
    if (r < 0)
        return r;
    const struct glmw_welcome *w = &c->hello;
    struct glmw_status *s = &c->status;
    glmw_status_read(&c->d->status, s); /* a daemon that died while writing: the last whole reading stays */
    uint64_t now = cl_now_ns();
    struct glmd_info i = {
        .state = s->state ? s->state : w->state,
        .wire = w->wire,
        .load_permille = s->load_permille,
        .features = w->features,
        .generation = w->generation,
        .connection_id = w->conn_id,
        .max_live = w->limits.max_live,
        .max_context_tokens = w->limits.max_context_tokens,
        .max_output_tokens = w->limits.max_output_tokens,
        .vocab_tokens = w->limits.vocab_tokens,
        .max_messages = w->limits.max_messages,
        .max_tools = w->limits.max_tools,
        .max_stops = w->limits.max_stops,
        .max_alternatives = w->limits.max_alts,
        .max_request_bytes = c->arena.size_bytes,
        .heartbeat_age_ns = s->heartbeat_ns && s->heartbeat_ns < now ? now - s->heartbeat_ns : 0,
        .uptime_ns = s->start_ns && s->start_ns < now ? now - s->start_ns : 0,
        .kv_tokens_total = s->kv_total_tokens,
        .kv_tokens_free = s->kv_free_tokens,
        .tokens_out = s->tokens_out,
        .queued = s->queued,
        .running = s->running,
        .slots_total = s->slots_total,
        .slots_free = s->slots_free,
        .connections = s->connections,
        .prefill_tokens_per_second = (float)s->prefill_mtok_s / 1000.0f,
        .decode_tokens_per_second = (float)s->decode_mtok_s / 1000.0f,
        .live = c->tags.n_live,
        .stalls = s->my_stalls,
        .bells_sent = s->my_bells_sent,
        .bells_suppressed = s->my_bells_suppressed,
        .records = s->my_records,
        .requests_accepted = s->requests_accepted,
        .requests_ended = s->requests_ended,
        .safety_wakes = s->my_safety_wakes,
        .user_live = s->user_live,
        .user_live_max = s->user_live_max,
        .user_connections = s->user_connections,
        .user_connections_max = s->user_connections_max,
        .user_kept = s->user_kept,
        .user_submits_max = s->user_submits_max,
        .user_region_bytes = s->user_region_bytes,
        .user_region_max = s->user_region_max,
        .user_bulk_bytes = s->user_bulk_bytes,
        .user_bulk_max = s->user_bulk_max,
        .user_queued_tokens = s->user_queued_tokens,
        .user_queued_max = s->user_queued_max,
        .user_kv_tokens = s->user_kv_tokens,
        .user_kv_max = s->user_kv_max,
        .user_refused = s->user_refused,
        .budget_closes = s->budget_closes,
        .loop_closes = s->loop_closes,
    };
    if (w->limits.max_payload_bytes && w->limits.max_payload_bytes < i.max_request_bytes)
        i.max_request_bytes = w->limits.max_payload_bytes;
    if (cl_bulk_max(c) > i.max_request_bytes)
        i.max_request_bytes = cl_bulk_max(c);
    memcpy(i.model, w->model, sizeof i.model - 1);
    return cl_give(ret, &i, sizeof i);
}
