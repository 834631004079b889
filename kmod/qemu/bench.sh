#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Measure in an emulated guest: kmod/qemu/bench.sh [ROUNDS] > bench/results/kmod.json
# Absolute times are those of the emulation (TCG); what counts is the ratio to the bare copy.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/check-kmod
release=$(tools/check-kmod --release)
make -s -C kmod RELEASE="$release" module tests
load=$(cut -d ' ' -f 1 /proc/loadavg)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# In a guest, when what its boot left to do is done.
measure() { # BOOT_OPTIONS -- BENCH_ARGUMENTS; prints what the benchmark prints
    local options=()
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    kmod/qemu/boot.sh "${options[@]}" -t 900 -k "/boot/vmlinuz-$release" -m "build/kmod/$release" /bin/bash -c \
        "insmod /run/modules/deepum.ko && sleep 5 && echo && echo figures && build/kmod/$release/tests/bench $*" \
        >"$log" || { cat "$log" >&2; exit 1; }
    sed -n '/^figures/,/^}/p' "$log" | tail -n +2
}

figures=$(measure -- "${1:-15}")
# Nanoseconds of a clock that counts instructions: these hold for a real processor too.
instructions=$(measure -i -- 3 requests | sed 's/quartiles_ns/quartiles/')
cat <<END
{
"command": "kmod/qemu/bench.sh ${1:-15} > bench/results/kmod.json",
"date": "$(date -u +%Y-%m-%dT%H:%M:%S+00:00)",
"machine": "QEMU TCG, 2 virtual processors, on $(grep -m 1 'model name' /proc/cpuinfo | cut -d : -f 2 | xargs)",
"host_load": $load,
"kernel": "$release",
"times": "of the emulation: only ratio_to_copy says something of the module",
"figures":
$figures,
"instructions_of_requests":
$instructions
}
END
