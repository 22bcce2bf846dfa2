"""The profile of a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.profile import (
    COLUMNS,
    KINDS,
    Kernel,
    contenders,
    draw,
    kind_by_name,
    profile_step,
    replayed,
    runs,
    summed,
)


def test_every_microsecond_is_counted_once() -> None:
    kernels = [
        Kernel("gemm", 100.0, 30.0, "products"),
        Kernel("flash", 120.0, 30.0, "attention"),  # overlaps by 10
        Kernel("inner", 125.0, 5.0, "prompter"),  # within the two
        Kernel("adam", 180.0, 20.0, "optimiser"),
    ]
    found = summed(kernels)
    assert found["watched_milliseconds"] == 0.1
    assert found["sums"] == pytest.approx(
        {
            "attention": 0.02,
            "products": 0.03,
            "norm, pointwise": 0.0,
            "prompter": 0.0,
            "optimiser": 0.02,
            "idle": 0.03,
        }
    )
    line = found["line"]
    assert line == "m" * 144 + "a" * 96 + "." * 144 + "o" * 96
    assert list(runs(line, "a")) == [(0.3, 0.2)]
    assert sum(share for letter, _ in KINDS.values() for _, share in runs(line, letter)) == 1


def test_a_column_shows_the_longest_kind() -> None:
    tiny = [Kernel("x", float(at), 0.4, "norm, pointwise") for at in range(COLUMNS)]
    found = summed([*tiny, Kernel("y", COLUMNS - 0.5, 0.5, "optimiser")])
    assert found["line"] == "." * (COLUMNS - 1) + "o"
    assert found["sums"]["norm, pointwise"] == pytest.approx(0.4 * COLUMNS / 1e3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "products"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "products"),
        ("aten::addmm", "products"),
        ("aten::bmm", "products"),
        ("triton_per_fused_native_layer_norm_3", "norm, pointwise"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_view_2", "norm, pointwise"),
        ("triton_tem_fused_addmm_7", "products"),
        ("aten::baddbmm", "products"),
        ("aten::convolution", "products"),
        ("aten::native_layer_norm", "norm, pointwise"),
        ("aten::gelu", "norm, pointwise"),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimiser"),
        ("_entmax15_forward", "prompter"),
    ],
)
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert kind_by_name(name) == kind


def test_a_replay_has_the_kinds_of_the_captured_step() -> None:
    launched = [Kernel("gemm", 0, 1, "prompter"), Kernel("gemm", 1, 1, "products")]
    again = [Kernel("gemm", 10.0 * at, 1, "products") for at in range(3)]
    kinds = [each.kind for each in replayed(again, launched)]
    assert kinds == ["prompter", "products", "products"]


def test_a_step_on_a_cpu(tmp_path: Path) -> None:
    steps = {name: profile_step(each) for name, each in contenders("cpu", "micro", 4)}
    for step in steps.values():
        assert sum(step["sums"].values()) == pytest.approx(step["watched_milliseconds"], abs=0.01)
        assert all(step["sums"][kind] > 0 for kind in KINDS)
        assert len(step["line"]) == COLUMNS
    record: dict[str, Any] = {"steps": steps}
    for name in ("one.svg", "two.svg"):
        draw(record, tmp_path / name)
    picture = (tmp_path / "one.svg").read_text("utf-8")
    assert picture == (tmp_path / "two.svg").read_text("utf-8")
    assert len(picture) < 150_000
    for word in (*KINDS, *steps, "milliseconds"):
        assert word in picture
