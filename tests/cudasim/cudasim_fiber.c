/* SPDX-License-Identifier: MIT */
/* cudasim_fiber.c: the threads of a block as fibers, their barriers and collectives. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN_FIBERS 1
#else
#define ASAN_FIBERS 0
#endif

#include "cudasim_fiber.h"

enum { MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / CUDASIM_WARP, STACK = 256 << 10, GUARD = 4096, BARRIERS = 16 };

/* What kernels read as threadIdx and so on; set at each switch. */
uint3 cudasim_thread, cudasim_block;
dim3 cudasim_block_dim, cudasim_grid_dim;

struct warp {
    uint32_t ready, at_barrier, done; /* lanes */
    uint32_t all;                     /* lanes it has */
    uint32_t waiting;                 /* lanes at the collective */
    void (*fn)(void *const lane[CUDASIM_WARP]);
    void *mine[CUDASIM_WARP];
};

struct barrier {
    unsigned want, came, votes, result;
    uint32_t lanes[MAX_WARPS];
};

static struct {
    bool running;
    const char *name;
    void (*fn)(const void *);
    const void *args;
    unsigned n_threads, n_warps, cur, left;
    int order;
    void *home; /* stack pointer of the caller */
    void *sp[MAX_THREADS];
    uint3 id[MAX_THREADS];
    char *stacks;
    struct warp warp[MAX_WARPS];
    struct barrier barrier[BARRIERS];
    char *smem_end, *smem; /* behind smem_end lies a page nobody may touch */
    bool fresh;            /* no block of this grid has asked for it yet */
#if ASAN_FIBERS
    const void *home_bottom;
    size_t home_size;
    void *home_fake, *fake[MAX_THREADS];
#endif
} sim;

/* Saves what the calling convention keeps and the stack pointer at *save, and goes on where `to` was saved. */
void cudasim_switch(void **save, void *to);
#if defined(__x86_64__)
__asm__(".text\n.globl cudasim_switch\n.hidden cudasim_switch\n.type cudasim_switch,@function\ncudasim_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size cudasim_switch,.-cudasim_switch\n");
enum { FRAME = 8, RETURN_AT = 6 }; /* words saved, rounded so that the stack is aligned; where the address lies */
#elif defined(__aarch64__)
__asm__(".text\n.globl cudasim_switch\n.hidden cudasim_switch\n.type cudasim_switch,@function\ncudasim_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x2, sp\nstr x2, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\nret\n"
        ".size cudasim_switch,.-cudasim_switch\n");
enum { FRAME = 20, RETURN_AT = 11 };
#else
#error "the simulation knows how to switch stacks on x86-64 and aarch64 only"
#endif

void cudasim_die(const char *what) {
    fprintf(stderr, "cudasim: kernel %s, block (%u,%u,%u) of (%u,%u,%u), thread (%u,%u,%u) of (%u,%u,%u): %s\n",
            sim.name ? sim.name : "none", cudasim_block.x, cudasim_block.y, cudasim_block.z, cudasim_grid_dim.x,
            cudasim_grid_dim.y, cudasim_grid_dim.z, cudasim_thread.x, cudasim_thread.y, cudasim_thread.z,
            cudasim_block_dim.x, cudasim_block_dim.y, cudasim_block_dim.z, what);
    fflush(stderr);
    abort();
}

static unsigned pick(uint32_t lanes, unsigned after) {
    /* the next one in the order, so that no lane starves */
    uint32_t later = sim.order ? lanes & ((1u << after) - 1) : after < 31 ? lanes & ~((2u << after) - 1) : 0;
    if (!later) later = lanes;
    return sim.order ? 31 - (unsigned)__builtin_clz(later) : (unsigned)__builtin_ctz(later);
}

static void stuck(void) {
    char text[256];
    unsigned collective = 0, barrier = 0, done = 0, at = 0;
    for (unsigned w = 0; w < sim.n_warps; w++) {
        struct warp *p = &sim.warp[w];
        if (p->waiting && !collective) at = w;
        collective += (unsigned)__builtin_popcount(p->waiting);
        barrier += (unsigned)__builtin_popcount(p->at_barrier);
        done += (unsigned)__builtin_popcount(p->done);
    }
    if (collective)
        snprintf(text, sizeof(text),
                 "warp %u: lanes %08x wait at a collective, %08x at a barrier, %08x have ended, of %08x", at,
                 sim.warp[at].waiting, sim.warp[at].at_barrier, sim.warp[at].done, sim.warp[at].all);
    else
        snprintf(text, sizeof(text), "%u threads wait at a barrier, %u have ended, of %u", barrier, done,
                 sim.n_threads);
    cudasim_die(text);
}

/* The next thread that can run; the caller's warp first. */
static unsigned next(void) {
    unsigned w = sim.cur / CUDASIM_WARP;
    if (sim.warp[w].ready) return w * CUDASIM_WARP + pick(sim.warp[w].ready, sim.cur % CUDASIM_WARP);
    for (unsigned i = 1; i <= sim.n_warps; i++) {
        unsigned v = (sim.order ? w + sim.n_warps - i : w + i) % sim.n_warps;
        if (sim.warp[v].ready) return v * CUDASIM_WARP + pick(sim.warp[v].ready, sim.order ? 0 : 31);
    }
    stuck();
    return 0;
}

static void enter(unsigned t) {
    sim.cur = t;
    cudasim_thread = sim.id[t];
}

#if ASAN_FIBERS
static char *stack_of(unsigned t) {
    return sim.stacks + (size_t)t * STACK;
}
#endif

static void go_to(unsigned t) {
    unsigned from = sim.cur;
    if (t == from) return;
    enter(t);
#if ASAN_FIBERS
    __sanitizer_start_switch_fiber(&sim.fake[from], stack_of(t) + GUARD, STACK - GUARD);
#endif
    cudasim_switch(&sim.sp[from], sim.sp[t]);
#if ASAN_FIBERS
    __sanitizer_finish_switch_fiber(sim.fake[from], NULL, NULL);
#endif
}

/* The first and last function on a fiber's stack. */
static void body(void) {
#if ASAN_FIBERS
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    sim.fn(sim.args);
    unsigned t = sim.cur;
    struct warp *w = &sim.warp[t / CUDASIM_WARP];
    w->done |= 1u << t % CUDASIM_WARP;
    w->ready &= ~w->done;
    void *unused, *to;
    if (--sim.left) {
        unsigned n = next();
        enter(n);
        to = sim.sp[n];
#if ASAN_FIBERS
        __sanitizer_start_switch_fiber(NULL, stack_of(n) + GUARD, STACK - GUARD);
#endif
    } else {
        to = sim.home;
#if ASAN_FIBERS
        __sanitizer_start_switch_fiber(NULL, sim.home_bottom, sim.home_size);
#endif
    }
    cudasim_switch(&unused, to);
    abort();
}

unsigned cudasim_lane(void) {
    return sim.cur % CUDASIM_WARP;
}

void *cudasim_smem(void) {
    if (!sim.running) cudasim_die("dynamic shared memory is asked for outside a kernel");
    if (sim.fresh) memset(sim.smem, 0xff, (size_t)(sim.smem_end - sim.smem));
    sim.fresh = false;
    return sim.smem;
}

void cudasim_warp_all(void *mine, void (*fn)(void *const lane[CUDASIM_WARP])) {
    unsigned lane = sim.cur % CUDASIM_WARP;
    struct warp *w = &sim.warp[sim.cur / CUDASIM_WARP];
    if (!sim.running) cudasim_die("a collective of a warp is called outside a kernel");
    if (w->all != 0xffffffffu) cudasim_die("a collective of a warp that has not all its lanes");
    if (!w->waiting) w->fn = fn;
    else if (w->fn != fn) cudasim_die("this lane is at another collective than those of its warp that came before");
    w->mine[lane] = mine;
    w->waiting |= 1u << lane;
    w->ready &= ~(1u << lane);
    if (w->waiting == 0xffffffffu) {
        fn(w->mine);
        w->waiting = 0;
        w->ready = 0xffffffffu;
    } else {
        go_to(next());
    }
}

unsigned cudasim_barrier(unsigned id, unsigned n, bool value) {
    if (!sim.running) cudasim_die("a barrier is called outside a kernel");
    if (!n) n = sim.n_threads;
    if (id >= BARRIERS || n > sim.n_threads) cudasim_die("there is no such barrier");
    struct barrier *b = &sim.barrier[id];
    unsigned warp = sim.cur / CUDASIM_WARP;
    uint32_t bit = 1u << sim.cur % CUDASIM_WARP;
    if (!b->came) b->want = n;
    else if (b->want != n) cudasim_die("threads meet at one barrier with different numbers");
    b->came++;
    b->votes += value;
    b->lanes[warp] |= bit;
    sim.warp[warp].ready &= ~bit;
    sim.warp[warp].at_barrier |= bit;
    if (b->came == b->want) {
        b->result = b->votes;
        for (unsigned i = 0; i < sim.n_warps; i++) {
            sim.warp[i].ready |= b->lanes[i];
            sim.warp[i].at_barrier &= ~b->lanes[i];
            b->lanes[i] = 0;
        }
        b->came = b->votes = 0;
    }
    /* Also the last to come gives way: the order of warps after a barrier is that before it. */
    unsigned first = sim.order ? sim.n_warps - 1 : 0;
    if (b->came) go_to(next());
    else if (sim.warp[first].ready) go_to(first * CUDASIM_WARP + pick(sim.warp[first].ready, sim.order ? 0 : 31));
    return b->result;
}

static void on_fault(int sig) {
    signal(sig, SIG_DFL);
    if (sim.running)
        cudasim_die(sig == SIGFPE ? "a division by zero" : "memory that is not there, or shared memory past its end");
    raise(sig);
}

static void prepare(void) {
    sim.stacks = mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t room = (CUDASIM_SMEM_MAX + 4095) / 4096 * 4096;
    char *shared = mmap(NULL, room + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sim.stacks == MAP_FAILED || shared == MAP_FAILED) cudasim_die("no memory for stacks");
    for (size_t t = 0; t < MAX_THREADS; t++) mprotect(sim.stacks + t * STACK, GUARD, PROT_NONE);
    mprotect(shared + room, GUARD, PROT_NONE);
    sim.smem_end = shared + room;
    if (!ASAN_FIBERS) {
        static char alt[16 << 10];
        stack_t ss = {.ss_sp = alt, .ss_size = sizeof(alt)};
        struct sigaction sa = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK}, old;
        sigaltstack(&ss, NULL);
        const int sigs[] = {SIGSEGV, SIGBUS, SIGFPE};
        for (int i = 0; i < 3; i++)
            if (!sigaction(sigs[i], NULL, &old) && old.sa_handler == SIG_DFL) sigaction(sigs[i], &sa, NULL);
    }
}

static void one_block(void) {
    for (unsigned t = 0; t < sim.n_threads; t++) {
#if ASAN_FIBERS
        __asan_unpoison_memory_region(stack_of(t + 1) - GUARD, GUARD); /* body() never returned */
#endif
        void **sp = (void **)(void *)(sim.stacks + (size_t)(t + 1) * STACK) - FRAME;
        memset(sp, 0, FRAME * sizeof(*sp));
        sp[RETURN_AT] = (void *)(uintptr_t)body;
        sim.sp[t] = sp;
    }
    for (unsigned w = 0; w < sim.n_warps; w++) {
        unsigned n = sim.n_threads - w * CUDASIM_WARP;
        uint32_t all = n >= CUDASIM_WARP ? 0xffffffffu : (1u << n) - 1;
        sim.warp[w] = (struct warp){.ready = all, .all = all};
    }
    memset(sim.barrier, 0, sizeof(sim.barrier));
    sim.left = sim.n_threads;
    enter(sim.order ? sim.n_threads - 1 : 0);
    sim.running = true;
#if ASAN_FIBERS
    __sanitizer_start_switch_fiber(&sim.home_fake, stack_of(sim.cur) + GUARD, STACK - GUARD);
#endif
    cudasim_switch(&sim.home, sim.sp[sim.cur]);
#if ASAN_FIBERS
    __sanitizer_finish_switch_fiber(sim.home_fake, &sim.home_bottom, &sim.home_size);
#endif
    sim.running = false;
}

void cudasim_grid(const char *name, dim3 grid, dim3 block, size_t smem, void (*fn)(const void *args),
                  const void *args, int order) {
    if (!sim.stacks) prepare();
#if ASAN_FIBERS
    /* where fibers come home to; the sanitizer tells it only to who was switched to, so ask the thread */
    pthread_attr_t a;
    void *low;
    if (!pthread_getattr_np(pthread_self(), &a)) {
        pthread_attr_getstack(&a, &low, &sim.home_size);
        sim.home_bottom = low;
        pthread_attr_destroy(&a);
    }
#endif
    sim.name = name;
    sim.fn = fn;
    sim.args = args;
    sim.order = order;
    sim.smem = sim.smem_end - (smem + 15) / 16 * 16;
    sim.fresh = true;
    sim.n_threads = block.x * block.y * block.z;
    sim.n_warps = (sim.n_threads + CUDASIM_WARP - 1) / CUDASIM_WARP;
    cudasim_block_dim = block;
    cudasim_grid_dim = grid;
    unsigned t = 0;
    for (unsigned z = 0; z < block.z; z++)
        for (unsigned y = 0; y < block.y; y++)
            for (unsigned x = 0; x < block.x; x++) sim.id[t++] = (uint3){x, y, z};
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t b = order ? blocks - 1 - i : i;
        cudasim_block = (uint3){(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                                (unsigned)(b / grid.x / grid.y)};
        one_block();
    }
}
