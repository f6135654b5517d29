"""Every mutation of the set is seen by a law that is named for it, or there is a reason why not.

Quick: that each still applies. Thorough: each is put in and judged as ``minisched check
--workloads`` judges, where a sweep has seen it first (``tests/mutations/seen.json``, written by
``python -m tests.mutations --keep``), and if draws have changed since, in the first workloads.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice

import pytest

from minisched.checks.many import LAWS
from minisched.checks.tally import CAUSES
from minisched.museum.patch import changes, compiled
from tests.mutations import LAYERS, MUTATIONS

from .mutations.mutation import Mutation, Place, broken_laws, look_for, places, seen_before

FAULTS = [item for item in MUTATIONS if not item.equivalent]
EXPECTED = [item for item in FAULTS if not item.missed]
MISSED = [item for item in FAULTS if item.missed]
EQUIVALENT = [item for item in MUTATIONS if item.equivalent]
LEAST_SEEN = 0.95  # of the faults
WORKLOADS = 40  # that are looked at where nothing is seen at the place that was kept
CASES = 48  # in which what is equivalent must break no law

each = pytest.mark.parametrize


def named(item: Mutation) -> str:
    """A mutation's name, as that of a test."""
    return item.name


def test_there_are_enough_and_each_says_what_must_see_it() -> None:
    assert len(MUTATIONS) >= 120 and min(map(len, LAYERS.values())) >= 20
    assert len({item.name for item in MUTATIONS}) == len(MUTATIONS)
    assert len({item.edits for item in MUTATIONS}) == len(MUTATIONS)
    for item in MUTATIONS:
        assert set(item.laws) <= set(CAUSES), f"{item.name}: no such law"
        assert bool(item.laws) != bool(item.equivalent), f"{item.name}: laws, or why there are none"
    assert len(EXPECTED) >= LEAST_SEEN * len(FAULTS), "known misses: " + "; ".join(
        f"{item.name}: {item.missed}" for item in MISSED
    )


def test_what_a_sweep_has_kept_is_of_this_set() -> None:
    assert seen_before().keys() == {item.name for item in EXPECTED}


@each("item", MUTATIONS, ids=named)
def test_it_applies_and_changes_the_code(item: Mutation) -> None:
    for change in changes(item.edits):
        assert change.bug != change.healthy
        assert compiled(change).__code__ != change.function.__code__


@pytest.mark.thorough
@each("item", EXPECTED, ids=named)
def test_a_fault_is_seen(item: Mutation) -> None:
    kept = seen_before()[item.name]
    sight = look_for(item, chain([kept], places(range(WORKLOADS), item.device)))
    told = f"; broken were {', '.join(sight.others)}" if sight.others else ""
    assert sight.law, f"{item.name}: {' or '.join(item.laws)} in {sight.cases} cases{told}"
    assert broken_laws(sight.place, item.device) == [], f"healthy code breaks laws at {sight.place}"


@pytest.mark.thorough
@each("item", MISSED, ids=named)
def test_a_known_miss_is_still_one(item: Mutation) -> None:
    """Else its reason is out of date, and it belongs to those that are seen."""
    check_nothing_is_seen(item)


@pytest.mark.thorough
@each("item", EQUIVALENT, ids=named)
def test_nothing_is_seen_of_what_is_equivalent(item: Mutation) -> None:
    check_nothing_is_seen(item)


def check_nothing_is_seen(item: Mutation) -> None:
    """No law at all is broken in some dozens of cases, of workloads that are of all kinds."""
    some: list[Place] = list(islice(places(range(0, 400, 17), item.device), CASES))
    sight = look_for(replace(item, laws=LAWS), some)
    assert not sight.law, f"{item.name} ({item.equivalent or item.missed}): {sight}"
