# SPDX-License-Identifier: Apache-2.0
"""Host memory that is made before it is needed."""

import ctypes
import subprocess
import sys
import threading

import pytest
from tests.fake_cuda.steer import wait_until

HostSlabs = pytest.importorskip("deepum._core.host_slabs").HostSlabs

MIB = 1 << 20


def resident(address: int, size: int) -> int:
    """Return how many bytes of a range are there, by the kernel's word."""
    pages = (ctypes.c_ubyte * (size // 4096))()
    done = ctypes.CDLL(None, use_errno=True).mincore(
        ctypes.c_void_p(address), ctypes.c_size_t(size), pages
    )
    return -1 if done else sum(page & 1 for page in pages) * 4096


def test_a_slab_is_there_and_aligned_and_goes_when_it_is_given_back() -> None:
    slabs = HostSlabs(4 * MIB)
    address = slabs.get()
    assert address
    assert address % (2 * MIB) == 0
    assert resident(address, 4 * MIB) == 4 * MIB
    assert bytes(ctypes.string_at(address, 4 * MIB)) == bytes(4 * MIB)
    assert slabs.counts == (0, 1)
    slabs.put(address)
    assert resident(address, 4 * MIB) == -1
    assert slabs.counts == (0, 0)


def test_a_child_has_no_part_in_it() -> None:
    code = """
import ctypes, os
from deepum._core.host_slabs import HostSlabs
slabs = HostSlabs(2 << 20)
address = slabs.get()
page = ctypes.c_ubyte()
def there():
    where = ctypes.c_void_p(address), ctypes.c_size_t(4096), ctypes.byref(page)
    return not ctypes.CDLL(None).mincore(*where)
assert there()
child = os.fork()
if not child:
    os._exit(3 + there())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_threads_make_what_is_asked_for_and_no_more() -> None:
    slabs = HostSlabs(2 * MIB)
    slabs.begin()
    threads = [threading.Thread(target=slabs.run) for _ in range(3)]
    for thread in threads:
        thread.start()
    slabs.ask_for(5)
    wait_until(lambda: slabs.counts == (5, 0))
    taken = [slabs.get() for _ in range(7)]  # two of them made at once
    assert len(set(taken)) == 7
    assert all(resident(address, 2 * MIB) == 2 * MIB for address in taken)
    assert slabs.counts == (0, 7)
    slabs.ask_for(8)
    wait_until(lambda: slabs.counts == (1, 7))
    for address in taken[:4]:
        slabs.put(address)
    wait_until(lambda: slabs.counts[1] == 3)
    slabs.end()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert slabs.counts == (0, 3)
    slabs.begin()
    thread = threading.Thread(target=slabs.run)
    thread.start()
    slabs.ask_for(4)
    wait_until(lambda: slabs.counts == (1, 3))
    slabs.end()
    thread.join(10)
    for address in taken[4:]:
        slabs.put(address)


def test_a_host_without_memory_says_so() -> None:
    code = """
import resource, threading
from deepum._core.host_slabs import HostSlabs
slabs = HostSlabs(1 << 30)
slabs.begin()
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
thread = threading.Thread(target=slabs.run)
thread.start()
slabs.ask_for(4)
got = [slabs.get() for _ in range(4)]
print(sum(map(bool, got)), slabs.counts[1])
slabs.end()
thread.join(10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    made, given = map(int, done.stdout.split())
    assert made == given < 4


def test_sizes_are_multiples_of_huge_pages() -> None:
    for size in (0, MIB, 3 * MIB):
        with pytest.raises(ValueError, match=f"multiple of 2 MiB, not {size}"):
            HostSlabs(size)
