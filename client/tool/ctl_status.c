/* SPDX-License-Identifier: MIT */
/* glmctl status: what the daemon says about itself, for people or as one JSON object. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_json.h"

static const struct {
    uint64_t bit;
    const char *name;
} features[] = {{GLMD_FEATURE_LOGPROBS, "logprobs"},
                {GLMD_FEATURE_ALTERNATIVES, "alternatives"},
                {GLMD_FEATURE_BULK, "bulk"},
                {GLMD_FEATURE_COALESCE, "coalesce"},
                {GLMD_FEATURE_TOOL_EVENTS, "tool-events"},
                {GLMD_FEATURE_TOKENIZE, "tokenize"},
                {GLMD_FEATURE_SCHEMA, "schema"}};

#define N_FEATURES (sizeof features / sizeof features[0])

/* Where 0 means that there is no limit, null says so. */
static void json_limit(struct ctl_buf *b, const char *name, uint64_t max) {
    if (max)
        ctl_buf_fmt(b, ",\"%s\":%" PRIu64, name, max);
    else
        ctl_buf_fmt(b, ",\"%s\":null", name);
}

static void json_user(struct ctl_buf *b, const struct glmd_info *i) {
    ctl_buf_fmt(b,
                ",\"user\":{\"requests\":%" PRIu32 ",\"requests_max\":%" PRIu32 ",\"connections\":%" PRIu32
                ",\"connections_max\":%" PRIu32 ",\"kept\":%" PRIu32 ",\"region_bytes\":%" PRIu64
                ",\"region_bytes_max\":%" PRIu64 ",\"bulk_bytes\":%" PRIu64 ",\"bulk_bytes_max\":%" PRIu64,
                i->user_live, i->user_live_max, i->user_connections, i->user_connections_max, i->user_kept,
                i->user_region_bytes, i->user_region_max, i->user_bulk_bytes, i->user_bulk_max);
    ctl_buf_fmt(b, ",\"queued_tokens\":%" PRIu64, i->user_queued_tokens);
    json_limit(b, "queued_tokens_max", i->user_queued_max);
    ctl_buf_fmt(b, ",\"kv_tokens\":%" PRIu64, i->user_kv_tokens);
    json_limit(b, "kv_tokens_max", i->user_kv_max);
    json_limit(b, "requests_per_second_max", i->user_submits_max);
    ctl_buf_fmt(b, ",\"refused\":%" PRIu64 "}", i->user_refused);
}

static void as_json(struct ctl_buf *b, const struct glmd_info *i) {
    ctl_buf_str(b, "{\"model\":");
    ctl_text_json(b, i->model, strlen(i->model));
    ctl_buf_fmt(b,
                ",\"state\":\"%s\",\"load_permille\":%" PRIu32 ",\"protocol\":%" PRIu32
                ",\"generation\":\"%016" PRIx64 "\",\"connection\":%" PRIu64 ",\"features\":[",
                ctl_state_name(i->state), i->load_permille, i->wire, i->generation, i->connection_id);
    for (size_t k = 0, n = 0; k < N_FEATURES; k++)
        if (i->features & features[k].bit)
            ctl_buf_fmt(b, "%s\"%s\"", n++ ? "," : "", features[k].name);
    ctl_buf_fmt(b,
                "],\"heartbeat_age_ns\":%" PRIu64 ",\"uptime_ns\":%" PRIu64 ",\"queued\":%" PRIu32
                ",\"running\":%" PRIu32 ",\"connections\":%" PRIu32,
                i->heartbeat_age_ns, i->uptime_ns, i->queued, i->running, i->connections);
    ctl_buf_fmt(b,
                ",\"kv_tokens_total\":%" PRIu64 ",\"kv_tokens_free\":%" PRIu64 ",\"slots_total\":%" PRIu32
                ",\"slots_free\":%" PRIu32 ",\"tokens_out\":%" PRIu64,
                i->kv_tokens_total, i->kv_tokens_free, i->slots_total, i->slots_free, i->tokens_out);
    ctl_buf_fmt(b, ",\"prefill_tokens_per_second\":%.3f,\"decode_tokens_per_second\":%.3f",
                (double)i->prefill_tokens_per_second, (double)i->decode_tokens_per_second);
    ctl_buf_fmt(b,
                ",\"max_live\":%" PRIu32 ",\"max_context_tokens\":%" PRIu32 ",\"max_output_tokens\":%" PRIu32
                ",\"vocab_tokens\":%" PRIu32 ",\"max_request_bytes\":%" PRIu64,
                i->max_live, i->max_context_tokens, i->max_output_tokens, i->vocab_tokens,
                i->max_request_bytes);
    ctl_buf_fmt(b,
                ",\"requests_accepted\":%" PRIu64 ",\"requests_ended\":%" PRIu64 ",\"budget_closes\":%" PRIu32
                ",\"loop_closes\":%" PRIu32 ",\"stalls\":%" PRIu64
                ",\"bells_sent\":%" PRIu64 ",\"bells_suppressed\":%" PRIu64 ",\"safety_wakes\":%" PRIu64,
                i->requests_accepted, i->requests_ended, i->budget_closes, i->loop_closes, i->stalls,
                i->bells_sent, i->bells_suppressed, i->safety_wakes);
    json_user(b, i);
    ctl_buf_str(b, "}\n");
}

static void uptime(struct ctl_buf *b, uint64_t ns) {
    uint64_t s = ns / 1000000000u;
    if (s >= 86400)
        ctl_buf_fmt(b, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        ctl_buf_fmt(b, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    else
        ctl_buf_fmt(b, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
}

static void text_tokens(struct ctl_buf *b, const char *what, uint64_t n, uint64_t max) {
    ctl_buf_fmt(b, "%s %" PRIu64 " tokens", what, n);
    if (max)
        ctl_buf_fmt(b, " of %" PRIu64, max);
}

static void text_user(struct ctl_buf *b, const struct glmd_info *i) {
    const double mib = 1048576.0;
    ctl_buf_fmt(b,
                "this user    %" PRIu32 " of %" PRIu32 " requests, %" PRIu32 " of %" PRIu32
                " connections, %" PRIu32 " kept answers, %" PRIu64 " refused for want of quota\n",
                i->user_live, i->user_live_max, i->user_connections, i->user_connections_max, i->user_kept,
                i->user_refused);
    ctl_buf_fmt(b, "             shared memory %.1f of %.1f MiB, large requests %.1f of %.1f MiB\n",
                (double)i->user_region_bytes / mib, (double)i->user_region_max / mib,
                (double)i->user_bulk_bytes / mib, (double)i->user_bulk_max / mib);
    text_tokens(b, "             prompts waiting", i->user_queued_tokens, i->user_queued_max);
    text_tokens(b, ", cache", i->user_kv_tokens, i->user_kv_max);
    if (i->user_submits_max)
        ctl_buf_fmt(b, ", %" PRIu32 " requests a second at most", i->user_submits_max);
    ctl_buf_str(b, "\n");
}

static void as_text(struct ctl_buf *b, const struct glmd_info *i) {
    ctl_buf_str(b, "model        ");
    ctl_text_tty(b, i->model, strlen(i->model));
    ctl_buf_fmt(b, "\nstate        %s", ctl_state_name(i->state));
    if (i->state == GLMD_STATE_LOADING)
        ctl_buf_fmt(b, ", %.1f %% of the model is in", i->load_permille / 10.0);
    if (i->heartbeat_age_ns > 5000000000u)
        ctl_buf_fmt(b, ", no sign of life for %.0f s", (double)i->heartbeat_age_ns / 1e9);
    ctl_buf_str(b, "\nuptime       ");
    uptime(b, i->uptime_ns);
    ctl_buf_fmt(b, "\nrequests     %" PRIu32 " running, %" PRIu32 " waiting, %" PRIu32 " connections\n",
                i->running, i->queued, i->connections);
    ctl_buf_fmt(b, "since start  %" PRIu64 " requests accepted, %" PRIu64 " ended\n", i->requests_accepted,
                i->requests_ended);
    ctl_buf_fmt(b,
                "             reasoning closed by its budget %" PRIu32 " times, loops stopped %" PRIu32 " times\n",
                i->budget_closes, i->loop_closes);
    ctl_buf_fmt(
        b, "speed        prompts %.0f tokens/s, answers %.1f tokens/s, %" PRIu64 " tokens since the start\n",
        (double)i->prefill_tokens_per_second, (double)i->decode_tokens_per_second, i->tokens_out);
    ctl_buf_fmt(
        b, "cache        %" PRIu64 " of %" PRIu64 " tokens free, %" PRIu32 " of %" PRIu32 " states free\n",
        i->kv_tokens_free, i->kv_tokens_total, i->slots_free, i->slots_total);
    ctl_buf_fmt(b,
                "limits       context %" PRIu32 " tokens, answer %" PRIu32 " tokens, %" PRIu32
                " requests at once, request %" PRIu64 " bytes\n",
                i->max_context_tokens, i->max_output_tokens, i->max_live, i->max_request_bytes);
    ctl_buf_fmt(b, "protocol     %" PRIu32 ",", i->wire);
    for (size_t k = 0; k < N_FEATURES; k++)
        if (i->features & features[k].bit)
            ctl_buf_fmt(b, " %s", features[k].name);
    ctl_buf_fmt(
        b,
        "\nconnection   %" PRIu64 ", %" PRIu64 " stalls, %" PRIu64 " wake-ups sent, %" PRIu64 " spared, %" PRIu64
        " by the safety timer\n",
        i->connection_id, i->stalls, i->bells_sent, i->bells_suppressed, i->safety_wakes);
    text_user(b, i);
}

int ctl_status(const struct ctl_args *a) {
    struct glmd_info i = {.size = sizeof i};
    struct ctl_buf b = {0};
    glmd_conn *c;
    if (a->n_words) {
        ctl_err("status takes no further words");
        return CTL_EXIT_USAGE;
    }
    int r = ctl_connect(a, 0, &c);
    if (r)
        return r;
    int e = glmd_get_info(c, &i);
    glmd_close(c);
    if (e < 0) {
        ctl_err("the daemon's status cannot be read: %s", glmd_strerror(e));
        return CTL_EXIT_LOST;
    }
    if (a->json)
        as_json(&b, &i);
    else
        as_text(&b, &i);
    r = !b.failed && fwrite(b.p, 1, b.len, stdout) == b.len && fflush(stdout) == 0 ? CTL_EXIT_OK
                                                                                   : CTL_EXIT_OUTPUT;
    if (r)
        ctl_err("standard output could not be written, or memory ran out");
    ctl_buf_done(&b);
    return r;
}
