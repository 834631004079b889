# SPDX-License-Identifier: Apache-2.0
"""Beginning and end: arrays that outlive their session, processes that fork, memory given back."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepum
from deepum.backends import live, memory
from deepum.errors import BackendError, BudgetError, DeepUMError, PolicyError
from deepum.machine import BLOCK_BYTES

from .drivers import BLOCK, Host, touch

MIB = 1 << 20


def run_script(text: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, which must end within two minutes."""
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(text)],
        capture_output=True, text=True, timeout=120, check=False, **more,
    )  # fmt: skip


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError


# -- ending ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [pytest.param("noop", marks=pytest.mark.long), "chained"])
def test_arrays_outlive_their_session(host: Host, policy: str) -> None:
    backend = host.backend(policy, 8)
    array = backend.empty((20, BLOCK), np.uint8)
    untouched = backend.empty(4 * BLOCK, np.uint8)
    for block in range(20):
        array[block] = block
    gone = backend.empty(4 * BLOCK, np.uint8)
    gone[:] = 1
    del gone
    backend.close()
    assert [int(row[0]) for row in array] == [*range(20)]
    assert all((array[block] == block).all() for block in range(20))
    assert not untouched.any()
    array += 1  # ordinary memory now
    assert int(array[19, -1]) == 20
    view = array[3:5]
    del array
    gc.collect()
    assert (view[0] == 4).all()


@pytest.mark.long
def test_everything_is_given_back(host: Host) -> None:
    def once() -> None:
        backend = host.backend("chained", 16)
        array = backend.empty(32 * BLOCK, np.uint8)
        array[:] = 1
        backend.close()
        del array

    once()
    gc.collect()
    threads, files = threading.active_count(), len([*Path("/proc/self/fd").iterdir()])
    before = resident_bytes()
    for _ in range(3):
        once()
    gc.collect()
    assert threading.active_count() == threads
    assert len([*Path("/proc/self/fd").iterdir()]) == files
    assert resident_bytes() < before + 16 * MIB


@pytest.mark.long
def test_a_session_that_is_forgotten_ends(host: Host) -> None:
    backend = host.backend("noop", 8)
    array = backend.empty(10 * BLOCK, np.uint8)
    array[:] = 3
    forgotten = weakref.ref(backend)
    count = threading.active_count()
    del backend
    gc.collect()
    assert forgotten() is None
    assert threading.active_count() <= count - (2 if host.name == "uffd" else 0)
    assert (array == 3).all()


def test_use_after_the_end_is_an_error(uffd: Host) -> None:
    session = deepum.Session("noop", memory_limit="32MiB", backend="uffd")
    array = session.empty(10)
    running = session.launch("late", writes=[array])
    session.close()
    session.close()
    running.complete()  # late news are no news
    for use in (
        lambda: session.empty(3),
        lambda: session.launch("k"),
        lambda: session.launched("k"),
        lambda: setattr(session, "policy", "chained"),
    ):
        with pytest.raises(BackendError, match="the session has ended"):
            use()
    assert session.stats["launches"] == 1


def test_an_exception_ends_the_launch_and_the_session(uffd: Host) -> None:
    with pytest.raises(KeyError), deepum.Session(memory_limit="32MiB", backend="uffd") as session:
        array = session.empty(5 * BLOCK, np.uint8)
        with session.launch("k", writes=[array]):
            array[:] = 2
            raise KeyError
    assert session._host is not None
    assert session._host._running == set()
    assert (array == 2).all()


def test_closing_while_threads_touch(host: Host) -> None:
    backend = host.backend("noop", 8)
    array = backend.empty(20 * BLOCK, np.uint8)
    array[:] = 1
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            for block in range(20):
                touch(array, block)

    thread = threading.Thread(target=use)
    thread.start()
    backend.close()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert (array[BLOCK - 1 :: BLOCK] == 1).all()


HEAD = """
    import sys, threading, time
    import numpy as np
    import deepum
    session = deepum.Session("chained", memory_limit="32MiB", backend="uffd")
    array = session.empty(40 << 20, np.uint8)
    array[:] = 5
"""


@pytest.mark.parametrize(
    "tail",
    [
        "print('done')",
        "running = session.launch('k', [array]); print('done')",
        "import atexit; atexit.register(lambda: print('done', int(array[:: 1 << 20].sum())))",
        "raise SystemExit(print('done'))",
        """
    def use():
        while True:
            array[:: 1 << 21] += 1
    threading.Thread(target=use, daemon=True).start()
    time.sleep(0.05)
    print('done')
    """,
        """
    class Hanging(deepum.Policy):
        def on_launch(self, view, launch):
            time.sleep(1000)
    session.policy = Hanging
    with session.launch('k'):
        array += 1
    time.sleep(0.05)
    print('done')
    """,
    ],
    ids=["plain", "launch", "atexit", "exit", "threads", "policy"],
)
def test_a_process_ends_with_arrays_alive(uffd: Host, tail: str) -> None:
    done = run_script(textwrap.dedent(HEAD) + textwrap.dedent(tail))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done")
    assert done.stderr == ""


def test_a_fork_does_not_disturb_the_parent(uffd: Host) -> None:
    done = run_script(
        textwrap.dedent(HEAD)
        + textwrap.dedent("""
            import os
            pid = os.fork()
            if pid == 0:
                for use in (lambda: session.empty(3), lambda: session.stats):
                    try:
                        use()
                    except deepum.DeepUMError as error:
                        print(error, flush=True)
                session.close()
                own = deepum.Session("noop", memory_limit="16MiB", backend="uffd")
                mine = own.empty(20 << 20, np.uint8)
                mine[:] = 1
                print("child", int(mine[:: 1 << 20].sum()), flush=True)
                del array
                own.close()
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            array += 1
            print("parent", int((array == 6).all()))
            session.close()
            """),
        "-Wignore",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "this session belongs to the parent process: open one here",
        "this session belongs to the parent process: open one here",
        "child 20",
        "parent 1",
    ]


def test_it_works_without_privilege(uffd: Host) -> None:
    if os.getuid() != 0:
        pytest.skip("all the other tests run without privilege already")
    done = run_script("""
        import os
        import numpy as np
        import deepum
        def use():
            with deepum.Session("chained", memory_limit="32MiB", backend="uffd") as session:
                array = session.empty(50 << 20, np.uint8)
                array[:] = 1
                return int(array[:: 1 << 20].sum()), session.stats["faults"] > 16
        use()  # all modules are loaded: the next user may not be allowed to read them
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        print(*use())
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "50 True\n"


# -- limits ---------------------------------------------------------------------------------------


def test_budgets_that_cannot_work(uffd: Host) -> None:
    for limit, line in ((None, "give memory_limit"), ("15MiB", "at least 16 MiB")):
        with pytest.raises(BudgetError, match=line):
            deepum.Session(memory_limit=limit, backend="uffd")
    for depth in (-1, 1024, True, "3"):
        with pytest.raises(DeepUMError, match="depth must be"):
            deepum.Session(depth=depth, memory_limit="32MiB", backend="uffd")
    with pytest.raises(DeepUMError, match="cannot switch off 'nonsense'"):
        deepum.Session(memory_limit="32MiB", backend="uffd", without="nonsense")
    with pytest.raises(PolicyError, match="option window"):
        deepum.Session(memory_limit="32MiB", backend="uffd", options={"window": "x"})
    with pytest.raises(DeepUMError, match="options:"):
        deepum.Session(memory_limit="32MiB", backend="uffd", options={"window": 0})


def test_host_memory_is_looked_up_before_it_is_taken(
    uffd: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 200 * MIB
    monkeypatch.setattr(memory, "available_bytes", lambda: free)
    with pytest.raises(BackendError, match="not enough host memory for the frames"):
        uffd.backend("noop", 40)
    backend = uffd.backend("noop", 20)
    fits = backend.empty(20 * BLOCK_BYTES, np.uint8)
    with pytest.raises(BackendError, match="not enough host memory for an array's place"):
        backend.empty(40 * BLOCK_BYTES, np.uint8)
    fits[:] = 1
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    more = backend.empty(40 * BLOCK_BYTES, np.uint8)
    more[:] = 2
    assert (fits == 1).all()
    backend.close()


def test_a_limit_on_addresses_is_an_error_and_not_a_crash(uffd: Host) -> None:
    done = run_script("""
        import resource
        import numpy as np
        import deepum
        import deepum.backends.host, deepum.backends.hooks, deepum._core.uffd
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        limit = used + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        session = deepum.Session("noop", memory_limit="32MiB", backend="uffd")
        kept = []
        try:
            while True:
                kept.append(session.empty(64 << 20, np.uint8))
                kept[-1][:] = len(kept)
        except deepum.DeepUMError as error:
            print(len(kept) > 0, error)
        print(all((array == n + 1).all() for n, array in enumerate(kept)))
        session.close()
        print(all((array == n + 1).all() for n, array in enumerate(kept)))
    """)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first.startswith("True no room for 64 MiB more: ")
    assert (second, third) == ("True", "True")


def test_control_groups_limit_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (groups / "a/b").mkdir(parents=True)
    (groups / "memory/c").mkdir(parents=True)
    monkeypatch.setattr(memory, "_PROC", proc)
    monkeypatch.setattr(memory, "_CGROUPS", groups)
    assert memory.available_bytes() is None
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   1000 kB\n")
    assert memory.available_bytes() == 1000 << 10
    (proc / "self/cgroup").write_text("9:cpu:/x\n4:memory:/c\n0::/a/b\n")
    assert memory.available_bytes() == 1000 << 10
    (groups / "a/memory.max").write_text("900000\n")
    (groups / "a/memory.current").write_text("500000\n")
    (groups / "a/memory.stat").write_text("anon 5\ninactive_file 100000\n")
    (groups / "a/b/memory.max").write_text("max\n")
    assert memory.available_bytes() == 500000
    (groups / "memory/c/memory.limit_in_bytes").write_text("30000")
    (groups / "memory/c/memory.usage_in_bytes").write_text("40000")
    (groups / "memory/c/memory.stat").write_text("total_inactive_file 1\n")
    assert memory.available_bytes() == 0
    with pytest.raises(BackendError, match="not enough host memory for it"):
        memory.require(1, "it")


# -- arrays ---------------------------------------------------------------------------------------


def test_arrays_of_every_kind(uffd: Host) -> None:
    with deepum.Session("noop", memory_limit="32MiB", backend="uffd") as session:
        assert session.backend == "uffd"
        for shape, dtype, size in (
            (3, "f4", 12), ((2, 5), np.int64, 80), ((), bool, 1), ((0, 4), float, 0),
            ((3, 0), "u1", 0), (np.int64(7), complex, 112),
        ):  # fmt: skip
            array = session.empty(shape, dtype)
            assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
            assert (array.dtype, array.nbytes) == (np.dtype(dtype), size)
            assert array.flags.c_contiguous
            assert array.flags.writeable
            array[...] = 1
        with pytest.raises(DeepUMError, match="Python objects"):
            session.empty(3, object)
        with pytest.raises(DeepUMError, match="shape"):
            session.empty((3, -1))
        with pytest.raises(DeepUMError, match="neither a numpy array nor a tensor"):
            session.launch("k", [[1, 2]])


def test_the_same_program_gets_the_same_addresses_and_names(uffd: Host) -> None:
    def names() -> list[tuple[int, int]]:
        backend = uffd.backend("chained", 10)
        found = []
        for _ in range(3):
            one, two = backend.empty(3 * BLOCK, "u1"), backend.empty(100, "u1")
            place = one.__array_interface__["data"][0] - backend.mechanism.address
            running = backend.launch("k", [one[::2], np.ones(3)], [two], args=(1, "x"))
            with running, backend.live.held() as engine:
                found.append((place, engine.running_exec_id))
            del one, two
        with backend.launch("k", [np.ones(4)]), backend.live.held() as engine:
            found.append((0, engine.running_exec_id))
        backend.close()
        return found

    first = names()
    assert first == names()
    assert first[0] == first[1] == first[2] != first[3]


def test_launches_complete_in_their_order(uffd: Host) -> None:
    backend = uffd.backend("noop", 10)
    one, two, three = (backend.launch(name) for name in "abc")

    def completed() -> Any:
        with backend.live.held() as engine:
            return engine.running

    two.complete()
    two.complete()
    assert completed() == 1
    one.complete()
    assert completed() == 3
    three.complete()
    assert completed() is None
    backend.launched("d")
    backend.launched("e")
    assert completed() == 5
    backend.completed()
    backend.completed()
    assert completed() is None
    assert backend.stats["launches"] == 5
    backend.close()


def test_statistics_have_the_simulators_names(uffd: Host) -> None:
    simulated = deepum.Session().stats
    backend = uffd.backend("chained", 16, depth=2)
    array = backend.empty(30 * BLOCK, np.uint8)
    for _ in range(4):
        for first in range(0, 30, 3):
            part = array[first * BLOCK : (first + 3) * BLOCK]
            with backend.launch(f"k{first}", [part]):
                part += 1
    assert backend.settle()
    stats = backend.stats
    absent = {"compute_s", "host_s", "stall_fault_s", "stall_evict_s", "stall_late_s", "iterations"}
    assert set(simulated) - absent <= set(stats)
    assert stats["peak_bytes"] == 30 * BLOCK
    assert stats["launches"] == 40
    assert stats["prefetched"] >= stats["prefetch_used"] >= stats["late"]
    assert 0.5 < stats["prefetch_accuracy"] <= 1
    assert 0.5 < stats["prefetch_coverage"] <= 1
    assert 0 <= stats["prefetch_timeliness"] <= 1
    assert stats["resident_blocks"] <= stats["budget_blocks"] == 16
    assert stats["table_bytes"] > 0
    assert stats["stall_s"] > 0
    backend.close()
    assert backend.stats["launches"] == 40


@pytest.mark.torch
def test_tensors(uffd: Host) -> None:
    import torch

    with deepum.Session("noop", memory_limit="32MiB", backend="uffd") as session:
        kinds = (((3, 4), None), (5, torch.bfloat16), ((), torch.int64), ((0, 2), None))
        for shape, dtype in kinds:
            tensor = session.tensor(shape, dtype)
            assert tensor.shape == torch.Size([shape] if isinstance(shape, int) else shape)
            assert tensor.dtype == (dtype or torch.float32)
            tensor.fill_(2)
        big = session.tensor((40, 1 << 19), torch.float32)
        big.fill_(3)
        part = big[:, ::2]
        with session.launch("k", [part, big[0], session.tensor(0)]):
            assert float(part.sum()) == 3 * part.numel()
        assert session.stats["faults"] > 40
        del big, part
        session.empty(1)
        heap = session._host._heap  # type: ignore[union-attr]
        assert heap.allocated_bytes < 4 * MIB
    assert float(tensor.sum()) == 0


def test_tensors_need_pytorch(uffd: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with (
        deepum.Session("noop", memory_limit="32MiB", backend="uffd") as session,
        pytest.raises(DeepUMError, match="PyTorch is not installed"),
    ):
        session.tensor(3)


# -- choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errno.ENOSYS, "without userfaultfd"),
        (errno.EPERM, "vm.unprivileged_userfaultfd"),
        (errno.EINVAL, "Linux 5.11"),
        (errno.EOPNOTSUPP, "cannot protect"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "EIO"),
    ],
)
def test_why_there_is_no_userfaultfd(
    monkeypatch: pytest.MonkeyPatch, error: int, line: str
) -> None:
    monkeypatch.setattr("deepum._core.uffd.probe", lambda: -error)
    with pytest.raises(BackendError, match=f"backend 'uffd' does not work here: .*{line}"):
        deepum.Session(memory_limit="32MiB", backend="uffd")


def test_auto_takes_what_works(uffd: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    works = {"managed": "no GPU", "kmod": "", "uffd": ""}
    monkeypatch.setattr(live, "unavailable", works.__getitem__)
    assert live.choose("auto") == "kmod"
    works["kmod"] = "no module"
    assert live.choose("auto") == "uffd"
    works["uffd"] = "no userfaultfd"
    with pytest.warns(UserWarning, match="no GPU; kmod: no module; uffd: no userfaultfd"):
        session = deepum.Session(backend="auto")
    assert session.backend == "sim"
    assert session.run("bert-base-b29").iterations
    with pytest.raises(DeepUMError, match="the simulator has no memory"):
        session.empty(3)


def test_a_backend_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match="no backend named 'cuda'"):
        deepum.Session(backend="cuda")
    monkeypatch.setattr(sys, "platform", "plan9")
    assert live.unavailable("uffd") == "userfaultfd is Linux's, and this is plan9"


def test_a_live_session_runs_no_traces(uffd: Host) -> None:
    with (
        deepum.Session(memory_limit="32MiB", backend="auto") as session,
        pytest.raises(DeepUMError, match="backend='sim'"),
    ):
        session.run("bert-base-b29")


def test_the_kernel_may_have_no_memory_for_frames(
    uffd: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("deepum._core.uffd.Uffd", refuse)
    with pytest.raises(BackendError, match="no memory for the frames: Cannot allocate memory"):
        uffd.backend("noop", 10)


def test_warnings_are_raised_where_they_are_errors(uffd: Host) -> None:
    backend = uffd.backend("noop", 10)
    backend.live.give_up()
    with warnings.catch_warnings(), pytest.raises(deepum.policy.PolicyWarning):
        warnings.simplefilter("error")
        backend.launch("k")
    assert backend.stats["launches"] == 0
    backend.close()


@pytest.mark.parametrize("page", ["README.md", "docs/live-backends.md"])
def test_the_examples_run(uffd: Host, repo: Path, page: str, capsys: Any) -> None:
    text = (repo / page).read_text("utf-8")
    (example,) = [
        block.partition("```")[0] for block in text.split("```python\n") if "uffd" in block[:200]
    ]
    exec(compile(example, page, "exec"), {})
    assert " faults, " in capsys.readouterr().out
