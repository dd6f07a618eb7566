/* SPDX-License-Identifier: MIT */
/* What one user has open. Connections are few, so the users are a list. io thread. */
#include <stdlib.h>

#include "clock.h"
#include "conn_impl.h"

struct user *user_get(struct server *s, uint32_t uid) {
    struct user *u;

    for (u = s->users; u; u = u->next)
        if (u->uid == uid)
            return u;
    u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->uid = uid;
    u->next = s->users;
    s->users = u;
    return u;
}

static bool is_of_use(const struct user *u, uint64_t now) {
    return u->connections || u->live || u->kept || u->refused_until_ns > now || u->bucket_full_ns > now ||
           (u->faults && now - u->faults_since_ns < 60 * CLOCK_NS_PER_SEC) ||
           now - u->rate.since_ns < LOG_RATE_NS || now - u->quota_rate.since_ns < LOG_RATE_NS;
}

void user_put(struct server *s, struct user *u) {
    if (is_of_use(u, clock_now_ns()))
        return;
    for (struct user **at = &s->users; *at; at = &(*at)->next)
        if (*at == u) {
            *at = u->next;
            free(u);
            return;
        }
}

void users_sweep(struct server *s) {
    uint64_t now = clock_now_ns();

    for (struct user **at = &s->users; *at;) {
        struct user *u = *at;

        if (is_of_use(u, now)) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        free(u);
    }
}
