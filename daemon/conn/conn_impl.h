/* SPDX-License-Identifier: MIT */
/* What the files of conn share; io thread only, except struct server's `prepared` and `woken`. */
#ifndef GLMD_CONN_IMPL_H
#define GLMD_CONN_IMPL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "hello.h"
#include "log.h"
#include "seqsock.h"
#include "server.h"

struct user { /* one per uid with a connection, or with a bad record */
    struct user *next;
    uint32_t uid;
    uint32_t connections, live, kept;
    uint64_t region_bytes, bulk_bytes;
    uint64_t bucket_full_ns;  /* of SubmitRateLimit; past: it is full */
    uint64_t refused;         /* requests and objects, for want of quota */
    struct sched_usage usage; /* counted by the engine for as long as a request lives */
    uint64_t faults_since_ns, refused_until_ns;
    uint32_t faults;
    struct log_rate rate, quota_rate, debug_rate; /* refusals, comings and goings must not hide faults */
};

/* A stream that can be resumed, and for a while what is left of it. */
struct kept {
    uint64_t id; /* 0 = free */
    struct user *user;
    struct request *request; /* the tag it has, or its life without one; NULL: it has ended */
    uint64_t features;       /* of KEPT_FEATURES: whoever resumes it must understand its records */
    uint64_t until_ns;       /* without a tag: cancelled then; ended: forgotten then */
};

struct request {
    struct request *prev, *next; /* of the connection, or of those without one */
    struct server *server;
    struct user *user;
    struct conn *conn;     /* NULL: a kept stream whose client is gone */
    struct prep_req *prep; /* NULL: only shows what is left of a kept stream */
    struct kept *kept;
    struct stream_id stream;
    uint64_t tag;
    struct bulk *bulk; /* its payload, NULL when that was in the arena */
    bool with_worker;  /* pushed to prep and not heard of again: the engine may have it */
};

enum { BULK_MAX = 16 };

/* A sealed memfd of the client, mapped. Alive from BULK_OK until the request that names it is retired: text
 * worker and engine read in the mapping until then. */
struct bulk {
    struct conn *conn; /* whose table it is in; NULL: the request goes on without */
    struct user *user; /* who is charged */
    uint32_t id, kind;
    struct shm_bulk map;
    struct request *by; /* who names it, NULL = nobody yet */
};

enum conn_state { CONN_HELLO = 1, CONN_OPEN, CONN_CLOSING };

struct conn {
    struct conn *prev, *next;
    struct server *server;
    struct user *user;
    uint32_t id;
    enum conn_state state;
    int fd;
    uint32_t pid;
    uint32_t serial;
    struct loop_source *socket, *bell_source;
    uint64_t hello_by_ns;
    uint64_t features;
    struct glmw_limits limits;
    uint64_t region_bytes;
    struct conf_quota quota; /* of its user and groups; renewed by a reload */

    struct bell bell;
    struct shm_pair shm;
    struct glmw_consumer sq;
    struct emit_conn *out;
    struct request *requests;
    uint32_t n_live;
    struct bulk *bulk[BULK_MAX]; /* NULL: a free place */
    uint32_t bulk_refused;       /* objects that broke a rule */

    bool ready;     /* entries may be waiting: look at them in the next turn */
    bool blocked;   /* the first entry waits for room in the token ring */
    bool rate_paid; /* it was counted by the rate limit before it had to wait */
    uint64_t edges_since_ns, paused_until_ns;
    uint32_t edges;   /* bells without a new entry in this second */
    bool model_known; /* limits hold the model's numbers */
};

struct server {
    struct server_options opt;
    uint64_t generation;
    uint32_t last_id;
    enum glmw_state state;
    struct server_model model;
    bool has_model;
    struct server_status status; /* as written last */
    struct numbers numbers;
    bool has_numbers;
    uint32_t owner; /* uid of the daemon */

    int listen_fd, lock_fd;
    char socket_path[CONF_PATH_MAX]; /* ours to remove; "" when activated */
    char lock_path[CONF_PATH_MAX + 8];
    dev_t socket_dev; /* what we made at socket_path: it may have been replaced since */
    ino_t socket_ino;
    struct loop_source *listener;
    struct loop_timer *resume_listen; /* out of descriptors: accept again later */
    struct loop_timer *resume_bells;
    uint64_t resume_bells_at_ns; /* when it fires, 0 = it is off */

    struct conn *conns;
    struct user *users;
    struct request *adrift; /* requests without a connection */
    struct kept *kept;      /* [max_kept], beside the stores of emit */
    uint32_t max_kept;
    uint32_t n_conns, n_live;
    uint64_t n_accepted, n_ended; /* requests since start; the difference is n_live */
    bool any_ready;
    struct seqsock_rx rx;

    _Atomic(struct prep_req *) prepared; /* newest first; pushed by text workers */
    _Atomic bool woken;
};

/* conn.c */
void conn_open(struct server *s, int fd);
void conn_close(struct conn *c, int error, const char *why); /* error: of our BYE, 0 = none is sent */
void conn_finish_if_done(struct conn *c);
int conn_send(struct conn *c, struct hello_msg *msg, const int *fds, unsigned n_fds);
void conn_send_notice(struct conn *c, enum glmw_notice what);
void conn_fault(struct conn *c, int error, const char *rule); /* the client broke a rule: log, count, close */
void conn_limits(const struct conn *c, struct glmw_limits *ret);
void conn_log(struct conn *c, enum log_level level, enum log_event ev, const char *text);

/* bulk.c */
void bulk_receive(struct conn *c, const struct glmw_bulk *b, int fd); /* borrows fd; answers the client */
struct bulk *bulk_find(struct conn *c, uint64_t id);                  /* NULL: not alive */
void bulk_detach(struct bulk *b);                                     /* NULL ok, as below */
void bulk_drop(struct bulk *b);
uint64_t bulk_bytes(const struct conn *c); /* of all in its table */
void bulk_drop_unnamed(struct conn *c);    /* those that no request holds: the connection is closing */

/* drain.c */
void conn_drain(struct conn *c);

/* request.c */
int request_submit(struct conn *c, const struct glmw_entry *e); /* -ENOBUFS: leave the entry for later */
struct request *request_find(struct conn *c, uint64_t tag);
void request_cancel(struct request *r);
void request_retired(void *ctx, void *owner);
void request_outcome(struct server *s, struct prep_req *p);

/* The request is another connection's, or nobody's (NULL). Its counts move along; the user is the same. */
void request_move(struct request *r, struct conn *to);
void request_link(struct server *s, struct conn *c, struct request *r);
/* -ENOBUFS: leave the entry for later; 0: ERROR and END are published, or the connection is gone. */
int request_refuse(struct conn *c, uint64_t tag, int ret, struct xerr *err);

/* kept.c */
/* Whoever knows the number and is who submitted it. */
static inline bool kept_is(const struct kept *k, uint64_t id, uint32_t uid) {
    return id != 0 && k->id == id && (k->user->uid == uid || FAULT(resume_any_uid));
}
/* Where another may be kept, and its number. NULL: nowhere; then it runs like any other. An answer of the same user
 * that has ended may still be there: it gives way in kept_begin(), when the new request is accepted, not before. */
struct kept *kept_place(struct conn *c, uint64_t *ret_id);
void kept_begin(struct conn *c, struct kept *k, uint64_t id, struct request *r);
uint32_t kept_store(const struct server *s, const struct kept *k);
void kept_free(struct server *s, struct kept *k);
void kept_ended(struct request *r); /* its END is published, somewhere or in its store */
/* Lets the stream of a kept request go on without its connection; status as in emit_stream_detach. */
void kept_detach(struct request *r, int status, const char *text);
int kept_resume(struct conn *c, const struct glmw_entry *e); /* as request_submit */
void kept_tick(struct server *s, uint64_t now);
uint64_t kept_features(const struct server *s);

/* quota.c */
void quota_resolve(const struct server *s, const struct user *u, int fd, struct conf_quota *ret);
/* 0, or -EDQUOT with its text, logged and counted. A request that passes is charged to the rate. */
int quota_check_rate(struct conn *c, uint64_t tag, struct xerr *err); /* of RESUME too: nobody guesses fast */
int quota_check_submit(struct conn *c, uint64_t tag, struct xerr *err);
/* Logs and counts; -EDQUOT. tag 0: a bulk object. */
int quota_refuse(struct conn *c, uint64_t tag, const char *key);

/* listen.c */
void listen_pause(struct server *s);

/* server.c */
void server_write_conn_status(struct server *s, struct conn *c);

/* numbers_show.c */
void server_write_conn_numbers(struct server *s, struct conn *c);
void server_plan_bells(struct server *s, uint64_t at_ns); /* a bell that is paused is looked at again then */

/* user.c */
struct user *user_get(struct server *s, uint32_t uid); /* NULL: no memory */
void user_put(struct server *s, struct user *u);       /* frees it when nothing refers to it any more */
void users_sweep(struct server *s);                    /* those whose bad record has grown old */

#endif
