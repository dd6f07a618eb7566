#!/bin/bash
# SPDX-License-Identifier: MIT
# failcalls.sh BUILD_DIR: every call that daemon or library make into other libraries is either one that the tests let
# fail (tests/lib/failwrap.syms) or known here not to fail for want of anything. A new one must be put into one of both.
# sanitizer: skip
set -u
O=$1
cd "$(dirname "$0")/../.." || exit 2

# lookups, memory in place, closing and telling, time, what only a wrong argument makes fail
cannot="__assert_fail abort __cpu_features2 __cpu_model __ctype_b_loc __errno_location __sigsetjmp __tls_get_addr _exit exit clock_gettime
clock_nanosleep nanosleep close closedir posix_fadvise errno exp fclose ferror fflush fileno fmax fprintf fputc fputs fread frexpf
fwrite getenv geteuid getgrnam_r getopt_long getpwnam_r getpid io_uring_queue_exit isatty ldexp log memchr memcmp memcpy memmem
memmove memset optarg optind printf putc putchar puts pthread_cond_broadcast pthread_cond_clockwait pthread_cond_destroy pthread_cond_init
pthread_cond_signal pthread_cond_timedwait pthread_cond_wait pthread_join pthread_mutex_destroy pthread_mutex_init
pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_once pthread_self pthread_setname_np pthread_sigmask qsort qsort_r
readdir sched_yield secure_getenv shutdown sigaction sigaddset sigemptyset sigfillset siglongjmp signal sigprocmask
snprintf sqrt sqrtf stderr stdout strcasecmp strchr strcmp strcspn strdupa strerror strerrordesc_np strlen
strncasecmp strncmp strnlen strrchr
strspn strstr strtod strtof strtol strtoll strtoul strtoull sysconf timerfd_settime umask unlink usleep vsnprintf
fmaf fmaxf fminf ldexpf fabs fabsf floor floorf ceil pow powf expf logf log2f cos sin sincos tanh tanhf erff
sd_notify sd_notifyf sd_watchdog_enabled seal_thread _GLOBAL_OFFSET_TABLE_"
# jansson's functions that look at what was parsed
cannot+=" json_array_get json_array_size json_delete json_equal json_false json_true json_integer_value json_number_value json_object_get
json_object_iter json_object_iter_key json_object_iter_next json_object_iter_value json_object_key_to_iter
json_object_size json_real_value json_string_length json_string_value"

mapfile -t objects < <(find "$O/obj/daemon" "$O/obj/ipc" "$O/obj/kernels" "$O/obj/client" -name '*.o' -not -path '*/tool/*' -not -path '*/examples/*')
[ ${#objects[@]} -gt 100 ] || { echo "failcalls: only ${#objects[@]} objects in $O" >&2; exit 1; }
NM=${NM:-nm}
called=$("$NM" -u "${objects[@]}" 2>/dev/null | awk 'NF == 2 { print $2 }' | sort -u)
[ "$(wc -l <<<"$called")" -gt 80 ] || { echo "failcalls: $NM reads nothing in $O" >&2; exit 1; }
own=$("$NM" --defined-only "${objects[@]}" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u)
outside=$(comm -23 <(echo "$called") <(echo "$own"))
unknown=$(comm -23 <(echo "$outside") <({ tr ' ' '\n' <<<"$cannot"; cat tests/lib/failwrap.syms; } | sort -u))
if [ -n "$unknown" ]; then
    echo "failcalls: neither in tests/lib/failwrap.syms nor known not to fail:"
    echo "$unknown" | sed 's/^/  /'
    exit 1
fi
echo "failcalls: $(echo "$outside" | wc -l) calls, $(comm -12 <(echo "$outside") <(sort tests/lib/failwrap.syms) | wc -l) of them fail in tests"
