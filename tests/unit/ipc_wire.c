/* SPDX-License-Identifier: MIT */
/* Every offset of wire.h against the tables of PROTOCOL.md, in both directions, and the header alone. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "leakcheck.h"
#include "wire.h"
#include "wire_num.h"

struct field {
    const char *strct, *name;
    size_t off, bytes;
    int seen;
};
#define F(s, f)                                                                                              \
    { #s, #f, offsetof(struct s, f), sizeof(((struct s *)0)->f), 0 }

static struct field fields[] = {
    F(glmw_packet_hdr, magic),
    F(glmw_packet_hdr, type),
    F(glmw_packet_hdr, flags),
    F(glmw_packet_hdr, len),
    F(glmw_packet_hdr, serial),
    F(glmw_hello, wire_min),
    F(glmw_hello, wire_max),
    F(glmw_hello, features_wanted),
    F(glmw_hello, features_required),
    F(glmw_hello, sq_log2),
    F(glmw_hello, tq_log2),
    F(glmw_hello, pay_log2),
    F(glmw_hello, txt_log2),
    F(glmw_hello, page_size),
    F(glmw_hello, name),
    F(glmw_hello, zero),
    F(glmw_welcome, wire),
    F(glmw_welcome, state),
    F(glmw_welcome, features),
    F(glmw_welcome, generation),
    F(glmw_welcome, conn_id),
    F(glmw_welcome, u_bytes),
    F(glmw_welcome, d_bytes),
    F(glmw_welcome, sq_off),
    F(glmw_welcome, pay_off),
    F(glmw_welcome, tq_off),
    F(glmw_welcome, txt_off),
    F(glmw_welcome, sq_log2),
    F(glmw_welcome, tq_log2),
    F(glmw_welcome, pay_log2),
    F(glmw_welcome, txt_log2),
    F(glmw_welcome, zero),
    F(glmw_welcome, limits),
    F(glmw_welcome, model),
    F(glmw_limits, max_live),
    F(glmw_limits, max_context_tokens),
    F(glmw_limits, max_output_tokens),
    F(glmw_limits, vocab_tokens),
    F(glmw_limits, max_payload_bytes),
    F(glmw_limits, max_messages),
    F(glmw_limits, max_parts),
    F(glmw_limits, max_tools),
    F(glmw_limits, max_stops),
    F(glmw_limits, max_stop_bytes),
    F(glmw_limits, max_bias),
    F(glmw_limits, max_alts),
    F(glmw_limits, max_bulk),
    F(glmw_limits, zero),
    F(glmw_limits, max_bulk_bytes),
    F(glmw_reject, error),
    F(glmw_reject, retry_after_ms),
    F(glmw_reject, wire_min),
    F(glmw_reject, wire_max),
    F(glmw_reject, text),
    F(glmw_bulk, id),
    F(glmw_bulk, kind),
    F(glmw_bulk, bytes),
    F(glmw_bulk, zero),
    F(glmw_bulk_answer, id),
    F(glmw_bulk_answer, error),
    F(glmw_bulk_answer, zero),
    F(glmw_notice_body, what),
    F(glmw_notice_body, state),
    F(glmw_notice_body, limits),
    F(glmw_notice_body, model),
    F(glmw_bye, error),
    F(glmw_bye, zero),
    F(glmw_bye, text),
    F(glmw_u, magic),
    F(glmw_u, wire),
    F(glmw_u, sq_tail),
    F(glmw_u, tq_head),
    F(glmw_u, tq_event),
    F(glmw_u, sleeping),
    F(glmw_u, last_awake_ns),
    F(glmw_d, magic),
    F(glmw_d, wire),
    F(glmw_d, features),
    F(glmw_d, generation),
    F(glmw_d, conn_id),
    F(glmw_d, u_bytes),
    F(glmw_d, d_bytes),
    F(glmw_d, sq_off),
    F(glmw_d, pay_off),
    F(glmw_d, tq_off),
    F(glmw_d, txt_off),
    F(glmw_d, sq_log2),
    F(glmw_d, tq_log2),
    F(glmw_d, pay_log2),
    F(glmw_d, txt_log2),
    F(glmw_d, sq_head),
    F(glmw_d, sq_event),
    F(glmw_d, tq_tail),
    F(glmw_d, credit_wanted),
    F(glmw_d, status),
    F(glmw_numbers, seq),
    F(glmw_numbers, scope),
    F(glmw_numbers, page_tokens),
    F(glmw_numbers, pages_total),
    F(glmw_numbers, pages_free),
    F(glmw_numbers, pages_cached),
    F(glmw_numbers, pages_high),
    F(glmw_numbers, slots_total),
    F(glmw_numbers, slots_free),
    F(glmw_numbers, slots_cached),
    F(glmw_numbers, slots_high),
    F(glmw_numbers, seats),
    F(glmw_numbers, running),
    F(glmw_numbers, paused),
    F(glmw_numbers, queued),
    F(glmw_numbers, zero),
    F(glmw_numbers, cache_bytes),
    F(glmw_numbers, kept),
    F(glmw_numbers, evicted),
    F(glmw_numbers, lookups),
    F(glmw_numbers, hits),
    F(glmw_numbers, prompt_tokens),
    F(glmw_numbers, cached_tokens),
    F(glmw_numbers, tier_tokens),
    F(glmw_numbers, misses),
    F(glmw_numbers, n_users),
    F(glmw_numbers, n_misses),
    F(glmw_numbers, users),
    F(glmw_numbers, miss_list),
    F(glmw_numbers, tier_state),
    F(glmw_numbers, tier_error),
    F(glmw_numbers, tier_blocks),
    F(glmw_numbers, tier_checkpoints),
    F(glmw_numbers, tier_foreign),
    F(glmw_numbers, tier_zero),
    F(glmw_numbers, tier_bytes),
    F(glmw_numbers, tier_max_bytes),
    F(glmw_numbers, tier_written),
    F(glmw_numbers, tier_read),
    F(glmw_numbers, tier_refused),
    F(glmw_numbers, tier_damaged),
    F(glmw_numbers, tier_thrown_out),
    F(glmw_numbers, tier_text),
    F(glmw_number_user, uid),
    F(glmw_number_user, weight),
    F(glmw_number_user, running),
    F(glmw_number_user, queued),
    F(glmw_number_user, served_tokens),
    F(glmw_number_user, lookups),
    F(glmw_number_user, hits),
    F(glmw_number_user, prompt_tokens),
    F(glmw_number_user, cached_tokens),
    F(glmw_number_user, tier_tokens),
    F(glmw_number_miss, t_ns),
    F(glmw_number_miss, uid),
    F(glmw_number_miss, why),
    F(glmw_number_miss, prompt_tokens),
    F(glmw_number_miss, found_tokens),
    F(glmw_number_miss, same_tokens),
    F(glmw_number_miss, zero),
    F(glmw_status, seq),
    F(glmw_status, state),
    F(glmw_status, heartbeat_ns),
    F(glmw_status, start_ns),
    F(glmw_status, kv_free_tokens),
    F(glmw_status, kv_total_tokens),
    F(glmw_status, tokens_out),
    F(glmw_status, queued),
    F(glmw_status, running),
    F(glmw_status, slots_free),
    F(glmw_status, slots_total),
    F(glmw_status, prefill_mtok_s),
    F(glmw_status, decode_mtok_s),
    F(glmw_status, connections),
    F(glmw_status, load_permille),
    F(glmw_status, my_live),
    F(glmw_status, my_live_max),
    F(glmw_status, my_bulk_bytes),
    F(glmw_status, my_stalls),
    F(glmw_status, my_bells_sent),
    F(glmw_status, my_bells_suppressed),
    F(glmw_status, my_safety_wakes),
    F(glmw_status, my_records),
    F(glmw_status, requests_accepted),
    F(glmw_status, requests_ended),
    F(glmw_status, user_live),
    F(glmw_status, user_live_max),
    F(glmw_status, user_connections),
    F(glmw_status, user_connections_max),
    F(glmw_status, user_kept),
    F(glmw_status, user_submits_max),
    F(glmw_status, user_region_bytes),
    F(glmw_status, user_region_max),
    F(glmw_status, user_bulk_bytes),
    F(glmw_status, user_bulk_max),
    F(glmw_status, user_queued_tokens),
    F(glmw_status, user_queued_max),
    F(glmw_status, user_kv_tokens),
    F(glmw_status, user_kv_max),
    F(glmw_status, user_refused),
    F(glmw_status, budget_closes),
    F(glmw_status, loop_closes),
    F(glmw_entry, opcode),
    F(glmw_entry, flags),
    F(glmw_entry, zero0),
    F(glmw_entry, payload_len),
    F(glmw_entry, tag),
    F(glmw_entry, payload_off),
    F(glmw_entry, session),
    F(glmw_entry, max_tokens),
    F(glmw_entry, deadline_ms),
    F(glmw_entry, client_ns),
    F(glmw_entry, zero1),
    F(glmw_rec, type),
    F(glmw_rec, channel),
    F(glmw_rec, flags),
    F(glmw_rec, seq),
    F(glmw_rec, tag),
    F(glmw_rec, token),
    F(glmw_rec, logprob),
    F(glmw_rec, text_off),
    F(glmw_rec, text_len),
    F(glmw_rec, n_alts),
    F(glmw_rec, t_ns),
    F(glmw_rec, u),
    F(glmw_rec_accepted, client_ns),
    F(glmw_rec_accepted, stream_id),
    F(glmw_rec_accepted, zero),
    F(glmw_rec_progress, done),
    F(glmw_rec_progress, total),
    F(glmw_rec_progress, cached),
    F(glmw_rec_progress, queue_pos),
    F(glmw_rec_progress, phase),
    F(glmw_rec_progress, wait_ms),
    F(glmw_rec_tool, index),
    F(glmw_rec_tool, phase),
    F(glmw_rec_tool, zero),
    F(glmw_rec_end, status),
    F(glmw_rec_end, reason),
    F(glmw_rec_end, detail),
    F(glmw_rec_end, prompt_tokens),
    F(glmw_rec_end, cached_tokens),
    F(glmw_rec_end, completion_tokens),
    F(glmw_rec_end, accepted_tokens),
    F(glmw_alts, type),
    F(glmw_alts, channel),
    F(glmw_alts, flags),
    F(glmw_alts, seq),
    F(glmw_alts, tag),
    F(glmw_alts, alt),
    F(glmw_ids, type),
    F(glmw_ids, count),
    F(glmw_ids, flags),
    F(glmw_ids, seq),
    F(glmw_ids, tag),
    F(glmw_ids, id),
    F(glmw_usage, type),
    F(glmw_usage, version),
    F(glmw_usage, time_shift),
    F(glmw_usage, seq),
    F(glmw_usage, tag),
    F(glmw_usage, prompt_tokens),
    F(glmw_usage, cached_tokens),
    F(glmw_usage, completion_tokens),
    F(glmw_usage, reasoning_tokens),
    F(glmw_usage, drafted_tokens),
    F(glmw_usage, accepted_tokens),
    F(glmw_usage, tier_tokens),
    F(glmw_usage, zero),
    F(glmw_usage, queued),
    F(glmw_usage, prefill),
    F(glmw_usage, decode),
    F(glmw_usage, longest_gap),
    F(glmw_tlv, type),
    F(glmw_tlv, flags),
    F(glmw_tlv, len),
    F(glmw_tlv_msg, role),
    F(glmw_tlv_msg, zero),
    F(glmw_tlv_call, id_len),
    F(glmw_tlv_call, name_len),
    F(glmw_tlv_call, args_len),
    F(glmw_tlv_call, zero),
    F(glmw_tlv_result, id_len),
    F(glmw_tlv_result, text_len),
    F(glmw_tlv_image, source),
    F(glmw_tlv_image, format),
    F(glmw_tlv_image, width),
    F(glmw_tlv_image, height),
    F(glmw_tlv_image, bulk_id),
    F(glmw_tlv_choice, mode),
    F(glmw_tlv_choice, flags),
    F(glmw_tlv_schema, kind),
    F(glmw_tlv_schema, zero),
    F(glmw_tlv_chat, size),
    F(glmw_tlv_chat, effort),
    F(glmw_tlv_chat, thinking),
    F(glmw_tlv_chat, clear_thinking),
    F(glmw_tlv_chat, add_generation_prompt),
    F(glmw_tlv_chat, word_len),
    F(glmw_tlv_chat, zero),
    F(glmw_sampling, size),
    F(glmw_sampling, has),
    F(glmw_sampling, flags),
    F(glmw_sampling, temperature),
    F(glmw_sampling, top_p),
    F(glmw_sampling, min_p),
    F(glmw_sampling, repetition_penalty),
    F(glmw_sampling, presence_penalty),
    F(glmw_sampling, frequency_penalty),
    F(glmw_sampling, top_k),
    F(glmw_sampling, seed),
    F(glmw_sampling, n_alts),
    F(glmw_sampling, min_tokens),
    F(glmw_sampling, thinking_budget),
    F(glmw_sampling, loop_guard),
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

#define S(s)                                                                                                 \
    { #s, sizeof(struct s), 0 }
static struct {
    const char *name;
    size_t bytes;
    int seen;
} structs[] = {
    S(glmw_packet_hdr),
    S(glmw_hello),
    S(glmw_welcome),
    S(glmw_limits),
    S(glmw_reject),
    S(glmw_bulk),
    S(glmw_bulk_answer),
    S(glmw_notice_body),
    S(glmw_bye),
    S(glmw_u),
    S(glmw_d),
    S(glmw_status),
    S(glmw_numbers),
    S(glmw_number_user),
    S(glmw_number_miss),
    S(glmw_entry),
    S(glmw_rec),
    S(glmw_rec_accepted),
    S(glmw_rec_progress),
    S(glmw_rec_tool),
    S(glmw_rec_end),
    S(glmw_alts),
    S(glmw_ids),
    S(glmw_usage),
    S(glmw_tlv),
    S(glmw_tlv_msg),
    S(glmw_tlv_call),
    S(glmw_tlv_result),
    S(glmw_tlv_image),
    S(glmw_tlv_choice),
    S(glmw_tlv_schema),
    S(glmw_tlv_chat),
    S(glmw_sampling),
};
#define N_STRUCTS (sizeof(structs) / sizeof(structs[0]))

static size_t type_bytes(const char *type) {
    static const struct {
        const char *name;
        size_t bytes;
    } t[] = {{"u8", 1}, {"u16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4}, {"u64", 8}, {"bytes", 0}};
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        if (strcmp(t[i].name, type) == 0)
            return t[i].bytes;
    }
    ck_abort_msg("unknown type %s", type);
}

static void check_row(const char *strct, unsigned off, const char *type, const char *name, int line) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        struct field *f = &fields[i];
        if (strcmp(f->strct, strct) != 0 || strcmp(f->name, name) != 0)
            continue;
        size_t want = type_bytes(type);
        ck_assert_msg(f->off == off, "PROTOCOL.md:%d: %s.%s is at %zu", line, strct, name, f->off);
        ck_assert_msg(want == 0 || f->bytes == want, "PROTOCOL.md:%d: %s.%s has %zu bytes", line, strct, name,
                      f->bytes);
        f->seen++;
        return;
    }
    ck_abort_msg("PROTOCOL.md:%d: %s has no field %s", line, strct, name);
}

START_TEST(tables_and_structs_agree) {
    FILE *f = fopen("ipc/PROTOCOL.md", "r");
    char buf[4096], strct[64] = "", type[16], name[64];
    unsigned bytes, off;
    int line = 0;

    ck_assert_msg(f != NULL, "run from the top of the tree: ipc/PROTOCOL.md is not here");
    while (fgets(buf, sizeof(buf), f)) {
        line++;
        if (sscanf(buf, "#### struct %63s (%u bytes)", name, &bytes) == 2) {
            size_t i = 0;
            while (i < N_STRUCTS && strcmp(structs[i].name, name) != 0)
                i++;
            ck_assert_msg(i < N_STRUCTS, "PROTOCOL.md:%d: unknown struct %s", line, name);
            ck_assert_msg(structs[i].bytes == bytes, "PROTOCOL.md:%d: %s has %zu bytes", line, name,
                          structs[i].bytes);
            structs[i].seen++;
            snprintf(strct, sizeof(strct), "%s", name);
        } else if (buf[0] == '#') {
            strct[0] = '\0';
        } else if (strct[0] && sscanf(buf, "| %u | %15s | %63s |", &off, type, name) == 3) {
            check_row(strct, off, type, name, line);
        }
    }
    fclose(f);
    for (size_t i = 0; i < N_STRUCTS; i++)
        ck_assert_msg(structs[i].seen == 1, "struct %s is described %d times", structs[i].name,
                      structs[i].seen);
    for (size_t i = 0; i < N_FIELDS; i++)
        ck_assert_msg(fields[i].seen == 1, "%s.%s is described %d times", fields[i].strct, fields[i].name,
                      fields[i].seen);
}
END_TEST

/* Between two fields there is nothing but what is declared as pad or zero. */
START_TEST(no_hidden_padding) {
    for (size_t i = 0; i + 1 < N_FIELDS; i++) {
        if (strcmp(fields[i].strct, fields[i + 1].strct) != 0)
            continue;
        size_t end = fields[i].off + fields[i].bytes;
        int apart = strcmp(fields[i].strct, "glmw_u") == 0 || strcmp(fields[i].strct, "glmw_d") == 0;
        ck_assert_msg(apart ? fields[i + 1].off >= end : fields[i + 1].off == end, "gap in %s behind %s",
                      fields[i].strct, fields[i].name);
        ck_assert_uint_eq(fields[i].off % (fields[i].bytes < 8 ? fields[i].bytes : 1), 0);
    }
}
END_TEST

/* Words of different writers are 128 bytes apart, everything else would make them share cache lines. */
START_TEST(writers_are_apart) {
    const size_t u[] = {offsetof(struct glmw_u, magic), offsetof(struct glmw_u, sq_tail),
                        offsetof(struct glmw_u, tq_head), offsetof(struct glmw_u, tq_event),
                        offsetof(struct glmw_u, sleeping)};
    const size_t d[] = {offsetof(struct glmw_d, magic), offsetof(struct glmw_d, sq_head),
                        offsetof(struct glmw_d, sq_event), offsetof(struct glmw_d, tq_tail),
                        offsetof(struct glmw_d, status)};
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(u[i], i * GLMW_LINE_BYTES);
        ck_assert_uint_eq(d[i], i * GLMW_LINE_BYTES);
    }
}
END_TEST

START_TEST(header_alone) {
    char dir[] = "/tmp/ipc_wire.XXXXXX", src[64], cmd[512];
    static const char *const cc[] = {
        "cc -x c -std=c99 -Wall -Wextra -Wpedantic -Werror",
        "cc -x c -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror",
        "c++ -x c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror",
    };
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(src, sizeof(src), "%s/x.c", dir);
    FILE *f = fopen(src, "w");
    ck_assert_ptr_nonnull(f);
    fputs("#include \"wire.h\"\nextern int x;\nint x = (int)sizeof(struct glmw_rec);\n", f);
    fclose(f);
    int rc = 0;
    for (size_t i = 0; i < sizeof(cc) / sizeof(cc[0]) && rc == 0; i++) {
        snprintf(cmd, sizeof(cmd), "%s -Iipc -fsyntax-only %s", cc[i], src);
        rc = system(cmd);
    }
    unlink(src);
    rmdir(dir);
    ck_assert_msg(rc == 0, "does not compile alone: %s", cmd);
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_wire");
    TCase *tc = tcase_create("layout");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, tables_and_structs_agree);
    tcase_add_test(tc, no_hidden_padding);
    tcase_add_test(tc, writers_are_apart);
    tcase_add_test(tc, header_alone);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
