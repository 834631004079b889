#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Build the module and its tests, boot a kernel under QEMU, run them there.
#
#   kmod/qemu/test.sh                 Debian's 6.12 kernel
#   kmod/qemu/test.sh -k BUILD_TREE   a kernel built there (kmod/qemu/debug-kernel.sh)
#
# PYTHON is the interpreter whose pytest runs in the guest, none if empty. HOSTILE is the number of
# hostile operations, KMOD_MARKERS and KMOD_PATHS say what pytest runs (by default what a slow guest
# gets through in time; "kmod and not torch" is all), PYTEST_ARGS are further arguments,
# SECONDS_ALLOWED is how long it may take, KERNEL_ARGS are further words for the kernel's command line.
set -euo pipefail

tree=''
while getopts k: option; do
    case $option in
        k) tree=$(realpath "$OPTARG") ;;
        *) exit 2 ;;
    esac
done
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
tools/check-kmod

if [ -n "$tree" ]; then
    release=$(make -s -C "$tree" kernelrelease)
    kernel=$tree/arch/x86/boot/bzImage
    build=(KDIR="$tree")
else
    release=$(tools/check-kmod --release)
    kernel=/boot/vmlinuz-$release
    build=()
fi
[ -r "$kernel" ] || { echo "no kernel to boot: $kernel is not there" >&2; exit 1; }
echo "# building for $release"
make -s -C kmod RELEASE="$release" "${build[@]}" module tests
markers=${KMOD_MARKERS:-kmod and not torch and not long}
paths=${KMOD_PATHS:-tests/kmod tests/backends}
if [ -n "${PYTHON:-}" ]; then
    # Compiled here once, in seconds; the guest sees files that it cannot write, and is slow.
    # shellcheck disable=SC2086 # a list of paths
    "$PYTHON" -m pytest --collect-only -qq -m "$markers" $paths >/dev/null
fi
# Nobody attacks the guest by speculation; an emulator speculates not at all.
exec kmod/qemu/boot.sh -k "$kernel" -m "build/kmod/$release" -t "${SECONDS_ALLOWED:-290}" \
    -a "mitigations=off ${KERNEL_ARGS:-}" "$root/kmod/qemu/guest.sh" "build/kmod/$release/tests" "${HOSTILE:-30000}" "${PYTHON:-none}" \
    "$markers" "$paths" ${PYTEST_ARGS:-}
