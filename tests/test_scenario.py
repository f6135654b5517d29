"""The long document: three settings, and what becomes of the guide's claims."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.devices.profiles import PROFILES, find_profile
from minisched.replay.claims import CLAIMS, verdicts
from minisched.replay.long_document import (
    DOCUMENT,
    DOCUMENT_AT,
    NUM_OTHERS,
    OUTPUT,
    SETTINGS,
    Outcome,
    long_document,
    requests,
    run_one,
)
from tests.test_replay import REPLAYED

MACHINE = find_profile("llama8b-h100")


def test_the_case_is_the_guide_s() -> None:
    found = list(requests())
    document = next(req for req in found if req.rid == "document")
    assert (len(document.prompt), document.arrival_time) == (DOCUMENT, DOCUMENT_AT)
    assert DOCUMENT == 100_000 and len(found) == NUM_OTHERS + 1 == 21
    assert found == sorted(found, key=lambda req: req.arrival_time)
    assert found.index(document) == 6, "six are there already"
    assert len({req.prompt[0] for req in found}) == 21, "nobody shares a prefix"


@pytest.mark.parametrize("loop", REPLAYED)
@pytest.mark.parametrize("name", SETTINGS)
def test_everybody_finishes_whatever_the_setting(loop: str, name: str) -> None:
    run = run_one(loop, MACHINE, name)
    assert run.metrics.num_finished == NUM_OTHERS + 1
    assert all(item.output_tokens == OUTPUT for item in run.metrics.ended)
    assert run.num_retractions == 0


@pytest.mark.parametrize("loop", REPLAYED)
@pytest.mark.parametrize("profile", PROFILES)
def test_chunks_bound_a_step_and_are_no_faster(loop: str, profile: str) -> None:
    plain, chunked, mixed = long_document(loop, find_profile(profile))
    assert (plain.peak_tokens, chunked.peak_tokens, mixed.peak_tokens) == (100_000, 2048, 2048)
    assert plain.document_ttft < chunked.document_ttft


@pytest.mark.parametrize("loop", REPLAYED)
@pytest.mark.parametrize("profile", ["llama8b-h100", "llama8b-a100"])
def test_only_mixing_lets_anybody_decode_between_chunks(loop: str, profile: str) -> None:
    """On the small model nobody would notice: all who come before the document have ended."""
    plain, chunked, mixed = long_document(loop, find_profile(profile))
    assert plain.longest_pause > 0.9 * plain.document_ttft
    assert chunked.longest_pause > 0.9 * chunked.document_ttft
    assert mixed.longest_pause * 10 < chunked.longest_pause


def test_which_claims_hold() -> None:
    """The finding that the README and the docstring report; if it changes, they have to."""
    found = verdicts(long_document("overlap", MACHINE))
    assert [(item.claim.about, item.after.name, item.holds) for item in found] == [
        ("TTFT of the others", "chunked", False),
        ("TTFT of the others", "mixed chunks", False),
        ("throughput", "chunked", False),
        ("throughput", "mixed chunks", False),
        ("peak memory", "chunked", True),
        ("peak memory", "mixed chunks", True),
    ]


PLAIN = Outcome("plain", 15_000, 0, 0, 0, 100.0, 100_000, 0)


@given(ttft=st.integers(1, 20_000), throughput=st.floats(50, 400), peak=st.integers(1, 200_000))
def test_a_verdict_is_what_the_guide_s_figures_say(ttft: int, throughput: float, peak: int) -> None:
    other = replace(PLAIN, mean_ttft=ttft, tokens_per_second=throughput, peak_tokens=peak)
    by_ttft, by_throughput, by_peak = verdicts([PLAIN, other])
    assert by_ttft.holds == (ttft <= 500)
    assert by_throughput.holds == (throughput >= 200)
    assert by_peak.holds == (peak <= 40_000)


def test_the_command_says_plainly_which_hold(cli: Any) -> None:
    code, out, err = cli("scenario long-document")
    said = " ".join(out.split())
    assert (code, err) == (0, "")
    for claim in CLAIMS:
        assert f"{claim.about}: {claim.words}." in said and claim.why in said
    assert said.count("Does not hold for") == 4 and said.count(". Holds for") == 2
    assert "100,000 tokens a step -> 2,048 tokens a step" in said
    assert "mixed chunks do." in said


def test_the_json_says_the_same_each_time(cli: Any) -> None:
    line = "scenario long-document --json --loop serial --profile smollm2-h100"
    code, out, _ = cli(line)
    result = json.loads(out)
    assert code == 0 and cli(line)[1] == out
    assert (result["loop"], result["profile"]) == ("serial", "smollm2-h100")
    assert [item["name"] for item in result["settings"]] == list(SETTINGS)
    assert [item["chunked_prefill_size"] for item in result["settings"]] == [-1, 2048, 2048]
    assert len(result["claims"]) == 6
    assert all(item["holds"] == (item["gain"] >= item["claimed_gain"]) for item in result["claims"])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("scenario short-document", "unknown scenario 'short-document'; the scenarios are long-"),
        ("scenario long-document --loop x", "unknown loop 'x'; the loops are"),
        ("scenario long-document --profile x", "unknown profile 'x'; the profiles are"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(cli: Any, line: str, sentence: str) -> None:
    code, out, err = cli(line)
    assert (code, out) == (2, "") and sentence in err
    assert len(err.splitlines()) == 1 and "Traceback" not in err
