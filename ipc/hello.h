/* SPDX-License-Identifier: MIT */
/* Packets of the handshake socket: pure functions over buffers. */
#ifndef GLMD_HELLO_H
#define GLMD_HELLO_H

#include <stddef.h>
#include <stdint.h>

#include "shm.h"
#include "wire.h"

/* Who decodes, and what may come now. */
enum hello_phase {
    HELLO_SERVER_FIRST, /* daemon, nothing received yet: HELLO */
    HELLO_CLIENT_FIRST, /* client, HELLO sent: WELCOME, REJECT, BYE */
    HELLO_SERVER_OPEN,  /* daemon after WELCOME: BULK, PING, PONG, BYE */
    HELLO_CLIENT_OPEN   /* client after WELCOME: BULK_OK, BULK_ERR, NOTICE, PING, PONG, BYE */
};

struct hello_msg {
    uint16_t type; /* enum glmw_packet */
    uint32_t serial;
    union {
        struct glmw_hello hello;
        struct glmw_welcome welcome;
        struct glmw_reject reject;
        struct glmw_bulk bulk;
        struct glmw_bulk_answer bulk_answer;
        struct glmw_notice_body notice;
        struct glmw_ping ping;
        struct glmw_bye bye;
    } u;
};

/* Descriptors a packet type carries. */
unsigned hello_fds(uint16_t type);
/* Bytes of its body, 0 for an unknown type. */
size_t hello_body_bytes(uint16_t type);

/* Decodes and checks one packet that came with n_fds descriptors. 0: *ret is filled; 1: an unknown type that
 * may be ignored (its descriptors too: close them); -EPROTO: the connection is dead, *reterr_reason (may be
 * NULL) says why in static text. */
int hello_decode(const void *packet, size_t len, unsigned n_fds, enum hello_phase phase,
                 struct hello_msg *ret, const char **reterr_reason);

/* Writes header and body of msg->type. Returns the packet's length; -EINVAL for an unknown type, -EMSGSIZE
 * when cap is too small. */
int hello_encode(const struct hello_msg *msg, void *ret_packet, size_t cap);

/* What a daemon offers. */
struct hello_offer {
    uint32_t wire_min, wire_max;
    uint64_t features;
    uint8_t sq_log2_max, tq_log2_max, pay_log2_max, txt_log2_max; /* within GLMW_*_LOG2_MIN/MAX */
    uint32_t state;                                              /* enum glmw_state */
    uint64_t generation, conn_id;
    struct glmw_limits limits; /* max_payload_bytes is cut to the arena granted */
    const char *model;
};

/* Answers a decoded HELLO. 0: *ret_welcome and *ret_geom are filled. Negative: *reterr is the REJECT to send
 * and the value its error (-EPROTONOSUPPORT, -EOPNOTSUPP, -EINVAL). */
int hello_negotiate(const struct hello_offer *offer, const struct glmw_hello *hello,
                    struct glmw_welcome *ret_welcome, struct shm_geom *ret_geom, struct glmw_reject *reterr);

/* Fills a REJECT; text is cut to fit, never inside a UTF-8 sequence. */
void hello_reject(struct glmw_reject *ret, int error, uint32_t retry_after_ms, uint32_t wire_min,
                  uint32_t wire_max, const char *text);

/* Copies text into a NUL-padded field of a packet, cut as above; control characters become '?'. */
void hello_set_text(char *field, size_t field_bytes, const char *text);

#endif
