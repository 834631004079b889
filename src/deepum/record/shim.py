# SPDX-License-Identifier: Apache-2.0
"""The fake CUDA device: compiled on first use, kept in the user's cache folder.

PyTorch cannot run the backward pass over fake ``cuda`` tensors in a process without a GPU.
`shim.cpp` says what is missing; this module compiles it against the installed PyTorch, once for
each version.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.errors import DeepUMError, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = Path(__file__).with_name("shim.cpp")
_COMPILERS = ("g++", "c++", "clang++")
_STANDARDS = ("c++20", "c++17")
_loaded: list[ctypes.CDLL] = []


def cache_folder() -> Path:
    """Where compiled shims are kept: ``$DEEPUM_CACHE``, or the user's cache folder."""
    own = os.environ.get("DEEPUM_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "deepum"


def compiler() -> str | None:
    """The C++ compiler to use: ``$CXX`` if set, or the first usual one that is installed."""
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    return None


def install() -> None:
    """Make fake ``cuda`` tensors usable in this process, for as long as it lives.

    Raises
    ------
    RecordError
        There is no compiler, the compilation failed, or the process has a real GPU.
    """
    import torch

    if torch.cuda.is_available():
        raise RecordError("the fake CUDA device is never loaded next to a real GPU")
    if _loaded:
        return
    library = ctypes.CDLL(str(_build(torch)))
    library.deepum_install_fake_cuda()
    _loaded.append(library)


def _build(torch: Any) -> Path:
    """The path of the shim for this PyTorch, compiled if it is not in the cache yet."""
    return cached(_SOURCE, "fake-cuda", torch, _compile, "the fake CUDA device", RecordError)


def cached(
    source: Path,
    name: str,
    torch: Any,
    compiled: Callable[[str, Any, Path], None],
    what: str,
    error_type: type[DeepUMError],
) -> Path:
    """Return the path of a library for this PyTorch, compiled if it is not in the cache yet.

    Parameters
    ----------
    source
        Its C++ source.
    name
        What its file's name begins with.
    compiled
        Compiles it: called with the compiler, PyTorch and the path to write.
    what
        What errors call it.
    error_type
        The exception to raise where there is no compiler or no folder to write to.
    """
    stamp = f"{torch.__version__} {torch.version.git_version} {sys.platform}".encode()
    digest = hashlib.sha256(stamp + source.read_bytes()).hexdigest()[:16]
    target = cache_folder() / f"{name}-{digest}.so"
    if target.exists():
        return target
    cxx = compiler()
    if cxx is None:
        raise error_type(f"no C++ compiler found to build {what}: install g++ or set CXX")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Built beside the target and renamed, so that a second process never loads half a file.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            built = Path(folder) / "shim.so"
            compiled(cxx, torch, built)
            built.replace(target)
    except OSError as error:
        raise error_type(
            f"cannot write {what} to {target.parent} ({error.strerror}): "
            "set DEEPUM_CACHE to a folder that can be written"
        ) from error
    return target


def _compile(cxx: str, torch: Any, output: Path) -> None:
    root = Path(torch.__file__).parent
    include, lib = root / "include", root / "lib"
    abi = int(torch.compiled_with_cxx11_abi())
    message = ""
    for standard in _STANDARDS:
        command = [
            cxx,
            f"-std={standard}",
            "-O1",
            "-fPIC",
            "-shared",
            f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
            f"-I{include}",
            f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
            str(_SOURCE),
            f"-L{lib}",
            "-ltorch_cpu",
            "-lc10",
            f"-Wl,-rpath,{lib}",
            "-o",
            str(output),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        message = next((x for x in done.stderr.splitlines() if "error" in x), done.stderr.strip())
    raise RecordError(f"cannot compile the fake CUDA device with {cxx}: {message}")
