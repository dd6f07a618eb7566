/* SPDX-License-Identifier: MIT */
/* Bulk objects by hand; see rawbulk.h. */
#include "rawbulk.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hello.h"
#include "seqsock.h"

int rawbulk_object(size_t bytes, int seals) {
    static const uint32_t prompt[4] = {5, 6, 7, 0};
    const struct glmw_tlv tokens = {.type = GLMW_TLV_TOKENS, .len = 12};
    const struct glmw_tlv rest = {.type = 999, .flags = GLMW_TLVF_IGNORABLE, .len = (uint32_t)(bytes - 32)};
    int fd = memfd_create("object", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t *b = calloc(1, bytes);

    ck_assert_ptr_nonnull(b);
    memcpy(b, &tokens, 8);
    memcpy(b + 8, prompt, 16);
    memcpy(b + 24, &rest, 8);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, b, bytes), (ssize_t)bytes);
    free(b);
    if (seals)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

void rawbulk_send(struct rawclient *k, uint32_t id, uint32_t kind, uint64_t bytes, int fd) {
    struct hello_msg m = {.type = GLMW_PKT_BULK, .u.bulk = {.id = id, .kind = kind, .bytes = bytes}};

    raw_send(k->fd, &m, &fd, 1);
    close(fd);
}

int rawbulk_answer(struct rawclient *k, uint32_t id) {
    static struct seqsock_rx rx;
    struct hello_msg m = {0};
    const char *why = "";
    int r;

    while ((r = seqsock_recv(k->fd, &rx)) == 0) {
        ck_assert_int_eq(hello_decode(rx.buf, rx.len, rx.n_fds, HELLO_CLIENT_OPEN, &m, &why), 0);
        if (m.type != GLMW_PKT_NOTICE)
            break;
    }
    ck_assert_msg(r == 0, "no answer to a bulk object: %d", r);
    ck_assert(m.type == GLMW_PKT_BULK_OK || m.type == GLMW_PKT_BULK_ERR);
    ck_assert_uint_eq(m.u.bulk_answer.id, id);
    return m.u.bulk_answer.error;
}

int rawbulk_give(struct rawclient *k, uint32_t id, size_t bytes) {
    rawbulk_send(k, id, GLMW_BULK_PAYLOAD, bytes, rawbulk_object(bytes, RAWBULK_SEALS));
    return rawbulk_answer(k, id);
}

struct glmw_entry rawbulk_naming(uint64_t tag, uint64_t id) {
    return (struct glmw_entry){
        .opcode = GLMW_OP_SUBMIT, .flags = GLMW_ENT_BULK, .tag = tag, .payload_off = id};
}
