/* SPDX-License-Identifier: MIT */
/* A hash table over what of an answer a client cannot have changed without having edited it: content, names and
 * arguments of calls. Everything is compared byte by byte before it counts. Text workers; see turns.h. */
#include "turns.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "random.h"

enum {
    BUCKETS = 4096,
    SAME_MAX = 32, /* answers of a user that look alike; the oldest give way */
    ID_MIN = 16, /* shorter ids of calls ("call_1") are not meant to be unlike all others */
};

struct stored_call {
    uint64_t id; /* hash of the id under which the client sent it back; 0 = not known */
    uint32_t name_n, args_n; /* bytes, one behind the other in the texts */
};

struct stored {
    struct stored *next_hash;
    struct stored *newer, *older; /* of the user, by use */
    struct user *user;
    uint64_t print, bytes;
    struct siphash before;
    bool open;
    uint32_t n_ids, body_at, n_calls;
    uint64_t think_n, body_n;
    const struct stored_call *calls;
    const uint32_t *ids;
    const char *texts; /* think, body, then name and arguments of each call */
    max_align_t data[];
};

struct user {
    struct user *next;
    uint32_t uid;
    uint64_t bytes;
    struct stored *newest, *oldest;
};

struct turns {
    pthread_mutex_t lock;
    uint64_t max_bytes, max_user_bytes;
    struct siphash key;
    struct user *users;
    struct stored *buckets[BUCKETS];
    struct turns_stats stats;
};

int turns_new(uint64_t max_bytes, uint64_t max_bytes_per_uid, struct turns **ret) {
    struct turns *t = calloc(1, sizeof *t);
    int r;

    if (!t)
        return -ENOMEM;
    r = random_u64(&t->key.h[0]);
    if (r == 0)
        r = random_u64(&t->key.h[1]);
    if (r < 0) {
        free(t);
        return r;
    }
    pthread_mutex_init(&t->lock, NULL);
    t->max_bytes = max_bytes;
    t->max_user_bytes = max_bytes_per_uid < max_bytes ? max_bytes_per_uid : max_bytes;
    *ret = t;
    return 0;
}

struct siphash turns_key(const struct turns *t) {
    return t->key;
}

uint32_t turns_answer_cap(const struct turns *t) {
    uint64_t cap = t->max_user_bytes / 16; /* so that a few of the longest fit */

    return cap < TURNS_MAX_ANSWER ? (uint32_t)cap : TURNS_MAX_ANSWER;
}

static uint64_t fingerprint(const struct turns *t, uint32_t uid, struct tstr body, const struct turn_call *calls,
                            uint32_t n_calls) {
    struct siphash h;

    uid = FAULT(turns_across_users) ? 0 : uid;
    h = siphash(t->key, &uid, sizeof uid);
    h = siphash(h, body.p, body.n);
    for (uint32_t i = 0; i < n_calls; i++) {
        h = siphash(h, calls[i].name.p, calls[i].name.n);
        if (!FAULT(turns_any_arguments))
            h = siphash(h, calls[i].args.p, calls[i].args.n);
    }
    return h.h[0];
}

static uint64_t id_hash(const struct turns *t, struct tstr id) {
    return id.n < ID_MIN ? 0 : siphash(t->key, id.p, id.n).h[1] | 1;
}

/* ---- users and their order of use ----------------------------------------------------------------------
 */

static struct user *user_find(struct turns *t, uint32_t uid) {
    struct user *u = t->users;

    while (u && (u->uid != uid && !FAULT(turns_across_users)))
        u = u->next;
    return u;
}

static struct user *user_get(struct turns *t, uint32_t uid) {
    struct user *u = user_find(t, uid);

    if (u)
        return u;
    u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->uid = uid;
    u->next = t->users;
    t->users = u;
    t->stats.users++;
    return u;
}

static void user_drop(struct turns *t, struct user *u) {
    struct user **at = &t->users;

    if (u->newest)
        return;
    while (*at != u)
        at = &(*at)->next;
    *at = u->next;
    t->stats.users--;
    free(u);
}

static void use_link(struct stored *s) {
    struct user *u = s->user;

    s->newer = NULL;
    s->older = u->newest;
    *(u->newest ? &u->newest->newer : &u->oldest) = s;
    u->newest = s;
}

static void use_unlink(struct stored *s) {
    struct user *u = s->user;

    *(s->newer ? &s->newer->older : &u->newest) = s->older;
    *(s->older ? &s->older->newer : &u->oldest) = s->newer;
}

static void stored_free(struct turns *t, struct stored *s) {
    struct stored **at = &t->buckets[s->print % BUCKETS];

    while (*at != s)
        at = &(*at)->next_hash;
    *at = s->next_hash;
    use_unlink(s);
    s->user->bytes -= s->bytes;
    t->stats.bytes -= s->bytes;
    t->stats.answers--;
    free(s);
}

/* A user over its own limit gives up its own; when all together are over, whoever has most does. */
static void make_room(struct turns *t, struct user *u, uint64_t bytes) {
    while (u->oldest && u->bytes + bytes > t->max_user_bytes && !FAULT(turns_unbounded)) {
        stored_free(t, u->oldest);
        t->stats.evicted++;
    }
    while (t->stats.bytes && t->stats.bytes + bytes > t->max_bytes && !FAULT(turns_unbounded)) {
        struct user *most = t->users;

        for (struct user *o = t->users; o; o = o->next)
            if (o->bytes > most->bytes)
                most = o;
        stored_free(t, most->oldest);
        t->stats.evicted++;
        if (most != u)
            user_drop(t, most);
    }
}

struct turns *turns_free(struct turns *t) {
    if (!t)
        return NULL;
    while (t->users) {
        struct user *u = t->users;

        while (u->oldest)
            stored_free(t, u->oldest);
        user_drop(t, u);
    }
    pthread_mutex_destroy(&t->lock);
    free(t);
    return NULL;
}

/* ---- what is kept ---------------------------------------------------------------------------------------
 */

static struct stored *stored_new(const struct turn *in) {
    uint64_t ids = (uint64_t)in->n_ids * sizeof *in->ids, calls = in->n_calls * sizeof(struct stored_call);
    uint64_t texts = in->think.n + in->body.n, total;
    struct stored_call *c;
    struct stored *s;
    char *at;

    for (uint32_t i = 0; i < in->n_calls; i++)
        texts += in->calls[i].name.n + in->calls[i].args.n;
    total = sizeof *s + calls + ids + texts;
    s = malloc(total);
    if (!s)
        return NULL;
    *s = (struct stored){
        .bytes = total,
        .before = in->before,
        .open = in->open,
        .n_ids = in->n_ids,
        .body_at = in->body_at,
        .n_calls = in->n_calls,
        .think_n = in->think.n,
        .body_n = in->body.n,
    };
    c = (void *)s->data;
    s->calls = c;
    s->ids = memcpy(c + in->n_calls, in->ids, ids);
    at = (char *)(c + in->n_calls) + ids;
    s->texts = at;
    for (uint32_t i = 0; i < in->n_calls; i++)
        c[i] = (struct stored_call){0, (uint32_t)in->calls[i].name.n, (uint32_t)in->calls[i].args.n};
    for (uint32_t i = 0; i < 2 * in->n_calls + 2; i++) {
        struct tstr p = i == 0   ? in->think
                        : i == 1 ? in->body
                        : i % 2  ? in->calls[i / 2 - 1].args
                                 : in->calls[i / 2 - 1].name;

        if (p.n)
            memcpy(at, p.p, p.n);
        at += p.n;
    }
    return s;
}

/* Whether the next bytes are this text; moves on. */
static bool next_is(const char **at, uint64_t n, struct tstr text) {
    const char *p = *at;

    *at += n;
    return n == text.n && (n == 0 || memcmp(p, text.p, n) == 0);
}

/* What the client was shown is what it sends. */
static bool shows(const struct stored *s, struct tstr body, const struct turn_call *calls, uint32_t n_calls) {
    const char *at = s->texts + s->think_n;

    if (s->n_calls != n_calls || !next_is(&at, s->body_n, body))
        return false;
    for (uint32_t i = 0; i < n_calls; i++) {
        if (!next_is(&at, s->calls[i].name_n, calls[i].name))
            return false;
        if (!next_is(&at, s->calls[i].args_n, calls[i].args) && !FAULT(turns_any_arguments))
            return false;
    }
    return true;
}

static bool thinks(const struct stored *s, struct tstr think) {
    const char *at = s->texts;

    return next_is(&at, s->think_n, think);
}

/* With the lock held: the one that already is what `in` says, or NULL, and then there is room for another of its
 * looks. */
static struct stored *look_alike(struct turns *t, const struct user *u, uint64_t print, const struct turn *in) {
    struct stored *oldest = NULL;
    uint32_t n = 0;

    for (struct stored *s = t->buckets[print % BUCKETS]; s; s = s->next_hash) {
        if (s->user != u || s->print != print)
            continue;
        if (siphash_eq(s->before, in->before) && s->n_ids == in->n_ids &&
            memcmp(s->ids, in->ids, in->n_ids * sizeof *in->ids) == 0 &&
            shows(s, in->body, in->calls, in->n_calls))
            return s;
        oldest = s; /* chains begin with the newest */
        n++;
    }
    if (n >= SAME_MAX) {
        stored_free(t, oldest);
        t->stats.evicted++;
    }
    return NULL;
}

static void stored_link(struct turns *t, struct user *u, struct stored *s) {
    struct stored **bucket = &t->buckets[s->print % BUCKETS];

    s->user = u;
    s->next_hash = *bucket;
    *bucket = s;
    use_link(s);
    u->bytes += s->bytes;
    t->stats.bytes += s->bytes;
    t->stats.answers++;
    t->stats.added++;
}

int turns_add(struct turns *t, uint32_t uid, const struct turn *in) {
    struct stored *s = stored_new(in), *same;
    struct user *u;
    int r = 0;

    if (!s)
        return -ENOMEM;
    s->print = fingerprint(t, uid, in->body, in->calls, in->n_calls);
    pthread_mutex_lock(&t->lock);
    u = user_get(t, uid);
    if (!u) {
        r = -ENOMEM;
    } else if (s->bytes > t->max_user_bytes) {
        r = -E2BIG;
    } else if ((same = look_alike(t, u, s->print, in))) {
        use_unlink(same);
        use_link(same);
    } else {
        make_room(t, u, s->bytes);
        stored_link(t, u, s);
        s = NULL;
    }
    if (u)
        user_drop(t, u);
    pthread_mutex_unlock(&t->lock);
    free(s);
    return r;
}

bool turns_any(struct turns *t, uint32_t uid) {
    bool any;

    pthread_mutex_lock(&t->lock);
    any = user_find(t, uid) != NULL;
    pthread_mutex_unlock(&t->lock);
    return any;
}

/* ---- finding --------------------------------------------------------------------------------------------
 */

static bool same_prompt(const struct stored *s, const struct turn_query *q) {
    return siphash_eq(s->before, s->open ? q->after_open : q->after_closed);
}

/* Every call of the message has the id under which this one was known before. */
static bool same_ids(const struct turns *t, const struct stored *s, const struct turn_query *q) {
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (!s->calls[i].id || s->calls[i].id != id_hash(t, q->calls[i].id))
            return false;
    return s->n_calls > 0;
}

enum { NOTHING = 0, BODY, BODY_SAME_PROMPT, WHOLE, WHOLE_SAME_PROMPT };

/* How much of it may stand for the message. Reasoning that the client left out is put back only where there is no
 * doubt whose it is: behind the prompt that it answered, or under ids of calls that belong to one answer alone. */
static int worth(const struct turns *t, const struct stored *s, const struct turn_query *q, bool ids_tell) {
    bool prompt = same_prompt(s, q), whole;

    if (q->cleared)
        whole = s->think_n == 0 && !s->open;
    else if (q->has_think)
        whole = thinks(s, q->think) || FAULT(turns_any_reasoning);
    else
        whole = s->think_n == 0 || prompt || (ids_tell && same_ids(t, s, q));
    if (whole)
        return prompt ? WHOLE_SAME_PROMPT : WHOLE;
    if (s->body_at == UINT32_MAX)
        return NOTHING;
    return prompt ? BODY_SAME_PROMPT : BODY;
}

/* From now on it is known by these ids too. */
static void learn_ids(const struct turns *t, struct stored *s, const struct turn_query *q) {
    struct stored_call *c = (struct stored_call *)(uintptr_t)s->calls;

    for (uint32_t i = 0; i < s->n_calls; i++)
        if (!c[i].id)
            c[i].id = id_hash(t, q->calls[i].id);
}

static bool grow(uint32_t **ids, uint32_t *cap, uint32_t n) {
    uint32_t *p;

    if (*cap >= n)
        return true;
    p = realloc(*ids, n * sizeof *p);
    if (!p)
        return false;
    *ids = p;
    *cap = n;
    return true;
}

/* With the lock held. The newest of equals: chains begin with it. */
static struct stored *best_of(const struct turns *t, const struct user *u, const struct turn_query *q,
                              uint64_t print, int *ret_worth) {
    struct stored *best = NULL;
    uint32_t known = 0;
    int most = NOTHING;

    for (struct stored *s = t->buckets[print % BUCKETS]; s; s = s->next_hash)
        known += s->user == u && s->print == print && same_ids(t, s, q);
    for (struct stored *s = t->buckets[print % BUCKETS]; s; s = s->next_hash) {
        int w;

        if (s->user != u || s->print != print || !shows(s, q->body, q->calls, q->n_calls))
            continue;
        w = worth(t, s, q, known == 1);
        if (w > most) {
            most = w;
            best = s;
        }
    }
    *ret_worth = most;
    return best;
}

bool turns_find(struct turns *t, uint32_t uid, const struct turn_query *q, uint32_t max_ids, uint32_t **ids,
                uint32_t *cap, struct turn_found *ret) {
    uint64_t print = fingerprint(t, uid, q->body, q->calls, q->n_calls);
    struct user *u;
    struct stored *s;
    uint32_t from;
    int w = NOTHING;
    bool found = false;

    pthread_mutex_lock(&t->lock);
    u = user_find(t, uid);
    s = u ? best_of(t, u, q, print, &w) : NULL;
    if (s) {
        from = w >= WHOLE ? 0 : s->body_at;
        found = s->n_ids - from <= max_ids && grow(ids, cap, s->n_ids - from + 1);
    }
    if (found) {
        memcpy(*ids, s->ids + from, (s->n_ids - from) * sizeof *s->ids);
        *ret = (struct turn_found){.whole = w >= WHOLE, .open = s->open, .n_ids = s->n_ids - from};
        use_unlink(s);
        use_link(s);
        if (w >= WHOLE || w == BODY_SAME_PROMPT)
            learn_ids(t, s, q);
        t->stats.whole += w >= WHOLE;
        t->stats.body += w < WHOLE;
    } else {
        t->stats.missed++;
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

void turns_get_stats(struct turns *t, struct turns_stats *ret) {
    pthread_mutex_lock(&t->lock);
    *ret = t->stats;
    pthread_mutex_unlock(&t->lock);
}
