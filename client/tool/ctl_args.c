/* SPDX-License-Identifier: MIT */
/* The command line: one table is the source of the parser and of every --help.  Values are only parsed here;
 * whether they make sense is the daemon's to say, so that its rules exist once. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"

enum kind { K_FLAG, K_STR, K_U64, K_F64, K_ONOFF, K_SET_FLAG, K_SET_STR, K_CHOICE };

struct opt {
    const char *name;
    const char *value; /* what help calls the value; NULL: takes none */
    int cmds;
    int kind;
    int key; /* glmd key, or one of the O_ below */
    const char *help;
};

enum { O_SOCKET = 1000, O_JSON, O_QUIET, O_HELP, O_REASONING, O_SYSTEM, O_TOKENS, O_TOOL, O_TOOL_CHOICE, O_ONCE,
       O_CHARS, O_LANGUAGES };

#define ANY  (CTL_RUN | CTL_CHAT | CTL_STATUS | CTL_RESUME | CTL_TOP | CTL_PROBE)
#define ASK  (CTL_RUN | CTL_CHAT)
#define DRAW (ASK | CTL_PROBE)
#define SHOW (CTL_RUN | CTL_CHAT | CTL_RESUME)

static const struct opt table[] = {
    {"socket", "PATH", ANY, K_STR, O_SOCKET,
     "socket of the daemon (default $GLMD_SOCKET, then your own daemon's, then the system's)"},
    {"json", NULL, ANY, K_FLAG, O_JSON, "one JSON object per line on standard output"},
    {"quiet", NULL, SHOW | CTL_PROBE, K_FLAG, O_QUIET, "no progress and no closing line"},
    {"reasoning", "auto|show|hide", SHOW, K_CHOICE, O_REASONING,
     "print the reasoning (auto: dimmed on a terminal, hidden elsewhere)"},
    {"system", "TEXT", ASK, K_STR, O_SYSTEM, "system message before the prompt"},
    {"tokens", "IDS", CTL_RUN, K_STR, O_TOKENS,
     "raw token ids as the prompt, like 5,17,9; - reads them from standard input"},
    {"max-tokens", "N", DRAW, K_U64, GLMD_KEY_MAX_TOKENS, "longest answer, reasoning included"},
    {"min-tokens", "N", ASK, K_U64, GLMD_KEY_MIN_TOKENS, "shortest answer"},
    {"temperature", "X", DRAW, K_F64, GLMD_KEY_TEMPERATURE, "0: always the likeliest token"},
    {"top-p", "X", DRAW, K_F64, GLMD_KEY_TOP_P, "sample from the likeliest tokens that sum to X"},
    {"top-k", "N", DRAW, K_U64, GLMD_KEY_TOP_K, "sample from the N likeliest tokens"},
    {"min-p", "X", DRAW, K_F64, GLMD_KEY_MIN_P, "drop tokens less than X times as likely as the likeliest"},
    {"repetition-penalty", "X", ASK, K_F64, GLMD_KEY_REPETITION_PENALTY,
     "divide the score of tokens seen before"},
    {"presence-penalty", "X", ASK, K_F64, GLMD_KEY_PRESENCE_PENALTY, "subtract from tokens generated before"},
    {"frequency-penalty", "X", ASK, K_F64, GLMD_KEY_FREQUENCY_PENALTY,
     "subtract for each time generated before"},
    {"seed", "N", DRAW, K_U64, GLMD_KEY_SEED, "same seed and request: same answer"},
    {"effort", "low|high|max", ASK, K_SET_STR, GLMD_KEY_EFFORT, "how hard to reason"},
    {"think", "on|off", ASK, K_ONOFF, GLMD_KEY_THINKING, "reason before answering"},
    {"thinking-budget", "N", ASK, K_U64, GLMD_KEY_THINKING_BUDGET, "close the reasoning after N tokens"},
    {"loop-guard", "on|off", ASK, K_ONOFF, GLMD_KEY_LOOP_GUARD, "stop an answer that repeats itself"},
    {"clear-thinking", "on|off", CTL_CHAT, K_ONOFF, GLMD_KEY_CLEAR_THINKING,
     "drop reasoning of earlier turns"},
    {"stop", "TEXT", ASK, K_SET_STR, GLMD_KEY_STOP, "end where TEXT would begin; repeatable"},
    {"json-object", NULL, ASK, K_SET_FLAG, GLMD_KEY_JSON_OBJECT, "the answer is one JSON object"},
    {"schema", "FILE", ASK, K_SET_STR, GLMD_KEY_SCHEMA, "the answer satisfies the JSON schema in FILE"},
    {"ignore-eos", NULL, DRAW, K_SET_FLAG, GLMD_KEY_IGNORE_EOS, "go on until --max-tokens"},
    {"tool", "FILE", CTL_RUN, K_STR, O_TOOL, "offer the tool whose JSON object is in FILE; repeatable"},
    {"tool-choice", "auto|none|required|NAME", CTL_RUN, K_CHOICE, O_TOOL_CHOICE,
     "whether a tool must be called, or which"},
    {"parallel-calls", "on|off", CTL_RUN, K_ONOFF, GLMD_KEY_PARALLEL_CALLS, "off: end with the first call"},
    {"logprobs", NULL, CTL_RUN, K_SET_FLAG, GLMD_KEY_LOGPROBS,
     "log probability of each token (shown with --json)"},
    {"alternatives", "N", CTL_RUN, K_U64, GLMD_KEY_ALTERNATIVES,
     "the N likeliest tokens beside each, 20 at most (shown with --json)"},
    {"deadline", "MS", ASK, K_U64, GLMD_KEY_DEADLINE_MS, "give up after so many milliseconds"},
    {"background", NULL, DRAW, K_SET_FLAG, GLMD_KEY_BACKGROUND, "requests of others go first"},
    {"no-cache", NULL, ASK, K_SET_FLAG, GLMD_KEY_NO_CACHE, "read the whole prompt, keep nothing of it"},
    {"keep", NULL, CTL_RUN, K_SET_FLAG, GLMD_KEY_KEEP,
     "the answer outlives this program: glmctl resume goes on with it"},
    {"chars", "N", CTL_PROBE, K_U64, O_CHARS, "characters to ask for in each language (default 10000)"},
    {"languages", "LIST", CTL_PROBE, K_STR, O_LANGUAGES,
     "of polish, czech, vietnamese, russian, korean, chinese, emoji; with commas between (default all)"},
    {"once", NULL, CTL_TOP, K_FLAG, O_ONCE, "show it once and end"},
    {"help", NULL, ANY, K_FLAG, O_HELP, "this text"},
};

static const char *const usage_run =
    "usage: glmctl run [OPTIONS] PROMPT      (- reads the prompt from standard input)\n"
    "       glmctl run [OPTIONS] --tokens IDS\n\n"
    "Asks once and prints the answer token by token. Ctrl-C cancels; a second one ends the program.\n\n";
static const char *const usage_chat =
    "usage: glmctl chat [OPTIONS]\n\n"
    "A conversation: one line, one turn (a line that ends with \\ goes on). Commands: /clear, /help, /exit.\n"
    "Ctrl-C stops an answer; at the prompt, or twice, it ends the program.\n\n";
static const char *const usage_resume =
    "usage: glmctl resume [OPTIONS] ID [FROM]\n\n"
    "Goes on with an answer of glmctl run --keep, from its record FROM on or from the oldest there is.\n\n";
static const char *const usage_status =
    "usage: glmctl status [OPTIONS]\n\nShows what the daemon is doing.\n\n";

static const char *const usage_top =
    "usage: glmctl top [OPTIONS]\n\n"
    "Shows every second what the daemon's memory, queue and prefix cache hold and who has what of them. Ctrl-C "
    "ends.\n\n";

static const char *const usage_probe =
    "usage: glmctl probe [OPTIONS]\n\n"
    "Asks for long text in languages whose letters take several bytes and counts characters that came broken, which\n"
    "weights do that are damaged or read wrongly. Exit status 1: some did.\n\n";

void ctl_args_help(int cmd) {
    fputs(cmd == CTL_RUN      ? usage_run
          : cmd == CTL_CHAT   ? usage_chat
          : cmd == CTL_RESUME ? usage_resume
          : cmd == CTL_TOP    ? usage_top
          : cmd == CTL_PROBE  ? usage_probe
                              : usage_status,
          stdout);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char left[64];
        if (!(table[i].cmds & cmd))
            continue;
        snprintf(left, sizeof left, "--%s%s%s", table[i].name, table[i].value ? " " : "",
                 table[i].value ? table[i].value : "");
        printf("  %-28s%s%s\n", left, strlen(left) > 28 ? "\n                               " : " ", table[i].help);
    }
}

static const struct opt *find(int cmd, const char *name, size_t len) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if ((table[i].cmds & cmd) && strlen(table[i].name) == len && !memcmp(table[i].name, name, len))
            return &table[i];
    return NULL;
}

static int bad_value(const struct opt *o, const char *v, const char *want) {
    ctl_err("--%s %s: expected %s", o->name, v, want);
    return CTL_EXIT_USAGE;
}

static int add_set(struct ctl_args *a, const struct opt *o, const char *v) {
    struct ctl_set s = {.key = o->key, .option = o->name, .text = v};
    char *end;
    if (a->n_set == CTL_MAX_SET) {
        ctl_err("--%s: more than %d options", o->name, CTL_MAX_SET);
        return CTL_EXIT_USAGE;
    }
    errno = 0;
    switch (o->kind) {
    case K_U64:
        s.u64 = strtoull(v, &end, 10);
        if (v[0] < '0' || v[0] > '9' || *end || errno)
            return bad_value(o, v, "a whole number, 0 or more");
        break;
    case K_F64:
        s.f64 = strtod(v, &end);
        if (end == v || *end)
            return bad_value(o, v, "a number");
        break;
    case K_ONOFF:
        if (strcmp(v, "on") && strcmp(v, "off"))
            return bad_value(o, v, "on or off");
        s.u64 = v[1] == 'n';
        break;
    case K_SET_FLAG:
        s.u64 = 1;
        break;
    default:
        s.str = v;
        break;
    }
    a->set[a->n_set++] = s;
    return 0;
}

static int add_tool(struct ctl_args *a, const char *path) {
    if (a->n_tools == CTL_MAX_TOOLS) {
        ctl_err("--tool: more than %d tools", CTL_MAX_TOOLS);
        return CTL_EXIT_USAGE;
    }
    a->tools[a->n_tools++] = path;
    return 0;
}

static int add_choice(struct ctl_args *a, const struct opt *o, const char *v) {
    static const char *const words[] = {"auto", "none", "required"};
    struct opt as = *o;
    char number[2] = "0";
    for (unsigned i = 0; i < 3; i++) {
        if (strcmp(v, words[i]))
            continue;
        as.kind = K_U64;
        as.key = GLMD_KEY_TOOL_CHOICE;
        number[0] = (char)('0' + i);
        int r = add_set(a, &as, number);
        if (!r)
            a->set[a->n_set - 1].text = v;
        return r;
    }
    as.kind = K_SET_STR;
    as.key = GLMD_KEY_TOOL_NAME;
    return add_set(a, &as, v);
}

static int apply(struct ctl_args *a, const struct opt *o, const char *v) {
    int r;
    switch (o->key) {
    case O_SOCKET:
        a->socket = v;
        return 0;
    case O_JSON:
        a->json = true;
        return 0;
    case O_QUIET:
        a->quiet = true;
        return 0;
    case O_LANGUAGES:
        a->languages = v;
        return 0;
    case O_CHARS:
        r = add_set(a, o, v); /* for its rules alone */
        if (r)
            return r;
        a->chars = a->set[--a->n_set].u64;
        return a->chars ? 0 : bad_value(o, v, "a whole number, 1 or more");
    case O_ONCE:
        a->once = true;
        return 0;
    case O_HELP:
        a->help = true;
        return 0;
    case O_SYSTEM:
        a->system = v;
        return 0;
    case O_TOKENS:
        a->tokens = v;
        return 0;
    case O_TOOL:
        return add_tool(a, v);
    case O_TOOL_CHOICE:
        return add_choice(a, o, v);
    case O_REASONING:
        if (!strcmp(v, "auto"))
            a->reasoning = CTL_REASONING_AUTO;
        else if (!strcmp(v, "show"))
            a->reasoning = CTL_REASONING_SHOW;
        else if (!strcmp(v, "hide"))
            a->reasoning = CTL_REASONING_HIDE;
        else
            return bad_value(o, v, o->value);
        return 0;
    default:
        return add_set(a, o, v);
    }
}

int ctl_args_parse(int cmd, int argc, char **argv, struct ctl_args *ret) {
    struct ctl_args a = {0};
    bool options = true;
    for (int i = 0; i < argc; i++) {
        const char *w = argv[i];
        if (!options || w[0] != '-' || !w[1]) {
            if (a.n_words == 2) {
                ctl_err("too many words after \"%s\": put the prompt in quotes", a.words[0]);
                return CTL_EXIT_USAGE;
            }
            a.words[a.n_words++] = w;
            continue;
        }
        if (!strcmp(w, "--")) {
            options = false;
            continue;
        }
        if (!strcmp(w, "-h"))
            w = "--help";
        size_t len = w[1] == '-' ? strcspn(w + 2, "=") : 0;
        const struct opt *o = len ? find(cmd, w + 2, len) : NULL;
        if (!o) {
            ctl_err("unknown option %s: --help lists them; text that begins with - goes behind --", w);
            return CTL_EXIT_USAGE;
        }
        const char *v = w[2 + len] == '=' ? w + 3 + len : NULL;
        if (!o->value && v) {
            ctl_err("--%s takes no value", o->name);
            return CTL_EXIT_USAGE;
        }
        if (o->value && !v && ++i < argc)
            v = argv[i];
        if (o->value && !v) {
            ctl_err("--%s needs a value: %s", o->name, o->value);
            return CTL_EXIT_USAGE;
        }
        int r = apply(&a, o, v);
        if (r)
            return r;
    }
    const struct ctl_set *schema = NULL;
    for (unsigned i = 0; i < a.n_set; i++) { /* the library would take the last one and drop the other unsaid */
        if (a.set[i].key != GLMD_KEY_SCHEMA && a.set[i].key != GLMD_KEY_JSON_OBJECT)
            continue;
        if (schema) {
            ctl_err("--%s and --%s: only one can rule the answer", schema->option, a.set[i].option);
            return CTL_EXIT_USAGE;
        }
        schema = &a.set[i];
    }
    *ret = a;
    return 0;
}
