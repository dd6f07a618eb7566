/* SPDX-License-Identifier: MIT */
/* A schema on its way from libglmd to the payload: the last one set counts, and none is sent to a daemon that does not
 * follow schemas. */
#include <errno.h>
#include <string.h>

#include "clienttest.h"
#include "fakedaemon.h"
#include "reqback.h"

#define S(x) (x), strlen(x)

START_TEST(schemas) {
    static const char text[] = "{\"type\": \"object\"}";
    const struct fake_options with = {.features = FAKE_FEATURES | GLMW_FEAT_SCHEMA};
    struct fake f;
    struct reqback d;
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
        reqback_ok(&f, &d);
        ck_assert_int_eq(d.q.has_schema, i != 2);
        if (i != 2)
            ck_assert_uint_eq(d.q.schema_kind, i ? GLMW_SCHEMA_JSON_OBJECT : GLMW_SCHEMA_JSON_SCHEMA);
        if (i == 0)
            ck_assert(d.q.schema.len == strlen(text) && memcmp(d.q.schema.ptr, text, strlen(text)) == 0);
        reqback_drop(&d);
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

    tcase_add_test(ct_case(s, "request", 20), schemas);
    return ct_main(s);
}
