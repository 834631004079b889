# SPDX-License-Identifier: Apache-2.0
"""Digests on a real GPU."""

import pytest
from tests.on_gpu import run

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

BEGIN = """
import numpy as np
from cuda.bindings import driver as cuda
from deepum._core.cuda_copier import Copier
from deepum.cuda import copier as kernel
from tests.vmm.digests import model

def ok(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

torch.zeros(1, device="cuda")
_, greatest = ok(cuda.cuCtxGetStreamPriorityRange())
stream = int(ok(cuda.cuStreamCreateWithPriority(1, greatest)))
copier = Copier(
    kernel.PTX.encode(), kernel.NAME.encode(), kernel.COPYING, kernel.BOTH, kernel.READING,
    kernel.THREADS, 2)
assert copier.begin(0, stream)
"""


def test_copies_and_digests_are_those_of_the_definition() -> None:
    run(
        BEGIN
        + """
generator = np.random.default_rng(1)
for size in (16, 48 << 10, (2 << 20) + 16 * 511, 32 << 20):
    words = generator.integers(0, 2**64, size // 8, dtype=np.uint64)
    array = torch.from_numpy(words.view(np.int64)).cuda()
    host = torch.zeros_like(array, device="cpu").pin_memory()
    torch.cuda.synchronize()
    before = copier.run(array.data_ptr(), size, 0, True, stream)
    assert before == model(words), size
    assert not host.any()
    assert copier.run(array.data_ptr(), size, host.data_ptr(), True, stream) == before
    assert torch.equal(host, array.cpu())
    host.zero_()
    assert copier.run(array.data_ptr(), size, host.data_ptr(), False, stream) is None
    assert torch.equal(host, array.cpu())
    array[-1] ^= 1
    torch.cuda.synchronize()
    after = copier.run(array.data_ptr(), size, 0, True, stream)
    assert after[0] != before[0] and after[1] != before[1]
copier.end()
"""
    )


def test_training_is_right_where_the_kernel_waits_behind_a_gate() -> None:
    """Eight streams' gates hold up all kernels of the process: the copy engine has to copy."""
    run("""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    streams = [torch.cuda.Stream() for _ in range(12)]

    def train():
        tensors = [torch.full((8 * MIB,), float(k), device="cuda") for k in range(36)]
        torch.cuda.synchronize()
        for step in range(3):
            for k in range(36):
                with torch.cuda.stream(streams[k % 12]):
                    tensors[k].mul_(1.5).add_(tensors[(k + 12) % 36])
                    tensors[k].record_stream(streams[k % 12])
            torch.cuda.synchronize()
        return [tensor.cpu() for tensor in tensors]

    same_as_native(train, limit="512MiB", backend="vmm")
    """)
