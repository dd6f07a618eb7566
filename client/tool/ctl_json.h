/* SPDX-License-Identifier: MIT */
/* Events as JSON lines, for scripts.  The field names are documented in glmctl(1). */
#ifndef GLMD_CTL_JSON_H
#define GLMD_CTL_JSON_H

#include "ctl.h"
#include "ctl_show.h"

const char *ctl_reason_name(uint32_t reason);
const char *ctl_state_name(uint32_t state);
void ctl_json_event(struct ctl_buf *b, const struct glmd_event *e);
void ctl_json_usage(struct ctl_buf *b, const struct glmd_usage *u, const struct ctl_times *t, int status,
                    uint32_t reason);

#endif
