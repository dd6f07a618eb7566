/* SPDX-License-Identifier: MIT */
/* The connection object and what the files of the library offer each other.  One thread at a time owns a
 * connection; only `async` and fd_wake are touched by others. */
#ifndef GLMD_CLCONN_H
#define GLMD_CLCONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "clarena.h"
#include "cltags.h"
#include "glmd.h"
#include "ringops.h"
#include "wire.h"

#define CL_NEVER     UINT64_MAX
#define CL_NS_PER_MS 1000000ull

/* Cancels asked by other threads, waiting for the owner. */
struct cl_async {
    pthread_mutex_t lock;
    uint64_t *tags;
    uint32_t n;
    uint32_t cap;
};

/* Watching a daemon that may hang: a stale heartbeat is asked about by a PING before anybody is told. */
enum cl_pulse_state { CL_PULSE_OK, CL_PULSE_ASKED, CL_PULSE_HUNG };
struct cl_pulse {
    int state;         /* enum cl_pulse_state */
    uint64_t check_ns; /* next look; CL_NEVER without live requests */
    uint64_t asked;    /* opaque value of the last PING */
};

struct glmd_conn {
    uint32_t *fork_guard; /* a page the kernel wipes in a child */
    uint32_t fork_count;  /* of this process when the connection was made */

    int fd_sock;
    int fd_bell; /* written, never read */
    int fd_pipe; /* read, non-blocking */
    int fd_timer;
    int fd_wake;  /* private eventfd behind glmd_wakeup() */
    int fd_epoll; /* over sock, pipe, timer and wake: what glmd_get_fd() gives */

    struct glmw_u *u; /* the maps; NULL until made */
    uint64_t features; /* asked for */
    const struct glmw_d GLMW_FOREIGN *d;
    size_t u_bytes;
    size_t d_bytes;
    uint8_t *pay;
    const char GLMW_FOREIGN *txt;
    uint32_t txt_bytes;
    struct glmw_producer sq;
    struct glmw_consumer tq;

    struct glmw_welcome hello; /* as granted; limits, state and model are kept current by NOTICE */
    struct glmw_status status; /* last whole reading */
    struct cl_arena arena;
    struct cl_tags tags;
    struct glmd_alt *alts; /* by record slot: one group never wraps because 4 records more are there */

    int error; /* sticky, 0 while alive */
    char error_text[256];
    bool ring_bad;          /* the ring itself is not to be believed any more */
    bool socket_done;       /* EOF or BYE was seen, or the socket is shut */
    uint32_t notices;       /* pending, bit numbers are those of notice_code[] in clring.c */
    uint32_t need;          /* records that must be visible before the next event is whole */
    bool armed;             /* the daemon will ring for the next event */
    bool flowing;           /* records were taken since the last arming */
    uint32_t bells_left;    /* wake-ups that may lie in the pipe before it must be read */
    bool credit_owed;       /* a NOP found no room */
    uint32_t n_cancel_owed; /* live entries with cancel_wanted */
    uint32_t serial;        /* packets sent */
    uint32_t bulk_serial;   /* id of the last object */
    uint32_t n_bulk;        /* objects asked for or alive */
    uint32_t n_submit_owed; /* live entries whose object is taken and that found no room */
    uint32_t n_refused;     /* live entries whose object was refused */

    uint32_t coalesce_tokens;
    uint64_t coalesce_ns;
    uint64_t coalesce_at_ns; /* deadline of the current sleep */
    uint64_t retry_at_ns;    /* for owed entries */
    uint64_t timer_at_ns;    /* what the timer descriptor is set to */
    struct cl_pulse pulse;

    struct cl_async async;
};

/* ---- clconn.c: life and death ---- */

/* 0, or -ECHILD in a child of the process that made the connection */
int cl_check(const glmd_conn *c);

/* Marks the connection dead.  The first cause stays. */
void cl_die(glmd_conn *c, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Fills a struct of the caller that begins with its size. */
int cl_give(void *ret, const void *from, size_t known);
void cl_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
uint64_t cl_now_ns(void);

/* ---- clhello.c: handshake over a connected socket, fills the connection from WELCOME ---- */

struct cl_say;
int cl_hello(glmd_conn *c, const struct glmd_options *opt, uint64_t deadline_ns, struct cl_say *say);

/* ---- clpacket.c: packets on the socket ---- */

/* Room for four descriptors; those not wanted are closed by cl_fds_close(). */
struct cl_fds {
    int fd[GLMW_PACKET_FDS_MAX];
    unsigned n;
};
void cl_fds_close(struct cl_fds *f);

int cl_packet_send(glmd_conn *c, uint16_t type, const void *body, uint32_t len);
/* With a descriptor, borrowed; -1: none. */
int cl_packet_send_fd(glmd_conn *c, uint16_t type, const void *body, uint32_t len, int fd);
/* Positive: bytes of a packet with a checked header; 0: the daemon closed; -EAGAIN; -EPROTO. */
int cl_packet_recv(int fd, void *buf, size_t size, struct cl_fds *fds);
/* Everything that lies on the socket now. */
void cl_socket_read(glmd_conn *c);

/* ---- clsubmit.c ---- */

int cl_entry_push(glmd_conn *c, const struct glmw_entry *e);
/* Entries that found the ring full. */
void cl_owed_push(glmd_conn *c);

/* ---- clring.c ---- */

/* True when glmd_next() has something besides a sticky error. */
bool cl_pending(glmd_conn *c);
/* Asks the daemon for a bell.  1: nothing waits, poll; 0: something waits. */
int cl_arm(glmd_conn *c);
void cl_notice(glmd_conn *c, uint32_t code);
void cl_release(glmd_conn *c);

/* ---- clloop.c ---- */

void cl_timer_plan(glmd_conn *c);
void cl_bell_write(int fd);

/* ---- clreq.c ---- */

struct cl_payload {
    const void *part[3];
    size_t len[3];
    uint64_t total_bytes;
    uint64_t session;
    uint32_t max_tokens;
    uint32_t deadline_ms;
    bool quiet;
    bool keep;
    bool background, no_cache;
    bool schema;
};
/* Finishes the encoding; the parts are borrowed from r. */
int cl_req_seal(glmd_req *r, struct cl_payload *ret);

/* ---- clbulk.c ---- */

/* Largest request that may go by a sealed memfd; 0: not granted. */
uint64_t cl_bulk_max(const glmd_conn *c);
/* Sends the payload; l->entry is pushed when the daemon has taken it.  -ENOBUFS: too many objects or a full
 * socket, try later. */
int cl_bulk_send(glmd_conn *c, const struct cl_payload *p, struct cl_live *l);
void cl_bulk_answer(glmd_conn *c, const void *body, bool granted);
/* The request is over, or its object was refused. */
void cl_bulk_end(glmd_conn *c, struct cl_live *l);
const char *cl_bulk_text(int error); /* why an object was refused, for people */

#endif
