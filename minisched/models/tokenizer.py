"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from .checkpoint import WeightsError


class TextCodec(Protocol):
    """The methods of both tokenizers here."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; bytes that are no UTF-8 become U+FFFD."""
        ...


class Tokenizer:
    """A model's own tokenizer, by the ``tokenizers`` library."""

    def __init__(self, content: str) -> None:
        """Take the text of a tokenizer.json.

        Truncation and padding in it, which fine-tuning scripts leave there, are switched off:
        transformers ignores them too, unless a call asks for them.
        """
        import tokenizers

        self._codec = tokenizers.Tokenizer.from_str(content)
        self._codec.no_truncation()
        self._codec.no_padding()

    @classmethod
    def from_directory(cls, directory: Path) -> Tokenizer | None:
        """Read a model's tokenizer.json; None if it has none; WeightsError if it is damaged."""
        file = directory / "tokenizer.json"
        if not file.is_file():
            return None
        try:
            return cls(file.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises no narrower kind
            raise WeightsError(f"{file} is not a tokenizer ({error}).") from error

    @classmethod
    def from_loaded(cls, tokenizer: Any) -> Any:
        """Return the codec of a tokenizer that transformers or mlx-lm has loaded.

        One without the ``tokenizers`` library inside stays as it is: it encodes and decodes too.
        """
        inner = getattr(tokenizer, "_tokenizer", tokenizer)  # mlx-lm wraps transformers'
        codec: Any = getattr(inner, "backend_tokenizer", None)
        return cls(codec.to_str()) if hasattr(codec, "to_str") else tokenizer

    def encode(self, text: str) -> list[int]:
        """Return token ids, with the start token where the model's tokenizer adds one.

        Raises UnicodeEncodeError (a ValueError) for text that is no UTF-8: a lone surrogate.
        """
        text.encode()
        ids: list[int] = self._codec.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text; special tokens such as ``<|im_end|>`` are left out."""
        text: str = self._codec.decode(list(ids), skip_special_tokens=True)
        return text


class ChatTokenizer:
    """A tokenizer that encodes a text as a user's message, by the model's chat template.

    transformers renders the template (``tokenizer.apply_chat_template``), up to the beginning of
    the answer.
    """

    def __init__(self, directory: Path, codec: TextCodec, system: str = "") -> None:
        """Read the template in a model's directory; ``system`` is the system's message.

        Raises:
            WeightsError: there is no template, or it does not take such a message.
        """
        from transformers import AutoTokenizer

        self._codec, self._chat = codec, AutoTokenizer.from_pretrained(str(directory))
        self._before = [{"role": "system", "content": system}] if system else []
        if not self._chat.chat_template:
            raise WeightsError(
                f"{directory} has no chat template, so its prompts can't be messages; leave out "
                "--chat."
            )

    def encode(self, text: str) -> list[int]:
        """Return the token ids of the messages, with the beginning of the answer."""
        import jinja2

        messages = [*self._before, {"role": "user", "content": text}]
        try:
            ids: list[int] = self._chat.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False
            )
        except jinja2.TemplateError as error:
            raise WeightsError(f"the chat template refuses the messages: {error}.") from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text; special tokens are left out."""
        return self._codec.decode(ids)


class ByteTokenizer:
    """A token is a byte of UTF-8: the tokenizer of the hash model. Standard library only."""

    def encode(self, text: str) -> list[int]:
        """Return the text's bytes, each an id below 256."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the bytes' text; ids from 256 on (end of text) are left out."""
        return bytes(token for token in ids if token < 256).decode(errors="replace")


def text_codec_of(model_name: str, tokenizer: TextCodec | None) -> TextCodec | None:
    """Return the reader of a model's tokens: its own tokenizer; for ``hash`` a token is a byte."""
    return ByteTokenizer() if tokenizer is None and model_name == "hash" else tokenizer


# -- Text that appears while tokens arrive (SGLang ``managers/detokenizer_manager.py``) ------------

REPLACEMENT = "\ufffd"  # the text of an incomplete UTF-8 character


class StreamDecoder:
    """Return the text that each new token adds, never half a character.

    The results of ``push``, then ``finish``, add up to ``decode`` of all ids. Text that ends in
    U+FFFD is held back, because the next token may complete it. Only new tokens are decoded again,
    in their context (SGLang's ``surr_offset`` and ``read_offset``).
    """

    def __init__(self, tokenizer: TextCodec) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0  # decoding starts here, to give the first new token a neighbour
        self._emitted = 0  # number of tokens with returned text

    def push(self, token: int) -> str:
        """Return the text that is certain now; empty while a character is incomplete."""
        self._ids.append(token)
        text = self._fresh_text()
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._context, self._emitted = self._emitted, len(self._ids)
        return text

    def held_back(self) -> str:
        """Return the text that is not certain yet; a later token may complete it."""
        return self._fresh_text() if self._emitted < len(self._ids) else ""

    def finish(self) -> str:
        """Return the text that was held back; an incomplete character reads as U+FFFD."""
        text = self._fresh_text()
        self._context = self._emitted = len(self._ids)
        return text

    def _fresh_text(self) -> str:
        """Return the text of the tokens that were not emitted, in their context."""
        before = self._tokenizer.decode(self._ids[self._context : self._emitted])
        return self._tokenizer.decode(self._ids[self._context :])[len(before) :]
