/* SPDX-License-Identifier: MIT */
/* glmctl probe: does the model write whole characters?  Checkpoints whose scales were read wrongly do not crash:
 * they break a multi-byte character now and then, where the likeliest two tokens are close.  So it is asked for long
 * text in languages that need such characters, every answer is read again as part of the next prompt, and what the
 * daemon had to replace by U+FFFD is counted.  One thread, one connection, a few conversations at a time. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl.h"
#include "ctl_json.h"
#include "ctl_places.h"

enum {
    TALKS = 8,          /* conversations at a time */
    ANSWER_TOKENS = 256,
    TELL_AGAIN = 2048,  /* bytes of the last answer that the next prompt repeats */
    SAMPLES = 3,        /* broken places that are shown, of a language */
    SAMPLE_BYTES = 48,
    EMPTY_ANSWERS = 64, /* in a row: then it is the model that is broken, not its characters */
    ASK_AGAIN_MS = 200, /* after a refusal for want of room */
    SAY_AFTER_MS = 2000, /* so long without room: said once */
};

static const struct language {
    const char *name, *ask, *more;
} languages[] = {
    {"polish", "Opowiedz długo, jak zażółcić gęślą jaźń w mieście nad Wisłą.", "Pisz dalej."},
    {"czech", "Vyprávěj dlouze, jak příliš žluťoučký kůň úpěl ďábelské ódy.", "Piš dál."},
    {"vietnamese", "Hãy kể thật dài và chi tiết về một buổi sáng.", "Viết tiếp đi."},
    {"russian", "Расскажи длинно об осени на Волге.", "Пиши дальше."},
    {"korean", "골목에서 보낸 하루를 길게 이야기해 줘.", "계속 써 줘."},
    {"chinese", "请用中文详细地讲一个很长的故事。", "请继续写。"},
    {"emoji", "Tell a long story; end each sentence with an emoji such as 👩‍🚀 or 🇵🇱.", "Go on."},
};
enum { LANGUAGES = sizeof languages / sizeof *languages };

struct count {
    uint64_t chars, beyond, broken, cut, answers; /* beyond: other than ASCII; cut: broken by --max-tokens alone */
    uint32_t empty;                               /* answers without text since the last with some */
    char sample[SAMPLES][SAMPLE_BYTES * 4];
    uint32_t n_samples;
    struct ctl_places places; /* with --json */
};

struct talk {
    uint64_t tag; /* 0: none runs */
    struct ctl_buf text;
    struct ctl_buf tokens; /* of the answer, with --json */
    char *before;          /* the end of the last answer, malloced, or NULL */
    char *next;            /* the end of this one, while the ids of its question are awaited */
    bool telling;          /* the tag's: they are asked for */
};

struct probe {
    const struct ctl_args *args;
    glmd_conn *c;
    const struct language *lang;
    struct count *n;
    struct talk talk[TALKS];
    int most; /* talks at a time: fewer once the daemon had no room */
    uint64_t want, seed;
    uint64_t again_ms, since_ms; /* not asked again before; without room since (0: there is some) */
    bool said;
    struct ctl_buf error;
    int status; /* of the first request that failed */
};

/* ---- counting ---- */

static bool is_replacement(const char *s, size_t len) {
    return len >= 3 && memcmp(s, "\xef\xbf\xbd", 3) == 0;
}

static void take_sample(struct count *n, const char *text, size_t len, size_t at) {
    struct ctl_buf b = {0};
    size_t from = at > SAMPLE_BYTES ? at - SAMPLE_BYTES : 0, to = at + 3 + SAMPLE_BYTES / 3;
    if (n->n_samples == SAMPLES)
        return;
    to = to < len ? to : len;
    while (from < at && ((unsigned char)text[from] & 0xc0) == 0x80)
        from++;
    while (to > at + 3 && to < len && ((unsigned char)text[to] & 0xc0) == 0x80)
        to--;
    ctl_buf_add(&b, text + from, to - from);
    ctl_buf_add(&b, "", 1);
    for (size_t i = 0; !b.failed && i < b.len; i++)
        b.p[i] = b.p[i] == '\n' ? ' ' : b.p[i];
    if (!b.failed)
        snprintf(n->sample[n->n_samples++], sizeof n->sample[0], "%s", b.p);
    ctl_buf_done(&b);
}

/* at_limit: the answer ended where it was told to, which may be in the middle of a character. */
static void count_text(struct count *n, const struct talk *t, bool at_limit) {
    const char *text = t->text.p;
    size_t len = t->text.len;
    uint32_t cp;
    n->answers++;
    n->empty = len ? 0 : n->empty + 1;
    for (size_t i = 0, k; i < len; i += k) {
        k = ctl_utf8(text + i, len - i, &cp);
        n->chars++;
        n->beyond += (unsigned char)text[i] >= 0x80;
        if (k && (!is_replacement(text + i, len - i) || FAULT(ctl_probe_blind)))
            continue;
        k = k ? k : 1;
        if (at_limit && i + k == len && !FAULT(ctl_probe_blames_limit)) {
            n->cut++;
        } else {
            n->broken++;
            take_sample(n, text, len, i);
            ctl_places_add(&n->places, t, &t->tokens, i);
        }
    }
}

/* ---- asking ---- */

/* In front of those of the command line, which win: a request keeps the last value of a key. */
static bool set_defaults(struct ctl_args *a) {
    static const struct ctl_set own[] = {
        {.key = GLMD_KEY_TEMPERATURE, .option = "temperature", .f64 = 0.7},
        {.key = GLMD_KEY_TOP_P, .option = "top-p", .f64 = 0.9},
        {.key = GLMD_KEY_MAX_TOKENS, .option = "max-tokens", .u64 = ANSWER_TOKENS},
        {.key = GLMD_KEY_THINKING, .option = "think"},
        {.key = GLMD_KEY_QUIET, .option = "quiet", .u64 = 1},
    };
    enum { OWN = sizeof own / sizeof *own };
    if (a->n_set + OWN > CTL_MAX_SET)
        return false;
    memmove(a->set + OWN, a->set, a->n_set * sizeof *a->set);
    memcpy(a->set, own, sizeof own);
    a->n_set += OWN;
    return true;
}

/* What was said before goes in as the assistant's turn, so the daemon reads what it wrote.  The number keeps
 * conversations apart also where nothing is drawn by chance. */
static int put_turns(const struct probe *p, const struct talk *t, glmd_req *q) {
    char ask[512];
    int n = snprintf(ask, sizeof ask, "%d. %s", (int)(t - p->talk) + 1, p->lang->ask);
    int r = glmd_req_message(q, GLMD_ROLE_USER, ask, (size_t)n);
    if (r == 0 && t->before) {
        r = glmd_req_message(q, GLMD_ROLE_ASSISTANT, t->before, strlen(t->before));
        if (r == 0)
            r = glmd_req_message(q, GLMD_ROLE_USER, p->lang->more, strlen(p->lang->more));
    }
    return r;
}

static int live(const struct probe *p) {
    int n = 0;
    for (int i = 0; i < TALKS; i++)
        n += p->talk[i].tag != 0;
    return n;
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Fewer at a time from now on, and none for a moment: who has the room will not give it back sooner for being asked. */
static void no_room(struct probe *p) {
    int n = live(p);
    uint64_t now = now_ms();
    p->most = n < p->most ? (n > 1 ? n : 1) : p->most;
    p->again_ms = FAULT(ctl_probe_insists) ? 0 : now + ASK_AGAIN_MS;
    p->since_ms = p->since_ms ? p->since_ms : now;
    if (!n && now - p->since_ms >= SAY_AFTER_MS && !p->said && !p->args->quiet) {
        ctl_err("waiting for room%s%s", p->error.len ? ": " : "", p->error.len ? p->error.p : "");
        p->said = true;
    }
    p->error.len = 0; /* it was no failure */
}

/* 0, or an exit status; a request for which there is no room now is left for later. */
static int begin(struct probe *p, struct talk *t) {
    glmd_req *q;
    int r = ctl_request(p->c, p->args, &q), e;
    if (r)
        return r;
    e = put_turns(p, t, q);
    if (e == 0)
        e = glmd_req_set_u64(q, GLMD_KEY_SEED, p->seed++);
    if (e == 0)
        e = glmd_submit(p->c, q, &t->tag);
    if (e < 0) {
        glmd_req_free(q);
        t->tag = 0;
        if (e == -EBUSY || e == -ENOBUFS) {
            no_room(p);
            return 0;
        }
        ctl_err("the question in %s cannot be sent: %s", p->lang->name, glmd_strerror(e));
        return CTL_EXIT_REQUEST;
    }
    return 0;
}

/* Asks for the ids of the question whose answer has places; false: they will not be known. */
static bool ask_ids(struct probe *p, struct talk *t) {
    glmd_req *q;
    if (ctl_request(p->c, p->args, &q))
        return false;
    t->telling = put_turns(p, t, q) == 0 && glmd_tokenize(p->c, q, &t->tag) == 0;
    if (!t->telling) {
        glmd_req_free(q);
        t->tag = 0;
    }
    return t->telling;
}

static char *tail_of(const struct ctl_buf *b) {
    size_t from = b->len > TELL_AGAIN ? b->len - TELL_AGAIN : 0;
    char *s;
    while (from < b->len && ((unsigned char)b->p[from] & 0xc0) == 0x80)
        from++;
    s = malloc(b->len - from + 1);
    if (s) {
        memcpy(s, b->p + from, b->len - from);
        s[b->len - from] = 0;
    }
    return s;
}

static void next_turn(struct probe *p, struct talk *t) {
    ctl_places_known(&p->n->places, t);
    free(t->before);
    t->before = t->next;
    t->next = NULL;
    t->telling = false;
    t->text.len = t->tokens.len = 0;
}

static void on_end(struct probe *p, struct talk *t, const struct glmd_event *e) {
    t->tag = 0;
    if (t->telling) {
        next_turn(p, t);
        return;
    }
    if (e->status == -EBUSY || e->status == -EDQUOT) {
        no_room(p); /* somebody else has the seat: asked again */
        t->text.len = t->tokens.len = 0;
        return;
    }
    p->since_ms = 0;
    p->said = false;
    if (e->status < 0) {
        if (p->status == 0)
            p->status = e->status;
        return;
    }
    count_text(p->n, t, e->reason == GLMD_REASON_LENGTH);
    t->next = t->text.len ? tail_of(&t->text) : NULL; /* an empty answer begins the conversation anew */
    if (!ctl_places_wait(&p->n->places, t) || !ask_ids(p, t))
        next_turn(p, t);
}

static void on_event(struct probe *p, const struct glmd_event *e) {
    for (int i = 0; i < TALKS; i++) {
        struct talk *t = &p->talk[i];
        if (!e->tag || t->tag != e->tag)
            continue;
        if (e->type == GLMD_EV_TOKEN && p->args->json)
            ctl_places_token(&t->tokens, e->token, t->text.len);
        if (e->type == GLMD_EV_IDS)
            ctl_places_prompt(&p->n->places, t, e->ids, e->n_ids);
        else if ((e->type == GLMD_EV_TOKEN || e->type == GLMD_EV_TEXT) && e->channel == GLMD_CHANNEL_CONTENT)
            ctl_buf_add(&t->text, e->text, e->text_len);
        else if (e->type == GLMD_EV_ERROR && !p->error.len)
            ctl_buf_add(&p->error, e->text, e->text_len);
        else if (e->type == GLMD_EV_END)
            on_end(p, t, e);
    }
}

static bool done(const struct probe *p) {
    return p->n->chars >= p->want || p->n->empty >= EMPTY_ANSWERS || p->status < 0;
}

static void progress(const struct probe *p) {
    static uint64_t said;
    if (p->args->quiet || p->args->json || !isatty(STDERR_FILENO) || p->n->chars == said)
        return;
    said = p->n->chars;
    fprintf(stderr, "\r%-12s %10" PRIu64 " of %" PRIu64 "\r", p->lang->name, said, p->want);
}

/* All talks in one language, until there is enough text and every answer has ended. */
static int talk_in(struct probe *p) {
    struct glmd_event e = {.size = sizeof e};
    int r = 0;
    while (r == 0) {
        for (int i = 0; i < TALKS && r == 0 && !done(p) && live(p) < p->most && now_ms() >= p->again_ms; i++)
            if (!p->talk[i].tag)
                r = begin(p, &p->talk[i]);
        if (r || (!live(p) && done(p)))
            break;
        int w = glmd_wait(p->c, live(p) ? -1 : (int64_t)ASK_AGAIN_MS * 1000000);
        while (w >= 0 && (w = glmd_next(p->c, &e)) == 1)
            on_event(p, &e);
        progress(p);
        if (w < 0 && w != -EINTR) {
            ctl_err("the daemon went away: %s", glmd_strerror(w));
            return CTL_EXIT_LOST;
        }
    }
    if (r == 0 && p->status < 0) {
        ctl_err("%s: %s%s%s", p->lang->name, glmd_strerror(p->status), p->error.len ? ": " : "",
                p->error.len ? p->error.p : "");
        r = CTL_EXIT_REQUEST;
    }
    return r;
}

static int one_language(struct probe *p) {
    int r = talk_in(p);
    bool lost = false;
    for (int i = 0; i < TALKS; i++) {
        lost = lost || p->talk[i].text.failed;
        ctl_buf_done(&p->talk[i].text);
        ctl_buf_done(&p->talk[i].tokens);
        free(p->talk[i].before);
        free(p->talk[i].next);
        p->talk[i] = (struct talk){.tag = 0};
    }
    if (r == 0 && lost) {
        ctl_err("no memory for the answers");
        r = CTL_EXIT_OUTPUT;
    }
    return r;
}

/* ---- telling ---- */

static void as_json(struct ctl_buf *b, const struct language *l, const struct count *n) {
    ctl_buf_fmt(b,
                "{\"language\":\"%s\",\"characters\":%" PRIu64 ",\"beyond_ascii\":%" PRIu64 ",\"broken\":%" PRIu64
                ",\"cut\":%" PRIu64 ",\"answers\":%" PRIu64 ",\"samples\":[",
                l->name, n->chars, n->beyond, n->broken, n->cut, n->answers);
    for (uint32_t i = 0; i < n->n_samples; i++) {
        ctl_buf_str(b, i ? "," : "");
        ctl_text_json(b, n->sample[i], strlen(n->sample[i]));
    }
    ctl_buf_str(b, "],\"places\":");
    ctl_places_json(b, &n->places);
    ctl_buf_str(b, "}\n");
}

static void as_text(struct ctl_buf *b, const struct language *l, const struct count *n) {
    ctl_buf_fmt(b, "%-12s %10" PRIu64 " characters, %5.1f %% beyond ASCII, %" PRIu64 " broken\n", l->name, n->chars,
                n->chars ? 100 * (double)n->beyond / (double)n->chars : 0, n->broken);
    for (uint32_t i = 0; i < n->n_samples; i++) {
        ctl_buf_str(b, "    ");
        ctl_text_tty(b, n->sample[i], strlen(n->sample[i]));
        ctl_buf_str(b, "\n");
    }
    if (n->empty >= EMPTY_ANSWERS)
        ctl_buf_fmt(b, "    gave up: %d answers in a row are empty\n", EMPTY_ANSWERS);
}

/* The language whose name is the first len bytes of s. */
static const struct language *find_language(const char *s, size_t len) {
    for (size_t i = 0; i < LANGUAGES; i++)
        if (strlen(languages[i].name) == len && !memcmp(languages[i].name, s, len))
            return &languages[i];
    return NULL;
}

/* A list like polish,czech, or NULL for all; which of them in ret. */
static int choose(const char *list, bool ret[LANGUAGES]) {
    for (size_t i = 0; i < LANGUAGES; i++)
        ret[i] = !list;
    while (list) {
        size_t len = strcspn(list, ",");
        const struct language *l = find_language(list, len);
        if (!l) {
            ctl_err("--languages: found \"%.*s\", expected some of polish, czech, vietnamese, russian, korean, "
                    "chinese, emoji, with commas between",
                    (int)len, list);
            return CTL_EXIT_USAGE;
        }
        ret[l - languages] = true;
        list = list[len] ? list + len + 1 : NULL;
    }
    return 0;
}

static int tell(const struct probe *p) {
    struct ctl_buf b = {0};
    int r = 0;
    if (p->args->json)
        as_json(&b, p->lang, p->n);
    else
        as_text(&b, p->lang, p->n);
    if (b.failed || fwrite(b.p, 1, b.len, stdout) != b.len || fflush(stdout) != 0) {
        ctl_err("standard output could not be written, or memory ran out");
        r = CTL_EXIT_OUTPUT;
    }
    ctl_buf_done(&b);
    return r;
}

/* Whether all that was asked for is there and whole. */
static int judge(const struct count *n, const bool *chosen) {
    uint64_t broken = 0, empty = 0;
    for (size_t i = 0; i < LANGUAGES; i++) {
        broken += chosen[i] ? n[i].broken : 0;
        empty += chosen[i] && n[i].empty >= EMPTY_ANSWERS;
    }
    if (broken)
        ctl_err("%" PRIu64 " broken characters: weights or their scales are damaged, or read in another way than they "
                "were written; glm-pack --check reads the checkpoint again, glmd --plan says what was found in it",
                broken);
    else if (empty)
        ctl_err("in %" PRIu64 " languages the model answered with nothing, so nothing is proven", empty);
    return broken || empty ? CTL_EXIT_REQUEST : CTL_EXIT_OK;
}

int ctl_probe(const struct ctl_args *a) {
    struct ctl_args own = *a;
    struct count n[LANGUAGES] = {{.chars = 0}};
    struct probe p = {.args = &own, .most = TALKS, .want = a->chars ? a->chars : 10000, .seed = 1};
    bool chosen[LANGUAGES];
    int r;
    if (a->n_words) {
        ctl_err("probe takes no further words");
        return CTL_EXIT_USAGE;
    }
    if (!set_defaults(&own)) {
        ctl_err("more than %d options", CTL_MAX_SET);
        return CTL_EXIT_USAGE;
    }
    for (unsigned i = 0; i < own.n_set; i++)
        p.seed = own.set[i].key == GLMD_KEY_SEED ? own.set[i].u64 : p.seed;
    r = choose(a->languages, chosen);
    if (!r)
        r = ctl_connect(a, 0, &p.c);
    if (r)
        return r;
    for (size_t i = 0; i < LANGUAGES && r == 0; i++) {
        p.lang = &languages[i];
        p.n = &n[i];
        if (chosen[i] && (r = one_language(&p)) == 0)
            r = tell(&p);
    }
    for (size_t i = 0; i < LANGUAGES; i++)
        ctl_places_done(&n[i].places);
    glmd_close(p.c);
    ctl_buf_done(&p.error);
    return r ? r : judge(n, chosen);
}
