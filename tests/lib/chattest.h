/* SPDX-License-Identifier: MIT */
/* Shared by the tests that render prompts. */
#ifndef GLMD_CHATTEST_H
#define GLMD_CHATTEST_H

#include "chat.h"

/* Renders a request written as JSON into out and returns the prompt as one text, to be freed; fails the
 * test on an error. */
char *chattest_render(const struct chat *c, struct chat_out *out, const char *request, size_t n);
char *chattest_flat(const struct chat *c, const struct chat_out *out);

/* Number of control segments with this id. */
size_t chattest_controls(const struct chat_out *out, int64_t id);

#define CHATTEST_HEAD               "[gMASK]<sop><|system|>Reasoning Effort: Max"
#define CHATTEST_TAIL               "<|assistant|><think>"
#define CHATTEST_MSG(role, content) "{\"role\": \"" role "\", \"content\": " content "}"

#endif
