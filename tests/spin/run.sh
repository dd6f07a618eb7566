#!/bin/bash
# SPDX-License-Identifier: MIT
# Model-checks the wake-up and the credit protocol and the moving of kept streams: with both barriers they must
# hold, with either or both missing the checker must find the lost wake-up, or the freed connection that is used.
# One line a variant; exit 1 when any line says FAIL.
# sanitizer: skip
set -u
cd "$(dirname "$0")" || exit 1
for tool in spin "${CC:=gcc}"; do
    command -v "$tool" >/dev/null || { echo "spin models: $tool is missing (packages: spin gcc)" >&2; exit 1; }
done
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0

# model, FENCE, further definitions, what must come out (holds or fails)
variant() {
    local model=$1 fence=$2 defs=$3 want=$4 dir out got
    dir=$tmp/$model-$fence-${defs//[^A-Z0-9]/}
    mkdir -p "$dir"
    out=$(cd "$dir" && spin -DFENCE="$fence" $defs -a "$OLDPWD/$model.pml" 2>&1 &&
        "$CC" -O2 -w -o pan pan.c 2>&1 && ./pan -a -f -m100000 2>&1)
    if grep -q 'errors: 0' <<<"$out" && ! grep -q 'max search depth too small' <<<"$out"; then
        got=holds
    elif grep -q 'errors: [1-9]' <<<"$out"; then
        got=fails
    else
        got=unknown
    fi
    local states
    states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' <<<"$out" | head -1)
    if [ "$got" = "$want" ]; then
        echo "ok    $model FENCE=$fence $defs: $got, as it must (${states:-?} states)"
    else
        echo "FAIL  $model FENCE=$fence $defs: $got, expected $want"
        [ "$got" = unknown ] && tail -5 <<<"$out"
        bad=1
    fi
}

for model in bell credit move; do
    variant $model 3 "" holds
    for fence in 0 1 2; do
        variant $model $fence "" fails
    done
done
variant bell 3 -DAHEAD=2 holds
variant bell 3 "-DAHEAD=2 -DNOURGENT" fails
variant credit 3 -DALONE=0 fails
variant move 3 -DRECHECK=0 fails

if [ $bad = 0 ]; then echo "spin models: all variants as expected"; else echo "spin models: FAILED"; fi
exit $bad
