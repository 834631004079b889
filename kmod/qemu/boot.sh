#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Boot a kernel under QEMU with the host's files, run a script of them there, return its status.
#
#   kmod/qemu/boot.sh -k VMLINUZ -m MODULE_FOLDER [-t SECONDS] [-M MEMORY] [-a CMDLINE] [-i] SCRIPT [ARGUMENT...]
#
# MODULE_FOLDER holds deepum.ko and other modules to be found in /run/modules. Emulated by TCG: a
# /dev/kvm that exists need not work. A kernel's own modules are looked for in /lib/modules, or beside it.
# With -i there is one processor, and its clock counts instructions: each is a nanosecond.
set -euo pipefail

seconds=280 memory=2G extra='' kernel='' modules=''
emulation=(-accel "tcg,thread=multi" -smp 2)
while getopts k:m:t:M:a:i option; do
    case $option in
        k) kernel=$OPTARG ;;
        m) modules=$OPTARG ;;
        t) seconds=$OPTARG ;;
        M) memory=$OPTARG ;;
        a) extra=$OPTARG ;;
        i) emulation=(-accel "tcg,thread=single" -smp 1 -icount "shift=0,sleep=off") ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
script=${1:?which script} && shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root"/{bin,dev,proc,sys,host,modules}
cp /bin/busybox "$work/root/bin/"
cp "$here/init" "$work/root/init"
chmod 755 "$work/root" "$work/root/init"
printf '%q ' cd "$root" >"$work/root/command"
printf '\nexec ' >>"$work/root/command"
printf '%q ' "$script" "$@" >>"$work/root/command"
cp "$modules"/*.ko "$work/root/modules/"

# What stands between the kernel and a 9p mount, in order, as far as it is not built in.
release=$(basename "$kernel")
own=/lib/modules/${release#vmlinuz-}
[ -d "$own" ] || own=$(dirname "$kernel")/kernel
: >"$work/root/modules/order"
for name in netfs 9pnet 9pnet_virtio 9p; do
    found=$(find "$own" -name "$name.ko*" 2>/dev/null | head -n 1) || true
    case $found in
        *.xz) xz -dc "$found" >"$work/root/modules/$name.ko" ;;
        *.zst) zstd -qdc "$found" >"$work/root/modules/$name.ko" ;;
        *.ko) cp "$found" "$work/root/modules/$name.ko" ;;
        *) continue ;;
    esac
    echo "$name.ko" >>"$work/root/modules/order"
done
(cd "$work/root" && find . | cpio --quiet -o -H newc) | gzip -1 >"$work/initrd"

# On a busy host the timer's test ticks come too late, and the kernel panics; a processor that stands
# still for a minute is no stall.
patience='no_timer_check rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60'
# Byte by byte is how TCG carries out what a processor that has "erms" is given for copies and zeros;
# wide vectors are more work than they save there.
plain=la57=off,erms=off,fsrm=off,avx=off,avx2=off,fma=off
status=0
timeout --foreground "$seconds" qemu-system-x86_64 -M q35 -cpu "max,$plain" "${emulation[@]}" \
    -m "$memory" -kernel "$kernel" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 oops=panic $patience $extra" \
    -virtfs local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap \
    -nographic -no-reboot -nodefaults -serial stdio -monitor none </dev/null |
    sed -u 's,\x1b[^ [:alpha:]]*[[:alpha:]],,g; s,\r,,g; s,^c$,,' | tee "$work/log" || status=$?
times >"$work/times" # in a pipe they would be those of the pipe
tail -n 1 "$work/times" | sed "s/^/# emulation: $SECONDS s, of the host's processors /" >&2
if [ "$status" -eq 124 ]; then
    echo "the guest did not end within $seconds s" >&2
    exit 124
fi
line=$(grep -a '^guest status' "$work/log" | tail -n 1)
[ -n "$line" ] || { echo "the guest ended without a status: it crashed, or did not boot" >&2; exit 3; }
exit "${line##* }"
