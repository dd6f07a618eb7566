/* SPDX-License-Identifier: MIT */
/* The tool block's words out of chat templates of many shapes; unfamiliar ones are a warning, never an
 * error. */
#include "chatreq.h"
#include "chattest.h"
#include "texttest.h"
#include "utf8.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD CHATTEST_HEAD
#define TAIL CHATTEST_TAIL
#define MSG  CHATTEST_MSG

static struct tok *tok;
static struct chat_out out;
static char dir[64], file[96];

static void setup(void) {
    struct xerr err = {0};

    ck_assert_msg(tok_open(texttest_model("nano"), &tok, &err) == 0, "%s", err.msg);
    chat_out_init(&out, 64 << 20);
    strcpy(dir, "/tmp/glmd-chat-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/chat_template.jinja", dir);
}

static void teardown(void) {
    chat_out_done(&out);
    tok = tok_free(tok);
    unlink(file);
    rmdir(file);
    ck_assert_int_eq(rmdir(dir), 0);
}

static char *edit(const char *what, const char *with) {
    char path[4200], *text, *at, *new;
    size_t n;

    snprintf(path, sizeof path, "%s/chat_template.jinja", texttest_model("nano"));
    text = texttest_file(path, &n);
    at = strstr(text, what);
    ck_assert_msg(at != NULL, "the template has no %s", what);
    new = malloc(n + strlen(with) + 1);
    sprintf(new, "%.*s%s%s", (int)(at - text), text, with, at + strlen(what));
    free(text);
    return new;
}

static struct chat *open_template(const char *text) {
    FILE *f = fopen(file, "w");
    struct chat *c = NULL;
    struct xerr err = {0};

    ck_assert(f && fwrite(text, 1, strlen(text), f) == strlen(text) && fclose(f) == 0);
    ck_assert_msg(chat_open(dir, tok, &c, &err) == 0, "%s", err.msg);
    return c;
}

static const struct {
    const char *what, *with;
    bool tools;
    const char *warns; /* NULL: no warning at all */
} variants[] = {
    {"can help with the answer", "may be called", true, NULL},
    {"{% for tool in tools -%}", "{%- for tool in tools %}", false,
     "first words were not found"}, /* eats the newline */
    {"<tools>\n{% for", "{{ '<tools>\\n' }}{% for", false, "first words were not found"},
    {"These functions", "{{ who }}", false, "first words were not found"},
    {"</tools>\n\nA call", "{{ '</tools>' }}\n\nA call", false, "last words were not found"},
    {"{%- endif -%}\n{%- set last", "<|user|>{%- endif -%}\n{%- set last", true, "go on into a role marker"},
    {"<|user|>{{ text(m.content) }}", "<|user|>\n{{ text(m.content) }}", true, "newline behind <|user|>"},
    {"<|observation|>{%- endif -%}", "{{ obs }}{%- endif -%}", true, "does not contain \"<|observation|>\""},
    {"<|begin_of_image|><|image|><|end_of_image|>", "(a picture)", true, "<|begin_of_image|>"},
    {"Reasoning Effort: ", "Effort: ", true, "does not contain \"Reasoning Effort: \""},
    {"{%- set last = namespace(user=-1) -%}", "{%- if x %}<|system|>\nmore\n<tools>\n{% endif -%}", true,
     "more than one tool block"},
    {"{%- if tools %}", "{%- if tools and '%}' != \"{{\" %}", true, NULL}, /* tags inside quotes */
    {"{%- if tools %}", "{# <|system|>\n<tools>\n#}{%- if tools %}", true,
     NULL},                                               /* comments are no literals */
    {"{%- if tools %}", "{%- if tools %}\n", true, NULL}, /* trim_blocks */
};

START_TEST(template_variant) {
    char *text = edit(variants[_i].what, variants[_i].with), *got;
    struct chat *c = open_template(text);
    const char *w = chat_warning(c);
    static const char req[] = "{\"messages\": [" MSG("user", "\"u\"") "], \"tools\": [{\"name\": \"a\"}]}";

    ck_assert_msg(chat_has_tools(c) == variants[_i].tools, "tools %d, warning %s", chat_has_tools(c),
                  w ? w : "none");
    ck_assert_msg(variants[_i].warns ? w && strstr(w, variants[_i].warns) : !w, "warning: %s",
                  w ? w : "none");
    if (chat_has_tools(c)) {
        got = chattest_render(c, &out, req, strlen(req));
        ck_assert_ptr_nonnull(strstr(got, HEAD "<|system|>\n# Tools\n\n"));
        ck_assert_ptr_nonnull(strstr(got, ":\n<tools>\n{\"name\": \"a\"}\n</tools>\n\nA call looks like "
                                          "this:\n<tool_call>{function-name}"));
        free(got);
    } else {
        struct chatreq *r;
        struct xerr err = {0};

        ck_assert_int_eq(chatreq_parse(req, strlen(req), &r, &err), 0);
        ck_assert_int_eq(chat_render(c, chatreq_get(r), &out, &err), -ENOTSUP);
        ck_assert_ptr_nonnull(strstr(err.msg, "no tool block"));
        chatreq_free(r);
    }
    chat_free(c);
    free(text);
}
END_TEST

/* A tool block written as the larger models write it: statements without '-' and a macro for the JSON. */
START_TEST(template_with_macro) {
    static const char text[] = "[gMASK]<sop>\n"
                               "{%- if tools -%}\n"
                               "{%- macro one(t) -%}\n    {{ '{' -}}\n    {%- for k, v in t.items() -%}\"{{ "
                               "k }}\": {{ v | tojson(ensure_ascii=False) }}{%- endfor -%}\n"
                               "    {{- '}' -}}\n{%- endmacro -%}\n"
                               "<|system|>\n# Words\n\nList:\n<tools>\n"
                               "{% for tool in tools %}\n"
                               "{% if tool.defer_loading is not defined %}\n"
                               "{{ one(tool) }}\n"
                               "{% endif %}\n"
                               "{% endfor %}\n"
                               "</tools>\n\nWrite:\r\n<tool_call>{name}</tool_call>{%- endif -%}\n";
    struct chat *c = open_template(text);
    static const char req[] = "{\"messages\": [" MSG("user", "\"u\"") "], \"tools\": [{\"name\": \"a\"}]}";
    char *got = chattest_render(c, &out, req, strlen(req));

    ck_assert_str_eq(
        got,
        HEAD "<|system|>\n# Words\n\nList:\n<tools>\n{\"name\": \"a\"}\n</tools>\n\nWrite:\n<tool_call>{name}"
             "</tool_call><|user|>u" TAIL);
    ck_assert_uint_eq(chattest_controls(&out, tok_id(tok, "<tool_call>")), 1);
    ck_assert_ptr_nonnull(chat_warning(c)); /* it lacks the rest of the format */
    free(got);
    chat_free(c);
}
END_TEST

START_TEST(template_missing_or_damaged) {
    static const char *const texts[] = {
        "",         "{",       "{%",       "{{ '",     "{#",
        "plain",    "{%- -%}", "{%-%}x{%", "</tools>", "<|system|>\n<tools>\n",
        "\xff\xfe", "{{ \"\\"};
    struct texttest_rng rng = {77};
    struct xerr err = {0};
    struct chat *c;
    char *whole = edit("", "");
    size_t n = strlen(whole);

    ck_assert_int_eq(chat_open(dir, tok, &c, &err), 0); /* no file */
    ck_assert_ptr_nonnull(strstr(chat_warning(c), "chat_template.jinja is missing"));
    ck_assert(!chat_has_tools(c));
    chat_free(c);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        c = open_template(texts[i]);
        ck_assert(!chat_has_tools(c));
        ck_assert_ptr_nonnull(chat_warning(c));
        chat_free(c);
    }
    for (unsigned i = 0; i < 400; i++) { /* cut and flipped anywhere: never more than a warning */
        char *bad = strdup(whole);

        bad[texttest_below(&rng, (uint32_t)n)] = (char)(1 + texttest_below(&rng, 127));
        if (i & 1)
            bad[texttest_below(&rng, (uint32_t)n)] = 0;
        c = open_template(bad);
        ck_assert(!chat_warning(c) || utf8_is_valid(chat_warning(c), strlen(chat_warning(c))));
        chat_free(c);
        free(bad);
    }
    unlink(file);
    ck_assert_int_eq(symlink(file, file), 0);
    ck_assert_int_eq(chat_open(dir, tok, &c, &err), -ELOOP);
    ck_assert_ptr_nonnull(strstr(err.msg, file));
    unlink(file);
    ck_assert_int_eq(mkdir(file, 0700), 0);
    ck_assert_int_eq(chat_open(dir, tok, &c, &err), 0);
    ck_assert_ptr_nonnull(strstr(chat_warning(c), "not a regular file"));
    chat_free(c);
    rmdir(file);
    ck_assert_int_eq(mkfifo(file, 0600), 0); /* must not be waited for */
    ck_assert_int_eq(chat_open(dir, tok, &c, &err), 0);
    ck_assert_ptr_nonnull(strstr(chat_warning(c), "not a regular file"));
    chat_free(c);
    unlink(file);
    free(whole);
}
END_TEST

START_TEST(twin_a_opens_too) {
    struct xerr err = {0};
    struct tok *t;
    struct chat *c;

    ck_assert_msg(tok_open(texttest_model("twin-a"), &t, &err) == 0, "%s", err.msg);
    ck_assert_msg(chat_open(texttest_model("twin-a"), t, &c, &err) == 0, "%s", err.msg);
    ck_assert_ptr_null(chat_warning(c));
    chat_free(c);
    tok_free(t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_template");
    TCase *tc = tcase_create("template");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60 * texttest_slow());
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, template_variant, 0, (int)(sizeof variants / sizeof *variants));
    tcase_add_test(tc, template_with_macro);
    tcase_add_test(tc, template_missing_or_damaged);
    tcase_add_test(tc, twin_a_opens_too);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
