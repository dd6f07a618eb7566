#!/bin/bash
# SPDX-License-Identifier: MIT
# golden.sh BUILD_DIR: every case of the golden files with both backends, the tokenizer pairs and the chat
# pairs. Under a sanitizer only the cases count, len66 and len133 of nano.
set -u
O=${1:-build}
cd "$(dirname "$0")/../.." || exit 2
fail=0
m=build/models g=tests/golden
for f in "$m/nano/config.json" "$m/twin-a/config.json" "$g/golden-nano.safetensors" "$g/golden-twin-a.safetensors"; do
    [ -e "$f" ] || { echo "golden.sh: $f is missing; run make models"; exit 1; }
done
try() {
    echo "== $*"
    "$@" || fail=1
}
if [ -n "${GLMD_SAN:-}" ]; then
    for c in count len66 len133; do
        for b in ref cpu; do try "$O/glm-eval" $m/nano $g/golden-nano.safetensors --backend $b --case $c; done
    done
else
    for b in cpu ref; do
        try "$O/glm-eval" $m/nano $g/golden-nano.safetensors --backend $b
        try "$O/glm-eval" $m/twin-a $g/golden-twin-a.safetensors --backend $b
    done
fi
try "$O/glm-eval" $m/nano --tokens $g/tokenizer-golden.json
try "$O/glm-eval" $m/nano --tokens $g/tokenizer-random.json
try "$O/glm-eval" $m/nano --chat $g/chat-golden.json
exit $fail
