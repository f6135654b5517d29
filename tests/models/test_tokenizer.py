"""Text in and out: no stream shows half a character; and a real model, beside other libraries."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from minisched.core import Request, SamplingParams
from minisched.devices.registry import open_device
from minisched.features.stop_strings import StopStrings
from minisched.loops.run import run_loop
from minisched.models.checkpoint import WeightsError, read_config
from minisched.models.pretrained import end_ids, load_pretrained
from minisched.models.registry import find_model, open_model
from minisched.models.tokenizer import (
    ByteTokenizer,
    StreamDecoder,
    TextCodec,
    Tokenizer,
)
from minisched.scheduler import SchedulerConfig
from tests.support import PROMPTS, many

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
texts = st.text(characters)


def check_whole_characters(tokenizer: TextCodec, text: str) -> None:
    """Each increment is text without U+FFFD, and comes as soon as its characters are certain."""
    stream, shown, ids = StreamDecoder(tokenizer), "", tokenizer.encode(text)
    for count, token in enumerate(ids, start=1):
        increment = stream.push(token)
        assert "\ufffd" not in increment
        shown += increment
        so_far = tokenizer.decode(ids[:count])
        assert shown == so_far or so_far.endswith("\ufffd")
    assert shown + stream.finish() == text
    assert shown == text


def check_adds_up(tokenizer: TextCodec, ids: list[int]) -> None:
    stream = StreamDecoder(tokenizer)
    assert "".join(stream.push(token) for token in ids) + stream.finish() == tokenizer.decode(ids)
    assert stream.finish() == ""


@given(text=texts, ids=st.lists(st.integers(0, 300)))
@settings(max_examples=many(100, 250))
def test_bytes_come_back_and_stream(text: str, ids: list[int]) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    kept = bytes(token for token in ids if token < 256)
    assert tokenizer.decode(ids) == kept.decode(errors="replace")
    check_whole_characters(tokenizer, text)
    check_adds_up(tokenizer, ids)


def test_half_a_character_is_held_back() -> None:
    stream, euro = StreamDecoder(ByteTokenizer()), "€".encode()
    assert [stream.push(token) for token in euro] == ["", "", "€"]
    assert [stream.push(euro[0]), stream.push(256)] == ["", ""]
    assert stream.held_back() == stream.finish() == "\ufffd"


def test_a_directory_has_a_tokenizer_none_or_a_damaged_one(
    tiny_llama: Path, tmp_path: Path
) -> None:
    assert Tokenizer.from_directory(tiny_llama) is None
    for content in (b"", b"{}", b'{"version": "1.0", "model"', b"\xff\xfe"):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(WeightsError, match=r"tokenizer\.json is not a tokenizer \(") as caught:
            Tokenizer.from_directory(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", ["truncation", "padding"])
def test_truncation_and_padding_of_a_file_are_off(tmp_path: Path, setting: str) -> None:
    """As in transformers, which ignores both unless a call asks for them."""
    from tokenizers import Tokenizer as Codec
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {sign: at for at, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    codec = Codec(models.BPE(alphabet, []))
    codec.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codec.decoder = decoders.ByteLevel()
    if setting == "truncation":
        codec.enable_truncation(4)
    else:
        codec.enable_padding(length=16, pad_id=2, pad_token="!")
    codec.save(str(tmp_path / "tokenizer.json"))
    ours, text = Tokenizer.from_directory(tmp_path), "five words are cut here"
    assert ours is not None and ours.decode(ours.encode(text)) == text
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert ours.encode(text) == theirs.encode(text) and len(ours.encode(text)) == len(text)


@given(
    text=st.text("aé€\ufffd", max_size=6), stop=st.text("aé\ufffd", min_size=1, max_size=3),
    rest=st.sampled_from([b"", b"\xc3", b"\xe2\x82"]),
)  # fmt: skip
@settings(max_examples=many(200, 500))
def test_a_stop_string_is_found_in_whole_characters(text: str, stop: str, rest: bytes) -> None:
    """With the token that makes it certain; half a character is no U+FFFD yet."""
    strings, ids = StopStrings(ByteTokenizer(), [stop]), [*text.encode(), *rest]
    found = next((at for at, token in enumerate(ids) if strings.accept_token(token)), None)
    end = text.find(stop) + len(stop)
    if stop not in text:
        assert found is None
    elif not stop.endswith("\ufffd"):
        assert found == len(text[:end].encode()) - 1
    elif found is None:
        assert not text[end:].strip("\ufffd"), "a token after it would have made it certain"
    else:
        assert found >= len(text[:end].encode()) - 1


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_directory(smollm2)
    assert tokenizer is not None
    return tokenizer


def test_special_tokens_and_lone_surrogates_are_no_text(real: Tokenizer) -> None:
    assert real.encode("<|im_end|>") == [2]
    assert real.decode([2, 0, 1]) == ""
    for tokenizer in (real, ByteTokenizer()):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            tokenizer.encode("\ud800")


# -- SmolLM2, beside other libraries ---------------------------------------------------------------

# Of its tensors by name; compared, bit for bit, with what MLX and transformers read of the file
WEIGHTS = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"


def test_its_weights_are_those_that_were_compared(smollm2: Path) -> None:
    assert find_model("smollm2") == smollm2
    config = read_config(smollm2)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100_000.0, 1e-5)
    assert end_ids(load_pretrained(smollm2)) == {2}
    digest = hashlib.sha256()
    with safe_open(smollm2 / "model.safetensors", framework="np") as tensors:
        names = sorted(tensors.keys())
        for name in names:
            digest.update(name.encode() + tensors.get_tensor(name).tobytes())
    assert len(names) == 272
    assert digest.hexdigest() == WEIGHTS


@pytest.mark.usefixtures("one_torch_thread")  # several wait for each other on a busy machine
def test_it_says_what_other_libraries_say(smollm2: Path) -> None:
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model
    from transformers import AutoModelForCausalLM

    theirs: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    lm = load_model(smollm2)[0]
    models: Any = {name: open_model(str(smollm2), name) for name in ("thread", "mlx")}
    prompts = [models["thread"].tokenizer.encode(text) for text in PROMPTS[:4]]
    on_torch = [
        theirs.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(),
            do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=None,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]  # fmt: skip
    on_mlx = [
        [int(token) for token, _ in generate_step(mx.array(prompt), lm, max_tokens=12)]
        for prompt in prompts
    ]
    sizes: Any = {"max_running_requests": 3, "context_len": 256}
    config = SchedulerConfig(chunked_prefill_size=12, page_size=4, **sizes)
    greedy = SamplingParams(max_new_tokens=12, ignore_eos=True)
    for device, loops, truth in (
        ("thread", ("serial", "overlap"), on_torch), ("mlx", ("serial", "mlx_async"), on_mlx)
    ):  # fmt: skip
        for loop in loops:
            requests = [Request(f"r{at}", prompt, greedy) for at, prompt in enumerate(prompts)]
            run = run_loop(loop, open_device(device), models[device], requests, config)
            assert not run.errors and [*run.outputs.values()] == truth
    assert " Paris" in models["mlx"].tokenizer.decode(on_torch[0])
