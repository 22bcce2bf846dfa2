from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.execution import Runtime
from sodap.learning import Learner
from sodap.streams import Stream


def tf32() -> bool:
    return torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_autocast_follows_the_precision(precision: str) -> None:
    runtime = Runtime("cpu", precision)
    square = torch.ones(2, 2)
    with runtime.autocast():
        product = square @ square
    assert product.dtype == (torch.float32 if precision == "fp32" else torch.bfloat16)
    with runtime.stage_context():
        assert (square @ square).dtype == product.dtype
    assert (square @ square).dtype == torch.float32


def test_weights_that_a_stage_overwrites_are_used() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    with Runtime("cpu", "bf16").stage_context(), torch.no_grad():
        before = torch.ones(1, 2) @ weight
        weight.mul_(2)
        assert torch.equal(torch.ones(1, 2) @ weight, 2 * before)


def test_tf32_is_for_bf16_on_a_gpu_and_for_gradients(stripes: Stream) -> None:
    trained, solved = (
        Learner(stripes.classes, method=name, device="cpu").method for name in ("sequential", "ncm")
    )
    runtime = Runtime("cpu", "bf16")
    with runtime.tf32(trained):
        assert not tf32()
    runtime.half_on_gpu = True  # as on a GPU
    with runtime.tf32(solved):
        assert not tf32()
    with runtime.tf32(trained):
        assert tf32()
        with runtime.stage_context():
            pass
    assert not tf32()
    with pytest.raises(ZeroDivisionError), runtime.tf32(trained):
        raise ZeroDivisionError
    assert not tf32()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    runtime = Runtime(cuda_graphs=True)
    assert runtime.device.type == "cpu"
    assert not runtime.cuda_graphs
    runtime.release_cache()
    with pytest.raises(SodapError, match="sees no GPU"):
        Runtime("cuda")


def test_observations_are_prepared_and_in_the_given_order(stripes: Stream) -> None:
    learner = Learner(stripes.classes, method="sequential", device="cpu")
    method, split = learner.method, stripes.domains[0].train

    def order() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    observed = learner.runtime.observe(method, split, 10, order())
    for _ in range(2):  # again, in the same order
        batches = list(observed)
        assert [len(labels) for _, labels in batches] == [10, 10, 4]
        shuffled = torch.randperm(len(split), generator=order())
        labels = torch.cat([labels for _, labels in batches])
        assert torch.equal(labels, split.labels[shuffled])
        images: Tensor = torch.cat([images for images, _ in batches])
        torch.testing.assert_close(images, method.backbone.prepare(split.images[shuffled]))
