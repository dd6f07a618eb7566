#!/bin/bash
# SPDX-License-Identifier: MIT
# check.sh BUILD_DIR: the CUDA backend on this machine's GPU: every test program of BUILD_DIR/gpu, then a few of them
# under compute-sanitizer. One line each; exit 0 when all passed, 1 when one failed or there is no GPU to run on.
# What could not be run is named in the last line. CHECK_GPU_SANITIZER=0 leaves the sanitizer out.
set -u
O=${1:-build-cuda}
cd "$(dirname "$0")/../.." || exit 2
if ! gpus=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>&1) || [ -z "$gpus" ]; then
    echo "check-gpu: no NVIDIA GPU here (nvidia-smi: ${gpus:-not found}): nothing was checked"
    exit 1
fi
echo "GPU: $gpus"
mkdir -p "$O/log"
export CUDA_SAMPLER_ROUNDS=${CUDA_SAMPLER_ROUNDS:-100} CUDA_GOLDEN_CASES=${CUDA_GOLDEN_CASES:-12}
fail=0
ran=0
left=()

# one NAME LOG command…
one() {
    local name=$1 log=$O/log/$2.log start end rc n
    shift 2
    start=$(date +%s.%N)
    timeout --kill-after=10 "${TEST_TIMEOUT:-900}" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    end=$(date +%s.%N)
    n=$(sed -n 's/.*Checks: \([0-9]*\), Failures.*/\1/p' "$log" | tail -1)
    # a program that ran nothing proves nothing
    [ "$rc" -eq 0 ] && [ "${n:-0}" = 0 ] && rc=99
    ran=$((ran + 1))
    printf '%-6s %-34s %7.1f s  %s\n' "$([ $rc -eq 0 ] && echo ok || echo FAIL)" "$name" \
        "$(awk "BEGIN { print $end - $start }")" "${n:-0} checks"
    if [ $rc -ne 0 ]; then
        fail=1
        echo "       exit $rc; last lines of $log:"
        tail -n 15 "$log" | sed 's/^/       | /'
    fi
}

programs=("$O"/gpu/cuda_*)
for f in "${programs[@]}"; do
    [ -x "$f" ] && [ -f "$f" ] && one "$(basename "$f")" "gpu-$(basename "$f")" "$f"
done
if [ $ran -eq 0 ]; then
    echo "check-gpu: $O/gpu has no program: nothing was checked"
    exit 1
fi
# the models and their reader take the daemon's packages
if [ -x "$O/unit/cuda_golden" ]; then
    one cuda_golden gpu-cuda_golden "$O/unit/cuda_golden"
else
    left+=("cuda_golden (not built: it needs jansson and Check)")
fi

sanitizer=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)
if [ "${CHECK_GPU_SANITIZER:-1}" = 0 ]; then
    left+=("compute-sanitizer (CHECK_GPU_SANITIZER=0)")
elif [ -z "$sanitizer" ]; then
    left+=("compute-sanitizer (not found)")
elif ! CK_FORK=no CUDA_SAMPLER_ROUNDS=1 "$sanitizer" --error-exitcode 9 "$O/gpu/cuda_sampler" \
    >"$O/log/gpu-sanitizer.log" 2>&1 && grep -qi 'not supported' "$O/log/gpu-sanitizer.log"; then
    left+=("compute-sanitizer (it refuses this device)")
else
    export CK_FORK=no CUDA_SAMPLER_ROUNDS=1
    for tool in memcheck racecheck; do
        for p in cuda_sampler cuda_nonfinite cuda_copies; do
            [ -x "$O/gpu/$p" ] || continue
            one "$tool $p" "gpu-$tool-$p" "$sanitizer" --tool $tool --error-exitcode 9 "$O/gpu/$p"
        done
    done
fi
[ ${#left[@]} -eq 0 ] || printf 'not run: %s\n' "${left[@]}"
[ $fail -eq 0 ] && echo "check-gpu: $ran programs passed" || echo "check-gpu: FAILED"
exit $fail
