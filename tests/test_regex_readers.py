"""A regex means the same to both of its readers, and what it means to Python's ``re``."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core.grammar import Grammar
from minisched.grammar.build import build
from minisched.grammar.llguidance_grammar import LLGuidanceGrammar
from minisched.grammar.token_grammar import TokenGrammar

EOS = 256
EOS_IDS = frozenset({EOS})


def readings(regex: str) -> tuple[Grammar | str, Grammar | str]:
    """What the automaton and llguidance, over bytes, make of a regex: a grammar, or a refusal."""
    made: list[Grammar | str] = []
    for read in (
        lambda: TokenGrammar(build(regex, 257, EOS_IDS)),
        lambda: LLGuidanceGrammar("regex", regex, 257, EOS_IDS, None),
    ):
        try:
            made.append(read())
        except ValueError as error:
            made.append(str(error))
    return made[0], made[1]


def takes(grammar: Grammar, text: str) -> bool:
    """Whether the whole text is allowed, and its end then; the grammar is as it was before."""
    taken = 0
    for token in [*text.encode(), EOS]:
        if not grammar.accept_token(token):
            break
        taken += 1
    grammar.rollback(taken)
    return taken == len(text.encode()) + 1


def in_python(regex: str, text: str) -> bool:
    """Whether ``re`` matches the whole text; it warns of signs that may once mean sets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.fullmatch(regex, text, re.ASCII) is not None


def check(regex: str, texts: list[str]) -> None:
    """Both refuse it, with the same words where it is none; or both take what ``re`` matches."""
    ours, theirs = readings(regex)
    if isinstance(ours, str):
        if ours.startswith("no token can satisfy"):  # a dead end may be the library's to find out
            assert isinstance(theirs, str) or not any(takes(theirs, text) for text in texts)
            assert not any(in_python(regex, text) for text in texts)
        else:
            assert theirs == ours
        return
    assert not isinstance(theirs, str), theirs
    for text in texts:
        assert takes(ours, text) == takes(theirs, text) == in_python(regex, text), text


SIGNS = "ab-[]&~^|09:<!/\"'# é\n"
members = st.one_of(
    st.sampled_from(SIGNS.replace("é", "")),
    st.sampled_from(["&&", "--", "~~", "[:digit:]", "a-z", "!-/", "0-9", "[a", r"\d", r"\]", r"\^",
                     r"\x41-Z", r"\W", "||", r"\-"]),
)  # fmt: skip
classes = st.builds(
    "[{}{}]".format, st.sampled_from(["", "^", "]", "^]", "-"]), st.lists(members, min_size=1,
    max_size=4).map("".join),
)  # fmt: skip
singles = st.one_of(
    classes,
    st.sampled_from(["a", "b", "-", "&", "~", "/", '"', "'", "#", " ", "]", "}", "<", "\n", "."]),
    st.sampled_from([r"\<", r"\>", r"\/", r"\[", r"\-", r"\&", r"\d", r"\S", r"\n", r"\x2f"]),
)
counts = st.sampled_from(["", "*", "+", "?", "{,2}", "{2}", "{1,}", "{0}", "{0,3}"])
regexes = st.recursive(
    st.builds("{}{}".format, singles, counts),
    lambda part: st.one_of(
        st.builds("{}{}".format, part, part),
        st.builds("(?:{}|{}){}".format, part, part, counts),
    ),
    max_leaves=5,
)
soups = st.text("ab-[]&~^|(){},:0?*+.\\d!é/ ", max_size=12)
texts = st.lists(st.text("ab-[]&~^|09:<!/\"'#} \nZ,d", max_size=5), min_size=1, max_size=12)


@given(regex=regexes | soups, texts=texts)
@settings(max_examples=500, deadline=None)
def test_both_read_the_same(regex: str, texts: list[str]) -> None:
    check(regex, texts)


BYTE_TEXTS = [
    "",
    "a",
    "aa",
    "aaa",
    "a**",
    "&",
    "-",
    "~",
    "[",
    "[]",
    "]",
    "5",
    "d]",
    "x",
    '"',
    "b",
    "&]",
]


@pytest.mark.parametrize(
    "regex",
    ["[!--x]", "[a-z&&b]", "[a-z&&aeiou]{2}", "[a~~b]", "[[a]]", "[[:digit:]]", "[[]", "[a[b]",
     "a{,2}", r"\<", "[a--b]", "a**", "[^]!---]", "[&&]", "[~~a]+", "[a-]", "[-a]", "[]&&[]"],
)  # fmt: skip
def test_what_another_library_reads_as_sets_is_plain(regex: str) -> None:
    check(regex, [*BYTE_TEXTS, "<", "aaaa", "ae", "&&"])


@pytest.mark.parametrize(
    ("regex", "text"),
    [("é+", "éé"), ("[éa]b", "éb"), ("(é|ü)?", "ü"), (r"[\x00-\xff]+", "é"), (r"\W+", "é€"),
     (r"[\s\S]{2,}", "é"), ("(.|..|...)", "é")],
)  # fmt: skip
def test_beyond_ascii_too_where_bytes_make_no_difference(regex: str, text: str) -> None:
    ours, theirs = readings(regex)
    assert not isinstance(ours, str) and not isinstance(theirs, str)
    assert takes(ours, text)
    assert takes(theirs, text) == (in_python(regex, text) or regex == r"[\x00-\xff]+")
