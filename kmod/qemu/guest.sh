#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Runs in the guest: load the module, run the C tests, hostile use and pytest, unload, look at what
# the kernel said.
#
#   guest.sh TESTS_FOLDER HOSTILE_OPERATIONS PYTHON MARKERS PYTEST_PATHS [PYTEST_ARGUMENT...]
tests=$1 hostile=$2 python=$3 markers=$4 paths=$5
shift 5
failed=0
passes=0
fails=0

run() { # a program in TAP; its totals are added up
    echo "# $*"
    local status=0 start=$SECONDS
    timeout $((600 + hostile / 100)) "$@" >/run/tap || status=$?
    cat /run/tap
    echo "# $((SECONDS - start)) s"
    passes=$((passes + $(grep -c '^ok ' /run/tap)))
    fails=$((fails + $(grep -c '^not ok ' /run/tap)))
    if [ "$status" -ne 0 ]; then
        failed=1
        grep -q '^not ok ' /run/tap || fails=$((fails + 1))
    fi
}

insmod /run/modules/deepum.ko || exit 1
for test in interface blocks robust uvm; do
    run "$tests/test_$test"
done
[ "$hostile" = 0 ] || run "$tests/hostile" "$hostile"

# Allocations that are asked for below a function of the module fail.
failing=/sys/kernel/debug/failslab
knob() { # NAME VALUE: of both kinds of allocations
    echo "$2" >"$failing/$1"
    echo "$2" >/sys/kernel/debug/fail_page_alloc/"$1"
}
# The pages of its text, and no others: those of the probes lie close by.
text=$(awk '$2 ~ /[tT]/ && $4 == "[deepum]" { print $1 }' /proc/kallsyms | sort)
start=0x$(head -n 1 <<<"$text")
end=$(printf '0x%x' $(((0x$(tail -n 1 <<<"$text") | 0xfff) + 1)))
echo "deepum: allocations begin to fail" >/dev/kmsg
if [ -e "$failing/require-start" ]; then
    knob require-start "$start"
    knob require-end "$end"
    knob ignore-gfp-wait N
    knob verbose 0
    echo N >/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem
    echo 0 >/sys/kernel/debug/fail_page_alloc/min-order
    run "$tests/test_failing"
    # One in fifty, of the attackers', for as long as it lasts.
    knob task-filter Y
    knob times -1
    knob probability 2
    FAILING=1 run "$tests/hostile" $((hostile / 4))
    knob probability 0
elif insmod /run/modules/failing.ko first="$start" last="$end"; then
    run "$tests/test_failing"
    rmmod failing
else
    failed=1 fails=$((fails + 1))
fi
echo "deepum: allocations fail no longer" >/dev/kmsg

summary='# no Python was given: pytest did not run'
if [ "$python" != none ]; then
    export OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PYTEST_TIMEOUT=0
    export DEEPUM_HANG_S=1800 # what looks like a hang may be a busy host
    export HYPOTHESIS_STORAGE_DIRECTORY=/run/hypothesis HYPOTHESIS_PROFILE=guest
    unused='-p no:cacheprovider -p no:xdist -p no:xdist.looponfail -p no:pytest_cov -p no:benchmark'
    # shellcheck disable=SC2086 # lists
    "$python" -m pytest $unused --basetemp=/run/pytest --durations=15 -m "$markers" $paths "$@" \
        2>&1 | tee /run/pytest.log
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
    summary=$(grep -a '^=.* in .*=$' /run/pytest.log | tail -n 1)
fi

if [ -w /sys/kernel/debug/kmemleak ]; then
    # What was freed a moment ago may still look referenced or lost: look twice.
    echo scan >/sys/kernel/debug/kmemleak
    sleep 6
    echo scan >/sys/kernel/debug/kmemleak
    if grep -q deepum /sys/kernel/debug/kmemleak; then
        cat /sys/kernel/debug/kmemleak
        echo "not ok - memory leaked"
        failed=1 fails=$((fails + 1))
    else
        echo "# kmemleak: nothing of deepum"
    fi
fi
rmmod deepum || { failed=1 fails=$((fails + 1)); echo "not ok - unloading"; }
pattern='BUG[: ]|WARNING:|pagealloc:|KASAN|Oops|possible (recursive|circular)|sleeping function|INFO: task|Call Trace|refcount_t|leaked'
# An allocation that was made to fail may be traced, and its fault be told as one to retry; nothing else may.
said() {
    dmesg | awk '/deepum: allocations begin to fail/ { made = 1 } /deepum: allocations fail no longer/ { made = 0 }
        !(made && /Call Trace|VM_FAULT_OOM leaked/)'
}
if said | grep -aE "$pattern" | grep -v 'module verification'; then
    dmesg | tail -n 150
    echo "not ok - the kernel complained"
    failed=1 fails=$((fails + 1))
else
    echo "# the kernel said nothing"
fi
uname -r | sed 's/^/# kernel /'
echo "# Totals: pass:$passes fail:$fails xfail:0 xpass:0 skip:0 error:0"
echo "$summary"
exit $failed
