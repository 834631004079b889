#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What the kernel's own checks say: a build without a warning (W=1) against every kernel whose
# headers are installed from 6.1 on, sparse, and checkpatch.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/check-kmod --lint

mkdir -p build/kmod-lint
for folder in /lib/modules/*/build; do
    release=${folder#/lib/modules/}
    release=${release%/build}
    [ -e "$folder/Makefile" ] || continue
    for checks in "W=1" "W=1 C=2"; do # C=2: sparse
        out=build/kmod-lint/$release
        rm -rf "$out"
        echo "== $release $checks"
        make -s -C kmod RELEASE="$release" OUT="../$out" KBUILD="$checks" module mock failing 2>&1 | tee "$out.log" ||
            { echo "the build failed" >&2; exit 1; }
        # Debian's 6.1 headers lack what type information needs: that is no fault of the module.
        # Sparse of 2023 does not know some of what newer headers use.
        if grep -E '(warning|error):' "$out.log" | grep -E "build/kmod-lint"; then
            echo "warnings" >&2
            exit 1
        fi
    done
done

# As on a machine that builds it by itself for every new kernel.
if command -v dkms >/dev/null; then
    release=$(tools/check-kmod --release)
    version=$(sed -n 's/PACKAGE_VERSION="\(.*\)"/\1/p' kmod/dkms.conf)
    echo "== dkms for $release"
    trees=$PWD/build/kmod-lint/dkms
    rm -rf "$trees"
    mkdir -p "$trees"/{tree,source,install}
    cp -r kmod "$trees/source/deepum-$version"
    dkms build "deepum/$version" -k "$release" --dkmstree "$trees/tree" --sourcetree "$trees/source" \
        --installtree "$trees/install" >"$trees/log" 2>&1 || { cat "$trees/log" >&2; exit 1; }
    find "$trees/tree" -name 'deepum.ko*' | grep -q . || { echo "dkms built no module" >&2; exit 1; }
fi

# checkpatch.pl comes with the source, in an archive: unpack it and what it reads alone.
archive=$(ls /usr/src/linux-source-6.*.tar.xz | tail -n 1)
name=$(basename "$archive" .tar.xz)
scripts=build/kmod-lint/scripts
if [ ! -x "$scripts/checkpatch.pl" ]; then
    mkdir -p "$scripts"
    tar -xf "$archive" -C "$scripts" --strip-components=2 \
        "$name"/scripts/{checkpatch.pl,spelling.txt,const_structs.checkpatch}
fi
echo "== checkpatch"
# A module of its own has to know several kernels, a header for user space does without BIT(), and
# locks are described with their structures.
tolerated=LINUX_VERSION_CODE,CONSTANT_COMPARISON,BIT_MACRO,UNCOMMENTED_DEFINITION,SPDX_LICENSE_TAG
# Typedefs of the stand-in have the names of the driver's; tests are user-space code.
perl "$scripts/checkpatch.pl" --no-tree --no-summary --terse --strict --max-line-length=100 \
    --ignore "$tolerated" -f kmod/*.c kmod/*.h kmod/include/uapi/linux/deepum.h
perl "$scripts/checkpatch.pl" --no-tree --no-summary --terse --max-line-length=102 \
    --ignore NEW_TYPEDEFS,VOLATILE,LINE_SPACING,MACRO_WITH_FLOW_CONTROL,PREFER_KERNEL_TYPES,LONG_LINE \
    -f kmod/tests/*.[ch] kmod/tests/*/*.[ch]
echo "the kernel's checks have nothing to say"
