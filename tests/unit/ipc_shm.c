/* SPDX-License-Identifier: MIT */
/* Regions: what the seals allow and refuse, geometry, failures without leaks; bulk memfds: every rule. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "leakcheck.h"
#include "shm.h"

static const struct shm_ident ident = {.wire = 1, .features = 5, .generation = 0x1234, .conn_id = 9};
static struct shm_geom geom;
static struct shm_pair pair;

static void setup(void) {
    leakcheck_setup();
    ck_assert_int_eq(shm_geom_init(5, 7, 17, 16, &geom), 0);
    ck_assert_int_eq(shm_pair_create(&geom, &ident, &pair), 0);
}
static void teardown(void) {
    shm_pair_done(&pair);
    leakcheck_teardown();
}

static struct glmw_welcome welcome(void) {
    return (struct glmw_welcome){
        .wire = ident.wire,
        .state = GLMW_STATE_READY,
        .features = ident.features,
        .generation = ident.generation,
        .conn_id = ident.conn_id,
        .u_bytes = geom.u_bytes,
        .d_bytes = geom.d_bytes,
        .sq_off = geom.sq_off,
        .pay_off = geom.pay_off,
        .tq_off = geom.tq_off,
        .txt_off = geom.txt_off,
        .sq_log2 = geom.sq_log2,
        .tq_log2 = geom.tq_log2,
        .pay_log2 = geom.pay_log2,
        .txt_log2 = geom.txt_log2,
    };
}

START_TEST(geometry) {
    struct shm_geom g;
    ck_assert_int_eq(shm_geom_init(8, 12, 20, 18, &g), 0);
    ck_assert_uint_eq(g.sq_off, 65536);
    ck_assert_uint_eq(g.pay_off, 131072); /* 256 entries are 16 KiB: the next 64 KiB boundary */
    ck_assert_uint_eq(g.u_bytes, 131072 + (1 << 20));
    ck_assert_uint_eq(g.tq_off, 65536);
    ck_assert_uint_eq(g.txt_off, 65536 + 262144);
    ck_assert_uint_eq(g.d_bytes, 65536 + 262144 + 262144);
    ck_assert_int_eq(shm_geom_init(12, 16, 26, 24, &g), 0);
    const unsigned bad[][4] = {{3, 12, 20, 18}, {13, 12, 20, 18}, {8, 5, 20, 18},  {8, 17, 20, 18},
                               {8, 12, 15, 18}, {8, 12, 27, 18},  {8, 12, 20, 15}, {8, 12, 20, 25}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(shm_geom_init(bad[i][0], bad[i][1], bad[i][2], bad[i][3], &g), -EINVAL);
}
END_TEST

START_TEST(regions_start_zeroed_with_headers) {
    struct glmw_welcome w = welcome();
    struct shm_view v;
    ck_assert_int_eq(shm_view_map(&w, pair.u_fd, pair.d_fd, &v), 0);
    ck_assert_uint_eq(v.u->magic, GLMW_MAGIC_U);
    ck_assert_uint_eq(v.u->wire, 1);
    ck_assert_uint_eq(v.d->magic, GLMW_MAGIC_D);
    ck_assert_uint_eq(v.d->features, 5);
    ck_assert_uint_eq(v.d->generation, 0x1234);
    ck_assert_uint_eq(v.d->conn_id, 9);
    ck_assert_uint_eq(v.d->sq_off, geom.sq_off);
    ck_assert_uint_eq(v.d->txt_off, geom.txt_off);
    ck_assert_uint_eq(v.d->u_bytes, geom.u_bytes);
    ck_assert_uint_eq(v.d->d_bytes, geom.d_bytes);
    ck_assert_uint_eq(v.d->tq_log2, 7);
    for (size_t i = 8; i < geom.u_bytes; i++)
        ck_assert_msg(((uint8_t *)v.u)[i] == 0, "region U is not zero at %zu", i);
    for (size_t i = 128; i < geom.d_bytes; i++)
        ck_assert_msg(((const uint8_t *)v.d)[i] == 0, "region D is not zero at %zu", i);
    shm_view_done(&v);
}
END_TEST

static int seals_of(int fd) {
    int s = fcntl(fd, F_GET_SEALS);
    ck_assert_int_ge(s, 0);
    return s;
}

START_TEST(seals_are_complete_and_final) {
    const int u = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    ck_assert_int_eq(seals_of(pair.u_fd) & u, u);
    ck_assert_int_eq(seals_of(pair.d_fd) & (u | 0x10), u | 0x10);
    /* no more can be added: a client that seals U against writing would break itself, one that seals D us */
    ck_assert_int_eq(fcntl(pair.u_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ck_assert_int_eq(fcntl(pair.d_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ck_assert(fcntl(pair.u_fd, F_GETFD) & FD_CLOEXEC);
    ck_assert(fcntl(pair.d_fd, F_GETFD) & FD_CLOEXEC);
}
END_TEST

START_TEST(down_cannot_be_mapped_writable) {
    errno = 0;
    ck_assert_ptr_eq(mmap(NULL, geom.d_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pair.d_fd, 0), MAP_FAILED);
    ck_assert_int_eq(errno, EPERM);
    /* a read-only map cannot become writable later */
    void *m = mmap(NULL, geom.d_bytes, PROT_READ, MAP_SHARED, pair.d_fd, 0);
    ck_assert_ptr_ne(m, MAP_FAILED);
    ck_assert_int_eq(mprotect(m, geom.d_bytes, PROT_READ | PROT_WRITE), -1);
    ck_assert_int_eq(errno, EACCES);
    munmap(m, geom.d_bytes);
    /* nor does another open file of the same memory help */
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", pair.d_fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        ck_assert_ptr_eq(mmap(NULL, geom.d_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        ck_assert_int_eq((int)pwrite(fd, "x", 1, 0), -1);
        ck_assert_int_eq(errno, EPERM);
        close(fd);
    }
    ck_assert_int_eq((int)pwrite(pair.d_fd, "x", 1, 0), -1);
    ck_assert_int_eq(errno, EPERM);
}
END_TEST

START_TEST(sizes_and_pages_are_fixed) {
    const int fds[2] = {pair.u_fd, pair.d_fd};
    const uint64_t bytes[2] = {geom.u_bytes, geom.d_bytes};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ftruncate(fds[i], 4096), -1);
        ck_assert_int_eq(errno, EPERM);
        ck_assert_int_eq(ftruncate(fds[i], (off_t)bytes[i] + 65536), -1);
        ck_assert_int_eq(errno, EPERM);
        ck_assert_int_eq(fallocate(fds[i], 0, (off_t)bytes[i], 65536), -1);
        ck_assert_int_eq(errno, EPERM);
    }
    ck_assert_int_eq(fallocate(pair.d_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 65536, 65536), -1);
    ck_assert_int_eq(errno, EPERM);
}
END_TEST

START_TEST(daemon_goes_on_writing_and_can_be_waited_for) {
    struct glmw_welcome w = welcome();
    struct shm_view v;
    ck_assert_int_eq(shm_view_map(&w, pair.u_fd, pair.d_fd, &v), 0);
    pair.d->tq_tail = 1;
    ck_assert_uint_eq(v.d->tq_tail, 1);
    /* a futex wait on the read-only map: wakes when the daemon changes the word */
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) { /* the maps are not inherited: take a fresh one */
        const struct glmw_d *d = mmap(NULL, geom.d_bytes, PROT_READ, MAP_SHARED, pair.d_fd, 0);
        struct timespec t = {.tv_sec = 20};
        long r = 0;
        if (d == MAP_FAILED)
            _exit(3);
        while (glmw_fetch32(&d->tq_tail) == 1 && r == 0)
            r = syscall(SYS_futex, &d->tq_tail, FUTEX_WAIT, 1, &t, NULL, 0) < 0 && errno != EAGAIN;
        _exit(glmw_fetch32(&d->tq_tail) == 2 ? 0 : 4);
    }
    usleep(20000);
    __atomic_store_n(&pair.d->tq_tail, 2, __ATOMIC_RELEASE);
    syscall(SYS_futex, &pair.d->tq_tail, FUTEX_WAKE, 1, NULL, NULL, 0);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    shm_view_done(&v);
}
END_TEST

/* Exit code or signal of a child that runs f: a sanitizer turns the signal into an exit code of its own. */
static bool child_survives(void (*f)(void)) {
    pid_t pid = fork();
    int status;
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL);
        f();
        _exit(71);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 71;
}

static const uint32_t *volatile up_word;

static void touch_up(void) {
    (void)*(volatile const uint32_t *)up_word;
}
static void write_up(void) {
    *(volatile uint32_t *)(uintptr_t)up_word = 1;
}
static void map_and_write_up(void) {
    up_word = mmap(NULL, geom.u_bytes, PROT_READ, MAP_SHARED, pair.u_fd, 0);
    write_up();
}

START_TEST(daemon_maps_up_read_only) {
    up_word = &pair.u->sq_tail;
    touch_up(); /* here it is mapped */
    ck_assert(!child_survives(write_up));
    ck_assert(!child_survives(map_and_write_up));
    /* No map reaches a forked child. An emulator accepts the advice and does nothing about it, so there is
     * nothing to see under one. */
    if (!getenv("GLMD_TEST_RUN"))
        ck_assert(!child_survives(touch_up));
}
END_TEST

START_TEST(payloads_are_read_within_bounds) {
    struct glmw_welcome w = welcome();
    struct shm_view v;
    char buf[64];
    const uint64_t arena = 1u << 17;
    ck_assert_int_eq(shm_view_map(&w, pair.u_fd, pair.d_fd, &v), 0);
    uint8_t *pay = (uint8_t *)v.u + geom.pay_off;
    memcpy(pay + 8, "hello", 5);
    pay[arena - 1] = 'z';
    ck_assert_int_eq(shm_payload_read(&pair, 8, 5, buf), 0);
    ck_assert_mem_eq(buf, "hello", 5);
    ck_assert_int_eq(shm_payload_read(&pair, arena - 8, 8, buf), 0);
    ck_assert_int_eq(buf[7], 'z');
    ck_assert_int_eq(shm_payload_read(&pair, arena, 0, buf), 0);
    ck_assert_int_eq(shm_payload_read(&pair, arena - 8, 9, buf), -EPROTO);
    ck_assert_int_eq(shm_payload_read(&pair, arena + 8, 0, buf), -EPROTO);
    ck_assert_int_eq(shm_payload_read(&pair, UINT64_MAX - 7, 8, buf), -EPROTO); /* off + len wraps */
    ck_assert_int_eq(shm_payload_read(&pair, 0, UINT32_MAX, buf), -EPROTO);
    ck_assert_int_eq(shm_payload_read(&pair, 4, 8, buf), -EPROTO);
    /* the owner may punch holes into U: they read as zeros and stay holes */
    ck_assert_int_eq(
        fallocate(pair.u_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)geom.pay_off, (off_t)arena),
        0);
    memset(buf, 1, sizeof(buf));
    ck_assert_int_eq(shm_payload_read(&pair, 8, 5, buf), 0);
    ck_assert_mem_eq(buf, "\0\0\0\0\0\1", 6);
    shm_view_done(&v);
}
END_TEST

START_TEST(view_refuses_what_does_not_fit) {
    struct shm_view v;
    struct glmw_welcome w = welcome();
    w.u_bytes += 65536;
    ck_assert_int_eq(shm_view_map(&w, pair.u_fd, pair.d_fd, &v), -EPROTO);
    w = welcome();
    w.txt_off -= 65536;
    ck_assert_int_eq(shm_view_map(&w, pair.u_fd, pair.d_fd, &v), -EPROTO);
    w = welcome();
    w.generation++;
    ck_assert_int_eq(shm_view_map(&w, pair.u_fd, pair.d_fd, &v), -EPROTO);
    w = welcome();
    w.tq_log2 = 40;
    ck_assert_int_eq(shm_view_map(&w, pair.u_fd, pair.d_fd, &v), -EPROTO);
    w = welcome();
    ck_assert_int_eq(shm_view_map(&w, pair.d_fd, pair.u_fd, &v), -EPROTO); /* swapped */
}
END_TEST

START_TEST(failures_leave_nothing) {
    struct rlimit old, lim;
    struct shm_pair p;
    struct leakcheck l;
    const char *what;
    memset(&p, 0x5a, sizeof(p));
    leakcheck_begin(&l);
    /* descriptors run out at the first, then at the second region */
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = dup(0);
    close(next);
    for (int i = 0; i < 2; i++) {
        lim = (struct rlimit){.rlim_cur = (rlim_t)(next + i), .rlim_max = old.rlim_max};
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
        int r = shm_pair_create(&geom, &ident, &p);
        setrlimit(RLIMIT_NOFILE, &old);
        ck_assert_int_eq(r, -EMFILE);
    }
    /* no room for the file: the limit on sizes stands in for a full file system */
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    lim = (struct rlimit){.rlim_cur = 65536, .rlim_max = old.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &lim), 0);
    int r = shm_pair_create(&geom, &ident, &p);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_eq(r, -EFBIG);
    ck_assert_msg(leakcheck_end(&l, &what) == 0, "%s", what);
    ck_assert_int_eq(p.u_fd, 0x5a5a5a5a); /* untouched */
}
END_TEST

/* ---- bulk ---------------------------------------------------------------------------------------------- */

#define ALL_SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int bulk_fd(size_t bytes, unsigned flags, int seals) {
    int fd = memfd_create("bulk", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    ck_assert_int_ge(fd, 0);
    char *buf = calloc(1, bytes);
    memset(buf, 'b', bytes);
    ck_assert_int_eq(write(fd, buf, bytes), (ssize_t)bytes);
    free(buf);
    if (seals)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void punch(int fd, size_t off, size_t len) {
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    ck_assert_int_eq(fallocate(fd, mode, (off_t)off, (off_t)len), 0);
}

static void refused(int fd, uint64_t bytes, const char *word) {
    struct shm_bulk b = {.data = &b, .bytes = 1};
    const char *reason = NULL;
    ck_assert_int_eq(shm_bulk_map(fd, bytes, 1 << 20, &b, &reason), -EINVAL);
    ck_assert_msg(reason && strstr(reason, word), "expected a reason with '%s', found '%s'", word, reason);
    ck_assert_ptr_eq(b.data, &b);
    close(fd);
}

START_TEST(bulk_is_read_in_place) {
    struct shm_bulk b;
    int fd = bulk_fd(10000, 0, ALL_SEALS);
    ck_assert_int_eq(shm_bulk_map(fd, 10000, 10000, &b, NULL), 0);
    ck_assert_uint_eq(b.bytes, 10000);
    ck_assert_int_eq(((const char *)b.data)[9999], 'b');
    close(fd); /* the map does not need it */
    ck_assert_int_eq(((const char *)b.data)[0], 'b');
    shm_bulk_done(&b);
    shm_bulk_done(&b); /* harmless */
}
END_TEST

START_TEST(bulk_needs_every_seal) {
    static const int seals[] = {F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL};
    for (int i = 0; i < 4; i++)
        refused(bulk_fd(4096, 0, ALL_SEALS & ~seals[i]), 4096, "seals");
}
END_TEST

START_TEST(bulk_must_be_a_full_regular_memfd) {
    struct shm_bulk b;
    const char *reason = NULL;
    char path[64], tmp[] = "/tmp/ipc_shm.XXXXXX";
    /* ordinary file, device, socket, pipe, O_PATH */
    int fd = mkstemp(tmp);
    ck_assert_int_ge(fd, 0);
    unlink(tmp);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    refused(fd, 4096, "not a memfd");
    refused(open("/dev/zero", O_RDONLY | O_CLOEXEC), 4096, "not a memfd");
    refused(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), 4096, "not a memfd");
    int good = bulk_fd(4096, 0, ALL_SEALS);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", good);
    refused(open(path, O_PATH | O_CLOEXEC), 4096, "not a memfd");
    /* wrong length, empty, too large */
    refused(dup(good), 4095, "length");
    refused(dup(good), 8192, "length");
    refused(good, 0, "empty");
    good = bulk_fd(4096, 0, ALL_SEALS);
    ck_assert_int_eq(shm_bulk_map(good, 4096, 4095, &b, &reason), -EMSGSIZE);
    ck_assert(strstr(reason, "larger"));
    close(good);
}
END_TEST

START_TEST(bulk_may_not_have_holes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 16 * page;
    /* never written */
    int fd = memfd_create("bulk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
    refused(fd, bytes, "holes");
    /* one page punched out */
    fd = bulk_fd(bytes, 0, 0);
    punch(fd, 3 * page, page);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
    refused(fd, bytes, "holes");
    /* the same, with as many blocks preallocated behind the end, so that the block count looks right */
    fd = bulk_fd(bytes, 0, 0);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)bytes, (off_t)(4 * page)), 0);
    punch(fd, 3 * page, page);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
    refused(fd, bytes, "holes");
}
END_TEST

START_TEST(bulk_refuses_huge_pages) {
    int fd = memfd_create("bulk", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0 && (errno == EINVAL || errno == ENOSYS || errno == ENOENT))
        return;              /* a kernel without huge pages: no client can make such a memfd either */
    ck_assert_int_ge(fd, 0); /* needs no reserved page until it is touched */
    ck_assert_int_eq(ftruncate(fd, 2 << 20), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
    struct shm_bulk b;
    const char *reason = NULL;
    ck_assert_int_eq(shm_bulk_map(fd, 2 << 20, 4 << 20, &b, &reason), -EINVAL);
    ck_assert(strstr(reason, "huge"));
    close(fd);
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_shm");
    TCase *tc = tcase_create("regions");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, geometry);
    tcase_add_test(tc, regions_start_zeroed_with_headers);
    tcase_add_test(tc, seals_are_complete_and_final);
    tcase_add_test(tc, down_cannot_be_mapped_writable);
    tcase_add_test(tc, sizes_and_pages_are_fixed);
    tcase_add_test(tc, daemon_goes_on_writing_and_can_be_waited_for);
    tcase_add_test(tc, daemon_maps_up_read_only);
    tcase_add_test(tc, payloads_are_read_within_bounds);
    tcase_add_test(tc, view_refuses_what_does_not_fit);
    tcase_add_test(tc, failures_leave_nothing);
    suite_add_tcase(s, tc);
    tc = tcase_create("bulk");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, bulk_is_read_in_place);
    tcase_add_test(tc, bulk_needs_every_seal);
    tcase_add_test(tc, bulk_must_be_a_full_regular_memfd);
    tcase_add_test(tc, bulk_may_not_have_holes);
    tcase_add_test(tc, bulk_refuses_huge_pages);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
