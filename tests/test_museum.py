"""Every published bug of the museum is caught by its law, and the healthy code passes them all.

That the patch of a bug changes behaviour is shown by the same case: it is green without.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from minisched.checks.case import Case
from minisched.checks.judge import Verdict, judge
from minisched.checks.shrink import simpler
from minisched.museum import CHAPTERS, Exhibit, Refuted, bugs, exhibits, find, refuted
from minisched.museum.patch import Edit, StalePatch, diff, put_in
from minisched.museum.references import REPOSITORIES, address

EXHIBITS, REFUTED = exhibits(), refuted()
MODULES = {path.stem for path in Path(bugs.__path__[0]).glob("[a-z]*.py")}
MOST_LINES = 12  # that a fix adds and takes out
ORIGINAL = re.compile(r"\b(SGLang|sglang-jax|mini-sglang|vLLM|vllm-ascend|MindIE)\b")
PLACE = re.compile(r"#\d+|\b[0-9a-f]{7}\b|\w+_\w+|\w\.(py|cpp)\b|\w+\.\w+ ")
NOT_MERGED = {  # pull requests that are cited for a cure, as they stood in September 2026
    "SGLang #24745": "closed", "SGLang #25361": "closed", "SGLang #33874": "closed",
    "SGLang #18803": "turned down", "SGLang #30147": "open", "SGLang #34076": "open",
    "SGLang #37295": "^Open", "mini-sglang #111": "open", "vLLM #38624": "closed",
    "vLLM #47900": "closed", "vLLM #46899": "closed", "vLLM #40768": "closed",
    "vLLM #37092": "closed",
}  # fmt: skip
each_bug = pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda item: item.name)
each_item = pytest.mark.parametrize("item", [*EXHIBITS, *REFUTED], ids=lambda item: item.name)


@cache
def with_bug(name: str) -> Verdict:
    exhibit = find(name)
    assert isinstance(exhibit, Exhibit)
    return exhibit.with_bug()


# -- what there is ---------------------------------------------------------------------------------


def test_every_module_brings_one_exhibit_of_its_name() -> None:
    names = [item.name for item in (*EXHIBITS, *REFUTED)]
    assert len(EXHIBITS) >= 16 and REFUTED
    assert sorted(names) == sorted(MODULES)
    assert [CHAPTERS.index(item.chapter) for item in EXHIBITS] == sorted(
        CHAPTERS.index(item.chapter) for item in EXHIBITS
    )
    assert {item.chapter for item in EXHIBITS} == set(CHAPTERS)


@each_item
def test_what_is_said_is_said_in_full_and_where_it_was_published(item: Exhibit | Refuted) -> None:
    said = (
        [item.symptom, item.here, item.cure]
        if isinstance(item, Exhibit)
        else [item.suspicion, item.truth]
    )
    for text in said:
        assert len(text) > 40 and text.rstrip().endswith((".", ".)", "?")), text
    assert item.references and len(set(item.references)) == len(item.references)
    for reference in item.references:
        assert reference.split()[0] in REPOSITORIES
        assert address(reference).startswith("https://github.com/")


@each_item
def test_what_an_original_is_said_to_do_has_its_place(item: Exhibit | Refuted) -> None:
    """In the same sentence, and each number also leads somewhere; what was not merged says so."""
    cited = {reference.split()[-1]: reference for reference in item.references}
    for field in ("symptom", "here", "cure", "suspicion", "truth"):
        text = getattr(item, field, "")
        assert set(re.findall(r"#\d+", text)) <= set(cited), "a number that leads nowhere"
        for sentence in re.split(r"(?<=[.?])\s+", text):
            assert not ORIGINAL.search(sentence) or PLACE.search(sentence), sentence
        for number, standing in NOT_MERGED.items():
            if field == "cure" and cited.get(number.split()[-1]) == number:
                assert number.split()[-1] not in text or re.search(standing, text), number


def test_a_reference_leads_to_the_issue_or_the_commit() -> None:
    assert address("vLLM #48245") == "https://github.com/vllm-project/vllm/issues/48245"
    assert address("mini-sglang 20fcd7f") == (
        "https://github.com/sgl-project/mini-sglang/commit/20fcd7f"
    )
    assert address("MindIE-LLM #233") == "https://github.com/Ascend/MindIE-LLM/commit/90669ea"


@pytest.mark.parametrize("reference", ["48245", "vLLM 48245", "vLLM #0", "nobody #1", "MindIE #9"])
def test_a_reference_that_leads_nowhere_gets_a_sentence(reference: str) -> None:
    with pytest.raises(ValueError, match=f"'{reference}' (is no reference; it must|has no commit)"):
        address(reference)


# -- the laws --------------------------------------------------------------------------------------


@each_bug
def test_its_law_catches_the_bug(exhibit: Exhibit) -> None:
    found = with_bug(exhibit.name).broke(exhibit.law)
    assert found is not None, with_bug(exhibit.name).findings
    assert exhibit.says and exhibit.says in found.sentence, found.sentence
    assert exhibit.is_caught


@each_bug
def test_the_healthy_code_passes_every_law_on_the_same_case(exhibit: Exhibit) -> None:
    assert exhibit.healthy().findings == ()
    assert judge(exhibit.case).findings == (), "the general laws, whatever the exhibit judges by"


@each_bug
def test_every_edit_is_needed(exhibit: Exhibit) -> None:
    assert exhibit.edits
    for edit in exhibit.edits if len(exhibit.edits) > 1 else ():
        rest = tuple(other for other in exhibit.edits if other is not edit)
        try:
            assert not replace(exhibit, edits=rest).is_caught, edit.where
        except StalePatch:
            continue  # the others build on it


@each_bug
def test_no_simpler_case_shows_it(exhibit: Exhibit) -> None:
    """With one request, abort, turn, token, wish or slot less, the bug shows no more.

    Or nobody could tell: then the healthy code does not pass either.
    """
    for case in simpler(exhibit.case):
        smaller = replace(exhibit, case=case)
        assert not (smaller.is_caught and smaller.healthy().holds), case


@pytest.mark.parametrize(
    "exhibit", [item for item in EXHIBITS if item.original_cure], ids=lambda item: item.name
)
def test_the_original_s_own_cure_cures_it(exhibit: Exhibit) -> None:
    """On its case and on each simpler one, and by a few lines."""
    assert exhibit.cured_as_there().findings == ()
    for case in simpler(exhibit.case):
        smaller = replace(exhibit, case=case)
        assert not smaller.healthy().holds or smaller.cured_as_there().holds, case
    changed = [line for line in diff(exhibit.edits, cure=exhibit.original_cure).splitlines()
               if line.startswith(("+", "-"))]  # fmt: skip
    assert 0 < len(changed) <= MOST_LINES


@each_bug
def test_the_fix_is_a_few_lines(exhibit: Exhibit) -> None:
    lines = diff(exhibit.edits).splitlines()
    changed = [line for line in lines if line.startswith(("+", "-"))]
    assert 0 < len(changed) <= MOST_LINES


@each_bug
def test_the_code_is_as_before_also_when_the_run_raises(exhibit: Exhibit) -> None:
    before = codes(exhibit)
    with pytest.raises(KeyError), put_in(exhibit.edits):
        assert codes(exhibit) != before
        raise KeyError
    assert codes(exhibit) == before


def codes(exhibit: Exhibit) -> list[tuple[CodeType, Any]]:
    return [(edit.function.__code__, edit.function.__defaults__) for edit in exhibit.edits]


@pytest.mark.parametrize("at", range(len(EXHIBITS)), ids=lambda at: EXHIBITS[at].name)
def test_two_in_a_row_do_not_disturb_each_other(at: int) -> None:
    first, second = EXHIBITS[at], EXHIBITS[at - 1]
    first.with_bug()
    assert second.with_bug().findings == with_bug(second.name).findings


@pytest.mark.parametrize("item", REFUTED, ids=lambda item: item.name)
def test_what_is_refuted_breaks_nothing(item: Refuted) -> None:
    assert item.verdict().findings == ()
    with pytest.raises(StalePatch):  # what it takes to try it is put in
        replace(item, edits=(Edit("relay.future_map:FutureMap.look_up", "nobody", ""),)).verdict()


def test_simpler_cases_are_cases() -> None:
    """The law on the smallest case looks at something."""
    for exhibit in EXHIBITS:
        assert all(isinstance(case, Case) for case in simpler(exhibit.case))
        assert any(simpler(exhibit.case)), exhibit.name
