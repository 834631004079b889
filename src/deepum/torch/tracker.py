# SPDX-License-Identifier: Apache-2.0
"""The feed of PyTorch's caching allocator, compiled on first use for the installed PyTorch."""

from __future__ import annotations

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deepum.errors import BackendError
from deepum.record.shim import cached

_SOURCE = Path(__file__).with_name("tracker.cpp")
_loaded: list[ctypes.CDLL] = []


def track(on_alloc: int, on_free: int) -> ctypes.CDLL:
    """Have two C functions called at each allocation and each completed free, for good.

    Parameters
    ----------
    on_alloc, on_free
        Addresses of ``void (uint64_t address, uint64_t bytes)`` and ``void (uint64_t address)``.
        They are called with the allocator's lock held and must need no GIL.

    Raises
    ------
    BackendError
        There is no compiler, or PyTorch's headers do not compile.
    """
    if not _loaded:
        import torch

        path = cached(_SOURCE, "tracker", torch, _compile, "the allocator's tracker", BackendError)
        library = ctypes.CDLL(str(path))
        library.deepum_track(ctypes.c_void_p(on_alloc), ctypes.c_void_p(on_free))
        _loaded.append(library)
    return _loaded[0]


def _compile(cxx: str, torch: Any, output: Path) -> None:
    root = Path(torch.__file__).parent
    includes = [root / "include", *_cuda_includes()]
    command = [
        cxx,
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{path}" for path in includes),
        str(_SOURCE),
        f"-L{root / 'lib'}",
        "-lc10_cuda",
        "-lc10",
        f"-Wl,-rpath,{root / 'lib'}",
        "-o",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        message = next((line for line in lines if "error" in line), done.stderr.strip())
        raise BackendError(f"{_SOURCE.name} does not compile with {cxx}: {message}")


def _cuda_includes() -> list[Path]:
    # PyTorch's headers include CUDA's, which its wheels bring along; a toolkit has them too.
    places = [Path("/usr/local/cuda/include")]
    spec = find_spec("nvidia")
    for parent in spec.submodule_search_locations or () if spec else ():
        places += sorted(Path(parent).glob("*/include"))
    return [place for place in places if place.is_dir()]
