/* SPDX-License-Identifier: MIT */
/* An open backend over a checkpoint directory, read by the daemon's own reader: for the plans of kernmodel.h, without
 * an engine. Every failure fails the running Check test. */
#ifndef GLMD_TEST_CKPTINST_H
#define GLMD_TEST_CKPTINST_H

#include "kernmodel.h"

/* engine: its model and stores are the checkpoint's; max_context, rows, cache and the like count. */
struct km_inst *ckptinst_open(const char *dir, const char *backend, const struct kern_config *engine);
/* And km_close(). */

#endif
