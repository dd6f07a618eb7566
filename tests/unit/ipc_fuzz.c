/* SPDX-License-Identifier: MIT */
/* Drives the fuzz bodies with 20,000 seeded mutations each of valid inputs: no crash, no broken promise. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "hello.h"
#include "ipctest.h"
#include "leakcheck.h"

#define ROUNDS 20000

static size_t mutate(struct ipc_rng *r, uint8_t *b, size_t len, size_t cap) {
    static const uint32_t nasty[] = {0,          1,          7,          8,          4096,
                                     0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff, 0x7fc00000};
    for (unsigned n = 1 + ipc_below(r, 3); n > 0 && len > 1; n--) {
        size_t at = 1 + ipc_below(r, (uint32_t)len - 1);
        switch (ipc_below(r, 7)) {
        case 0:
            b[at] = (uint8_t)ipc_rand(r);
            break;
        case 1:
            b[at] ^= (uint8_t)(1u << ipc_below(r, 8));
            break;
        case 2: { /* an aligned word becomes a nasty one */
            uint32_t v = nasty[ipc_below(r, sizeof(nasty) / 4)];
            at = 1 + (at - 1) / 4 * 4;
            if (len - at >= 4)
                memcpy(b + at, &v, 4);
            break;
        }
        case 3: /* cut */
            len = at;
            break;
        case 4: { /* remove some bytes, often whole words */
            size_t n_rm = ipc_below(r, 2) ? 8 : 1 + ipc_below(r, 40);
            if (n_rm > len - at)
                n_rm = len - at;
            memmove(b + at, b + at + n_rm, len - at - n_rm);
            len -= n_rm;
            break;
        }
        case 5: { /* repeat some */
            size_t n_in = 8 * (1 + ipc_below(r, 8));
            at = 1 + (at - 1) / 8 * 8;
            if (n_in > len - at || len + n_in > cap)
                break;
            memmove(b + at + n_in, b + at, len - at);
            len += n_in;
            break;
        }
        default: /* small word */
            at = 1 + (at - 1) / 4 * 4;
            if (len - at >= 4) {
                uint32_t v = ipc_below(r, 40);
                memcpy(b + at, &v, 4);
            }
            break;
        }
    }
    b[0] = (uint8_t)ipc_rand(r);
    return len;
}

START_TEST(reqdec_survives) {
    struct ipc_rng r = {.s = 12345};
    static struct tlvbuf chat, raw;
    static uint8_t buf[sizeof(chat.b) * 2];
    const uint32_t ids[5] = {1, 2, 3, 4, 999};

    ipc_full_chat(&chat);
    raw.len = 0;
    tlv_put(&raw, GLMW_TLV_TOKENS, ids, sizeof(ids));
    for (unsigned i = 0; i < ROUNDS; i++) {
        const struct tlvbuf *seed = i % 4 ? &chat : &raw;
        memcpy(buf + 1, seed->b, seed->len);
        size_t len = mutate(&r, buf, seed->len + 1, sizeof(buf));
        ipc_fuzz_reqdec(buf, len);
    }
}
END_TEST

START_TEST(hello_survives) {
    struct ipc_rng r = {.s = 54321};
    static uint8_t buf[2 * GLMW_PACKET_MAX];

    for (unsigned i = 0; i < ROUNDS; i++) {
        struct hello_msg m = {.type = (uint16_t)(1 + i % 10), .serial = i};
        if (m.type == GLMW_PKT_HELLO)
            m.u.hello = (struct glmw_hello){.wire_min = 1, .wire_max = 1, .page_size = 4096, .name = "fuzz"};
        if (m.type == GLMW_PKT_BULK)
            m.u.bulk = (struct glmw_bulk){.id = 1, .kind = 1, .bytes = 10};
        int n = hello_encode(&m, buf + 1, sizeof(buf) - 1);
        ck_assert_int_gt(n, 0);
        size_t len = mutate(&r, buf, (size_t)n + 1, sizeof(buf));
        ipc_fuzz_hello(buf, len);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_fuzz");
    TCase *tc = tcase_create("mutations");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, reqdec_survives);
    tcase_add_test(tc, hello_survives);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
