"""The automaton of a regex: its language is Python's, its masks never lead into a dead end."""

from __future__ import annotations

import random
import re
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import SamplingParams
from minisched.grammar import compile_grammar
from minisched.grammar.automaton import NO, START, Automaton
from minisched.grammar.build import MAX_STATES, build
from minisched.grammar.positions import MAX_POSITIONS
from minisched.grammar.show import show
from minisched.grammar.token_grammar import TokenGrammar
from tests.grammar_laws import check_mask, walk

NO_TEXT = "no text of this vocabulary matches it"

singles = st.sampled_from([
    "", "a", "b", "c", "0", "-", "]", r"\n", r"\x61", r"\.", r"\\", ".", r"\d", r"\w", r"\S",
    "[ab]", "[^a]", "[a-c]", "[]a]", "[^]b-]", "[b-]", r"[\s-]", r"[^\W0]", r"[\x61-b]", "[^-a]",
])  # fmt: skip
repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{,2}", "{0,3}", "{1,2}", "{0}"])
regexes = st.recursive(
    singles,
    lambda part: st.one_of(
        st.builds("{}{}".format, part, part),
        st.builds("(?:{}|{})".format, part, part),
        st.builds("({}){}".format, part, repeats),
        st.builds("{}{}".format, singles.filter(bool), repeats),
    ),
    max_leaves=9,
)
texts = st.text("ab0-]\n.\\ ", max_size=7)
vocabularies = st.sampled_from([
    (257, frozenset({256})), (257, frozenset()), (98, frozenset({3})), (300, frozenset({97, 258})),
])  # fmt: skip


def grammar_of(
    regex: str, vocab_size: int = 257, eos_ids: frozenset[int] = frozenset({256})
) -> TokenGrammar | None:
    """A fresh grammar; None where no token can satisfy it."""
    try:
        grammar = compile_grammar(SamplingParams(regex=regex), vocab_size, eos_ids, None)
    except ValueError as error:
        assert str(error).startswith("no token can satisfy")
        return None
    assert isinstance(grammar, TokenGrammar)
    return grammar


def accepts(grammar: TokenGrammar, text: str) -> bool:
    """Whether the grammar takes the text, and then an end."""
    taken = all(grammar.accept_token(ord(char)) for char in text)
    return taken and grammar.automaton.is_accepting(grammar.state)


@given(regex=regexes, text=texts, vocabulary=vocabularies)
@settings(max_examples=600, deadline=None)
def test_the_language_is_that_of_python(
    regex: str, text: str, vocabulary: tuple[int, frozenset[int]]
) -> None:
    vocab_size, eos_ids = vocabulary
    in_vocabulary = all(ord(char) < vocab_size and ord(char) not in eos_ids for char in text)
    wanted = in_vocabulary and re.fullmatch(regex, text, re.ASCII) is not None
    grammar = grammar_of(regex, *vocabulary)
    if grammar is None:
        assert not wanted or (text == "" and not eos_ids)
    else:
        assert accepts(grammar, text) == wanted


@given(regex=regexes, vocabulary=vocabularies, rng=st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_what_the_masks_lead_to_matches(
    regex: str, vocabulary: tuple[int, frozenset[int]], rng: random.Random
) -> None:
    """And at every place the bits are right, and steps can be taken back."""
    vocab_size, eos_ids = vocabulary
    grammar = grammar_of(regex, *vocabulary)
    if grammar is None:
        return
    every = list(range(vocab_size + 2))
    text, has_ended = walk(
        grammar, eos_ids, rng, 6, lambda g: check_mask(g, every, vocab_size, eos_ids)
    )
    matches = re.fullmatch(regex, "".join(map(chr, text)), re.ASCII)
    assert grammar.automaton.is_accepting(grammar.state) == (matches is not None)
    assert matches or not has_ended


@given(regex=regexes, vocabulary=vocabularies)
@settings(max_examples=300, deadline=None)
def test_every_state_can_be_completed(regex: str, vocabulary: tuple[int, frozenset[int]]) -> None:
    grammar = grammar_of(regex, *vocabulary)
    if grammar is None:
        return
    automaton = grammar.automaton
    reached = {START}
    queue = deque([START])
    while queue:
        at = queue.popleft()
        nexts = {automaton.next_state(at, token) for token in range(257)} - {NO}
        assert completes(automaton, at) or automaton.states[at] == frozenset()
        queue.extend(nexts - reached)
        reached |= nexts


def completes(automaton: Automaton, start: int) -> bool:
    """Whether some tokens lead from here to where the text may end."""
    seen, stack = {start}, [start]
    while stack:
        at = stack.pop()
        if automaton.is_accepting(at):
            return True
        nexts = {automaton.next_state(at, token) for token in range(257)} - {NO} - seen
        seen |= nexts
        stack.extend(nexts)
    return False


def test_a_text_may_be_empty() -> None:
    grammar = grammar_of("a*")
    assert grammar is not None and grammar.accept_token(256) and grammar.is_terminated
    assert not grammar.accept_token(256) and not any(grammar.fill_vocab_mask())


def test_requests_share_the_table_and_not_their_place() -> None:
    first, second = grammar_of("ab"), grammar_of("ab")
    assert first is not None and second is not None and first.automaton is second.automaton
    assert first.accept_token(ord("a")) and not second.accept_token(ord("b"))


def test_beyond_ascii_a_character_is_its_bytes() -> None:
    for regex in ("(é|hä)+", "[éhä]+", "[-éhä-]+"):
        grammar = grammar_of(regex)
        assert grammar is not None
        assert all(grammar.accept_token(byte) for byte in "éhä".encode())
        assert grammar.accept_token(256)


def test_the_table_can_be_read() -> None:
    assert show(build("a(b|c)*[0-9_ ]", 257, frozenset({256}))).splitlines() == [
        "state  stands on  \\x20 0-9 _  a  b  c  end",
        "0      start      .           2  .  .  .",
        "1      over       .           .  .  .  .",
        "2      1          3           .  4  5  .",
        "3      4          .           .  .  .  1",
        "4      2          3           .  4  5  .",
        "5      3          3           .  4  5  .",
    ]


@pytest.mark.parametrize(
    ("regex", "sentence"),
    [
        ("x(a", "there is a ( that is never closed, at position 1"),
        ("a)b", "there is a ) that closes nothing, at position 1"),
        ("x[a", "there is a [ that is never closed, at position 1"),
        ("[z-a]", "a range that does not go from one character up to another, at position 1"),
        (r"[a-\d]", "a range that does not go from one character up to another, at position 1"),
        ("[^aé]", "there is 'é' in a class of all others, which names ASCII only, at position 0"),
        ("[é-ü]", "there is a range beyond ASCII, where each character has to be named, at p"),
        ("[a-é]", "there is a range beyond ASCII, where each character has to be named, at p"),
        (r"a\xe9", r"there is a byte from \x80 on without all the others, which is"),
        (r"[^\xe9]", r"there is a byte from \x80 on without all the others, which is"),
        ("a{2,1}", "there is a repetition of at least 2 and at most 1, at position 1"),
        ("a{x}", "there is a { without counts of up to 4 digits"),
        ("a{,}", "there is a { without counts of up to 4 digits"),
        ("a{12345}", "there is a { without counts of up to 4 digits"),
        ("a**", "there is a repetition of a repetition, which needs a group, at position 2"),
        ("a|*", "there is a * with nothing before it, at position 2"),
        (r"a\q", r"there is an escape \q that is not known here, at position 1"),
        (r"\x4", r"there is an escape \x that is not known here, at position 0"),
        ("a\\", "there is an escape \\ that is not known here, at position 1"),
        ("(?=a)", "there is a group of a kind that is not known here, at position 0"),
        ("^a$", "there is a ^, though all of the output has to match anyway, at position 0"),
        ("(" * 51 + ")" * 51, "there is more than 50 groups within each other, at position 50"),
        ("(a{100}){9}", f"written out it has more than {MAX_POSITIONS} characters"),
        ("((){9999}){9999}", f"written out it has more than {MAX_POSITIONS} characters"),
        ("(.*a.{20}){3}", f"its automaton has more than {MAX_STATES} states"),
        (r"[^\x00-\xff]", NO_TEXT),
        (r"a[^\x00-\xff]|(b\W\d[^\s\S])+", NO_TEXT),
        ("\ud800", "holds half a character, which is no text"),
    ],
)  # fmt: skip
def test_bad_regexes_are_refused_in_one_sentence(regex: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        compile_grammar(SamplingParams(regex=regex), 257, frozenset({256}), None)
    text = str(refused.value)
    assert text.endswith(".") and "\n" not in text and "regex " in text and len(text) < 200


def test_what_no_token_can_satisfy_depends_on_the_vocabulary() -> None:
    assert grammar_of("a", 98) is not None
    with pytest.raises(ValueError, match=f"no token can satisfy regex 'a': {NO_TEXT}."):
        build("a", 97, frozenset())
    with pytest.raises(ValueError, match=f"no token can satisfy regex 'a': {NO_TEXT}."):
        build("a", 257, frozenset({97}))
    with pytest.raises(ValueError, match="only the empty text matches it, and this model has no"):
        build("", 257, frozenset())
    assert grammar_of("") is not None
