# SPDX-License-Identifier: Apache-2.0
"""Digests on a real GPU."""

import pytest
from tests.on_gpu import run

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def test_digests_are_those_of_the_definition() -> None:
    run("""
    import numpy as np
    from cuda.bindings import driver as cuda
    from deepum._core.cuda_digest import Digester
    from deepum.cuda import digest
    from tests.vmm.digests import model

    torch.zeros(1, device="cuda")
    error, stream = cuda.cuStreamCreate(1)
    assert int(error) == 0
    digester = Digester(
        digest.PTX.encode(), digest.NAME.encode(), digest.BLOCKS, digest.THREADS, 2)
    assert digester.begin(int(stream))
    generator = np.random.default_rng(1)
    for size in (16, 48 << 10, (2 << 20) + 16 * 511, 32 << 20):
        words = generator.integers(0, 2**64, size // 8, dtype=np.uint64)
        array = torch.from_numpy(words.view(np.int64)).cuda()
        torch.cuda.synchronize()
        before = digester.of(array.data_ptr(), size, int(stream))
        assert before == model(words), size
        array[-1] ^= 1
        torch.cuda.synchronize()
        after = digester.of(array.data_ptr(), size, int(stream))
        assert after[0] != before[0] and after[1] != before[1]
    digester.end()
    """)


def test_training_is_right_where_digests_wait_behind_gates() -> None:
    """Eight streams that wait hold up all kernels of the process."""
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
