# SPDX-License-Identifier: Apache-2.0
"""``deepum doctor``, with everything that it looks at replaced in turn."""

import errno
import json
import sys
from enum import IntEnum
from types import SimpleNamespace

import pytest

from deepum.cuda.device import NEEDED
from deepum.doctor import BROKEN, MISSING, OK, basics, check, gpu, host, torch
from deepum.trace import Trace


def test_simulator_works(run):
    text = run("doctor").stdout
    assert "The simulator works." in text
    for name in ("Python", "numpy", "compiled core", "platform", "cuda-python", "userfaultfd"):
        assert name in text


def test_json(run):
    data = json.loads(run("doctor", "--json").stdout)
    assert data["simulator"] is True
    assert {tuple(check) for check in data["checks"]} == {("name", "state", "found", "todo")}
    assert all(check["todo"] for check in data["checks"] if check["state"] == MISSING)


def test_status_when_the_core_is_not_compiled(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepum._core.simulator", None)
    text = run("doctor", status=1).stdout
    assert "The simulator does not work." in text


def test_numpy_is_missing(monkeypatch):
    monkeypatch.setattr(basics, "installed", lambda package: None)
    assert basics.numpy()[0].state == BROKEN
    assert basics.plot()[0].state == MISSING
    assert "deepum[plot]" in basics.plot()[0].todo


def test_torch_is_missing(monkeypatch):
    monkeypatch.setattr(torch, "find_spec", lambda name: None)
    (found,) = torch.build()
    assert found.state == MISSING
    assert "deepum[torch]" in found.todo


def test_unknown_packages_are_not_installed():
    assert check.installed("surely-no-such-package") is None


def test_traces(monkeypatch, trace_file):
    monkeypatch.setattr(Trace, "shipped", classmethod(lambda cls: {}))
    assert basics.traces()[0].state == MISSING
    monkeypatch.setattr(Trace, "shipped", classmethod(lambda cls: {"tiny": trace_file}))
    assert basics.traces()[0].found.startswith("1;")


def test_platforms(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_PROC", tmp_path)
    (tmp_path / "version").write_text("Linux version 6.1 (gcc)")
    assert host.system()[0].state == OK
    (tmp_path / "version").write_text("Linux version 5.15-microsoft-standard-WSL2")
    (found,) = host.system()
    assert (found.state, found.found) == (MISSING, "WSL")
    assert "simulation only" in found.todo
    monkeypatch.setattr(sys, "platform", "win32")
    assert host.system()[0].found == "Windows"


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


class Driver:
    """Stands for cuda.bindings.driver."""

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS=89)

    def __init__(self, start=Status.CUDA_SUCCESS, managed=1, fails=()):
        self.start = start
        self.managed = managed
        self.fails = fails
        for name in NEEDED:
            setattr(self, name, None)
        for name in fails:
            setattr(self, name, self._fail(name))

    @staticmethod
    def _fail(name):
        def method(*arguments):
            return (Status.CUDA_ERROR_NO_DEVICE,)

        method.__name__ = name
        return method

    def cuInit(self, flags):
        return (self.start,)

    def cuDriverGetVersion(self):
        return Status.CUDA_SUCCESS, 13010

    def cuDeviceGetCount(self):
        return Status.CUDA_SUCCESS, 1

    def cuDeviceGet(self, index):
        return Status.CUDA_SUCCESS, index

    def cuDeviceGetName(self, length, device):
        return Status.CUDA_SUCCESS, b"A GPU\0\0\0"

    def cuDeviceTotalMem(self, device):
        return Status.CUDA_SUCCESS, 32 << 30

    def cuDeviceGetAttribute(self, attribute, device):
        assert attribute == 89
        return Status.CUDA_SUCCESS, self.managed

    def cuGetErrorString(self, status):
        return Status.CUDA_SUCCESS, b"no CUDA-capable device is detected"


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(gpu, "has_library", lambda name: True)


def test_gpu(library):
    driver, card = gpu.checks(Driver())[:2]
    assert (driver.state, driver.found) == (OK, "CUDA 13.1")
    assert (card.state, card.found) == (OK, "A GPU, 32 GiB, concurrent managed access")


def test_gpu_that_cannot_oversubscribe(library):
    card = gpu.checks(Driver(managed=0))[1]
    assert card.state == MISSING
    assert card.found.endswith("no concurrent managed access")


def test_no_gpu(library):
    (found,) = gpu.checks(Driver(start=Status.CUDA_ERROR_NO_DEVICE))
    assert found.state == MISSING
    assert found.found == "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"


def test_driver_call_fails(library):
    (found,) = gpu.checks(Driver(fails=["cuDeviceGetCount"]))
    assert found.found.startswith("cuDeviceGetCount: CUDA_ERROR_NO_DEVICE")


def test_no_driver_library(monkeypatch):
    monkeypatch.setattr(gpu, "has_library", lambda name: False)
    assert gpu.checks(Driver())[0].found == "no libcuda.so.1"


def test_libraries():
    assert gpu.has_library("libc.so.6")
    assert not gpu.has_library("libsurely-not-there.so.1")


def test_no_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    (found,) = gpu.cuda()
    assert found.state == MISSING
    assert "deepum[cu13]" in found.todo


def test_userfaultfd(monkeypatch):
    monkeypatch.setattr(host, "try_userfaultfd", lambda number: 0)
    assert host.userfaultfd()[0].state == OK
    monkeypatch.setattr(host, "try_userfaultfd", lambda number: errno.ENOSYS)
    (found,) = host.userfaultfd()
    assert found.state == MISSING
    assert "not implemented" in found.found
    monkeypatch.setattr(host.platform, "machine", lambda: "pdp11")
    assert "pdp11" in host.userfaultfd()[0].found


def test_a_system_call_that_does_not_exist():
    assert host.try_userfaultfd(100_000) == errno.ENOSYS


def test_kernel_module(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_DEV", tmp_path)
    assert host.module()[0].state == MISSING
    (tmp_path / "deepum").write_text("")
    assert host.module()[0].state == OK
    monkeypatch.setattr(host.os, "access", lambda *args: False)
    assert "may not be opened" in host.module()[0].found


def test_files_that_are_not_there(tmp_path):
    assert check.read(tmp_path / "nothing") == ""


def test_compilers(monkeypatch, tmp_path):
    assert torch.compiler()[0].state == OK
    monkeypatch.setattr(torch, "find_compiler", lambda: "/bin/false")
    assert "knows no C++20" in torch.compiler()[0].found
    monkeypatch.setattr(torch, "find_compiler", lambda: str(tmp_path / "none"))
    assert "does not run" in torch.compiler()[0].found
    monkeypatch.setattr(torch, "find_compiler", lambda: None)
    assert "install g++" in torch.compiler()[0].todo


@pytest.mark.parametrize(
    ("text", "state"),
    [("", OK), ("[none] integrity confidentiality", OK), ("none [integrity] x", MISSING)],
)
def test_lockdown(monkeypatch, tmp_path, text, state):
    monkeypatch.setattr(host, "_LOCKDOWN", tmp_path / "lockdown")
    (tmp_path / "lockdown").write_text(text)
    (found,) = host.lockdown()
    assert found.state == state
    assert (state == OK) or found.found == "integrity"


def test_torch_for_the_cpu_beside_a_gpu(monkeypatch, library):
    monkeypatch.setattr(gpu, "find_spec", lambda name: "there")
    monkeypatch.setattr(gpu, "cuda_of_torch", lambda: None)
    assert "does not see the GPU" in gpu.checks(Driver())[-1].todo
    monkeypatch.setattr(gpu, "cuda_of_torch", lambda: "13.0")
    assert all(found.name != "PyTorch for the GPU" for found in gpu.checks(Driver()))


def test_what_torch_was_built_for(monkeypatch, tmp_path):
    version = tmp_path / "version.py"
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torch, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch, "installed", lambda package: "2.11.0")
    version.write_text("__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    assert torch.build()[0].found == "2.11.0, built for CUDA 13.0"
    version.write_text("cuda: Optional[str] = None\n")
    assert "for the CPU" in torch.build()[0].found


def test_device_files(monkeypatch, tmp_path):
    paths = (tmp_path / "nvidiactl", tmp_path / "nvidia-uvm")
    monkeypatch.setattr(gpu, "_NODES", paths)
    assert "pass the GPU through" in gpu.nodes()[0].todo
    for path in paths:
        path.write_text("")
    assert gpu.nodes()[0].state == OK
    monkeypatch.setattr(gpu.os, "access", lambda *args: False)
    assert "may not be opened" in gpu.nodes()[0].found


def test_host_memory(monkeypatch):
    monkeypatch.setattr(gpu, "host_available", lambda: 8 << 30)
    assert gpu.host_memory(32 << 30).state == OK
    assert "40.0 GiB" in gpu.host_memory(32 << 30).found
    assert gpu.host_memory(33 << 30).state == MISSING
