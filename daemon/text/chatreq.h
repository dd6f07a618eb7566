/* SPDX-License-Identifier: MIT */
/* A chat request written as JSON (messages, tools, reasoning_effort, thinking, enable_thinking,
 * clear_thinking) turned into struct chat_req. For offline tools and tests: the daemon itself never reads
 * request bodies, and nothing of its threads calls this. */
#ifndef GLMD_CHATREQ_H
#define GLMD_CHATREQ_H

#include "chat.h"

struct chatreq;

/* text must outlive the result. add_generation_prompt is true unless the object says false. */
int chatreq_parse(const char *text, size_t n, struct chatreq **ret, struct xerr *err);
struct chatreq *chatreq_free(struct chatreq *r);
const struct chat_req *chatreq_get(const struct chatreq *r);

#endif
