#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Build a kernel that looks for mistakes: KASAN, lockdep, sleeping while atomic, kmemleak, fault
# injection. Takes a quarter of an hour of one core; done once.
#
#   kmod/qemu/debug-kernel.sh FOLDER    source and build go there; prints where the build lies
#
# JOBS=2 builds with two processes.
set -eu
folder=${1:?where to build}
here=$(cd "$(dirname "$0")" && pwd)
archive=$(ls /usr/src/linux-source-6.*.tar.xz 2>/dev/null | tail -n 1)
if [ -z "$archive" ]; then
    echo "no kernel source: sudo apt-get install -y linux-source-6.12 flex bison bc libelf-dev libssl-dev" >&2
    exit 1
fi
mkdir -p "$folder"
tree=$folder/$(basename "$archive" .tar.xz)
[ -f "$tree/Makefile" ] || tar -C "$folder" -xf "$archive"
cd "$tree"
if [ ! -f .config ] || ! cmp -s "$here/debug.config" .deepum-config; then
    make -s tinyconfig
    scripts/kconfig/merge_config.sh -m .config "$here/debug.config" >/dev/null
    make -s olddefconfig
    # What depends on something that is off is dropped without a word.
    if lost=$(grep '^CONFIG' "$here/debug.config" | grep -vxFf .config); then
        echo "this kernel cannot be configured so: $lost" >&2
        exit 1
    fi
    cp "$here/debug.config" .deepum-config
fi
make -s -j"${JOBS:-1}" bzImage modules_prepare modules >&2
echo "$tree"
