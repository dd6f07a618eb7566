#!/bin/bash
# SPDX-License-Identifier: MIT
# deps.sh SET...: makes sure the packages of the named sets are there (build, test, fuzz, arm).
# As root it installs what is missing with apt; otherwise it prints the list to ask for and fails.
set -u

build="gcc libc6-dev make pkg-config xz-utils liburing-dev libsystemd-dev libjansson-dev"
test_="check libpcre2-dev g++ mandoc spin libutf8proc-dev procps clang abigail-tools python3 libglib2.0-dev libuv1-dev libgtk-3-dev xvfb"
fuzz="clang libclang-rt-14-dev"
arm="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"

want=""
for set in "$@"; do
    case $set in
    build) want="$want $build" ;;
    test) want="$want $test_" ;;
    fuzz) want="$want $fuzz" ;;
    arm) want="$want $arm" ;;
    *) echo "deps.sh: unknown set '$set' (expected: build, test, fuzz, arm)" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "deps.sh: this is no Debian or Ubuntu system; please provide what these packages hold:" >&2
    echo " $want" >&2
    # A system that has everything under other names may go on.
    command -v gcc >/dev/null && command -v pkg-config >/dev/null &&
        pkg-config --exists liburing libsystemd jansson && exit 0
    exit 1
fi

missing=""
for p in $want; do
    # a package may be provided by another one (pkg-config by pkgconf, on newer systems)
    case $(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null) in
    installed) continue ;;
    esac
    if [ "$p" = pkg-config ] && command -v pkg-config >/dev/null 2>&1; then continue; fi
    missing="$missing $p"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "These packages are missing and only root can install them. Please ask for:" >&2
    echo "    apt-get install$missing" >&2
    exit 1
fi

echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # the list is meant to be split
if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "deps.sh: apt-get could not install:$missing" >&2
    exit 1
fi
