"""A model's directory in Hugging Face's form: its place, its config.json and its dtype.

transformers or mlx-lm reads the weights, and reports what a directory lacks. ``is_plain_llama``
recognizes a Llama that this project computes itself (``llama_torch.py``). A library computes
everything else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AUTO = "auto"  # of dtypes: the checkpoint's own


class WeightsError(ValueError):
    """A model cannot be used; the message is one sentence with the reason."""


def model_home() -> Path:
    """Return the folder of fetched models: ``$MINISCHED_HOME``, or ``~/.cache/minisched``."""
    home = os.environ.get("MINISCHED_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "minisched"


def read_config(directory: Path) -> dict[str, Any]:
    """Return config.json.

    Raises:
        WeightsError: it is missing, or no JSON object.
    """
    file = directory / "config.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{directory} lacks config.json.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise WeightsError(f"{file} is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{file} is not a JSON object.")
    return content


def eos_of(found: Any) -> frozenset[int]:
    """Return the ids of an ``eos_token_id``: None, one id, or several."""
    return frozenset([found] if isinstance(found, int) else found or ())


PLAIN: dict[str, Any] = {  # settings of config.json, with the value that an absent one means
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1,
    "quantization": None,
    "quantization_config": None,
}


def is_plain_llama(config: Mapping[str, Any]) -> bool:
    """Return whether a model is a Llama without a setting that ``llama_torch.py`` lacks."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return (
        config.get("model_type") == "llama"
        and all(config.get(name) in (None, value) for name, value in PLAIN.items())
        and isinstance(rope, dict)
        and rope.get("rope_type", rope.get("type", "default")) == "default"
        and rope.get("partial_rotary_factor", 1) == 1
    )


def check_dtype(dtype: str, known: Mapping[str, object], library: str) -> None:
    """Refuse a dtype that is neither ``auto`` nor ``known`` to the library.

    ``auto`` is bfloat16 where the checkpoint's tensors are, and float32 for any other. (vLLM and
    SGLang read it in config.json, keep float16, and make float16 of float32. Here auto means the
    same on every device.)

    Raises:
        ValueError: it is neither.
    """
    if dtype not in (AUTO, *known):
        names = ", ".join([AUTO, *known])
        raise ValueError(f"dtype is {dtype!r}, but with {library} it must be one of {names}.")
