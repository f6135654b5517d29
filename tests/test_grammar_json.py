"""JSON schemas, and regexes over a real vocabulary: random walks through the masks fit them."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.core import SamplingParams
from minisched.core.grammar import Grammar
from minisched.devices import registry
from minisched.grammar import compile_grammar
from minisched.models.fetch import fetch
from minisched.models.tokenizer import ByteTokenizer, Tokenizer
from tests.grammar_laws import allowed, check_mask, walk

BYTE_EOS, SMOLLM2_EOS = frozenset({256}), frozenset({2})
SMOLLM2_VOCAB = 49152
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b é"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

words = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=3)
"""SmolLM2 has no token for the byte f1, with which some characters beyond these begin."""

simple = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
              st.integers(-99, 99), st.integers(0, 200)),
    st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
              st.integers(0, 2), st.integers(0, 3)),
    st.builds(lambda some: {"enum": sorted(some)}, st.sets(words, min_size=1)),
)  # fmt: skip
schemas = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low,
                                      "maxItems": low + 1}, inner, st.integers(0, 1)),
        st.builds(lambda fields: {"type": "object", "properties": fields,
                                  "required": sorted(fields)[::2], "additionalProperties": False},
                  st.dictionaries(st.text("xyé", min_size=1, max_size=2), inner, max_size=3)),
    ),
    max_leaves=5,
)  # fmt: skip


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value fits one of the schemas above."""
    match schema.get("type"):
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            return is_integer and schema["minimum"] <= value <= schema["maximum"]
        case "string":
            is_short = isinstance(value, str) and len(value) <= schema["maxLength"]
            return is_short and len(value) >= schema.get("minLength", 0)
        case "array":
            sizes = range(schema.get("minItems", 0), schema["maxItems"] + 1)
            is_array = isinstance(value, list) and len(value) in sizes
            return is_array and all(fits(item, schema["items"]) for item in value)
        case "object":
            known = schema["properties"]
            named = isinstance(value, dict) and set(schema["required"]) <= value.keys()
            return named and all(key in known and fits(value[key], known[key]) for key in value)
    return value in schema["enum"]


@cache
def smollm2_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_directory(fetch("smollm2"))
    assert tokenizer is not None
    return tokenizer


def byte_grammar(schema: Any) -> Grammar:
    params = SamplingParams(json_schema=json.dumps(schema))
    return compile_grammar(params, 257, BYTE_EOS, None)


def smollm2_grammar(params: SamplingParams, vocab_size: int = SMOLLM2_VOCAB) -> Grammar:
    return compile_grammar(params, vocab_size, SMOLLM2_EOS, smollm2_tokenizer())


@given(schema=schemas, rng=st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_bytes_that_the_masks_allow_are_json_that_fits(
    schema: dict[str, Any], rng: random.Random
) -> None:
    tokens = list(range(257))
    text, has_ended = walk(
        byte_grammar(schema), BYTE_EOS, rng, 200, lambda g: check_mask(g, tokens, 257, BYTE_EOS)
    )
    assume(has_ended)
    assert fits(json.loads(ByteTokenizer().decode(text)), schema)


@pytest.mark.weights
@given(schema=st.one_of(st.just(PERSON), schemas), rng=st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_tokens_that_the_masks_allow_are_json_that_fits(
    schema: dict[str, Any], rng: random.Random
) -> None:
    grammar = smollm2_grammar(SamplingParams(json_schema=json.dumps(schema)))

    def look(grammar: Grammar) -> None:
        tokens = rng.sample(range(SMOLLM2_VOCAB), 20) + rng.choices(allowed(grammar), k=5)
        check_mask(grammar, [*tokens, 2], SMOLLM2_VOCAB, SMOLLM2_EOS)

    text, has_ended = walk(grammar, SMOLLM2_EOS, rng, 200, look)
    assume(has_ended)
    assert fits(json.loads(smollm2_tokenizer().decode(text)), schema)


@pytest.mark.weights
@pytest.mark.parametrize(
    "regex",
    ["", "a/b", r"\d{1,3}(\.\d+)?", "(yes|no|été)", r"[\w-]{2,5}@[^\n]{0,4}", r"<\|im_end\|>x?"],
)
@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_tokens_that_the_masks_allow_match_the_regex(regex: str, rng: random.Random) -> None:
    """Also where the text spells the name of a special token."""
    grammar = smollm2_grammar(SamplingParams(regex=regex))
    text, has_ended = walk(grammar, SMOLLM2_EOS, rng, 60)
    assume(has_ended)
    assert re.fullmatch(regex, smollm2_tokenizer().decode(text), re.ASCII)
    assert not set(text) & set(range(17)), "special tokens are never text"


@pytest.mark.weights
def test_ids_beyond_the_tokenizer_are_never_allowed() -> None:
    grammar = smollm2_grammar(SamplingParams(regex=r"[\s\S]*"), SMOLLM2_VOCAB + 40)
    assert max(allowed(grammar)) < SMOLLM2_VOCAB
    assert len(grammar.fill_vocab_mask()) == (SMOLLM2_VOCAB + 64) // 8
    assert not grammar.accept_token(SMOLLM2_VOCAB)


@pytest.mark.weights
def test_a_dead_end_of_the_library_accepts_nothing() -> None:
    """SmolLM2 has no token for the byte 4, which the library does not foresee."""
    grammar = smollm2_grammar(SamplingParams(regex="a\x04b"))
    assert allowed(grammar) == smollm2_tokenizer().encode("a")
    assert grammar.accept_token(allowed(grammar)[0])
    assert not grammar.is_terminated and not any(map(grammar.accept_token, allowed(grammar)[:99]))


BAD = [
    ("5", "can't be compiled: schema must be an object or boolean."),
    ("false", "no token can satisfy json_schema 'false': schema is false."),
    ("{", "can't be compiled: it is no JSON, Expecting property name"),
    ("[" * 99999, "can't be compiled: it is no JSON, maximum recursion depth"),
    ('{"type":"strin"}', "can't be compiled: Invalid type: strin."),
    ('{"$ref":"#/x"}', "can't be compiled: Pointer '/x' does not exist."),
    ('{"pattern":"("}', "can't be compiled: unclosed group."),
    ('{"type":"string","minLength":2,"maxLength":1}', "no token can satisfy json_schema"),
    ('{"type":"integer","minimum":5,"maximum":3}', "minimum (5) is greater than maximum (3)."),
    ('{"const":"\\ud800"}', "can't be compiled: failed to parse"),
    ("\ud800", "holds half a character, which is no text."),
]


@pytest.mark.parametrize(("schema", "sentence"), BAD, ids=lambda text: repr(text[:20]))
def test_bad_schemas_are_refused_in_one_sentence(schema: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        compile_grammar(SamplingParams(json_schema=schema), 257, BYTE_EOS, None)
    text = str(refused.value)
    assert text.endswith(".") and "\n" not in text and "json_schema" in text and len(text) < 200


@pytest.mark.weights
@pytest.mark.parametrize(
    ("regex", "sentence"),
    [
        ("x(", "regex 'x(' can't be compiled: there is a ( that is never closed, at position 1."),
        ("a(?=b)", "can't be compiled: there is a group of a kind that is not known here, at"),
        (r"a[^\s\S]", r"no token can satisfy regex 'a[^\\s\\S]'."),
    ],
)
def test_bad_regexes_are_refused_in_one_sentence(regex: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        smollm2_grammar(SamplingParams(regex=regex))
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


def test_a_tokenizer_that_the_library_can_not_read_is_named() -> None:
    class Strange:
        def to_json(self) -> str:
            return '{"model":'

    params = SamplingParams(regex="a")
    with pytest.raises(
        ValueError, match=r"llguidance can't read this model's tokenizer: [^\n]*\.$"
    ):
        compile_grammar(params, 99, frozenset(), Strange())


def test_json_needs_bytes_or_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="json_schema needs a model with a tokenizer, or with all"):
        compile_grammar(SamplingParams(json_schema="{}"), 19, frozenset(), None)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> None:
        raise ModuleNotFoundError(name="llguidance")

    monkeypatch.setattr(registry.importlib, "import_module", no_module)
    with pytest.raises(ValueError, match=r"json_schema needs .*pip install 'minisched\[grammar\]'"):
        byte_grammar({})
