"""Every published bug of the museum is caught by its law, and healthy code passes on the same case:
they are the proof that the laws can fail.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from minisched.checks.judge import judge
from minisched.museum import Exhibit, exhibits, refuted
from minisched.museum.exhibit import address, case, standing_of
from minisched.museum.patch import StalePatch, diff

EXHIBITS, REFUTED = exhibits(), refuted()
ALL = [*EXHIBITS, *REFUTED]
CHAPTERS = list(dict.fromkeys(item.chapter for item in ALL))
MOST_LINES = 12  # that a fix adds and takes out


def named(item: Exhibit) -> str:
    return item.name


def test_a_chapter_is_in_order_and_none_is_empty() -> None:
    names = [item.name for item in ALL]
    assert len(set(names)) == len(ALL) == 40 and len({item.chapter for item in ALL}) == 5
    assert names == [
        it.name for it in sorted(ALL, key=lambda it: (CHAPTERS.index(it.chapter), it.name))
    ]


def test_a_case_that_is_not_written_as_one_is_refused() -> None:
    with pytest.raises(ValueError, match="'a: -> 2' is no request; one is written 'a: 7 3 -> 2'"):
        case("a: -> 2", "overlap", kv=3)


def test_a_published_bug_is_cited_where_it_was_published() -> None:
    for item in ALL:
        cited = {reference.split()[-1] for reference in item.references}
        for field in ("symptom", "here", "cure", "suspicion", "truth"):
            assert {*re.findall(r"#\d+", getattr(item, field, ""))} <= cited, item.name
        for reference in item.references:
            assert address(reference).startswith("https://github.com/")
    assert address("vLLM #48245") == "https://github.com/vllm-project/vllm/issues/48245"
    assert address("MindIE-LLM #233") == "https://github.com/Ascend/MindIE-LLM/commit/90669ea"
    for reference in ("48245", "vLLM 48245", "vLLM #0", "nobody #1", "MindIE #9"):
        with pytest.raises(ValueError, match=f"'{reference}' "):
            address(reference)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=named)
def test_a_published_bug_is_caught_and_healthy_code_passes(exhibit: Exhibit) -> None:
    found = exhibit.with_bug().broke(exhibit.law)
    assert found is not None and exhibit.says and exhibit.says in found.sentence
    assert exhibit.healthy().holds and judge(exhibit.case).holds
    lines = diff(exhibit.edits).splitlines()
    assert 0 < sum(line.startswith(("+", "-")) for line in lines) <= MOST_LINES


@pytest.mark.parametrize("exhibit", [item for item in EXHIBITS if len(item.edits) > 1], ids=named)
def test_every_edit_is_needed(exhibit: Exhibit) -> None:
    for edit in exhibit.edits:
        rest = tuple(other for other in exhibit.edits if other is not edit)
        try:
            found = replace(exhibit, edits=rest).with_bug().broke(exhibit.law)
            assert found is None or exhibit.says not in found.sentence, edit.where
        except StalePatch:
            continue  # the others build on it


@pytest.mark.parametrize("item", REFUTED, ids=named)
def test_what_is_refuted_breaks_nothing(item: Exhibit) -> None:
    assert standing_of(item).is_good
