#!/bin/bash
# SPDX-License-Identifier: MIT
# arm.sh: cross-builds for aarch64 and runs the unit programs, one golden case and the client programs under
# qemu-user. The arm64 libraries are unpacked into build/sysroot-aarch64; the system is not changed.
# qemu-user has no io_uring, so the daemon runs on its epoll loop there.
set -u
cd "$(dirname "$0")/.." || exit 2
root=$PWD/build/sysroot-aarch64
O=build-aarch64
pkgs="liburing-dev liburing2 libsystemd-dev libsystemd0 libjansson-dev libjansson4 check
 libsubunit-dev libsubunit0 libpcre2-dev libpcre2-8-0 libcap2 libgcrypt20 libgpg-error0 liblz4-1 liblzma5 libzstd1
 libc6 libgcc-s1"

if [ ! -e "$root/.done" ]; then
    apt=$PWD/build/apt-aarch64
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$root"
    opt=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$apt/lists"
        -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives" -o APT::Sandbox::User=root -o Dir::State::status=/dev/null)
    echo "fetching arm64 libraries into $root"
    apt-get "${opt[@]}" update >"$apt/log" 2>&1 || { tail -n 5 "$apt/log" >&2; exit 1; }
    for p in $pkgs; do
        (cd "$apt/archives" && apt-get "${opt[@]}" download "$p" >>"$apt/log" 2>&1) ||
            { echo "arm.sh: no arm64 package $p" >&2; exit 1; }
    done
    for d in "$apt"/archives/*.deb; do dpkg -x "$d" "$root" || exit 1; done
    # the client side of merged /usr: the loader is asked for under /lib
    if [ ! -e "$root/lib/ld-linux-aarch64.so.1" ]; then
        mkdir -p "$root/lib"
        find "$root" -name 'ld-linux-aarch64.so.1' -exec ln -sf {} "$root/lib/" \; -quit
    fi
    touch "$root/.done"
fi

export PKG_CONFIG_SYSROOT_DIR=$root
export PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig
flags="-L$root/usr/lib/aarch64-linux-gnu -L$root/lib/aarch64-linux-gnu -Wl,-rpath-link,$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu"
make --no-print-directory CROSS=aarch64-linux-gnu- CFLAGS="-O2 -g -DTEST_EMULATED -isystem $root/usr/include" LDFLAGS="$flags" WERROR=1 tests || exit 1

qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || { echo "arm.sh: qemu-aarch64 is missing" >&2; exit 1; }
export QEMU_LD_PREFIX=$root GLMD_TEST_RUN="$qemu -L $root"
export CK_FORK=yes CK_TIMEOUT_MULTIPLIER=10 GLMD_EMULATED=1 GLMD_BUILD=$O
fail=0 n=0
mkdir -p $O/log
run() { # NAME ARGS...
    local name=$1
    shift
    if timeout 1800 "$qemu" "$@" >"$O/log/$name.log" 2>&1 </dev/null; then
        echo "ok     aarch64 $name"
        n=$((n + 1))
    else
        echo "FAIL   aarch64 $name"
        tail -n 10 "$O/log/$name.log" | sed 's/^/       | /'
        fail=$((fail + 1))
    fi
}
for t in "$O"/unit/*; do
    [ -x "$t" ] && run "$(basename "$t")" "$t"
done
run golden-count "$O/glm-eval" build/models/nano tests/golden/golden-nano.safetensors --case count --backend cpu
echo
echo "$n passed, $fail failed"
[ $fail -eq 0 ] && [ $n -gt 0 ]
