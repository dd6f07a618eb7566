/* SPDX-License-Identifier: MIT */
/* glmctl top: pools, queue, shares and the prefix cache, every second. On a terminal each picture takes the place of
 * the one before; elsewhere they follow each other. */
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl.h"
#include "ctl_json.h"

#define SECOND 1000000000

static const char *const whys[] = {
    [GLMD_WHY_NEW] = "new",           [GLMD_WHY_EVICTED] = "evicted", [GLMD_WHY_OTHER_USER] = "other-user",
    [GLMD_WHY_DIVERGED] = "diverged", [GLMD_WHY_SHORT] = "short",     [GLMD_WHY_REFUSED] = "refused"};

static const char *why_name(uint32_t why) {
    return why < sizeof whys / sizeof *whys && whys[why] ? whys[why] : "unknown";
}

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static const char *const tier_states[] = {
    [GLMD_TIER_NONE] = "none", [GLMD_TIER_ON] = "on", [GLMD_TIER_OFF] = "off", [GLMD_TIER_READS] = "reads"};

static const char *tier_name(uint32_t state) {
    return state < sizeof tier_states / sizeof *tier_states ? tier_states[state] : "unknown";
}

static void json_tier(struct ctl_buf *b, const struct glmd_numbers *n) {
    ctl_buf_fmt(b, ",\"tier\":{\"state\":\"%s\"", tier_name(n->tier_state));
    if (n->all_users && n->tier_state != GLMD_TIER_NONE) {
        ctl_buf_fmt(b,
                    ",\"blocks\":%" PRIu32 ",\"checkpoints\":%" PRIu32 ",\"foreign\":%" PRIu32 ",\"bytes\":%" PRIu64
                    ",\"bytes_max\":%" PRIu64,
                    n->tier_blocks, n->tier_checkpoints, n->tier_foreign, n->tier_bytes, n->tier_max_bytes);
        ctl_buf_fmt(b,
                    ",\"written\":%" PRIu64 ",\"read\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"damaged\":%" PRIu64
                    ",\"thrown_out\":%" PRIu64 ",\"error\":",
                    n->tier_written, n->tier_read, n->tier_refused, n->tier_damaged, n->tier_thrown_out);
        if (n->tier_error)
            ctl_text_json(b, strerror((int)n->tier_error), strlen(strerror((int)n->tier_error)));
        else
            ctl_buf_str(b, "null");
        ctl_buf_str(b, ",\"text\":");
        ctl_text_json(b, n->tier_text, strlen(n->tier_text));
    }
    ctl_buf_str(b, "}");
}

static void text_tier(struct ctl_buf *b, const struct glmd_numbers *n) {
    if (n->tier_state == GLMD_TIER_NONE)
        return;
    ctl_buf_str(b, "on disk   ");
    if (!n->all_users) {
        ctl_buf_fmt(b, "%s\n", tier_name(n->tier_state));
        return;
    }
    if (n->tier_state == GLMD_TIER_OFF) {
        ctl_buf_str(b, "nothing: ");
        ctl_text_tty(b, n->tier_text, strlen(n->tier_text));
        ctl_buf_str(b, "\n");
        return;
    }
    ctl_buf_fmt(b, "%.1f of %.1f MiB in %" PRIu32 " files, %" PRIu32 " states, %" PRIu32 " files of other models\n",
                (double)n->tier_bytes / 1048576.0, (double)n->tier_max_bytes / 1048576.0, n->tier_blocks,
                n->tier_checkpoints, n->tier_foreign);
    ctl_buf_fmt(b,
                "          %" PRIu64 " written, %" PRIu64 " read back, %" PRIu64 " not written, %" PRIu64
                " damaged, %" PRIu64 " given up\n",
                n->tier_written, n->tier_read, n->tier_refused, n->tier_damaged, n->tier_thrown_out);
    if (n->tier_error)
        ctl_buf_fmt(b, "          %s: %s\n",
                    n->tier_state == GLMD_TIER_READS ? "nothing is written any more" : "the last was not written",
                    strerror((int)n->tier_error));
}

static void json_found(struct ctl_buf *b, uint64_t lookups, uint64_t hits, uint64_t prompt, uint64_t cached,
                       uint64_t tier) {
    ctl_buf_fmt(b,
                "\"lookups\":%" PRIu64 ",\"hits\":%" PRIu64 ",\"prompt_tokens\":%" PRIu64
                ",\"cached_tokens\":%" PRIu64 ",\"tier_tokens\":%" PRIu64,
                lookups, hits, prompt, cached, tier);
}

static void as_json(struct ctl_buf *b, const struct glmd_info *i, const struct glmd_numbers *n) {
    ctl_buf_fmt(b, "{\"state\":\"%s\",\"scope\":\"%s\"", ctl_state_name(i->state), n->all_users ? "all" : "own");
    ctl_buf_fmt(b,
                ",\"pages\":{\"tokens\":%" PRIu32 ",\"total\":%" PRIu32 ",\"free\":%" PRIu32 ",\"cached\":%" PRIu32
                ",\"high\":%" PRIu32 "}",
                n->page_tokens, n->pages_total, n->pages_free, n->pages_cached, n->pages_high);
    ctl_buf_fmt(b,
                ",\"slots\":{\"total\":%" PRIu32 ",\"free\":%" PRIu32 ",\"cached\":%" PRIu32 ",\"high\":%" PRIu32 "}",
                n->slots_total, n->slots_free, n->slots_cached, n->slots_high);
    ctl_buf_fmt(b,
                ",\"seats\":%" PRIu32 ",\"running\":%" PRIu32 ",\"paused\":%" PRIu32 ",\"queued\":%" PRIu32
                ",\"prefill_tokens_per_second\":%.3f,\"decode_tokens_per_second\":%.3f,\"cache\":{",
                n->seats, n->running, n->paused, n->queued, (double)i->prefill_tokens_per_second,
                (double)i->decode_tokens_per_second);
    json_found(b, n->lookups, n->hits, n->prompt_tokens, n->cached_tokens, n->tier_tokens);
    ctl_buf_fmt(b, ",\"misses\":%" PRIu64, n->misses);
    if (n->all_users)
        ctl_buf_fmt(b, ",\"bytes\":%" PRIu64 ",\"kept\":%" PRIu64 ",\"evicted\":%" PRIu64, n->cache_bytes, n->kept,
                    n->evicted);
    ctl_buf_str(b, "}");
    json_tier(b, n);
    ctl_buf_str(b, ",\"users\":[");
    for (uint32_t k = 0; k < n->n_users; k++) {
        const struct glmd_user_numbers *u = &n->users[k];
        ctl_buf_fmt(b,
                    "%s{\"uid\":%" PRIu32 ",\"weight\":%" PRIu32 ",\"running\":%" PRIu32 ",\"queued\":%" PRIu32
                    ",\"served_tokens\":%" PRIu64 ",",
                    k ? "," : "", u->uid, u->weight, u->running, u->queued, u->served_tokens);
        json_found(b, u->lookups, u->hits, u->prompt_tokens, u->cached_tokens, u->tier_tokens);
        ctl_buf_str(b, "}");
    }
    ctl_buf_str(b, "],\"last_misses\":[");
    for (uint32_t k = 0; k < n->n_misses; k++) {
        const struct glmd_miss_numbers *m = &n->miss[k];
        ctl_buf_fmt(b,
                    "%s{\"age_ns\":%" PRIu64 ",\"uid\":%" PRIu32 ",\"why\":\"%s\",\"prompt_tokens\":%" PRIu32
                    ",\"found_tokens\":%" PRIu32 ",\"same_tokens\":%" PRIu32 "}",
                    k ? "," : "", m->age_ns, m->uid, why_name(m->why), m->prompt_tokens, m->found_tokens,
                    m->same_tokens);
    }
    ctl_buf_str(b, "]}\n");
}

static void user_name(struct ctl_buf *b, uint32_t uid) {
    const struct passwd *p = getpwuid(uid);
    char name[40];
    if (p)
        snprintf(name, sizeof name, "%.16s", p->pw_name);
    else
        snprintf(name, sizeof name, "%" PRIu32, uid);
    ctl_text_tty(b, name, strlen(name));
    ctl_buf_fmt(b, "%*s", (int)(strlen(name) < 16 ? 16 - strlen(name) : 0), "");
}

static void text_users(struct ctl_buf *b, const struct glmd_numbers *n) {
    uint64_t served = 0;
    for (uint32_t k = 0; k < n->n_users; k++)
        served += n->users[k].served_tokens;
    if (n->n_users)
        ctl_buf_fmt(b, "\n%-16s %7s %8s %7s %12s %6s %11s\n", "user", "weight", "running", "queued", "tokens", "share",
                    "from cache");
    for (uint32_t k = 0; k < n->n_users; k++) {
        const struct glmd_user_numbers *u = &n->users[k];
        user_name(b, u->uid);
        ctl_buf_fmt(b, " %7" PRIu32 " %8" PRIu32 " %7" PRIu32 " %12" PRIu64, u->weight, u->running, u->queued,
                    u->served_tokens);
        if (n->all_users)
            ctl_buf_fmt(b, " %4.0f %%", percent(u->served_tokens, served));
        else
            ctl_buf_fmt(b, " %6s", "-"); /* of what others got nothing is said */
        ctl_buf_fmt(b, " %9.1f %%\n", percent(u->cached_tokens, u->prompt_tokens));
    }
}

static void text_misses(struct ctl_buf *b, const struct glmd_numbers *n) {
    if (n->n_misses)
        ctl_buf_fmt(b, "\n%-16s %8s %8s %8s %8s  %s\n", "last misses", "age", "prompt", "found", "same", "why");
    for (uint32_t k = 0; k < n->n_misses; k++) {
        const struct glmd_miss_numbers *m = &n->miss[k];
        user_name(b, m->uid);
        ctl_buf_fmt(b, " %6.0f s %8" PRIu32 " %8" PRIu32 " %8" PRIu32 "  %s\n", (double)m->age_ns / SECOND,
                    m->prompt_tokens, m->found_tokens, m->same_tokens, why_name(m->why));
    }
}

static void as_text(struct ctl_buf *b, const struct glmd_info *i, const struct glmd_numbers *n) {
    ctl_text_tty(b, i->model, strlen(i->model));
    ctl_buf_fmt(b, ", %s, prompts %.0f tokens/s, answers %.1f tokens/s\n", ctl_state_name(i->state),
                (double)i->prefill_tokens_per_second, (double)i->decode_tokens_per_second);
    ctl_buf_fmt(b,
                "requests  %" PRIu32 " running of %" PRIu32 " seats, %" PRIu32 " paused, %" PRIu32 " waiting\n",
                n->running, n->seats, n->paused, n->queued);
    ctl_buf_fmt(b,
                "pages     %" PRIu32 " of %" PRIu32 " tokens: %" PRIu32 " in use, %" PRIu32 " cached, %" PRIu32
                " free, at most %" PRIu32 " taken\n",
                n->pages_total, n->page_tokens, n->pages_total - n->pages_free - n->pages_cached, n->pages_cached,
                n->pages_free, n->pages_high);
    ctl_buf_fmt(b,
                "states    %" PRIu32 ": %" PRIu32 " in use, %" PRIu32 " cached, %" PRIu32 " free, at most %" PRIu32
                " taken\n",
                n->slots_total, n->slots_total - n->slots_free - n->slots_cached, n->slots_cached, n->slots_free,
                n->slots_high);
    ctl_buf_fmt(b,
                "cache     %.1f %% of %" PRIu64 " prompt tokens found, in %" PRIu64 " of %" PRIu64 " prompts; %" PRIu64
                " tokens from disk\n",
                percent(n->cached_tokens, n->prompt_tokens), n->prompt_tokens, n->hits, n->lookups, n->tier_tokens);
    if (n->all_users)
        ctl_buf_fmt(b, "          %.1f MiB kept, %" PRIu64 " states taken, %" PRIu64 " given up\n",
                    (double)n->cache_bytes / 1048576.0, n->kept, n->evicted);
    text_tier(b, n);
    text_users(b, n);
    text_misses(b, n);
}

static int put(const struct ctl_buf *b) {
    if (!b->failed && fwrite(b->p, 1, b->len, stdout) == b->len && fflush(stdout) == 0)
        return CTL_EXIT_OK;
    ctl_err("standard output could not be written, or memory ran out");
    return CTL_EXIT_OUTPUT;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

/* Lets so much time pass, whatever events there are: none is drawn. Negative: the daemon is gone. */
static int pass(glmd_conn *c, int64_t ns) {
    int64_t until = now_ns() + ns;
    for (int64_t now = until - ns; now < until; now = now_ns()) {
        struct glmd_event e = {.size = sizeof e};
        int r = glmd_wait(c, until - now);
        while (r == 1)
            r = glmd_next(c, &e);
        if (r < 0 && r != -EINTR)
            return r;
    }
    return 0;
}

/* Until the daemon has numbers or is gone. */
static int await_numbers(glmd_conn *c, struct glmd_numbers *n) {
    int r;
    while ((r = glmd_get_numbers(c, n)) == -EAGAIN && (r = pass(c, SECOND / 10)) == 0)
        ;
    return r;
}

static int show(glmd_conn *c, const struct ctl_args *a, bool tty) {
    struct glmd_numbers n = {.size = sizeof n};
    struct glmd_info i = {.size = sizeof i};
    struct ctl_buf b = {0};
    int r = await_numbers(c, &n);
    if (r == 0)
        r = glmd_get_info(c, &i);
    if (r < 0) {
        ctl_err(r == -EOPNOTSUPP ? "this daemon keeps no such numbers" : "the daemon's numbers cannot be read: %s",
                glmd_strerror(r));
        return r == -EOPNOTSUPP ? CTL_EXIT_REQUEST : CTL_EXIT_LOST;
    }
    if (a->json) {
        as_json(&b, &i, &n);
    } else {
        if (tty)
            ctl_buf_str(&b, "\033[H\033[2J");
        as_text(&b, &i, &n);
        if (!tty && !a->once)
            ctl_buf_str(&b, "\n");
    }
    r = put(&b);
    ctl_buf_done(&b);
    return r;
}

int ctl_top(const struct ctl_args *a) {
    struct ctl_args ask = *a;
    glmd_conn *c;
    if (a->n_words) {
        ctl_err("top takes no further words");
        return CTL_EXIT_USAGE;
    }
    ask.ask = GLMD_FEATURE_NUMBERS;
    int r = ctl_connect(&ask, 0, &c);
    if (r)
        return r;
    bool tty = !a->once && isatty(1);
    while ((r = show(c, a, tty)) == CTL_EXIT_OK && !a->once) {
        int e = pass(c, SECOND);
        if (e < 0) {
            ctl_err("the daemon went away: %s", glmd_strerror(e));
            r = CTL_EXIT_LOST;
            break;
        }
    }
    glmd_close(c);
    return r;
}
