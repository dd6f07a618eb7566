#!/bin/bash
# SPDX-License-Identifier: MIT
# sanitizer: skip
# install.sh BUILD_DIR: what `make install` leaves is complete and fits together: the units name programs that
# are there, every call has its manual page, headers compile alone, and the program printed in README.md builds
# with pkg-config, without a warning, and gets an answer from an installed daemon.
set -u
O=${1:-build}
cd "$(dirname "$0")/../.." || exit 2
[ -e build/models/nano/config.json ] || { echo "install.sh: build/models/nano is missing; run make models"; exit 1; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/glmd-install.XXXXXX") || exit 1
pid=""
stop() {
    [ -z "$pid" ] || { kill -TERM "$pid"; wait "$pid"; } 2>/dev/null
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM
fail=0
say() { echo "install: $*"; fail=1; }

# not the prefix that the build tree was made for
make --no-print-directory O="$O" DESTDIR="$dir" prefix=/usr install >"$dir/log" 2>&1 ||
    { tail -n 20 "$dir/log"; echo "install: make install failed"; exit 1; }
usr=$dir/usr

for f in "$usr"/lib/systemd/system/*; do
    ! grep -n '@[a-z]*@' "$f" || say "${f##*/} holds a name that was not replaced"
    for p in $(sed -n 's/^Exec[A-Za-z]*=\(\/[^ ]*\).*/\1/p' "$f"); do
        [ -x "$dir$p" ] || say "${f##*/} starts $p, which is not installed"
    done
done
grep -q '^ExecStart=/' "$usr/lib/systemd/system/glmd.service" || say "glmd.service starts nothing"
# where the default file goes, with the prefix of `make install` and with that of packages, is where glmd looks
make --no-print-directory O="$O" DESTDIR="$dir/default" install >"$dir/log" 2>&1 || say "make install fails without a prefix"
for c in "$usr/lib/glmd" "$dir"/default/usr/*/lib/glmd; do
    w=${c#"$dir"}
    [ -e "$c/glmd.conf" ] || say "no default file in $w"
    grep -azxq "${w#/default}" "$usr/sbin/glmd" || say "glmd does not look into ${w#/default}, where glmd.conf is put"
done
for p in bin/glmctl bin/glm-eval bin/glm-pack sbin/glmd; do
    "$usr/$p" --version >/dev/null || say "$p does not run"
done

n=0
for c in $(sed -n 's/^ *\(glmd_[a-z0-9_]*\);.*/\1/p' client/libglmd.map); do
    n=$((n + 1))
    case $c in glmd_version | glmd_strerror) continue ;; esac # in libglmd.3
    [ -e "$usr/share/man/man3/$c.3" ] || say "no manual page for $c"
done
[ "$n" -gt 20 ] || say "found $n calls in client/libglmd.map"

for h in glmd.h glmd/wire.h; do
    echo "#include <$h>" | gcc -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$usr/include" -xc - ||
        say "$h does not compile alone"
done

export PKG_CONFIG_PATH=$usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir
grep -qx 'libdir=/usr/lib' "$usr/lib/pkgconfig/glmd.pc" || say "glmd.pc holds another prefix than make install was given"
awk '/^```c$/ { on = 1; next } /^```/ { on = 0 } on' README.md >"$dir/hello.c"
# shellcheck disable=SC2046 # flags are meant to be split
gcc -Wall -Wextra -Werror -o "$dir/hello" "$dir/hello.c" $(pkg-config --cflags --libs glmd) ||
    { say "the program in README.md does not compile"; exit 1; }

# the examples as they are installed, by the command written in each; other packages lie in the system's own place
mkdir "$dir/pc" && sed "s|=/usr|=$usr|" "$usr/lib/pkgconfig/glmd.pc" >"$dir/pc/glmd.pc"
ex=$usr/share/doc/glmd/examples n=0
for c in "$ex"/*.c; do
    how=$(sed -n 's/^ \*  *\(cc -o .*\)$/\1/p' "$c")
    [ -n "$how" ] || continue
    n=$((n + 1))
    (cd "$ex" && unset PKG_CONFIG_SYSROOT_DIR && export PKG_CONFIG_PATH=$dir/pc && eval "${how/cc -o /gcc -Wall -Werror -o ../}") || say "${c##*/} does not build by: $how"
done
[ "$n" -ge 5 ] || say "found $n commands in $ex"
LD_LIBRARY_PATH=$usr/lib "$ex/glmd_asyncio.py" --help >"$dir/log" || say "glmd_asyncio.py --help failed"

"$usr/sbin/glmd" --model build/models/nano --context 4096 --socket "$dir/sock" >"$dir/log" 2>&1 &
pid=$!
export LD_LIBRARY_PATH=$usr/lib GLMD_SOCKET=$dir/sock
for ((i = 0; i < 300; i++)); do
    [ -S "$dir/sock" ] && break
    kill -0 "$pid" 2>/dev/null || { cat "$dir/log"; echo "install: the daemon ended"; exit 1; }
    sleep 0.1
done
answer=$("$dir/hello") || say "the program in README.md failed"
[ "$answer" = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12" ] || say "the program in README.md printed: $answer"
if GLMD_SOCKET=$dir/nobody "$dir/hello" 2>"$dir/err"; then say "the program in README.md succeeds without a daemon"; fi
grep -q "no daemon at $dir/nobody" "$dir/err" || say "without a daemon it printed: $(cat "$dir/err")"

[ $fail -eq 0 ] && echo "install: complete"
exit $fail
