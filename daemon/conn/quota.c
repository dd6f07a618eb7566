/* SPDX-License-Identifier: MIT */
/* What a connection's user may have: resolved from the configuration for its user and groups, and asked when
 * a request comes. Every refusal names its key, is counted for the user's status and logged at a limited
 * rate, never with anything of the request. io thread. */
#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "conn_impl.h"

void quota_resolve(const struct server *s, const struct user *u, int fd, struct conf_quota *ret) {
    const struct conf *conf = s->opt.conf;
    uint32_t *gids = NULL;
    size_t n = 0;

    /* the groups are asked for only when a section could depend on them; without them the user's own section
     * and [Quota] hold, which never gives more than the administrator wrote */
    if (conf->n_rules)
        seqsock_peer_groups(fd, &gids, &n);
    conf_quota_for(conf, u->uid, gids, n, ret);
    free(gids);
}

int quota_refuse(struct conn *c, uint64_t tag, const char *key) {
    struct log_fields f = {.event = LOG_EV_QUOTA, .conn = c->id, .uid = c->user->uid, .tag = tag};

    c->user->refused++;
    log_full(LOG_LEVEL_NOTICE, &f, &c->user->quota_rate, "%s refused: [Quota] %s",
             tag ? "request" : "bulk object", key);
    return -EDQUOT;
}

/* One number is the whole bucket: when it would be full again. It may lie a second ahead at most. */
static bool over_rate(struct user *u, uint32_t rate, uint64_t now) {
    uint64_t step;

    if (!rate)
        return false;
    step = CLOCK_NS_PER_SEC / rate;
    if (u->bucket_full_ns < now)
        u->bucket_full_ns = now;
    if (u->bucket_full_ns + step > now + CLOCK_NS_PER_SEC && !FAULT(quota_no_rate))
        return true;
    u->bucket_full_ns += step;
    return false;
}

int quota_check_rate(struct conn *c, uint64_t tag, struct xerr *err) {
    uint32_t rate = c->quota.submit_rate;

    if (!c->rate_paid && over_rate(c->user, rate, clock_now_ns()))
        return xerr_set(err, quota_refuse(c, tag, "SubmitRateLimit"),
                        "this user sends more than %u requests a second, which is the quota ([Quota] "
                        "SubmitRateLimit)",
                        rate);
    c->rate_paid = !FAULT(quota_pays_again);
    return 0;
}

int quota_check_submit(struct conn *c, uint64_t tag, struct xerr *err) {
    const struct conf_quota *q = &c->quota;
    struct user *u = c->user;

    if (u->live >= q->requests_per_uid)
        return xerr_set(err, quota_refuse(c, tag, "MaxRequestsPerUid"),
                        "this user has %u live requests, which is the quota ([Quota] MaxRequestsPerUid)",
                        u->live);
    return quota_check_rate(c, tag, err);
}
