"""The tiny Llama that other tests run on: reproducible, and not vacuous."""

import os
from pathlib import Path

import mlx.core as mx
import pytest
import torch
import transformers
from mlx_lm.utils import load_model

from minisched.models.tiny import write_tiny_llama
from minisched.models.weights import WeightsError, find_model, read_config


def test_a_tiny_llama_depends_on_its_seed_alone(tiny_llama: Path, tmp_path: Path) -> None:
    again, other = write_tiny_llama(tmp_path / "again"), write_tiny_llama(tmp_path / "b", seed=1)
    assert find_model(again) == again
    for file in ("config.json", "model.safetensors"):
        assert (again / file).read_bytes() == (tiny_llama / file).read_bytes()
    assert (again / file).read_bytes() != (other / file).read_bytes()
    assert sorted(os.listdir(again)) == ["config.json", "model.safetensors"]


def test_a_tiny_llama_of_unusable_sizes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^intermediate is 100, not a multiple of 32\.$"):
        write_tiny_llama(tmp_path, intermediate=100)
    with pytest.raises(WeightsError, match="4 attention heads cannot share 3 key-value heads"):
        write_tiny_llama(tmp_path, kv_heads=3)
    assert list(tmp_path.iterdir()) == []


def test_a_tiny_llama_says_something_and_the_same_everywhere(tiny_llama: Path) -> None:
    """torch and MLX continue alike; what they say is varied and depends on the first token."""
    torch_model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama)
    mlx_model, _ = load_model(tiny_llama)
    prompts = torch.tensor([[first, 2, 3, 4, 5, 6, 7, 8] for first in range(16, 32)])
    ids = torch_model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=32,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    said = ids[:, 8:].tolist()  # [num_prompts, 32]
    logits = mlx_model(mx.array(ids.tolist()))
    assert logits.shape == (16, 40, read_config(tiny_llama).vocab_size)
    assert mx.argmax(logits[:, 7:-1], axis=-1).tolist() == said
    distinct = [len(set(row)) for row in said]
    assert sum(distinct) / len(distinct) >= 24 and min(distinct) >= 12
    assert len({tuple(row) for row in said}) == len(said)
