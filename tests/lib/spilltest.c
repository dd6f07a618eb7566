/* SPDX-License-Identifier: MIT */
/* See spilltest.h. */
#include "spilltest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipctest.h"
#include "log.h"

enum { PAGE_BYTES = 5000, STATE_BYTES = 9001, TRIES = 200000 };

static void need(bool ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "spilltest: %s\n", what);
    abort();
}

struct spill_options spilltest_options(const char *dir) {
    return (struct spill_options){ .dir = dir,
                                   .max_bytes = 64 << 20,
                                   .survive = true,
                                   .shape = { .lineage = "nano|ref|1",
                                              .page_tokens = SPILLTEST_PAGE_TOKENS,
                                              .max_tokens = SPILLTEST_MAX_TOKENS,
                                              .page_bytes = PAGE_BYTES,
                                              .state_bytes = STATE_BYTES } };
}

void spilltest_init(struct spilltest *t, const char *where) {
    const char *tmp = where && access(where, W_OK) == 0 ? where : getenv("TMPDIR");

    memset(t, 0, sizeof *t);
    snprintf(t->dir, sizeof t->dir, "%.32s/glmd-spill-XXXXXX", tmp ? tmp : "/tmp");
    need(mkdtemp(t->dir) != NULL, "no temporary directory");
    snprintf(t->log, sizeof t->log, "%s/log", t->dir);
    t->log_fd = open(t->log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    need(t->log_fd >= 0, "no log file");
    log_init(t->log_fd, "/nonexistent");
    t->o = spilltest_options(t->dir);
}

int spilltest_open(struct spilltest *t) {
    memset(&t->err, 0, sizeof t->err);
    return spill_open(&t->o, &t->s, &t->note, &t->err);
}

void spilltest_close(struct spilltest *t) {
    t->s = spill_close(t->s);
}

void spilltest_done(struct spilltest *t) {
    char path[400];
    struct dirent *e;
    DIR *d;

    spilltest_close(t);
    log_init(2, "/nonexistent");
    close(t->log_fd);
    d = opendir(t->dir);
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", t->dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(t->dir);
}

/* ---- payloads ---- */

static struct ipc_rng source(const struct spill_piece *p, uint64_t domain, const uint32_t *ids, uint32_t pos) {
    uint32_t end = p->kind == SPILL_STATE ? pos : (p->page + 1) * SPILLTEST_PAGE_TOKENS;
    struct ipc_rng r = { .s = domain * 31 + p->kind };

    for (uint32_t i = 0; i < end && i < pos; i++)
        r.s = (r.s ^ ids[i]) * UINT64_C(0x100000001b3) + 7;
    return r;
}

static size_t payload_bytes(const struct spill_piece *p) {
    return p->kind == SPILL_STATE ? STATE_BYTES : PAGE_BYTES;
}

void spilltest_fill(const struct spill *s, const struct spill_piece *p, uint64_t domain, const uint32_t *ids,
                    uint32_t pos) {
    struct ipc_rng r = source(p, domain, ids, pos);
    uint8_t *b = p->bytes;

    (void)s;
    for (size_t i = 0; i < payload_bytes(p); i++)
        b[i] = (uint8_t)(ipc_rand(&r) >> 24);
}

bool spilltest_is_right(const struct spill *s, const struct spill_piece *p, uint64_t domain, const uint32_t *ids,
                        uint32_t pos) {
    struct ipc_rng r = source(p, domain, ids, pos);
    const uint8_t *b = p->bytes;

    (void)s;
    for (size_t i = 0; i < payload_bytes(p); i++)
        if (b[i] != (uint8_t)(ipc_rand(&r) >> 24))
            return false;
    return true;
}

void spilltest_settle(struct spill *s) {
    for (int i = 0; i < TRIES && (spill_put_busy(s) || spill_get_busy(s)); i++) {
        spill_poll(s);
        usleep(50);
    }
    need(!spill_put_busy(s) && !spill_get_busy(s), "something is under way for ever");
}

bool spilltest_put(struct spill *s, uint64_t domain, uint8_t quality, const uint32_t *ids, uint32_t pos) {
    struct spill_stats before, after;
    struct spill_piece p;
    int r = spill_put(s, domain, quality, SPILLTEST_MARK, ids, pos);

    need(r >= 0, "a put was refused");
    if (r == 0)
        return false;
    spill_get_stats(s, &before);
    for (int i = 0; i < TRIES; i++) {
        r = spill_put_next(s, &p);
        if (r == 0)
            break;
        if (r == -EAGAIN) {
            usleep(50);
            continue;
        }
        need(r == 1, "a put ended oddly");
        spilltest_fill(s, &p, domain, ids, pos);
        spill_put_filled(s);
    }
    need(r == 0, "a put does not end");
    spill_get_stats(s, &after);
    return after.puts > before.puts;
}

uint32_t spilltest_get(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t most) {
    return spilltest_get_from(s, domain, ids, most, 0);
}

uint32_t spilltest_get_from(struct spill *s, uint64_t domain, const uint32_t *ids, uint32_t most, uint32_t from_page) {
    struct spill_found f;
    struct spill_piece p;
    uint32_t page = from_page, states = 0, pos;
    int r;

    if (!spill_find(s, domain, ids, 0, most, SPILLTEST_GRID, &f))
        return 0;
    need(f.mark == SPILLTEST_MARK, "it has another mark");
    pos = f.pos;
    need(spill_get(s, domain, ids, pos, from_page) == 0, "what was found is not there");
    for (int i = 0; i < TRIES; i++) {
        r = spill_get_next(s, &p);
        if (r == -ENOENT)
            return 0;
        if (r == -EAGAIN) {
            usleep(50);
            continue;
        }
        if (r == 0) {
            need(states == 1 && page == (pos + SPILLTEST_PAGE_TOKENS - 1) / SPILLTEST_PAGE_TOKENS,
                 "a piece is missing");
            return pos;
        }
        need(r == 1 && (p.kind == SPILL_STATE ? page == from_page : p.page == page), "pieces come in another order");
        need(spilltest_is_right(s, &p, domain, ids, pos), "a wrong payload was given out");
        page += p.kind == SPILL_PAGE;
        states += p.kind == SPILL_STATE;
        spill_get_taken(s);
    }
    need(false, "a get does not end");
    return 0;
}

void spilltest_text(uint32_t n, uint32_t *ids, uint32_t count) {
    struct ipc_rng common = { .s = n / 8 + 1 }, own = { .s = n * 77 + 5 };

    for (uint32_t i = 0; i < count; i++)
        ids[i] = (uint32_t)ipc_rand(i < count / 2 ? &common : &own) % 1000;
}

/* ---- the directory ---- */

static bool ends_so(const char *name, const char *ending) {
    size_t n = strlen(name), k = strlen(ending);

    return n >= k && strcmp(name + n - k, ending) == 0;
}

static uint64_t walk(const struct spilltest *t, const char *ending, bool bytes, char *ret, size_t cap) {
    DIR *d = opendir(t->dir);
    struct dirent *e;
    struct stat st;
    char path[400];
    uint64_t n = 0;

    need(d != NULL, "the directory is gone");
    while ((e = readdir(d))) {
        if (!ends_so(e->d_name, ending))
            continue;
        snprintf(path, sizeof path, "%s/%s", t->dir, e->d_name);
        n += !bytes ? 1 : stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
        if (ret) {
            snprintf(ret, cap, "%s", path);
            break;
        }
    }
    closedir(d);
    return n;
}

uint32_t spilltest_files(const struct spilltest *t, const char *ending) {
    return (uint32_t)walk(t, ending, false, NULL, 0);
}

uint64_t spilltest_bytes(const struct spilltest *t) {
    return walk(t, ".page", true, NULL, 0) + walk(t, ".state", true, NULL, 0);
}

bool spilltest_first(const struct spilltest *t, const char *ending, char *ret, size_t cap) {
    return walk(t, ending, false, ret, cap) > 0;
}

void spilltest_empty(const struct spilltest *t) {
    static const char *const endings[] = { ".page", ".state", ".tmp" };
    char path[400];

    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        while (spilltest_first(t, endings[i], path, sizeof path))
            unlink(path);
}

const char *spilltest_log(const struct spilltest *t) {
    static char text[65536];
    ssize_t n = pread(t->log_fd, text, sizeof text - 1, 0);

    text[n > 0 ? n : 0] = 0;
    return text;
}
