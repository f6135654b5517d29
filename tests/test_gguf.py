"""Laws of the conversion: no weight changes, and both libraries read the directory alike."""

import hashlib
import json
import re
from pathlib import Path

import gguf
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
import transformers
from mlx_lm.generate import generate_step
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from minisched.models.gguf import KEY_LENGTH, WHOLE_HEADS, GGUFError, convert, hf_name
from minisched.models.tiny import write_tiny_llama
from minisched.models.weights import find_model, read_config
from tests.tiny_gguf import write_tiny_gguf

# Of SmolLM2's 272 float32 tensors, in the order of their names. They were compared, bit for bit,
# with MLX's own reading of the GGUF file and with transformers' (``gguf_file=``).
SMOLLM2_WEIGHTS = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"


def converted(tmp_path: Path, model: Path, **how: object) -> Path:
    """A tiny Llama, written as GGUF and converted back."""
    file, directory = tmp_path / "tiny.gguf", tmp_path / "converted"
    write_tiny_gguf(file, model, read_config(model), **how)
    directory.mkdir()
    convert(file, directory)
    return directory


def test_unquantized_weights_come_back_bit_for_bit(tmp_path: Path, tiny_llama: Path) -> None:
    directory = converted(tmp_path, tiny_llama)
    before, after = (load_file(d / "model.safetensors") for d in (tiny_llama, directory))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert weight.tobytes() == after[name].tobytes(), name


def mlx_reads(file: Path, bits: int) -> dict[str, mx.array]:
    """Every weight of a GGUF file as MLX understands it, float32, in llama.cpp's order."""
    with mx.stream(mx.cpu):
        found = mx.load(str(file))
        weights = {}
        for name in (name for name in found if name.endswith(".weight")):
            scales, biases = (found.get(name.replace("weight", k)) for k in ("scales", "biases"))
            if scales is None:
                weights[name] = found[name]
                continue
            exact = [array.astype(mx.float32) for array in (scales, biases)]
            weights[name] = mx.dequantize(found[name], *exact, group_size=32, bits=bits)
        return weights


@pytest.mark.parametrize(("quantization", "bits"), [("Q4_1", 4), ("Q8_0", 8)])
def test_quantized_weights_are_those_that_mlx_reads(
    tmp_path: Path, tiny_llama: Path, quantization: str, bits: int
) -> None:
    directory = converted(tmp_path, tiny_llama, quantization=quantization)
    ours = load_file(directory / "model.safetensors")
    config = read_config(tiny_llama)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    theirs = mlx_reads(tmp_path / "tiny.gguf", bits)
    assert {hf_name(name) for name in theirs} == ours.keys()
    for name, weight in theirs.items():
        part = hf_name(name).split(".")[-2]
        if part in heads:
            weight = weight.reshape(heads[part], config.head_dim // 2, 2, -1).swapaxes(1, 2)
        values = np.array(weight).reshape(ours[hf_name(name)].shape)
        assert values.tobytes() == ours[hf_name(name)].tobytes(), name


def test_sizes_come_back(tmp_path: Path, tiny_llama: Path) -> None:
    directory = converted(tmp_path, tiny_llama)
    before, after = read_config(tiny_llama), read_config(directory)
    assert after.eos_ids == {2}
    assert {**vars(before), "eos_ids": None} == {**vars(after), "eos_ids": None}
    assert find_model(directory) == directory


def test_a_head_may_have_a_size_of_its_own(tmp_path: Path) -> None:
    """Not hidden / heads, as with Mistral NeMo: the sizes of q, k, v and o follow it."""
    model = write_tiny_llama(tmp_path / "wide")
    config = json.loads((model / "config.json").read_text())
    config["head_dim"] *= 2
    (model / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    tensors = {name: random.standard_normal(shape, np.float32)
               for name, shape in read_config(model).tensor_shapes()}  # fmt: skip
    save_file(tensors, model / "model.safetensors")
    sizes = dict.fromkeys((KEY_LENGTH, *WHOLE_HEADS), config["head_dim"])
    directory = converted(tmp_path, model, more=sizes)
    assert read_config(directory).head_dim == config["head_dim"]
    assert find_model(directory) == directory
    after = load_file(directory / "model.safetensors")
    assert all(tensors[name].tobytes() == after[name].tobytes() for name in tensors)


@pytest.mark.parametrize(
    "more",
    [{"llama.rope.dimension_count": 16}, {"llama.attention.key_length": 16},
     {"llama.rope.scaling.type": "none"}, {"llama.rope.scaling.type": "linear"},
     {"llama.rope.scaling.factor": 1.0}],
    ids=str,
)  # fmt: skip
def test_an_entry_that_changes_nothing_is_taken(
    tmp_path: Path, tiny_llama: Path, more: dict[str, int | float | str]
) -> None:
    assert read_config(tiny_llama).head_dim == 16
    assert read_config(converted(tmp_path, tiny_llama, more=more)).head_dim == 16


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "type is 'yarn'; only 'none' or 'linear' is supp"),
        ({"llama.rope.scaling.factor": 4.0}, "factor is 4.0; only 0.0 or 1.0 is supported."),
        ({"llama.rope.scale_linear": 2.0}, "rope.scale_linear is 2.0; only 0.0 or 1.0 is"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8; only 16 is supported."),
        ({"llama.attention.value_length": 8}, "attention.value_length is 8; only 16 is supported."),
        ({"llama.attention.sliding_window": 64}, "window is 64; that entry is not supported."),
        ({"llama.rope.scaling.original_context_length": 64}, "is 64; that entry is not supported."),
    ],
)
def test_an_entry_that_would_make_another_model_is_refused(
    tmp_path: Path, tiny_llama: Path, more: dict[str, int | float | str], complaint: str
) -> None:
    with pytest.raises(GGUFError, match=re.escape(complaint)) as refused:
        converted(tmp_path, tiny_llama, more=more)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "converted").iterdir())


def test_a_file_without_a_head_gives_a_tied_model(tmp_path: Path, tiny_llama: Path) -> None:
    directory = converted(tmp_path, tiny_llama, tied=True)
    assert read_config(directory).tie_word_embeddings
    assert find_model(directory) == directory


def test_rope_theta_is_where_mlx_lm_looks_for_it(tmp_path: Path, tiny_llama: Path) -> None:
    config = json.loads((converted(tmp_path, tiny_llama) / "config.json").read_text())
    assert config["rope_theta"] == read_config(tiny_llama).rope_theta


def test_the_tokenizer_splits_digits_and_knows_special_tokens(
    tmp_path: Path, tiny_llama: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted(tmp_path, tiny_llama))
    text = "the 12 at<|im_end|>é 漢"
    tokens = tokenizer.tokenize(text)
    assert tokens[:6] == ["t", "he", "Ġ", "1", "2", "Ġ"]  # never the token "12"
    assert "<|im_end|>" in tokens and tokenizer.eos_token_id == 2
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hello"


def test_a_cut_file_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, tiny_llama, read_config(tiny_llama))
    whole = file.read_bytes()
    for length in (0, 3, 20, 300, len(whole) // 2, len(whole) - 64):
        file.write_bytes(whole[:length])
        with pytest.raises(GGUFError, match=r"tiny\.gguf is not a whole GGUF file"):
            convert(file, tmp_path)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "no entry 'tokenizer.ggml.pre'"),
        ({"tokenizer.ggml.pre": "qwen2"}, "tokenizer.ggml.pre is 'qwen2'; only 'smollm'"),
        ({"tokenizer.ggml.pre": "smollm"}, "no entry 'llama.attention.head_count'"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, fields: dict[str, str], complaint: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bad.gguf", "llama")
    for key, value in fields.items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(GGUFError, match=complaint):
        convert(tmp_path / "bad.gguf", tmp_path)


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_gate_exps\.weight'"):
        hf_name("blk.0.ffn_gate_exps.weight")


@pytest.mark.weights
def test_smollm2_is_the_one_that_was_compared(smollm2: Path) -> None:
    digest = hashlib.sha256()
    with safe_open(smollm2 / "model.safetensors", framework="np") as tensors:
        names = sorted(tensors.keys())
        for name in names:
            digest.update(name.encode() + tensors.get_tensor(name).tobytes())
    assert len(names) == 272 and "lm_head.weight" not in names
    assert digest.hexdigest() == SMOLLM2_WEIGHTS


@pytest.mark.weights
def test_transformers_and_mlx_lm_say_the_same(smollm2: Path) -> None:
    torch_model = transformers.AutoModelForCausalLM.from_pretrained(smollm2)
    mlx_model, _ = mlx_lm.load(str(smollm2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    chat = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    for prompt, sense in (("The capital of France is", " Paris"), (chat, "The sky appears blue")):
        ids = tokenizer(prompt)["input_ids"]
        batch = torch.tensor([ids])
        said = torch_model.generate(
            batch,
            attention_mask=torch.ones_like(batch),  # the prompt's <|im_end|> is no padding
            max_new_tokens=32,
            do_sample=False,
            eos_token_id=None,
        )[0, len(ids) :].tolist()
        lazily = generate_step(mx.array(ids), mlx_model, max_tokens=32)
        assert said == [int(token) for token, _ in lazily]
        assert sense in tokenizer.decode(said)
