/* SPDX-License-Identifier: MIT */
/* Both rings at full speed with real bells: two threads, then two processes, then with one side killed.
 * GLMD_STRESS_RECORDS sets the number of records of the first two (default 10,000,000, a tenth where a
 * sanitizer or an emulator makes each slow). */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bell.h"
#include "ipctest.h"
#include "leakcheck.h"
#include "shm.h"

/* A sleep longer than this is a lost wake-up, not a busy machine. */
#define LOST_MS 20000

struct link { /* everything both sides share */
    struct shm_geom geom;
    struct shm_pair pair;
    struct bell bell;
    struct glmw_welcome w;
    int hup[2]; /* socket pair: its end of file tells of a death */
    uint64_t total;
};

static void link_open(struct link *l, uint64_t total) {
    const struct shm_ident id = {.wire = 1, .generation = 7, .conn_id = 1};
    memset(l, 0, sizeof(*l));
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(shm_geom_init(4, 6, 16, 16, &l->geom), 0);
    ck_assert_int_eq(shm_pair_create(&l->geom, &id, &l->pair), 0);
    ck_assert_int_eq(bell_open(&l->bell), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, l->hup), 0);
    l->w = (struct glmw_welcome){.wire = 1,
                                 .generation = 7,
                                 .conn_id = 1,
                                 .u_bytes = l->geom.u_bytes,
                                 .d_bytes = l->geom.d_bytes,
                                 .sq_off = l->geom.sq_off,
                                 .pay_off = l->geom.pay_off,
                                 .tq_off = l->geom.tq_off,
                                 .txt_off = l->geom.txt_off,
                                 .sq_log2 = 4,
                                 .tq_log2 = 6,
                                 .pay_log2 = 16,
                                 .txt_log2 = 16};
    l->total = total;
}

static void link_close(struct link *l) {
    shm_pair_done(&l->pair);
    bell_close(&l->bell);
    for (int i = 0; i < 2; i++) {
        if (l->hup[i] >= 0)
            close(l->hup[i]);
    }
}

/* Every byte of a record follows from its number, so that a torn or stale one is seen. */
static void fill(struct glmw_rec *r, uint64_t n) {
    uint64_t w[8];
    for (unsigned i = 0; i < 8; i++)
        w[i] = (n + 1) * UINT64_C(0x9e3779b97f4a7c15) + i;
    memcpy(r, w, sizeof(w));
}

static bool is_record(const struct glmw_rec *r, uint64_t n) {
    struct glmw_rec want;
    fill(&want, n);
    return memcmp(r, &want, sizeof(want)) == 0;
}

/* What went wrong, if anything; also an exit code of a child. */
enum { OK = 0, TORN = 10, BROKEN_INDEX, LOST_BELL, LOST_CREDIT, BELL_FAILED, PEER_GONE };

/* Sleeps until fd is readable. hup < 0: nobody can die. */
static int sleep_on(int fd, int hup, int lost) {
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = hup, .events = POLLIN}};
    char buf[4096];
    int n;
    do
        n = poll(p, hup < 0 ? 1 : 2, LOST_MS);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return lost;
    if (p[0].revents & POLLIN) {
        while (read(fd, buf, sizeof(buf)) < 0 && errno == EINTR)
            ;
        return OK;
    }
    return PEER_GONE;
}

/* The daemon's side: produces records in random batches, rings, and when the ring is full asks for credit and
 * sleeps on the eventfd until the client's NOP comes. (The test may read the eventfd; the daemon only polls.)
 */
static int daemon_side(struct link *l, uint64_t seed, int hup) {
    struct ipc_rng r = {.s = seed};
    struct glmw_producer tq;
    struct glmw_consumer sq;
    struct bell_counts counts = {0};
    struct glmw_entry e;
    struct glmw_rec rec;
    uint64_t n = 0;

    shm_pair_rings(&l->pair, &sq, &tq);
    while (n < l->total) {
        uint32_t batch = 1 + ipc_below(&r, 8);
        if (glmw_refresh(&tq) < 0)
            return BROKEN_INDEX;
        while (glmw_free_slots(&tq) < batch) {
            /* 8.3: ask, look again, and only then sleep */
            if (glmw_credit_ask(&tq, &l->pair.d->credit_wanted) < 0)
                return BROKEN_INDEX;
            if (glmw_free_slots(&tq) >= batch)
                break;
            int got = glmw_arm(&sq, 1);
            if (got < 0)
                return BROKEN_INDEX;
            if (got == 0) {
                int s = sleep_on(l->bell.up_fd, hup, LOST_CREDIT);
                if (s != OK)
                    return s;
            }
            while ((got = glmw_peek(&sq)) > 0) {
                glmw_take(&sq, &e);
                glmw_give_back(&sq, NULL);
                if (e.opcode != GLMW_OP_NOP)
                    return TORN;
            }
            if (got < 0 || glmw_refresh(&tq) < 0)
                return BROKEN_INDEX;
        }
        glmw_credit_done(&l->pair.d->credit_wanted);
        for (uint32_t i = 0; i < batch && n < l->total; i++) {
            fill(&rec, n++);
            glmw_put(&tq, &rec);
        }
        int b = bell_publish(&tq, l->bell.pipe_w, n == l->total || ipc_below(&r, 16) == 0, &counts);
        if (b == -EPIPE)
            return PEER_GONE;
        if (b < 0)
            return BELL_FAILED;
    }
    return OK;
}

/* The client's side: reads everything, gives back in random portions, sends NOPs, arms, sleeps. ret_read is
 * how far it came. */
static int client_side(struct link *l, uint64_t seed, int hup, uint64_t *ret_read) {
    struct ipc_rng r = {.s = seed};
    struct shm_view v;
    struct glmw_producer sq;
    struct glmw_consumer tq;
    struct glmw_rec rec;
    const struct glmw_entry nop = {.opcode = GLMW_OP_NOP};
    const uint64_t one = 1;
    uint64_t n = 0;
    bool gone = false;
    int res = OK;

    if (shm_view_map(&l->w, l->pair.u_fd, l->pair.d_fd, &v) < 0)
        return BROKEN_INDEX;
    shm_view_rings(&v, &sq, &tq);
    while (n < l->total) {
        int got = glmw_peek(&tq);
        if (got < 0) {
            res = BROKEN_INDEX;
            break;
        }
        if (got == 0) {
            if (gone) { /* every published record was read before the death is reported */
                res = PEER_GONE;
                break;
            }
            got = glmw_arm(&tq, 1);
            if (got == 0) {
                int s = sleep_on(l->bell.pipe_r, hup, LOST_BELL);
                gone = s == PEER_GONE;
                if (s != OK && s != PEER_GONE) {
                    res = s;
                    break;
                }
            }
            continue;
        }
        for (int k = 1 + (int)ipc_below(&r, (uint32_t)got); k > 0; k--) {
            glmw_take(&tq, &rec);
            if (!is_record(&rec, n)) {
                res = TORN;
                goto out;
            }
            n++;
        }
        /* Half full or more means the daemon has not got enough yet; it is asked again at the next portion.
         */
        if (glmw_give_back(&tq, &v.d->credit_wanted) && tq.tail - tq.head < tq.size / 2) {
            if (glmw_refresh(&sq) < 0) {
                res = BROKEN_INDEX;
                break;
            }
            if (glmw_put(&sq, &nop) == 0 && glmw_publish(&sq, false) && write(l->bell.up_fd, &one, 8) < 0 &&
                errno != EAGAIN) {
                res = BELL_FAILED;
                break;
            }
        }
    }
out:
    shm_view_done(&v);
    *ret_read = n;
    return res;
}

static uint64_t total_records(void) {
    const char *s = getenv("GLMD_STRESS_RECORDS");
    const char *san = getenv("GLMD_SAN");
    bool slow = getenv("GLMD_EMULATED") || (san && *san);
    uint64_t n = s ? strtoull(s, NULL, 10) : slow ? 1000000 : 10000000;
    return n ? n : 1;
}

struct thread_arg {
    struct link *l;
    int result;
};

static void *daemon_thread(void *arg) {
    struct thread_arg *a = arg;
    a->result = daemon_side(a->l, 11, -1);
    return NULL;
}

START_TEST(two_threads) {
    struct link l;
    struct thread_arg a = {.l = &l};
    pthread_t th;
    uint64_t n = 0;

    link_open(&l, total_records());
    ck_assert_int_eq(pthread_create(&th, NULL, daemon_thread, &a), 0);
    int res = client_side(&l, 22, -1, &n);
    pthread_join(th, NULL);
    ck_assert_int_eq(res, OK);
    ck_assert_int_eq(a.result, OK);
    ck_assert_uint_eq(n, l.total);
    link_close(&l);
}
END_TEST

static int reap(pid_t pid) {
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

/* The child's copies of what belongs to the other side are closed, so that a death shows. */
static pid_t fork_client(struct link *l, uint64_t seed) {
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        uint64_t n;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(l->hup[0]);
        close(l->bell.pipe_w);
        _exit(client_side(l, seed, l->hup[1], &n));
    }
    close(l->hup[1]);
    close(l->bell.pipe_r);
    l->hup[1] = l->bell.pipe_r = -1;
    return pid;
}

START_TEST(two_processes) {
    struct link l;
    link_open(&l, total_records());
    pid_t pid = fork_client(&l, 33);
    ck_assert_int_eq(daemon_side(&l, 44, l.hup[0]), OK);
    int status = reap(pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), OK);
    link_close(&l);
}
END_TEST

static void nap(struct ipc_rng *r) {
    struct timespec t = {.tv_nsec = 200000 + (long)ipc_below(r, 8000000)};
    nanosleep(&t, NULL);
}

struct killer {
    pid_t pid;
    uint64_t seed;
};

static void *kill_later(void *arg) {
    struct killer *k = arg;
    struct ipc_rng r = {.s = k->seed};
    nap(&r);
    kill(k->pid, SIGKILL);
    return NULL;
}

/* The client dies at a random point: the daemon never sees an impossible index, never blocks, notices. */
START_TEST(client_is_killed) {
    for (uint64_t i = 1; i <= 15; i++) {
        struct link l;
        pthread_t th;
        link_open(&l, UINT64_MAX);
        struct killer k = {.pid = fork_client(&l, i), .seed = i * 77};
        ck_assert_int_eq(pthread_create(&th, NULL, kill_later, &k), 0);
        int res = daemon_side(&l, i + 500, l.hup[0]);
        pthread_join(th, NULL);
        int status = reap(k.pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        ck_assert_int_eq(res, PEER_GONE);
        link_close(&l);
    }
}
END_TEST

/* The daemon dies at a random point: everything it published is read, whole and in order, and only then comes
 * the end. */
START_TEST(daemon_is_killed) {
    for (uint64_t i = 1; i <= 15; i++) {
        struct link l;
        pthread_t th;
        uint64_t n = 0;
        link_open(&l, UINT64_MAX);
        /* the producer is the child: its writable map must survive the fork, so it undoes MADV_DONTFORK */
        ck_assert_int_eq(madvise(l.pair.d, l.geom.d_bytes, MADV_DOFORK), 0);
        ck_assert_int_eq(madvise((void *)(uintptr_t)l.pair.u, l.geom.u_bytes, MADV_DOFORK), 0);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(l.hup[1]);
            close(l.bell.pipe_r);
            _exit(daemon_side(&l, i, l.hup[0]));
        }
        close(l.hup[0]);
        close(l.bell.pipe_w);
        l.hup[0] = l.bell.pipe_w = -1;
        struct killer k = {.pid = pid, .seed = i * 99};
        ck_assert_int_eq(pthread_create(&th, NULL, kill_later, &k), 0);
        int res = client_side(&l, i + 900, l.hup[1], &n);
        pthread_join(th, NULL);
        int status = reap(pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        ck_assert_int_eq(res, PEER_GONE);
        ck_assert_uint_eq((uint32_t)n, __atomic_load_n(&l.pair.d->tq_tail, __ATOMIC_ACQUIRE));
        link_close(&l);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_stress");
    TCase *tc = tcase_create("stress");
    tcase_set_timeout(tc, 3600);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, two_threads);
    tcase_add_test(tc, two_processes);
    tcase_add_test(tc, client_is_killed);
    tcase_add_test(tc, daemon_is_killed);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
