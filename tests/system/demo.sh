#!/bin/bash
# SPDX-License-Identifier: MIT
# demo.sh BUILD_DIR: a real daemon with the small model, in a temporary directory, as the current user; three
# questions through the ring; one holds a number drawn now, and its answer is checked against the answer of a
# second daemon that computes with the scalar reference backend.
set -u
O=$1
cd "$(dirname "$0")/../.." || exit 2
dir=$(mktemp -d "${TMPDIR:-/tmp}/glmd-demo.XXXXXX") || exit 1
pids=()
stop() {
    local p
    for p in "${pids[@]}"; do kill -TERM "$p" 2>/dev/null; done
    for p in "${pids[@]}"; do wait "$p" 2>/dev/null; done
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

start() { # NAME BACKEND
    "$O/glmd" --model build/models/nano --backend "$2" --context 4096 --socket "$dir/$1.sock" >"$dir/$1.log" 2>&1 &
    local pid=$! i
    pids+=("$pid")
    for ((i = 0; i < 600; i++)); do
        if "$O/glmctl" status --socket "$dir/$1.sock" --json 2>/dev/null | grep -q '"state": *"ready"'; then return 0; fi
        if ! kill -0 "$pid" 2>/dev/null; then break; fi
        sleep 0.1
    done
    echo "demo: the $1 daemon did not become ready; its log:" >&2
    cat "$dir/$1.log" >&2
    exit 1
}
ask() { # SOCKET ARGS...: the stream goes to the terminal
    local s=$1
    shift
    "$O/glmctl" run --socket "$dir/$s.sock" --temperature 0 --max-tokens 200 "$@"
}
say() { printf '\n\033[1m> %s\033[0m\n' "$1"; }

echo "glmd demo: nano (20 million parameters, trained for this project), socket $dir/cpu.sock"
start cpu cpu
"$O/glmctl" status --socket "$dir/cpu.sock"

q="Write JSON for a person: name Łukasz, age 33, city Łódź."
say "$q"
ask cpu --think off "$q" || exit 1

q="Sort these words: plum, apple, fig."
say "$q"
ask cpu "$q" || exit 1

n=$((12 + RANDOM % 17))
q="Count from 1 to $n."
say "$q   ($n was drawn just now)"
ask cpu "$q" || exit 1

start ref ref
text() { ask "$1" --json "$q" | sed -n 's/^.*"token": *\([0-9]*\).*$/\1/p' | tr '\n' ' '; }
fast=$(text cpu)
slow=$(text ref)
if [ -z "$fast" ] || [ "$fast" != "$slow" ]; then
    printf '\ndemo: the cpu and ref backends disagree on "%s"\n cpu: %s\n ref: %s\n' "$q" "$fast" "$slow" >&2
    exit 1
fi
printf '\nThe scalar reference backend gives the same %d tokens for the last question. Stopping.\n' \
    "$(echo "$fast" | wc -w)"
