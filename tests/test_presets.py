"""The published classes of GPUs: their limits, their numbers, and how they are found."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.scheduler import SchedulerConfig
from minisched.scheduler.presets import PRESETS, find_preset, preset_for

THRESHOLDS = (20, 35, 60, 160)  # GiB, as in SGLang


def sglang(memory_gib: float, tensor_parallel: int) -> tuple[int, int]:
    """Chunk size and largest captured batch, written down from ``server_args.py``."""
    many = tensor_parallel >= 4
    if memory_gib < 20:
        return 2048, 8
    if memory_gib < 35:
        return 2048, 80 if many else 24
    if memory_gib < 60:
        return 4096, 160 if many else 32
    if memory_gib < 160:
        return 8192, 512 if many else 256
    return 16384, 512


@given(
    st.one_of(
        st.floats(0, 1000, exclude_min=True),
        st.builds(lambda at, by: at + by, st.sampled_from(THRESHOLDS), st.sampled_from([-1e-9, 0])),
    ),
    st.integers(1, 16),
)
def test_every_gpu_gets_what_sglang_gives_it(memory_gib: float, tensor_parallel: int) -> None:
    preset = preset_for(memory_gib, tensor_parallel)
    chunk, graphs = sglang(memory_gib, tensor_parallel)
    assert (preset.chunked_prefill_size, preset.cuda_graph_max_bs) == (chunk, graphs)
    assert preset.min_gib <= memory_gib < preset.below_gib
    assert preset.settings == {"chunked_prefill_size": chunk, "cuda_graph_max_bs": graphs}


def test_each_preset_is_a_configuration_with_advice() -> None:
    assert len({preset.name for preset in PRESETS}) == len(PRESETS)
    for preset in PRESETS:
        assert SchedulerConfig(**preset.settings)  # type: ignore[arg-type]
        assert preset.gpus and preset.recommendation.endswith(".")
        assert find_preset(preset.name.upper()) is preset


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("8GiB", "t4"),
        ("19.99GiB", "t4"),
        ("20GiB", "rtx4090"),
        ("24 gib", "rtx4090"),
        ("3x24GiB", "rtx4090"),
        ("4x24GiB", "rtx4090-tp4"),
        ("40GiB", "a100-40gb"),
        ("8x40GiB", "a100-40gb-tp4"),
        ("80GiB", "h100"),
        ("8x141GiB", "h100-tp4"),
        ("8x192GiB", "b200"),
    ],
)
def test_a_preset_is_found_by_memory(text: str, name: str) -> None:
    assert find_preset(text).name == name


@pytest.mark.parametrize("text", ["", "0GiB", "0x24GiB", "-24GiB", "24", "24GB", "infGiB", "h1000"])
def test_what_is_no_preset_is_one_sentence(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"but it must be one of t4, .* such as 24GiB or 4x24GiB\."
    ):
        find_preset(text)


def test_gpus_that_do_not_exist() -> None:
    for memory_gib in (0, -1, nan, inf):
        with pytest.raises(ValueError, match="but it must be above 0"):
            preset_for(memory_gib)
    with pytest.raises(ValueError, match="tensor_parallel is 0"):
        preset_for(24, 0)
