#!/bin/bash
# SPDX-License-Identifier: MIT
# pyclient.sh BUILD_DIR [TEST...]: the client written from ipc/PROTOCOL.md alone against real daemons.
set -u
cd "$(dirname "$0")/../.." || exit 2
exec python3 -B tests/pyclient/check.py "${@:-build}"
