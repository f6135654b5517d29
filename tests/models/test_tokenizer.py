"""Tokenizers: nothing is lost, and a stream never shows half a character."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from minisched.models.tokenizer import ByteTokenizer, StreamDecoder, TextCodec, Tokenizer
from minisched.models.weights import WeightsError
from tests.support import many

# Bytes that no token of SmolLM2 stands for: its tokenizer leaves them out. They are control
# characters, and the first bytes of planes of Unicode that hold no character.
NOT_IN_SMOLLM2 = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
texts = st.text(characters)
smollm2_texts = st.text(characters.filter(lambda c: NOT_IN_SMOLLM2.isdisjoint(c.encode())))


def llama2_like() -> Tokenizer:
    """Words begin with a mark that is dropped from the first; unknown characters become bytes."""
    vocab = {token: i for i, token in enumerate(["<unk>", "\u2581", "h", "e"])}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    codec = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    codec.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    codec.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    codec.add_special_tokens(["</s>"])
    return Tokenizer(codec)


LLAMA2_BYTES, LLAMA2_EOS = 4, 260
LLAMA2_IDS = st.lists(
    st.integers(0, LLAMA2_EOS + 2)  # the last two are no tokens
    | st.sampled_from([1, 2, LLAMA2_EOS, *(LLAMA2_BYTES + byte for byte in b"A\xe2\x82\xac\xff")]),
    max_size=12,
)
"""Any ids: words, special tokens, bytes of whole characters and of broken ones."""


def check_whole_characters(tokenizer: TextCodec, text: str) -> None:
    """Each increment is text without U+FFFD, and comes as soon as its characters are certain."""
    stream, shown, ids = StreamDecoder(tokenizer), "", tokenizer.encode(text)
    for count, token in enumerate(ids, start=1):
        increment = stream.push(token)
        assert "\ufffd" not in increment
        shown += increment
        so_far = tokenizer.decode(ids[:count])
        assert shown == so_far or so_far.endswith("\ufffd") or not tokenizer.is_settled(token)
    assert shown + stream.finish() == text
    assert shown == text or not tokenizer.is_settled(ids[-1])


def check_adds_up(tokenizer: TextCodec, ids: list[int]) -> None:
    """For any ids, also such as are no text, the increments add up to ``decode``."""
    stream = StreamDecoder(tokenizer)
    assert "".join(stream.push(token) for token in ids) + stream.finish() == tokenizer.decode(ids)
    assert stream.finish() == ""


@given(text=texts, ids=st.lists(st.integers(0, 300)))
@settings(max_examples=many(100, 500))
def test_bytes_come_back_and_stream(text: str, ids: list[int]) -> None:
    """Ids that are no bytes are left out."""
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    kept = bytes(token for token in ids if token < 256)
    assert tokenizer.decode(ids) == kept.decode(errors="replace")
    check_whole_characters(tokenizer, text)
    check_adds_up(tokenizer, ids)


@given(text=st.text(characters.filter(lambda c: c != "\u2581") | st.sampled_from(" he\n€")),
       ids=LLAMA2_IDS)  # fmt: skip
@settings(max_examples=many(150, 1000))
def test_a_stream_with_bytes_for_unknown_characters_adds_up(text: str, ids: list[int]) -> None:
    tokenizer = llama2_like()
    check_whole_characters(tokenizer, text)
    check_adds_up(tokenizer, ids)


def test_what_may_yet_change_is_held_back() -> None:
    """One byte more may turn a run of them into U+FFFD; a token that is left out ends nothing."""
    stream, run = StreamDecoder(llama2_like()), [LLAMA2_BYTES + byte for byte in "A€".encode()]
    assert [stream.push(token) for token in [2, *run, LLAMA2_EOS, 2]] == ["h", *[""] * 5, "A€h"]
    assert [stream.push(token) for token in [*run, LLAMA2_BYTES + 0xFF]] == [""] * 5
    assert stream.held_back() == stream.finish() == "\ufffd" * 5
    stream, euro = StreamDecoder(ByteTokenizer()), "€".encode()
    assert [stream.push(token) for token in euro] == ["", "", "€"]
    assert [stream.push(euro[0]), stream.push(256), stream.finish()] == ["", "", "\ufffd"]


def test_bytes_need_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from minisched.models.tokenizer import ByteTokenizer, StreamDecoder\n"
        "assert StreamDecoder(ByteTokenizer()).push(104) == 'h'\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names - {'minisched'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_directory_has_a_tokenizer_none_or_a_damaged_one(
    tiny_llama: Path, tmp_path: Path
) -> None:
    assert Tokenizer.from_directory(tiny_llama) is None
    for content in (b"", b"{}", b'{"version": "1.0", "model"', b"\xff\xfe"):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(WeightsError, match=r"tokenizer\.json is not a tokenizer \(") as caught:
            Tokenizer.from_directory(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_directory(smollm2)
    assert tokenizer is not None
    return tokenizer


@given(text=texts, known=smollm2_texts, ids=st.lists(st.integers(0, 49_151) | st.integers(0, 400)))
def test_smollm2_streams_whole_characters(
    real: Tokenizer, text: str, known: str, ids: list[int]
) -> None:
    has_tokens = bytes(byte for byte in text.encode() if byte not in NOT_IN_SMOLLM2)
    assert real.decode(real.encode(text)) == has_tokens.decode(errors="replace")
    check_whole_characters(real, known)
    check_adds_up(real, ids)


def test_special_tokens_and_lone_surrogates_are_no_text(real: Tokenizer) -> None:
    assert real.encode("<|im_end|>") == [2]
    assert real.decode([2, 0, 1]) == ""
    for tokenizer in (real, ByteTokenizer()):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            tokenizer.encode("\ud800")
