/* SPDX-License-Identifier: MIT */
/* A schema on its way from libglmd to the payload: the last one set counts, and none is sent to a daemon that does not
 * follow schemas. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clienttest.h"
#include "fakedaemon.h"
#include "reqdec.h"

static const struct glmw_limits limits = {.max_payload_bytes = 1u << 20,
                                          .max_messages = 100,
                                          .max_parts = 100,
                                          .max_tools = 10,
                                          .max_stops = 10,
                                          .max_stop_bytes = 100,
                                          .max_bias = 10,
                                          .max_alts = 20,
                                          .vocab_tokens = 1000,
                                          .max_context_tokens = 10000,
                                          .max_output_tokens = 10000,
                                          .max_live = 64};

struct decoded {
    struct glmw_entry e;
    void *payload;
    void *mem;
    struct reqdec_req q;
};

static int decode(struct fake *f, struct decoded *d, struct reqdec_err *err) {
    ck_assert(fake_pop(f, &d->e));
    size_t len = d->e.payload_len, n = reqdec_mem_bytes(&limits, len);
    d->payload = calloc(1, len + 8);
    d->mem = calloc(1, n + 8);
    ck_assert_int_eq(shm_payload_read(&f->shm, d->e.payload_off, (uint32_t)len, d->payload), 0);
    return reqdec_decode(d->payload, len, &limits, FAKE_FEATURES | GLMW_FEAT_SCHEMA, d->mem, n, &d->q, err);
}

static void decode_ok(struct fake *f, struct decoded *d) {
    struct reqdec_err err = {0};
    int r = decode(f, d, &err);
    ck_assert_msg(r == 0, "decode: %d, TLV %u at %u: %s", r, err.type, err.offset,
                  err.reason ? err.reason : "");
}

#define S(x) (x), strlen(x)

static void drop(struct decoded *d) {
    free(d->payload);
    free(d->mem);
}

START_TEST(schemas) {
    static const char text[] = "{\"type\": \"object\"}";
    const struct fake_options with = {.features = FAKE_FEATURES | GLMW_FEAT_SCHEMA};
    struct fake f;
    struct decoded d;
    glmd_req *r;
    uint64_t tag;

    glmd_conn *c = fake_connect(&f, &with);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(glmd_req_new(c, &r), 0);
        ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, S("hi")), 0);
        ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_SCHEMA, S("false")), 0);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_JSON_OBJECT, 2), -ERANGE);
        ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_SCHEMA, text, 0), -EINVAL);
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_JSON_OBJECT, i != 2), 0);
        if (i == 0) /* the last one counts */
            ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_SCHEMA, S(text)), 0);
        ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
        decode_ok(&f, &d);
        ck_assert_int_eq(d.q.has_schema, i != 2);
        if (i != 2)
            ck_assert_uint_eq(d.q.schema_kind, i ? GLMW_SCHEMA_JSON_OBJECT : GLMW_SCHEMA_JSON_SCHEMA);
        if (i == 0)
            ck_assert(d.q.schema.len == strlen(text) && memcmp(d.q.schema.ptr, text, strlen(text)) == 0);
        drop(&d);
    }
    glmd_close(c);
    fake_close(&f);
    /* a daemon that grants none is not sent one */
    c = fake_connect(&f, NULL);
    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, S("hi")), 0);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_JSON_OBJECT, 1), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -EOPNOTSUPP);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_JSON_OBJECT, 0), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_schema");
    TCase *t = tcase_create("request");
    SRunner *sr;
    int bad;

    tcase_add_test(t, schemas);
    suite_add_tcase(s, t);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    bad = srunner_ntests_failed(sr);
    srunner_free(sr);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
