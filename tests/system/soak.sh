#!/bin/bash
# SPDX-License-Identifier: MIT
# soak.sh BUILD_DIR: a short one of `make soak`, so that it works when it is needed.
O=$1
cd "$(dirname "$0")/../.." || exit 2
exec "$O/test/soak" --seconds 15
