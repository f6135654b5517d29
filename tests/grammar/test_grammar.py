"""A grammar's masks are exact: a regex means what it means in Python."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.core import SamplingParams
from minisched.core.sampling import Grammar
from minisched.grammar import compile_grammar
from minisched.grammar.regex import MAX_CHARS, MAX_TEXT, Automaton, TokenGrammar, build, parse
from minisched.models.tokenizer import ByteTokenizer
from tests.support import many

EOS = frozenset({256})


def grammar_of(regex: str, vocab_size: int = 257, eos_ids: frozenset[int] = EOS) -> Any:
    try:
        return compile_grammar(SamplingParams(regex=regex), vocab_size, eos_ids, None)
    except ValueError as error:
        assume(str(error).startswith("no token can satisfy"))  # or it is no regex
        return None


def takes(grammar: Grammar, text: bytes) -> bool:
    """Whether the whole text is allowed, and its end then; the grammar is as it was before."""
    taken = [*takewhile(grammar.accept_token, [*text, 256])]
    grammar.rollback(len(taken))
    return len(taken) == len(text) + 1


def in_python(regex: str, text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of signs that may once mean sets
        return re.fullmatch(regex, text, re.ASCII) is not None


# -- the language of a regex -----------------------------------------------------------------------

members = st.one_of(
    st.sampled_from("ab-[]&~^|09:<!/\"'# \n"),
    st.sampled_from(["&&", "--", "~~", "[:digit:]", "a-z", "!-/", "0-9", "[a", r"\d", r"\]", r"\^",
                     r"\x41-Z", r"\W", "||", r"\-", r"\s-"]),
)  # fmt: skip
classes = st.builds(
    "[{}{}]".format,
    st.sampled_from(["", "^", "]", "^]", "-"]),
    st.lists(members, min_size=1, max_size=4).map("".join),
)
singles = st.one_of(
    classes,
    st.sampled_from(["a", "b", "0", "-", "&", "~", "/", '"', "#", " ", "]", "}", "<", ".", "[ab]"]),
    st.sampled_from([r"\<", r"\/", r"\[", r"\-", r"\d", r"\w", r"\S", r"\n", r"\x2f", r"[^\W0]"]),
)
counts = st.sampled_from(["", "*", "+", "?", "{,2}", "{2}", "{1,}", "{0}", "{0,3}"])
regexes = st.recursive(
    st.builds("{}{}".format, singles, counts) | st.just(""),
    lambda part: st.one_of(
        st.builds("{}{}".format, part, part),
        st.builds("(?:{}|{}){}".format, part, part, counts),
        st.builds("({}){}".format, part, counts),
    ),
    max_leaves=6,
)
soups = st.text("ab-[]&~^|(){},:0?*+.\\d!é/ ", max_size=12)
texts = st.lists(st.text("ab0-]\n.\\ &~|9:<!/\"'#}Zd", max_size=6), min_size=1, max_size=9)
vocabularies = st.sampled_from(
    [(257, EOS), (257, frozenset()), (98, frozenset({3})), (300, frozenset({97, 258}))]
)


@given(regex=regexes | soups, texts=texts)
@settings(max_examples=many(250, 2000))
def test_a_regex_means_what_python_means(regex: str, texts: list[str]) -> None:
    matched = [in_python(regex, text) for text in texts] if is_known(regex) else []
    try:
        grammar = TokenGrammar(build(regex, 257, EOS))
    except ValueError as error:
        assert not any(matched) and str(error).endswith("."), error
        return
    assert [takes(grammar, text.encode()) for text in texts] == matched


def is_known(regex: str) -> bool:
    """Whether the regex can be compiled; it may still match nothing."""
    try:
        parse(regex)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("regex", "text"),
    [("(é|hä)+", "éhä"), ("[éhä]+", "éhä"), ("[-éhä-]+", "éhä"), ("[éa]b", "éb"), ("(é|ü)?", "ü"),
     (r"[\x00-\xff]+", "é"), (r"\W+", "é€"), (r"[\s\S]{2,}", "é"), ("(.|..|...)", "é")],
)  # fmt: skip
def test_beyond_ascii_a_character_is_its_bytes(regex: str, text: str) -> None:
    assert takes(grammar_of(regex), text.encode())


# -- masks, on random walks ------------------------------------------------------------------------


def allowed(grammar: Grammar) -> list[int]:
    bits = int.from_bytes(grammar.fill_vocab_mask(), "little")
    return [token for token, bit in enumerate(f"{bits:b}"[::-1]) if bit == "1"]


def check_mask(grammar: Grammar, tokens: list[int], vocab_size: int) -> None:
    mask, may_come = grammar.fill_vocab_mask(), set(allowed(grammar))
    assert len(mask) == -(-vocab_size // 32) * 4 and not grammar.is_terminated
    for token in tokens:
        taken = grammar.accept_token(token)
        assert taken == (token in may_come), token
        grammar.rollback(int(taken))
        assert grammar.fill_vocab_mask() == mask


def walk(
    grammar: Grammar, eos_ids: frozenset[int], rng: random.Random, max_tokens: int,
    look: Callable[[Grammar], None] = lambda grammar: None,
) -> tuple[list[int], bool]:  # fmt: skip
    text: list[int] = []
    masks = [grammar.fill_vocab_mask()]
    while len(text) < max_tokens:
        look(grammar)
        may_come = allowed(grammar)
        assert may_come, f"a dead end after {text}"
        token = rng.choice(may_come)
        assert grammar.accept_token(token)
        if token in eos_ids:
            assert not allowed(grammar) and grammar.is_terminated
            assert not grammar.accept_token(token)
            grammar.rollback(1)
            assert grammar.fill_vocab_mask() == masks[-1]
            return text, True
        text.append(token)
        assert grammar.is_terminated == (not set(allowed(grammar)) - eos_ids)
        masks.append(grammar.fill_vocab_mask())
        steps = rng.randrange(4)
        if steps < len(masks):  # go back, and the same way once more
            grammar.rollback(steps)
            assert grammar.fill_vocab_mask() == masks[len(masks) - 1 - steps]
            assert all(grammar.accept_token(token) for token in text[len(text) - steps :])
            assert grammar.fill_vocab_mask() == masks[-1]
        if grammar.is_terminated:
            return text, True
    return text, False


@given(regex=regexes, vocabulary=vocabularies, rng=st.randoms(use_true_random=False))
@settings(max_examples=many(100, 1000))
def test_what_the_masks_lead_to_matches(
    regex: str, vocabulary: tuple[int, frozenset[int]], rng: random.Random
) -> None:
    vocab_size, eos_ids = vocabulary
    grammar = grammar_of(regex, *vocabulary)
    assume(grammar is not None)
    every = list(range(vocab_size + 2))
    text, has_ended = walk(grammar, eos_ids, rng, 6, lambda g: check_mask(g, every, vocab_size))
    matches = in_python(regex, "".join(map(chr, text)))
    assert matches or not has_ended
    if eos_ids:
        assert grammar.accept_token(min(eos_ids)) == matches or has_ended


# -- the host's cost of one token, by the regex's size ---------------------------------------------


class Counted(list[int]):
    """A list that counts the reads of its items."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return super().__getitem__(at)


nested = st.recursive(
    st.sampled_from(["a", "b?", "[ab]*", "a+"]),
    lambda part: st.builds("({}{}){}".format, part, part, st.sampled_from(["", "*", "?", "{2,9}"])),
    max_leaves=8,
)


@given(regex=nested | st.integers(1, MAX_CHARS).map(lambda n: "a?" * n), steps=st.integers(1, 30))
@settings(max_examples=many(60, 500))
def test_a_token_visits_each_position_of_a_regex_at_most_once(regex: str, steps: int) -> None:
    """``a?`` n times once cost n cubed; the automaton is no larger than the regex, and a state
    is one integer with a bit for each position."""
    try:
        automaton = Automaton(regex, 257, EOS)
    except ValueError as error:
        assert str(MAX_CHARS) in str(error)
        return
    positions = len(automaton.follow)
    assert positions <= MAX_CHARS + 1 and len(automaton.columns) <= 256
    assert max(automaton.follow).bit_length() <= positions, "no bit is left of what was a loop"
    automaton.follow = reads = Counted(automaton.follow)
    grammar = TokenGrammar(automaton)
    for _ in range(steps):
        before = reads.reads
        grammar.fill_vocab_mask()
        is_over = grammar.is_terminated
        assert reads.reads == before, "a mask visits no position"
        assert is_over or grammar.accept_token(97) or grammar.accept_token(98)
        assert reads.reads - before <= positions
    assert sum(state.bit_length() for state in grammar.states) <= (steps + 1) * positions


@pytest.mark.parametrize("count", [500, MAX_CHARS])
def test_the_largest_regex_is_compiled_and_followed(count: int) -> None:
    grammar = grammar_of("a?" * count)
    assert all(grammar.accept_token(97) for _ in range(count))
    assert grammar.is_terminated and not grammar.accept_token(97) and grammar.accept_token(256)


# -- what is refused -------------------------------------------------------------------------------

NO_TEXT = "no text of this vocabulary matches it"
BAD_REGEXES = [
    ("a)b", "unbalanced parenthesis at position 1"),
    ("x[a", "unterminated character set at position 1"),
    ("[z-a]", "bad character range z-a at position 1"),
    ("[^aé]", "there is 'é' in a class of all others, which names ASCII only"),
    ("[a-é]", "there is a range beyond ASCII, where each character has to be named"),
    (r"[^\xe9]", r"there is 'é' in a class of all others, which names ASCII only"),
    ("a{2,1}", "min repeat greater than max repeat at position 2"),
    ("a**", "multiple repeat at position 2"),
    (r"a\q", r"bad escape \q at position 1"),
    ("^a$", "there is a place, such as ^ or $, though all of the output has to match anyway"),
    ("(?i)a", "there is flags, which change what signs mean"),
    (r"(a)\1", "there is groupref, which is not known here"),
    ("(?=a)a", "there is assert, which is not known here"),
    ("(" * 9999 + ")" * 9999, "it is too deep"),
    ("(a{9999}){9999}", f"with all its repeats it has more than {MAX_CHARS} characters"),
    ("((((a{400}){400}){400}){400}){400}", f"with all its repeats it has more than {MAX_CHARS}"),
    ("(a|b{400}|c{600,}){1,}", f"with all its repeats it has more than {MAX_CHARS} characters"),
    (r"a[^\x00-\xff]|(b\W\d[^\s\S])+", NO_TEXT),
    ("a{0}" * MAX_TEXT, f"it is a text of {4 * MAX_TEXT} characters, but at most {MAX_TEXT} are"),
    ("\ud800", "holds half a character, which is no text"),
]


@pytest.mark.parametrize(("regex", "sentence"), BAD_REGEXES, ids=lambda text: repr(text[:20]))
def test_bad_rules_are_refused_in_one_sentence(regex: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        compile_grammar(SamplingParams(regex=regex), 257, EOS, None)
    text = str(refused.value)
    assert text.endswith(".") and "\n" not in text and "regex" in text and len(text) < 200


def test_a_model_with_a_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="regex needs a model with a token for each byte"):
        compile_grammar(SamplingParams(regex="a"), 257, EOS, ByteTokenizer())
