# SPDX-License-Identifier: Apache-2.0
"""The fake CUDA device: how it is built, and what happens where it cannot be."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from deepum.errors import RecordError  # noqa: E402
from deepum.record import fake, shim  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def not_loaded(monkeypatch, tmp_path):
    """As in a new process with an empty cache."""
    monkeypatch.setattr(shim, "_loaded", [])
    monkeypatch.setenv("DEEPUM_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("DEEPUM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert shim.cache_folder() == tmp_path / "deepum"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shim.cache_folder() == tmp_path / ".cache" / "deepum"


def test_built_once(not_loaded, monkeypatch):
    first = shim._build(torch)
    assert first.exists()
    assert [x.name for x in first.parent.iterdir()] == [first.name]
    monkeypatch.setattr(shim, "_compile", lambda *_: pytest.fail("compiled again"))
    assert shim._build(torch) == first


def test_no_compiler(not_loaded, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert shim.compiler() is None
    with pytest.raises(RecordError, match=r"install g\+\+ or set CXX"):
        shim.install()


def test_no_compiler_records_on_the_cpu(not_loaded, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler.*a sixth more memory"):
        assert fake.choose_device() == "cpu"


def test_broken_compiler(not_loaded, monkeypatch):
    tool = not_loaded / "cxx"
    tool.write_text("#!/bin/sh\necho 'shim.cpp:1: error: out of cheese' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CXX", str(tool))
    with pytest.raises(RecordError, match=r"cannot compile .* error: out of cheese"):
        shim.install()


def test_cache_that_cannot_be_written(not_loaded, monkeypatch):
    (not_loaded / "file").write_text("")
    monkeypatch.setenv("DEEPUM_CACHE", str(not_loaded / "file" / "folder"))
    with pytest.raises(RecordError, match="set DEEPUM_CACHE"):
        shim.install()


def test_never_next_to_a_gpu(not_loaded, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert fake.choose_device() == "cuda"  # without the shim
    with pytest.raises(RecordError, match="real GPU"):
        shim.install()


def test_the_pretence_ends(monkeypatch):
    with fake.fake_device() as device:
        assert device == "cuda"
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.get_default_device().type == "cuda"
        assert torch.ones(3).cuda().device.type == "cuda"
    assert not torch.cuda.is_available()
    assert torch.ones(3).device.type == "cpu"


def test_missing_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RecordError, match="pip install torch"):
        fake.require_torch()


def test_importing_the_recorder_needs_no_torch():
    code = "import sys; import deepum.record.recorder, deepum.record.models, deepum.record.script; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
