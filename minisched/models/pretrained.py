"""A checkpoint as transformers loads it: for the adapter to its models, and for the own Llama."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from ..devices.base import reason_of
from .checkpoint import AUTO, WeightsError, check_dtype, eos_of, read_config

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@contextmanager
def silent_library() -> Iterator[None]:
    """Keep transformers' progress bars and reports off the terminal; errors are raised."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(before)


def load_pretrained(directory: Path, dtype: str = AUTO) -> Any:
    """Return a model of transformers, from a directory in Hugging Face's form.

    Raises:
        ValueError: ``dtype`` is unknown, or the directory does not hold a model that transformers
            loads; one sentence.
    """
    check_dtype(dtype, DTYPES, "torch")
    if read_config(directory).get("quantization"):
        raise WeightsError(
            f"{directory} is quantized for MLX; use --device mlx, or take the checkpoint that "
            "it was made from."
        )
    try:
        with silent_library():
            config = AutoConfig.from_pretrained(directory, local_files_only=True)
            config.dtype = None  # so that ``auto`` is the dtype of the tensors
            model, info = AutoModelForCausalLM.from_pretrained(
                directory, config=config, dtype=DTYPES.get(dtype, AUTO), local_files_only=True,
                output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception as error:  # the library raises many kinds
        reason = reason_of(error).rstrip(".")
        raise WeightsError(f"{directory} could not be loaded by transformers: {reason}.") from error
    misshapen = {name for name, *_ in info["mismatched_keys"]}
    for name in sorted(info["missing_keys"] | misshapen):
        raise WeightsError(f"{directory} lacks the tensor {name} in the shape of config.json.")
    return model if model.dtype in DTYPES.values() else model.float()


def end_ids(model: Any) -> frozenset[int]:
    """Return the end-of-text ids of config.json and of generation_config.json."""
    configs = model.config.get_text_config(), model.generation_config
    return frozenset(chain(*(eos_of(getattr(it, "eos_token_id", None)) for it in configs)))


def convert(gguf_file: Path, directory: Path) -> None:
    """Save the model of a GGUF file in Hugging Face's form, in float32, for torch and for MLX.

    Three things are not as transformers leaves them. ``rope_theta`` also stands at the top level,
    because mlx-lm overlooks it in ``rope_parameters`` and uses 10,000. ``rms_norm_eps`` loses the
    digits of a float32. A tokenizer of SmolLM splits digits (llama.cpp
    ``LLAMA_VOCAB_PRE_TYPE_SMOLLM``).
    """
    from gguf import GGUFReader

    source: dict[str, Any] = {"gguf_file": gguf_file.name, "local_files_only": True}
    with silent_library():
        model = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent, dtype="float32", quantization_config=GgufConfig(dequantize=True),
            **source,
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, **source)
        kind = GGUFReader(gguf_file).get_field("tokenizer.ggml.pre")
        if kind is not None and kind.contents() == "smollm":
            codec = tokenizer.backend_tokenizer
            digits = pre_tokenizers.Digits(individual_digits=True)
            codec.pre_tokenizer = pre_tokenizers.Sequence([digits, codec.pre_tokenizer])
        config = model.config
        if "rope_theta" in (getattr(config, "rope_parameters", None) or {}):
            config.rope_theta = config.rope_parameters["rope_theta"]
        if hasattr(config, "rms_norm_eps"):
            config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
