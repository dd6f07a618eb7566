#!/bin/bash
# SPDX-License-Identifier: MIT
# sanitizer: skip
# checker.sh: no file that sees memory of the peer reads it but through the fetch functions of ringops.h.
# clang types that memory as an address space of its own (GLMW_FOREIGN); what its warnings do not cover,
# explicit casts and atomic built-ins, is looked up in the syntax tree. Every planted breach must be found.
set -u
cd "$(dirname "$0")/../.." || exit 2
CLANG=${CLANG:-clang}
command -v "$CLANG" >/dev/null || { echo "checker: no $CLANG: 'make deps' installs it"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

flags=(-std=c11 -D_GNU_SOURCE '-DGLMD_VERSION="0"' '-DFAULT(name)=0' -DGLMW_CHECKER -fsyntax-only
    # memcpy and its kin take pointers of any address space while they are built in
    -fno-builtin -Wall -Wextra -Werror -Wno-unknown-warning-option
    -Iipc -Iclient -Idaemon/conn -Idaemon/emit -Idaemon/prep -Idaemon/loop -Idaemon/sched -Idaemon/text -Idaemon/base)

# The functions that may turn a foreign pointer into an ordinary one or back: all of them in ringops.h.
may='glmw_foreign glmw_address glmw_lend glmw_fetch32 glmw_fetch64 glmw_fetch32_acquire glmw_fetch32_after_fence
     glmw_fetch32_acquire_after_fence'

# check FILE [FLAG...]: prints what is wrong with it.
check() {
    local f=$1
    shift
    "$CLANG" "${flags[@]}" "$@" "$f" 2>&1 | grep -E 'error|warning'
    [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
    "$CLANG" "${flags[@]}" "$@" -w -Xclang -ast-dump -fno-color-diagnostics "$f" 2>/dev/null |
        awk -v may="$may" -v file="$f" '
        BEGIN { n = split(may, a); for (i = 1; i <= n; i++) ok[a[i]] = 1 }
        function foreign(s) { return s ~ /GLMW_FOREIGN|address_space\(1\)/ }
        function own(s) { sub(/^[^\x27]*/, "", s); return s }
        /^[|`]-FunctionDecl / { name = $0; sub(/ \x27.*/, "", name); sub(/.* /, "", name) }
        cast != "" {
            if (foreign(own(cast)) != foreign(own($0)) && !(name in ok)) {
                print file ": " name "() casts memory of the peer by hand"; bad = 1
            }
            cast = ""
        }
        /CStyleCastExpr/ && !/NullToPointer/ { cast = $0 }
        /AtomicExpr/ && foreign($0) && !(name in ok) { print file ": " name "() loads memory of the peer by hand"; bad = 1 }
        END { exit bad }'
}

fail=0
check tests/checker/planted.c -DPLANT=0 || { echo "checker: the allowed way is refused"; fail=1; }
plants=$(grep -c '^#elif PLANT' tests/checker/planted.c)
for i in $(seq "$plants"); do
    if check tests/checker/planted.c -DPLANT="$i" >"$tmp/out"; then
        echo "checker: planted breach $i of tests/checker/planted.c passes"
        fail=1
    elif ! grep -qE 'noderef|address space|memory of the peer' "$tmp/out"; then
        echo "checker: planted breach $i is refused for another reason:"
        head -n 3 "$tmp/out"
        fail=1
    fi
done
n=0
for f in ipc/*.c client/*.c daemon/conn/*.c daemon/emit/*.c; do
    check "$f" || fail=1
    n=$((n + 1))
done
# What the peer's memory is called must be called so everywhere it is kept.
for decl in ipc/shm.h:'const struct glmw_u GLMW_FOREIGN \*u;' ipc/shm.h:'const struct glmw_d GLMW_FOREIGN \*d;' \
    client/clconn.h:'const struct glmw_d GLMW_FOREIGN \*d;' client/clconn.h:'const char GLMW_FOREIGN \*txt;' \
    ipc/ringops.h:'const uint8_t GLMW_FOREIGN \*slots;' daemon/emit/emit_impl.h:'GLMW_FOREIGN \*u_base;'; do
    grep -q "${decl#*:}" "${decl%%:*}" || { echo "checker: ${decl%%:*} no longer declares ${decl#*:}"; fail=1; }
done
[ $fail -eq 0 ] && echo "checker: $n files read the peer's memory only through ringops.h; $plants planted breaches found"
exit $fail
