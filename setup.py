# SPDX-License-Identifier: Apache-2.0
"""Build the compiled core: every ``src/deepum/_core/*.pyx`` becomes one extension.

Two environment variables choose a build other than the fast one:

- ``DEEPUM_COVERAGE=1`` traces lines, so that coverage sees inside the Cython code
- ``DEEPUM_DEBUG=1`` keeps bounds checks and debug symbols
"""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

# Everything below is relative to this file's folder, which is where build front ends start.
CORE = Path("src/deepum/_core")
HEADERS = Path("kmod/include")
COVERAGE = os.environ.get("DEEPUM_COVERAGE", "0") not in ("", "0")
DEBUG = os.environ.get("DEEPUM_DEBUG", "0") not in ("", "0")
# These need POSIX threads, userfaultfd or the kernel module.
LINUX_ONLY = {"deferred", "host_slabs", "kmod", "live", "uffd"}
# Tracing takes the GIL, which a thread that waits for a page may hold: never where faults are
# served. For the same reason no live backend runs in a traced build.
UNTRACED = LINUX_ONLY | {
    "conductor", "cuda_completions", "cuda_digest", "cuda_launches", "cuda_memory", "cuda_mover",
    "cuda_vmm", "cuda_vmm_mover", "cupti_counters", "feed", "uvm_tools", "vmm_conductor",
}  # fmt: skip
JOBS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ParallelBuildExt(build_ext):
    """build_ext that uses every core unless told otherwise."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None and JOBS > 1:
            self.parallel = JOBS
        # A changed setting must not leave the objects of another build in place.
        if COVERAGE or DEBUG:
            self.force = True

    def run(self):
        # Cythonize here, so that commands which build nothing (sdist, metadata) stay quick.
        for extension, translated in zip(self.extensions, cythonized(self.extensions), strict=True):
            extension.sources = translated.sources
            extension.depends = translated.depends
        super().run()


def extensions():
    """List one extension for each Cython file of the core.

    Those that call the CUDA driver (``cuda_*``) need its header and cuda-python's declarations to
    compile, though neither a driver nor a GPU; without them they are left out.
    """
    cuda_headers = cuda_include() if find_spec("cuda.bindings") else None
    if not cuda_headers:
        print("deepum: no cuda.h or no cuda-bindings: building without the GPU backends")
    macros = [("CYTHON_TRACE_NOGIL", "1")] if COVERAGE else []
    flags = ["-O0", "-g"] if DEBUG else ["-O1"] if COVERAGE else ["-O3", "-g0"]
    return [
        Extension(
            f"deepum._core.{path.stem}",
            [str(path)],
            # The kernel module's header is the one definition of events and commands.
            include_dirs=[str(CORE), str(HEADERS)]
            + ([cuda_headers] if path.stem.startswith("cuda_") else []),
            language="c++" if path.stem.startswith("cuda_") else None,  # as cuda-python's own is
            define_macros=[] if path.stem in UNTRACED else macros,
            extra_compile_args=flags,
            depends=[str(path) for path in sorted([*CORE.glob("*.h"), *HEADERS.rglob("*.h")])],
        )
        for path in sorted(CORE.glob("*.pyx"))
        if cuda_headers or not path.stem.startswith("cuda_")
        if sys.platform == "linux" or path.stem not in LINUX_ONLY
    ]


def cuda_include():
    """Find cuda.h: ``$CUDA_HOME``'s, or the newest of a toolkit's and those that wheels bring.

    cuda-python's declarations name types that an older header does not have yet.
    """
    if os.environ.get("CUDA_HOME"):
        return str(Path(os.environ["CUDA_HOME"]) / "include")
    places = [Path("/usr/local/cuda/include")]
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        places += sorted(Path(root).glob("*/include"))
    found = {}
    for place in places:
        header = place / "cuda.h"
        text = header.read_text("utf-8", "replace") if header.is_file() else ""
        if version := re.search(r"#define CUDA_VERSION (\d+)", text):
            found[int(version[1])] = str(place)
    return found[max(found)] if found else None


def cythonized(modules):
    """Translate the modules to C; those that are C already pass through."""
    return cythonize(
        modules,
        include_path=["src"],
        nthreads=JOBS if JOBS > 1 and len(modules) > 1 else 0,
        force=COVERAGE or DEBUG,
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "initializedcheck": DEBUG,
            "cdivision": True,
            "linetrace": COVERAGE,
        },
    )


if __name__ == "__main__":  # parallel builds may import this file again
    setup(
        package_dir={"": "src", "deepum_policies": "policies"},
        packages=[*find_packages("src"), "deepum_policies"],
        ext_modules=extensions(),
        cmdclass={"build_ext": ParallelBuildExt},
    )
