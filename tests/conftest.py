# SPDX-License-Identifier: Apache-2.0
"""What every test area shares: hypothesis profiles, marker skips, the optional data folder."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for how_many

# The workers of pytest-xdist share the cores: more threads of BLAS would spin for each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# "ci" gives the same examples on every run and no deadline, since two busy cores time nothing.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# "coverage" reaches the same lines with fewer examples: traced code is many times slower.
settings.register_profile("coverage", settings.get_profile("ci"), max_examples=20)
# "guest" is for emulated machines, where an example of a live backend takes seconds.
settings.register_profile("guest", settings.get_profile("ci"), max_examples=2)
# "dev" looks for new examples; "long" looks for a while.
settings.register_profile("dev", deadline=None)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _no_cuda() -> str | None:
    """Return why the GPU tests cannot run, or None."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return f"no CUDA bindings: {error}"
    try:
        status = driver.cuInit(0)[0]
        if status != driver.CUresult.CUDA_SUCCESS:
            return f"no CUDA device: cuInit says {status.name}"
        status, count = driver.cuDeviceGetCount()
    except RuntimeError as error:  # the bindings could not open the driver's library
        return f"no CUDA driver: {error}"
    if status != driver.CUresult.CUDA_SUCCESS or count == 0:
        return "no CUDA device"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    if any("torch" in item.keywords for item in items) and not importlib.util.find_spec("torch"):
        skip = pytest.mark.skip(reason="PyTorch is not installed: make test-torch installs it")
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(skip)
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting and (reason := _no_cuda()):
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason=reason))
    for item in items:
        if item.get_closest_marker("kmod") and not Path("/dev/deepum").exists():
            item.add_marker(pytest.mark.skip(reason="the kernel module is not loaded"))


@pytest.fixture(scope="session")
def repo() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of optional public data (``DEEPUM_DATA``), or skip."""
    value = os.environ.get("DEEPUM_DATA")
    if not value:
        pytest.skip("DEEPUM_DATA is not set: it names a folder of public traces to check against")
    path = Path(value)
    if not path.is_dir():
        pytest.skip(f"DEEPUM_DATA={value} is not a folder")
    return path
