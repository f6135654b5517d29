"""A prompt becomes a user's message, by the chat template of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from minisched.models.checkpoint import WeightsError
from minisched.models.tokenizer import ChatTokenizer, Tokenizer

WORDS = ["<s>", "<user>", "<system>", "<answer>", "hello", "be", "brief", "[UNK]"]
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'brief' %}{{ raise_exception('no') }}{% endif %}"
    "<{{ m.role }}> {{ m.content }} {% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
)


def folder(path: Path, template: str | None) -> Path:
    """A folder with a tokenizer of a few words, and its chat template."""
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    codec = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    codec.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    codec.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    if template:
        config["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return path


def chat(path: Path, system: str = "") -> ChatTokenizer:
    codec = Tokenizer.from_directory(path)
    assert codec is not None
    return ChatTokenizer(path, codec, system)


def words(ids: list[int]) -> str:
    return " ".join(WORDS[token] for token in ids)


def test_a_prompt_is_a_message_and_the_answer_has_begun(tmp_path: Path) -> None:
    found = chat(folder(tmp_path, TEMPLATE))
    assert words(found.encode("hello")) == "<user> hello <answer>"
    assert found.decode([4, 5]) == "hello be"


def test_the_system_comes_first(tmp_path: Path) -> None:
    said = words(chat(folder(tmp_path, TEMPLATE), "be").encode("hello"))
    assert said == "<system> be <user> hello <answer>"


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"has no chat template.*leave out --chat"):
        chat(folder(tmp_path, None))


def test_a_template_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="refuses the messages"):
        chat(folder(tmp_path, TEMPLATE)).encode("brief")


@pytest.mark.parametrize(
    ("line", "said"),
    [("--system hello", "--system 'hello' needs --chat"), ("--chat", "--chat needs a real model")],
)
def test_chat_options_that_do_not_fit(cli: Any, line: str, said: str) -> None:
    code, _, err = cli(f"run {line}")
    assert code == 2 and said in err
