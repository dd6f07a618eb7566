/* SPDX-License-Identifier: MIT */
/* glmctl run: one prompt, one answer. glmctl resume: an answer that was kept. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"

#define MAX_PROMPT_BYTES ((size_t)60 << 20) /* what the largest arena of the protocol can carry */

/* Token ids separated by anything a list has: commas, blanks, brackets. */
static int parse_ids(const char *s, size_t len, uint32_t **ret, size_t *ret_n) {
    uint32_t *ids = malloc((len / 2 + 1) * sizeof *ids);
    size_t n = 0;
    if (!ids) {
        ctl_err("no memory for %zu bytes of token ids", len);
        return CTL_EXIT_OUTPUT;
    }
    for (size_t i = 0; i < len;) {
        if (s[i] == ',' || s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r' || s[i] == '[' ||
            s[i] == ']') {
            i++;
            continue;
        }
        uint64_t v = 0;
        size_t from = i;
        for (; i < len && s[i] >= '0' && s[i] <= '9' && v <= UINT32_MAX; i++)
            v = v * 10 + (uint64_t)(s[i] - '0');
        if (i == from || v >= GLMD_NO_TOKEN) {
            ctl_err("--tokens: byte %zu is not a token id: expected numbers below %u separated by commas",
                    from + 1, GLMD_NO_TOKEN);
            free(ids);
            return CTL_EXIT_USAGE;
        }
        ids[n++] = (uint32_t)v;
    }
    if (!n) {
        ctl_err("--tokens: no token id: expected numbers separated by commas");
        free(ids);
        return CTL_EXIT_USAGE;
    }
    *ret = ids;
    *ret_n = n;
    return 0;
}

static int read_stdin(char **ret, size_t *ret_len) {
    int r = ctl_read_all(STDIN_FILENO, MAX_PROMPT_BYTES, ret, ret_len);
    if (r == -EMSGSIZE)
        ctl_err("standard input holds more than %zu bytes, the largest request there is", MAX_PROMPT_BYTES);
    else if (r < 0)
        ctl_err("standard input cannot be read: %s", glmd_strerror(r));
    return r < 0 ? CTL_EXIT_USAGE : 0;
}

/* What is asked, from the command line or standard input. */
struct prompt {
    char *owned;
    const char *text;
    size_t len;
    uint32_t *ids;
    size_t n_ids;
};

static int get_prompt(const struct ctl_args *a, struct prompt *p) {
    const char *from = a->tokens ? a->tokens : a->words[0];
    if (a->tokens ? a->n_words > 0 : a->n_words != 1) {
        ctl_err(a->tokens    ? "--tokens takes the place of the prompt"
                : a->n_words ? "more than one prompt: put it in quotes"
                             : "no prompt: glmctl run \"PROMPT\", or - to read it from standard input");
        return CTL_EXIT_USAGE;
    }
    if (a->tokens && a->system) {
        ctl_err("--system has no place beside --tokens: the ids are the whole prompt");
        return CTL_EXIT_USAGE;
    }
    p->text = from;
    p->len = strlen(from);
    if (!strcmp(from, "-")) {
        int r = read_stdin(&p->owned, &p->len);
        if (r)
            return r;
        p->text = p->owned;
        /* the end of the last line is the shell's, not the question's: "echo Hi | glmctl run -" asks Hi */
        if (!a->tokens && p->len && p->text[p->len - 1] == '\n')
            p->len -= p->len > 1 && p->text[p->len - 2] == '\r' ? 2 : 1;
    }
    if (!p->len && !a->tokens) {
        ctl_err("the prompt is empty");
        return CTL_EXIT_USAGE;
    }
    return a->tokens ? parse_ids(p->text, p->len, &p->ids, &p->n_ids) : 0;
}

/* The daemon reads the JSON; here it is text. */
static int put_tools(const struct ctl_args *a, glmd_req *q) {
    for (unsigned i = 0; i < a->n_tools; i++) {
        int fd = open(a->tools[i], O_RDONLY | O_CLOEXEC), r = fd < 0 ? -errno : 0;
        char *text = NULL;
        size_t len = 0;
        if (r == 0)
            r = ctl_read_all(fd, MAX_PROMPT_BYTES, &text, &len);
        if (fd >= 0)
            close(fd);
        if (r == 0)
            r = glmd_req_tool(q, text, len);
        free(text);
        if (r < 0) {
            ctl_err("--tool %s: %s", a->tools[i], glmd_strerror(r));
            return CTL_EXIT_USAGE;
        }
    }
    return 0;
}

static int ask(glmd_conn *c, const struct ctl_args *a, const struct prompt *p) {
    glmd_req *q;
    int r = ctl_request(c, a, &q);
    if (r)
        return r;
    r = put_tools(a, q);
    if (r) {
        glmd_req_free(q);
        return r;
    }
    if (p->ids)
        r = glmd_req_tokens(q, p->ids, p->n_ids);
    else if (a->system)
        r = glmd_req_message(q, GLMD_ROLE_SYSTEM, a->system, strlen(a->system));
    if (r == 0 && !p->ids)
        r = glmd_req_message(q, GLMD_ROLE_USER, p->text, p->len);
    if (r < 0) {
        glmd_req_free(q);
        ctl_err("the prompt cannot be sent: %s", glmd_strerror(r));
        return CTL_EXIT_REQUEST;
    }
    return ctl_answer(c, q, a, NULL);
}

int ctl_run(const struct ctl_args *a) {
    struct prompt p = {0};
    glmd_conn *c;
    ctl_sigint_install();
    int r = get_prompt(a, &p);
    if (!r && !(r = ctl_connect(a, p.len + (a->system ? strlen(a->system) : 0), &c))) {
        r = ask(c, a, &p);
        glmd_close(c);
    }
    free(p.owned);
    free(p.ids);
    return r;
}

/* Digits of the base up to the end of the word, at most max. */
static bool parse_number(const char *s, int base, uint64_t max, uint64_t *ret) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, base);
    if (!*s || s[0] == '-' || s[0] == '+' || s[0] == ' ' || *end || errno || v > max)
        return false;
    *ret = v;
    return true;
}

int ctl_resume(const struct ctl_args *a) {
    struct ctl_args args = *a;
    uint64_t from = 0;
    glmd_conn *c;
    if (!a->n_words || !parse_number(a->words[0], 16, UINT64_MAX, &args.stream_id) || !args.stream_id) {
        ctl_err("%s: expected the number of an answer, as glmctl run --keep prints it",
                a->n_words ? a->words[0] : "glmctl resume");
        return CTL_EXIT_USAGE;
    }
    if (a->n_words > 1 && !parse_number(a->words[1], 10, UINT32_MAX, &from)) {
        ctl_err("%s: expected the number of a record, one more than the last seq that --json printed",
                a->words[1]);
        return CTL_EXIT_USAGE;
    }
    args.from_seq = (uint32_t)from;
    ctl_sigint_install();
    int r = ctl_connect(a, 0, &c);
    if (!r) {
        r = ctl_answer(c, NULL, &args, NULL);
        glmd_close(c);
    }
    return r;
}
