"""``--preset auto``: the preset of the GPU that torch sees."""

from __future__ import annotations

from typing import Any

from ..devices.registry import load
from .presets import Preset, find_preset, preset_for

AUTO = "auto"
GIB = 1 << 30


def preset_named(text: str) -> Preset:
    """A preset by name or memory, or with ``auto`` that of the first GPU here, by itself.

    SGLang does as much when it starts (``server_args.py:_handle_gpu_memory_settings``).

    Raises:
        ValueError: there is no such preset, or torch is not there or sees no GPU.
    """
    if text.lower() != AUTO:
        return find_preset(text)
    wanted_by = "preset auto"  # ``in_words_of_options`` spells it as on the command line
    if not load("torch.cuda", "is_available", "torch", wanted_by)():
        raise ValueError(
            "preset is 'auto', but torch sees no GPU; say its name, or its memory as in 24GiB."
        )
    properties: Any = load("torch.cuda", "get_device_properties", "torch", wanted_by)
    return preset_for(properties(0).total_memory / GIB)
