"""Llama 3.x, Qwen2 and Qwen3 beside transformers, and the dtype that models compute in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from minisched.checks.tokens.identity import first_difference
from minisched.checks.tokens.margin import with_margin
from minisched.comparison import compare_loops
from minisched.core import Request, SamplingParams
from minisched.devices.cost import NO_COST
from minisched.devices.registry import open_device
from minisched.export.recorded import read_recorded
from minisched.loops.run import Run, run_loop
from minisched.models.llama_torch import LlamaTorch
from minisched.models.registry import open_model
from minisched.models.weights import WeightsError, find_model
from minisched.scheduler import SchedulerConfig
from tests.llama_kinds import KINDS, LLAMA3, prompt

DEVICES = ("thread", "mlx")
LENGTHS = (3, 40, 150, 200)
NEW_TOKENS, FEW = 40, 12
CONFIG = SchedulerConfig(chunked_prefill_size=64, page_size=4, context_len=512)
FELT = ("llama 3.1", "mlp bias", "biases", "qwen2", "qwen3 biases")
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
ON_BOTH = pytest.mark.parametrize("device", DEVICES)


def some(new_tokens: int = NEW_TOKENS) -> list[Request]:
    """A short prompt and three that are longer and longer."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    return [Request(f"r{i}", prompt(i, length), params) for i, length in enumerate(LENGTHS)]


def said(folder: Path, device: str, dtype: str = "auto") -> Run:
    """A run of them, through the door that users take."""
    model = open_model(str(folder), device, dtype)
    run = run_loop("overlap", open_device(device), model, some(), CONFIG)
    assert not run.errors
    return run


# -- beside transformers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def truth(kinds: dict[str, Path]) -> Callable[[str], dict[str, list[int]]]:
    """What transformers says, greedily and one request after the other."""

    @lru_cache
    def generate(kind: str) -> dict[str, list[int]]:
        lm: Any = transformers.AutoModelForCausalLM.from_pretrained(
            kinds[kind], dtype=torch.float32
        )
        assert type(lm).__name__.lower().startswith(KINDS[kind].get("model_type", "llama"))
        return {
            req.rid: lm.generate(
                torch.tensor([req.prompt]), attention_mask=torch.ones(1, len(req.prompt)).long(),
                do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0, eos_token_id=None,
            )[0, len(req.prompt) :].tolist()
            for req in some()
        }  # fmt: skip

    return generate


@ON_BOTH
@EVERY_KIND
def test_the_tokens_are_those_of_transformers(
    kind: str, device: str, kinds: dict[str, Path], truth: Any
) -> None:
    assert said(kinds[kind], device).outputs == truth(kind)


@pytest.mark.parametrize("kind", FELT)
def test_every_vector_and_every_setting_is_felt(
    kind: str, kinds: dict[str, Path], truth: Any, tmp_path: Path
) -> None:
    """Whoever forgot one would say something else: the test above can fail."""
    said = {rid: truth(kind)[rid][:FEW] for rid in ("r2", "r3")}
    assert min(len(set(tokens)) for tokens in said.values()) > 4
    tensors = load_file(kinds[kind] / "model.safetensors")
    config = json.loads((kinds[kind] / "config.json").read_text())
    parts = {name.split(".", 3)[-1] for name, value in tensors.items() if value.dim() == 1}
    for part in parts:
        plain = torch.zeros_like if part.endswith("bias") else torch.ones_like
        without = {
            name: plain(value) if name.endswith(part) else value for name, value in tensors.items()
        }
        assert said != changed(tmp_path, config, without), part
    for name in ("rope_scaling", "rope_parameters"):
        for setting in config.get(name, {}):
            if setting not in ("rope_type", "type"):
                other = {**config[name], setting: 1.5 * config[name][setting]}
                if setting.startswith("original"):
                    other[setting] = round(other[setting])
                assert said != changed(tmp_path, {**config, name: other}, tensors), setting


def changed(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> dict[str, list[int]]:
    """What a model says of this configuration and these weights, to the longer prompts."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    model = LlamaTorch(folder, scripted=False)
    return run_loop("serial", open_device("thread"), model, some(FEW)[2:], CONFIG).outputs


# -- what is refused ---------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mistral": ({"model_type": "mistral"}, "model_type is 'mistral'; only 'llama', 'qwen2' and"),
    "a list": ({"model_type": []}, "model_type is []; only"),
    "dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_scaling of type 'dynamic' is not supported; only default, linear, llama3 are.",
    ),
    "yarn": ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters of type 'yarn' is not"),
    "by layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
        "rope_parameters by layer type is not supported.",
    ),
    "partial": (
        {"rope_scaling": LLAMA3, "partial_rotary_factor": 0.5},
        "rope_scaling with partial_rotary_factor 0.5 is not supported.",
    ),
    "both": (
        {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default"}},
        "rope_scaling and rope_parameters are there, and differ.",
    ),
    "text": ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3', not an object."),
    "no factor": ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing."),
    "factor": (
        {"rope_scaling": {**LLAMA3, "factor": -8}},
        "rope_scaling: factor is -8, not a number above 0.",
    ),
    "low": (
        {"rope_scaling": {**LLAMA3, "low_freq_factor": 4}},
        "rope_scaling: low_freq_factor is 4.0, but it must be below high_freq_factor, which is 4.0",
    ),
    "original": (
        {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64.5}},
        "rope_scaling: original_max_position_embeddings is 64.5, not a whole number above 0.",
    ),
    "bias": ({"attention_bias": "yes"}, "attention_bias is 'yes', not true or false."),
    "window": (
        {"model_type": "qwen2", "use_sliding_window": True},
        "use_sliding_window True is not supported.",
    ),
    "layers": (
        {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
        "a layer of type 'sliding_attention' is not supported.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_built_is_refused_in_a_sentence(
    case: str, kinds: dict[str, Path], tmp_path: Path
) -> None:
    more, sentence = REFUSED[case]
    config = json.loads((kinds["llama"] / "config.json").read_text()) | more
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError) as caught:
        find_model(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {sentence}")
    assert "\n" not in str(caught.value)


# -- the dtype ---------------------------------------------------------------------------------


def in_dtype(folder: Path, to: Path, dtype: torch.dtype) -> Path:
    """A copy whose tensors are of that dtype; config.json says what it said."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    save_file({name: value.to(dtype) for name, value in tensors.items()}, to / "model.safetensors")
    return to


@pytest.mark.parametrize(
    ("stored", "computed"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32")],
)
def test_auto_means_the_same_on_every_device(
    stored: str, computed: str, kinds: dict[str, Path], tmp_path: Path
) -> None:
    folder = in_dtype(kinds["llama"], tmp_path / stored, getattr(torch, stored))
    for device in DEVICES:
        model: Any = open_model(str(folder), device)
        run = run_loop("serial", open_device(device), model, some(2), CONFIG)
        kept = model.keys if device == "thread" else model.caches[0].pool
        weights = model.weights.embed.dtype, model.weights.final_norm.dtype, kept.dtype
        assert [str(dtype).split(".")[-1] for dtype in weights] == [computed] * 3
        assert (model.dtype, run.trace.dtype) == (computed, computed)


@ON_BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "biases", "qwen3 biases"])
def test_every_loop_says_the_same_in_every_dtype(
    kind: str, dtype: str, device: str, kinds: dict[str, Path]
) -> None:
    model = open_model(str(kinds[kind]), device, dtype)
    loops = ["overlap", "vllm_async", "mindie_dual", "multi_step"]
    loops += ["mlx_async"] * (device == "mlx")
    params = [SamplingParams(0.8 * (i % 2), max_new_tokens=16, ignore_eos=True) for i in range(4)]
    requests = [Request(f"r{i}", prompt(i, length), params[i]) for i, length in enumerate(LENGTHS)]
    found = compare_loops(loops, device, model, requests, CONFIG, NO_COST)
    assert found.identical and not found.errors
    assert {run.trace.dtype for run in found.runs} == {dtype}
    assert sum(map(len, found.runs[0].outputs.values())) == 64


@EVERY_KIND
def test_both_libraries_say_the_same_in_float32(kind: str, kinds: dict[str, Path]) -> None:
    one, two = (said(kinds[kind], device, "float32").outputs for device in DEVICES)
    assert one == two


@EVERY_KIND
def test_where_libraries_differ_in_bfloat16_the_choice_was_close(
    kind: str, kinds: dict[str, Path]
) -> None:
    """A logit here is near 10, where bfloat16 knows every sixteenth."""
    torchs, mlxs = (said(kinds[kind], device, "bfloat16") for device in DEVICES)
    if found := first_difference("mlx", torchs.outputs, mlxs.outputs):
        model = open_model(str(kinds[kind]), "thread", "float32")
        close = with_margin(found, "thread", model, CONFIG, some(), torchs)
        print(kind, close)
        assert close.margin is not None and close.margin < 0.5


@ON_BOTH
@pytest.mark.parametrize("dtype", ["float16", "float64", "int4", ""])
def test_a_dtype_that_a_device_can_not_do_is_refused(
    dtype: str, device: str, kinds: dict[str, Path]
) -> None:
    if (dtype, device) == ("float64", "thread"):
        return
    with pytest.raises(ValueError, match=f"^dtype is '{dtype}', but with .* one of auto, float32"):
        open_model(str(kinds["llama"]), device, dtype)


@pytest.mark.parametrize("device", ["sim", *DEVICES])
def test_the_hash_model_has_no_dtype(device: str) -> None:
    with pytest.raises(ValueError, match=r"^dtype is 'float32', but model 'hash' computes"):
        open_model("hash", device, "float32")


# -- the commands ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_text(kinds: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 in bfloat16 that reads and writes bytes."""
    folder = tmp_path_factory.mktemp("text") / "qwen3"
    in_dtype(kinds["qwen3"], folder, torch.bfloat16)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: at for at, letter in enumerate(letters)}
    vocab |= {f"<{at}>": at for at in range(len(vocab), 512)}
    Tokenizer(models.BPE(vocab, [])).save(str(folder / "tokenizer.json"))
    return folder


@ON_BOTH
def test_compare_says_which_dtype(with_text: Path, device: str, cli: Any) -> None:
    line = f"compare --device {device} --model {with_text} --max-new-tokens 4 --requests 2"
    for dtype, computed in {"float32": "float32", "auto": "bfloat16"}.items():
        code, out, err = cli(f"{line} --dtype {dtype} --json")
        assert code == 0, err
        assert (json.loads(out)["identical"], json.loads(out)["dtype"]) == (True, computed)
        traces = [file for file in json.loads(out)["files"] if file.endswith(".json")]
        own = [file for file in traces if not file.endswith(".trace.json")]
        assert {read_recorded(Path(file)).trace.dtype for file in traces} == {computed}
        assert len(own) == 2
    code, out, _ = cli(line)
    assert code == 0 and f"qwen3 model on {device} in bfloat16" in out
    code, out, _ = cli(f"check {own[1]}")
    assert code == 0 and f" on {device} qwen3 bfloat16, wall clock" in out
    code, out, _ = cli(f"{line.replace('compare', 'run')} --json")
    assert code == 0 and json.loads(out)["dtype"] == "bfloat16"
    code, _, err = cli(f"{line} --dtype float16")
    assert code == 2 and err.startswith("minisched: dtype is 'float16', but with ")


def test_a_dtype_of_no_use_is_refused(cli: Any) -> None:
    for line in ("compare --dtype float32", "bench scheduler --dtype float32",
                 "calibrate --model hash --dtype bfloat16"):  # fmt: skip
        code, _, err = cli(line)
        assert code == 2 and "dtype" in err and err.count("\n") == 1
