/* SPDX-License-Identifier: MIT */
/* Output parser: every row of its table, endings, malformed calls, types. */
#include "outtest.h"
#include "texttest.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *in, *out;
    enum outparse_finish finish;
    unsigned flags;
    struct outtest_options o;
} rows[] = {
    /* the table, state by state */
    {"Why.</think>Yes" U, "R(Why.)C(Yes)", STOP, 0, {.open = true}},
    {"a<think>b</think>c" U, "R(ab)C(c)", STOP, 0, {.open = true}},
    {"Yes" U, "C(Yes)", STOP, 0, {0}},
    {"a<think>b</think>c" U, "C(a)R(b)C(c)", STOP, 0, {0}},
    {"a</think></think>b" U, "C(ab)", STOP, 0, {0}},
    {"a" CALL "wx" K("city") V("Lima") K("days") V("2") END OBS,
     "C(a)wx{\"city\": \"Lima\", \"days\": 2}.",
     CALLS,
     0,
     {0}},
    {CALL "ping" END OBS, "ping{}.", CALLS, 0, {0}},
    {CALL "ping" END CALL "ping" END "x" OBS, "ping{}.ping{}.C(x)", CALLS, 0, {0}},
    {"t</think>" CALL "ping" END OBS, "R(t)ping{}.", CALLS, 0, {.open = true}},
    {"a" END "b</arg_key>c</arg_value>d<arg_key>e<arg_value>f</tool_response>g" U,
     "C(abcdefg)",
     STOP,
     0,
     {0}},
    {"a\1<tool_call>ping</tool_call></think>\2" U, "C(a<tool_call>ping</tool_call></think>)", STOP, 0, {0}},
    {"a<|system|>b[MASK]c" U, "C(abc)", STOP, 0, {0}},
    /* ends */
    {"ab" U "cd", "C(ab)", STOP, 0, {0}},
    {"ab<|endoftext|>", "C(ab)", STOP, 0, {0}},
    {"ab<|assistant|>again", "C(ab)", STOP, 0, {0}},
    {"ab" U "cd", "C(abcd)", OUT_FINISH_LENGTH, 0, {.ignore_eos = true, .end = 'L'}},
    {"ab", "C(ab)", OUT_FINISH_LENGTH, 0, {.end = 'L'}},
    {"ab", "C(ab)", STOP, 0, {.end = 'E'}},
    {"ab", "C(ab)", OUT_FINISH_NONE, 0, {0}},
    {"thinking" U, "R(thinking)", STOP, OUT_REASONING_OPEN, {.open = true}},
    {"thinking", "R(thinking)", OUT_FINISH_LENGTH, OUT_REASONING_OPEN, {.open = true, .end = 'L'}},
    {CALL "ping" END "x", "ping{}.C(x)", OUT_FINISH_LENGTH, 0, {.end = 'L'}},
    {CALL "wx" K("city") V("Lima") END CALL "wx" K("city") "<arg_value>Mos",
     "wx{\"city\": \"Lima\"}.wx{\"city\": \"Mos!",
     OUT_FINISH_LENGTH,
     OUT_CALL_CUT,
     {.end = 'L'}},
    {CALL "wx", "", OUT_FINISH_LENGTH, OUT_CALL_CUT, {.end = 'L'}},
    {CALL "wx" K("city") V("Lima"), "wx{\"city\": \"Lima\"!", OUT_FINISH_LENGTH, OUT_CALL_CUT, {.end = 'L'}},
    {CALL "wx" K("city") V("Lima") OBS, "wx{\"city\": \"Lima\"}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL "wx" K("days") V("2") OBS, "wx{\"days\": 2!", STOP, OUT_CALL_CUT, {0}},
    {CALL "wx" K("city") "<arg_value>Li" OBS, "wx{\"city\": \"Li!", STOP, OUT_CALL_CUT, {0}},
    {CALL "wx<arg_key>ci" OBS, "wx!", STOP, OUT_CALL_CUT, {0}},
    {CALL "wx" K("city") OBS, "wx!", STOP, OUT_CALL_CUT, {0}},
    {CALL "ping" OBS, "ping{}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL " ping\n" OBS, "ping{}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL "wx" OBS, "C(<tool_call>wx)", STOP, OUT_CALL_AS_TEXT, {0}},
    {"x" CALL "no" OBS, "C(x<tool_call>no)", STOP, OUT_CALL_AS_TEXT, {0}},
    {CALL "ping" END CALL "no" OBS, "ping{}.C(<tool_call>no)", CALLS, OUT_CALL_AS_TEXT, {0}},
    /* calls inside the think block */
    {"a" CALL "ping" END OBS, "R(a)ping{}.", CALLS, OUT_CALL_IN_THINK, {.open = true}},
    {"a" CALL "ping" END "b" CALL "wx" K("city") V("L") END OBS,
     "R(a)ping{}.R(b)wx{\"city\": \"L\"}.",
     CALLS,
     OUT_CALL_IN_THINK,
     {.open = true}},
    {"a" CALL "wx" K("city") V("L") END "b</think>c" U,
     "R(a<tool_call>wx<arg_key>city</arg_key><arg_value>L</arg_value></tool_call>b)C(c)",
     STOP,
     0,
     {.open = true}},
    {"a" CALL "ping" END "b</think>" CALL "ping" END OBS,
     "R(a<tool_call>ping</tool_call>b)ping{}.",
     CALLS,
     0,
     {.open = true}},
    {"a" CALL "ping" END,
     "R(a<tool_call>ping</tool_call>)",
     OUT_FINISH_LENGTH,
     OUT_REASONING_OPEN,
     {.open = true, .end = 'L'}},
    {"a" CALL "no" END OBS,
     "R(a<tool_call>no</tool_call>)",
     STOP,
     OUT_CALL_AS_TEXT | OUT_REASONING_OPEN,
     {.open = true}},
    {"a" CALL "wx" K("city") "<arg_value>L" OBS,
     "R(a)wx{\"city\": \"L!",
     STOP,
     OUT_CALL_CUT | OUT_REASONING_OPEN,
     {.open = true}},
    {"a" CALL "ping" END "<think>b" OBS, "R(a)ping{}.R(b)", CALLS, OUT_CALL_IN_THINK, {.open = true}},
    /* malformed calls */
    {"a" CALL "nope" K("k") V("v") END "b" U,
     "C(a<tool_call>nope<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>b)",
     STOP,
     OUT_CALL_AS_TEXT,
     {0}},
    {CALL "run_in_termina" K("command") V("ls") END U,
     "C(<tool_call>run_in_termina<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>)",
     STOP,
     OUT_CALL_AS_TEXT,
     {0}},
    {CALL END "x" U, "C(<tool_call></tool_call>x)", STOP, OUT_CALL_AS_TEXT, {0}},
    {CALL "\n wx \n" K("city") V("L") END OBS, "wx{\"city\": \"L\"}.", CALLS, 0, {0}},
    {CALL "wx\n" K("city") "\n" V("L") "\n" K("days") "\n" V("1") "\n" END OBS,
     "wx{\"city\": \"L\", \"days\": 1}.",
     CALLS,
     0,
     {0}},
    {CALL "wxcity</arg_key>" V("L") END OBS, "wx{\"city\": \"L\"}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL "wx\ncity</arg_key>" V("L") END OBS, "wx{\"city\": \"L\"}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL "run_in_terminalcommand</arg_key>" V("ls") END OBS,
     "run_in_terminal{\"command\": \"ls\"}.",
     CALLS,
     OUT_CALL_REPAIRED,
     {0}},
    {CALL "nonecity</arg_key>" V("L") END U,
     "C(<tool_call>nonecity</arg_key><arg_value>L</arg_value></tool_call>)",
     STOP,
     OUT_CALL_AS_TEXT,
     {0}},
    {CALL "wx" K("city") K("days") V("3") END OBS, "wx{\"days\": 3}.", CALLS, OUT_PAIR_DROPPED, {0}},
    {CALL "wx" K("city") END OBS, "wx{}.", CALLS, OUT_PAIR_DROPPED, {0}},
    {CALL "wx<arg_key>city" END OBS, "wx{}.", CALLS, OUT_PAIR_DROPPED, {0}},
    {CALL "wx" V("Lima") K("days") V("3") END OBS, "wx{\"days\": 3}.", CALLS, OUT_PAIR_DROPPED, {0}},
    {CALL "wx" K("days") V("3") V("4") END OBS, "wx{\"days\": 3}.", CALLS, OUT_PAIR_DROPPED, {0}},
    {CALL "wx<arg_key>city<arg_value>L</arg_value>" END OBS,
     "wx{\"city\": \"L\"}.",
     CALLS,
     OUT_CALL_REPAIRED,
     {0}},
    {CALL "wx" K("city") "<arg_value>L" END OBS, "wx{\"city\": \"L\"}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL "wx" K("city") V("L") CALL "ping" END OBS,
     "wx{\"city\": \"L\"}.ping{}.",
     CALLS,
     OUT_CALL_REPAIRED,
     {0}},
    {CALL "ping" CALL "ping" END OBS, "ping{}.ping{}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL "junk" CALL "ping" END OBS, "C(<tool_call>junk)ping{}.", CALLS, OUT_CALL_AS_TEXT, {0}},
    {CALL "wx" K("city") V("a<arg_key>b</arg_key><think>") END OBS,
     "wx{\"city\": \"a<arg_key>b</arg_key><think>\"}.",
     CALLS,
     0,
     {0}},
    {CALL "wx" K("city") V("\1</arg_value></tool_call>\2") END OBS,
     "wx{\"city\": \"</arg_value></tool_call>\"}.",
     CALLS,
     0,
     {0}},
    {CALL "wx{\"city\": \"L\", \"days\":2}" END OBS,
     "wx{\"city\": \"L\", \"days\":2}.",
     CALLS,
     OUT_CALL_REPAIRED,
     {0}},
    {CALL "wx\n{\"city\": \"L\"}\n" END OBS, "wx{\"city\": \"L\"}.", CALLS, OUT_CALL_REPAIRED, {0}},
    {CALL "{\"name\": \"wx\", \"arguments\": {\"city\": \"L\"}}" END OBS,
     "wx{\"city\": \"L\"}.",
     CALLS,
     OUT_CALL_REPAIRED,
     {0}},
    {CALL "wx{\"city\": \"L\"" END U,
     "C(<tool_call>wx{\"city\": \"L\"</tool_call>)",
     STOP,
     OUT_CALL_AS_TEXT,
     {0}},
    {CALL "wx[1]" END U, "C(<tool_call>wx[1]</tool_call>)", STOP, OUT_CALL_AS_TEXT, {0}},
    {CALL "{\"name\": \"no\", \"arguments\": {}}" END U,
     "C(<tool_call>{\"name\": \"no\", \"arguments\": {}}</tool_call>)",
     STOP,
     OUT_CALL_AS_TEXT,
     {0}},
    {CALL "wx" K("city") V("L") "<think>hm</think>so" U,
     "wx{\"city\": \"L\"}.R(hm)C(so)",
     CALLS,
     OUT_CALL_REPAIRED,
     {0}},
    {CALL "ping" END U, "C(<tool_call>ping</tool_call>)", STOP, OUT_CALL_AS_TEXT, {.no_tools = true}},
    /* types */
    {CALL "wx" K("city") V(" 12 ") K("days") V(" 12 ") END OBS,
     "wx{\"city\": \" 12 \", \"days\": 12}.",
     CALLS,
     0,
     {0}},
    {CALL "wx" K("city") V("") K("days") V("") END OBS, "wx{\"city\": \"\", \"days\": \"\"}.", CALLS, 0, {0}},
    {CALL "wx" K("city") V("{\"a\": 1}") K("days") V("\"2\"") END OBS,
     "wx{\"city\": \"{\\\"a\\\": 1}\", \"days\": \"\\\"2\\\"\"}.",
     CALLS,
     0,
     {0}},
    {CALL "wx" K("days") V("1.5") K("days") V("1.0") K("days") V("-0") END OBS,
     "wx{\"days\": \"1.5\", \"days\": 1.0, \"days\": -0}.",
     CALLS,
     0,
     {0}},
    {CALL "wx" K("days") V("007") END OBS, "wx{\"days\": \"007\"}.", CALLS, 0, {0}},
    {CALL "wx" K("days") V("0x10") K("extra") V("NaN") K("other") V("[1]") K("third") V("text") K("q")
         V("\"x\"") END OBS,
     "wx{\"days\": \"0x10\", \"extra\": \"NaN\", \"other\": [1], \"third\": \"text\", \"q\": \"\\\"x\\\"\"}.",
     CALLS,
     0,
     {0}},
    {CALL "any" K("x") V("5") K("u") V("null") K("n") V("null") K("n") V("7") K("n") V("x") END OBS,
     "any{\"x\": \"5\", \"u\": \"null\", \"n\": null, \"n\": 7, \"n\": \"x\"}.",
     CALLS,
     0,
     {0}},
    {CALL "any" K("e") V("2") K("es") V("2") K("an") V("true") K("an") V("1.5") K("one") V("[1]") END OBS,
     "any{\"e\": 2, \"es\": \"2\", \"an\": true, \"an\": \"1.5\", \"one\": \"[1]\"}.",
     CALLS,
     0,
     {0}},
    {CALL "any" K("all") V("1e400") K("ref") V("3") K("bad") V("3") K("arr") V("[1,{\"a\":null}]") K("arr")
         V("{}") END OBS,
     "any{\"all\": 1e400, \"ref\": 3, \"bad\": \"3\", \"arr\": [1,{\"a\":null}], \"arr\": \"{}\"}.",
     CALLS,
     0,
     {0}},
    {CALL "any" K("obj") V("{}") K("b") V("false") K("nul") V("null") K("c") V("5") K("num")
         V("123456789012345678901234567890.10") END OBS,
     "any{\"obj\": {}, \"b\": false, \"nul\": null, \"c\": 5, \"num\": 123456789012345678901234567890.10}.",
     CALLS,
     0,
     {0}},
    {CALL "ping" K("a") V("1") K("b") V("no") END OBS, "ping{\"a\": 1, \"b\": \"no\"}.", CALLS, 0, {0}},
    {CALL "open" K("a") V("1") END OBS, "open{\"a\": \"1\"}.", CALLS, 0, {0}},
    {CALL "wx" K("city") V("\"q\"\n\t\\ \xc5\xbb\x01\x01\x02") K("a\"b") V("1") END OBS,
     "wx{\"city\": \"\\\"q\\\"\\n\\t\\\\ \xc5\xbb\\u0001\", \"a\\\"b\": 1}.",
     CALLS,
     0,
     {0}},
    {CALL "wx" K(" city ") V("L") K(" odd ") V("1") END OBS,
     "wx{\"city\": \"L\", \" odd \": 1}.",
     CALLS,
     OUT_CALL_REPAIRED,
     {0}},
    /* raw */
    {"a<think>b" CALL "c", "C(a<think>b<tool_call>c)", OUT_FINISH_LENGTH, 0, {.raw = true, .end = 'L'}},
    {"a" U "b", "C(a)", STOP, 0, {.raw = true}},
};

START_TEST(row) {
    static struct outtest_heard h, h2;
    uint32_t ids[512];
    size_t n = outtest_ids(rows[_i].in, ids, 512);
    const struct outparse_result *r = outtest_run(outtest_parser, ids, n, rows[_i].o, &h);

    ck_assert_msg(strcmp(h.text, rows[_i].out) == 0, "in:   %s\nout:  %s\nwant: %s", rows[_i].in, h.text,
                  rows[_i].out);
    ck_assert_msg(r->finish == rows[_i].finish && r->flags == rows[_i].flags,
                  "in: %s: finish %d flags %u, want %d %u", rows[_i].in, r->finish, r->flags, rows[_i].finish,
                  rows[_i].flags);
    outtest_run(outtest_parser, ids, n, rows[_i].o, &h2); /* nothing is left over from the request before */
    ck_assert_str_eq(h2.text, h.text);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text_outparse");
    TCase *tc = tcase_create("outparse");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60 * texttest_slow());
    tcase_add_checked_fixture(tc, outtest_setup, outtest_teardown);
    tcase_add_loop_test(tc, row, 0, (int)(sizeof rows / sizeof *rows));
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
