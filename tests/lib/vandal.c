/* SPDX-License-Identifier: MIT */
/* A client that destroys what it can reach; see chaos.h. What the kernel refuses is of no interest, except
 * where it should have refused: then the process says so by its exit status. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "chaos.h"

enum { MAX_ACTS = 400 };

static void ignore(ssize_t n) {
    (void)n;
}

static void got_through(const char *how) {
    dprintf(2, "a client could write region D: %s\n", how);
    _exit(VANDAL_GOT_THROUGH);
}

/* One word, one byte or a stretch, anywhere in [from, from + bytes) of U. */
static void scribble(struct mad *c, uint64_t from, uint64_t bytes) {
    uint8_t *u = (uint8_t *)c->view.u + from;
    uint32_t n;

    switch (mad_below(4)) {
    case 0:
        for (n = 1 + mad_below(64); n > 0; n--)
            u[mad_next() % bytes] = (uint8_t)mad_next();
        break;
    case 1:
        for (n = 1 + mad_below(16); n > 0; n--)
            __atomic_store_n((uint32_t *)(void *)u + mad_next() % (bytes / 4), (uint32_t)mad_next(),
                             __ATOMIC_RELAXED);
        break;
    case 2:
        n = 1 + mad_below(bytes < 4096 ? (uint32_t)bytes : 4096);
        memset(u + mad_next() % (bytes - n + 1), (int)mad_below(256), n);
        break;
    default:
        for (uint64_t i = 0; i < bytes / 8 && i < 8192; i++)
            ((uint64_t *)(void *)u)[i] = mad_next();
    }
}

/* The five words that both sides look at all the time. */
static void twist_words(struct mad *c) {
    struct glmw_u *u = c->view.u;
    uint32_t tail = glmw_fetch32(&c->view.d->tq_tail);

    switch (mad_below(6)) {
    case 0:
        __atomic_store_n(&u->sq_tail, c->sq.tail + mad_below(20), __ATOMIC_RELEASE);
        mad_bell(c);
        break;
    case 1:
        __atomic_store_n(&u->sq_tail, (uint32_t)mad_next(), __ATOMIC_RELEASE);
        mad_bell(c);
        break;
    case 2:
        __atomic_store_n(&u->tq_head, tail - mad_below(8), __ATOMIC_RELEASE);
        break;
    case 3:
        __atomic_store_n(&u->tq_head, (uint32_t)mad_next(), __ATOMIC_RELEASE);
        break;
    case 4:
        __atomic_store_n(&u->tq_event, mad_below(2) ? tail : (uint32_t)mad_next(), __ATOMIC_RELEASE);
        break;
    default:
        u->sleeping = (uint32_t)mad_next();
        u->last_awake_ns = mad_next();
    }
}

/* An entry like the ones that are accepted, with something of it replaced; its tag is often one that others
 * have live: libraries count theirs. */
static void bent_entry(struct mad *c, bool careful) {
    struct glmw_entry e = {.opcode = (uint8_t)(GLMW_OP_TOKENIZE + mad_below(2)), .payload_len = 24};
    uint8_t *raw = (uint8_t *)&e;

    e.tag = mad_below(2) ? 1 + mad_below(64) : (uint64_t)(1 + mad_below(120)) << 12 | mad_below(8);
    if (mad_below(3))
        e = (struct glmw_entry){.opcode = GLMW_OP_CANCEL, .tag = e.tag};
    if (mad_below(6) == 0)
        e = (struct glmw_entry){.opcode = GLMW_OP_CANCEL_ALL};
    if (!careful)
        for (uint32_t n = 1 + mad_below(3); n > 0; n--)
            raw[mad_below(sizeof e)] = (uint8_t)mad_next();
    mad_put(c, &e);
}

/* All the ways to a writable page of D. */
static void attack_d(struct mad *c) {
    size_t bytes = (size_t)c->welcome.d_bytes;
    int d = c->fds[GLMW_FD_D], again;
    char path[64];
    void *m;

    if (pwrite(d, "x", 1, (off_t)(mad_next() % bytes)) >= 0)
        got_through("pwrite");
    if (fallocate(d, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0)
        got_through("a hole");
    if (ftruncate(d, 0) == 0)
        got_through("truncation");
    if (mprotect((void *)(uintptr_t)c->view.d, bytes, PROT_READ | PROT_WRITE) == 0)
        got_through("mprotect");
    m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d, 0);
    if (m != MAP_FAILED)
        got_through("mmap");
    snprintf(path, sizeof path, "/proc/self/fd/%d", d);
    again = open(path, O_RDWR | O_CLOEXEC);
    if (again < 0)
        return;
    if (pwrite(again, "x", 1, 0) >= 0)
        got_through("pwrite through /proc");
    m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
    if (m != MAP_FAILED)
        got_through("mmap through /proc");
    close(again);
}

static void read_records(struct mad *c) {
    struct glmw_rec r;

    for (int n = glmw_peek(&c->tq); n > 0; n--)
        glmw_take(&c->tq, &r);
    glmw_give_back(&c->tq, &c->view.d->credit_wanted);
}

static void act(struct mad *c, bool careful) {
    const uint64_t slots = (uint64_t)GLMW_SLOT_BYTES << c->welcome.sq_log2;
    uint64_t free_slots = slots / 2;
    uint32_t what = mad_below(careful ? 60 : 100);

    if (what < 14)
        scribble(c, c->welcome.pay_off, UINT64_C(1) << c->welcome.pay_log2);
    else if (what < 24)
        mad_submit(c);
    else if (what < 34)
        bent_entry(c, careful);
    else if (what < 42)
        read_records(c);
    else if (what < 46)
        usleep(mad_below(1500));
    else if (what < 50)
        __atomic_store_n(&c->view.u->tq_event, (uint32_t)mad_next(), __ATOMIC_RELEASE);
    else if (what < 54)
        mad_bell(c);
    else if (what < 57)
        attack_d(c);
    else if (what < 60)
        scribble(c, sizeof(struct glmw_u), c->welcome.sq_off - sizeof(struct glmw_u));
    else if (what < 70)
        scribble(c, c->welcome.sq_off + (mad_below(2) ? free_slots : 0), free_slots);
    else if (what < 85)
        twist_words(c);
    else if (what < 92)
        scribble(c, 0, c->welcome.u_bytes);
    else
        fallocate(c->fds[GLMW_FD_U], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)(mad_next() % c->welcome.u_bytes), (off_t)(1 + mad_below(1 << 18)));
}

void vandal_client(const char *socket_path, uint64_t seed) {
    static struct mad c;
    bool careful;

    mad_seed(seed);
    if (!mad_open(&c, socket_path))
        _exit(0);
    attack_d(&c);
    careful = mad_below(2); /* these are not found out and go on to the end */
    for (uint32_t n = mad_below(MAX_ACTS); n > 0; n--)
        act(&c, careful);
    ignore(write(c.fds[GLMW_FD_BELL], "12345678", 8));
    if (mad_below(2))
        kill(getpid(), SIGKILL);
    _exit(0);
}
