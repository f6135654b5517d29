"""``bench mutation``: what a mutant changes is read rightly, samples are fair, options checked.

mutmut itself does not run here: ``minisched bench mutation`` takes minutes.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.bench.mutation import mutants as mutation
from minisched.bench.mutation import report as mutation_report
from minisched.bench.mutation import second_look, survivors
from minisched.bench.mutation.diff import (
    MEMORY,
    STRICT,
    TYPE,
    WORDING,
    Mutant,
    mutants_of,
    why_left_out,
)
from minisched.bench.mutation.sample import LAYERS, Layer, draw, figures, overall
from minisched.bench.mutation.second_look import OTHERS, look_again
from minisched.bench.mutation.survivors import KNOWN
from minisched.bench.mutation.tree import (
    LIVED,
    NAMED,
    ROOT,
    TESTS,
    MutantTree,
    MutationError,
    check_mutmut,
    read_meta,
    settings,
)

ORIGINAL = '''"""A module."""

LIMIT = 3


class Pool:
    """A class."""

    @property
    def room(self) -> int:
        """Documented."""
        if self.size > LIMIT:
            raise ValueError(f"size is {self.size}")
        return cast(int, self.size + 1)

    def pairs(self) -> list[int]:
        """Documented."""
        return list(zip(self.ids, self.pages, strict=True))
'''

MUTATED = '''"""A module."""

LIMIT = 3


class Pool:
    """A class."""

    @_mutmut_mutated(mutants)
    def room(self) -> int:
        """A trampoline."""

    def xǁPoolǁroom__mutmut_orig(self) -> int:
        """Documented."""
        if self.size > LIMIT:
            raise ValueError(f"size is {self.size}")
        return cast(int, self.size + 1)

    def xǁPoolǁroom__mutmut_1(self) -> int:
        """Documented."""
        if self.size >= LIMIT:
            raise ValueError(f"size is {self.size}")
        return cast(int, self.size + 1)

    def xǁPoolǁroom__mutmut_2(self) -> int:
        """Documented."""
        if self.size > LIMIT:
            raise ValueError(f"XXsize isXX {self.size}")
        return cast(int, self.size + 1)

    def xǁPoolǁroom__mutmut_3(self) -> int:
        """Documented."""
        if self.size > LIMIT:
            raise ValueError(None)
        return cast(int, self.size + 1)

    def xǁPoolǁroom__mutmut_4(self) -> int:
        """Documented."""
        if self.size > LIMIT:
            raise ValueError(f"size is {self.size}")
        return cast(None, self.size + 1)

    def xǁPoolǁroom__mutmut_5(self) -> int:
        """Documented."""
        if self.size > LIMIT:
            raise ValueError(f"size is {self.size}")
        return cast(int, self.size - 1)

    @_mutmut_mutated(mutants)
    def pairs(self) -> list[int]:
        """A trampoline."""

    def xǁPoolǁpairs__mutmut_orig(self) -> list[int]:
        """Documented."""
        return list(zip(self.ids, self.pages, strict=True))

    def xǁPoolǁpairs__mutmut_1(self) -> list[int]:
        """Documented."""
        return list(zip(self.ids, self.pages, strict=False))

    def xǁPoolǁpairs__mutmut_2(self) -> list[int]:
        """Documented."""
        return list(zip(self.ids, self.pages, ))

    def xǁPoolǁpairs__mutmut_3(self) -> list[int]:
        """Documented."""
        return list(zip(self.ids, None, strict=True))
'''


@pytest.fixture
def read(tmp_path: Path) -> list[Mutant]:
    """The mutants of the module above."""
    original, mutated = tmp_path / "original.py", tmp_path / "mutated.py"
    original.write_text(ORIGINAL)
    mutated.write_text(MUTATED)
    return list(mutants_of("minisched/memory/pool.py", original, mutated))


def test_a_mutant_is_named_as_mutmut_does_and_placed_in_the_original(read: list[Mutant]) -> None:
    first = read[0]
    assert first.name == "minisched.memory.pool.xǁPoolǁroom__mutmut_1"
    assert (first.function, first.layer, first.line) == ("Pool.room", "memory", 12)
    assert ORIGINAL.splitlines()[first.line - 1].strip() == first.taken
    assert first.diff == "- if self.size > LIMIT:\n+ if self.size >= LIMIT:"


def test_only_wording_types_and_strict_are_left_out(read: list[Mutant]) -> None:
    pairs = [STRICT, STRICT, ""]
    assert [item.left_out for item in read] == ["", WORDING, "", TYPE, "", *pairs]


@pytest.mark.parametrize(
    ("changed", "why"),
    [('"XXidsXX", 3', MEMORY), ('"ids", 4', ""), ("None, 3", ""), ('"ids", ', "")],
)
def test_what_memory_is_called_is_left_out_and_how_large_it_is_is_not(
    changed: str, why: str
) -> None:
    before, after = (
        ast.parse(f"def name(device):\n    return device.memory({arguments})").body[0]
        for arguments in ('"ids", 3', changed)
    )
    assert isinstance(before, ast.FunctionDef) and isinstance(after, ast.FunctionDef)
    assert why_left_out(before, after) == why


def made(sizes: dict[str, int]) -> list[Mutant]:
    """So many mutants in each layer."""
    return [
        Mutant(f"m.{layer}.{index}", f"minisched/{layer}/m.py", "f", 1, "a", f"b{index}")
        for layer, size in sizes.items()
        for index in range(size)
    ]


SIZES = st.fixed_dictionaries({layer: st.integers(0, 40) for layer in LAYERS})


@given(sizes=SIZES, size=st.integers(5, 250), seed=st.integers(0, 9))
def test_each_layer_has_its_share_and_a_seed_gives_the_same_sample(
    sizes: dict[str, int], size: int, seed: int
) -> None:
    mutants = made(sizes)
    sample = draw(mutants, size, seed)
    assert sample == draw(mutants[::-1], size, seed)
    assert len({item.name for item in sample}) == len(sample) == min(size, len(mutants))
    counts = Counter(item.layer for item in sample)
    most = max(counts.values(), default=0)
    for layer, there in sizes.items():
        assert counts[layer] == there or counts[layer] >= most - 1, counts


def test_another_seed_gives_another_sample_and_all_means_all() -> None:
    mutants = made(dict.fromkeys(LAYERS, 30))
    assert draw(mutants, 50, 0) != draw(mutants, 50, 1)
    assert len(draw(mutants, None, 0)) == len(mutants)


def test_what_is_left_out_is_never_drawn(read: list[Mutant]) -> None:
    assert {item.left_out for item in draw(read, None, 0)} == {""}


@given(population=st.integers(2, 2000), tried=st.integers(1, 2000), killed=st.integers(0, 2000))
def test_the_interval_holds_the_rate_of_the_sample_and_closes_when_all_were_tried(
    population: int, tried: int, killed: int
) -> None:
    tried = min(tried, population)
    layer = Layer("memory", population, tried, min(killed, tried))
    low, high = layer.interval()
    rate = layer.killed / tried
    assert 0 <= low <= rate + 1e-9 and rate - 1e-9 <= high <= 1
    assert (low == high) is (tried == population)
    narrower = Layer("memory", population, population, population).interval()
    assert narrower == (1.0, 1.0)


def test_the_interval_is_wilsons() -> None:
    low, high = Layer("memory", 10**9, 10, 9).interval()
    assert (round(low, 4), round(high, 4)) == (0.5958, 0.9821)


def test_a_layer_counts_as_many_as_it_has() -> None:
    layers = [Layer("memory", 800, 10, 10), Layer("relay", 200, 10, 0)]
    assert overall(layers)[0] == pytest.approx(0.8)
    last = figures(layers)[-1]
    assert (last.name, last.unit, last.aim, last.met) == ("killed, all", "%", 90.0, False)
    assert [item.name for item in figures(layers[:1])] == ["killed, memory"]


def test_whatever_is_no_pass_is_a_kill_and_a_survivor_has_its_reason(
    read: list[Mutant], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    matter = [item for item in read if not item.left_out]
    codes = {item.name: code for item, code in zip(matter, (1, 0, 33, 1), strict=True)}
    why = "equivalent: nobody sees it."
    known = survivors.Known(matter[1].function, matter[1].taken, matter[1].put, why)
    monkeypatch.setattr(survivors, "KNOWN", (known,))
    tried = mutation.judged(read, matter, codes, set(), 7)
    assert tried.layers == [Layer("memory", 4, 4, 2)]
    assert [(item.why, item.unreached) for item in tried.survivors] == [(why, False), ("", True)]
    assert tried.unexplained == tried.survivors[1:]
    assert tried.left_out == {WORDING: 1, TYPE: 1, STRICT: 2}
    mutation_report.write(tried, tmp_path)
    folder = tmp_path / mutation_report.FOLDER
    kept = json.loads((folder / "mutation.json").read_text())
    assert kept["unexplained"] == 1 and kept["seed"] == 7
    assert [item["diff"] for item in kept["survivors"]] == [item.diff for item in matter[1:3]]
    text = (folder / "mutation.md").read_text()
    assert "| memory | 4 | 4 | 2 | 50.0 %" in text and why in text and "unexplained" in text


@pytest.mark.parametrize("code", [1, 3, -24, -9, 36])
def test_a_process_that_hangs_or_crashes_is_a_kill(read: list[Mutant], code: int) -> None:
    tried = mutation.judged(read, read[:1], {read[0].name: code}, set(), 0)
    assert (tried.layers, tried.survivors) == ([Layer("memory", 4, 1, 1)], [])
    assert tried.timeouts == (code in (-24, 36))


def test_who_is_seen_at_the_second_look_is_killed(read: list[Mutant], tmp_path: Path) -> None:
    matter = [item for item in read if not item.left_out]
    tried = mutation.judged(
        read,
        matter,
        {item.name: 0 for item in matter},
        {item.name for item in matter if item is not matter[1]},
        0,
    )
    assert tried.layers == [Layer("memory", 4, 4, 3)] and tried.second_look == 3
    assert [item.mutant for item in tried.survivors] == [matter[1]]
    mutation_report.write(tried, tmp_path)
    text = (tmp_path / mutation_report.FOLDER / "mutation.md").read_text()
    assert "0 of the killed ran out of time, and 3 were seen by" in text


def test_the_other_tests_see_whom_they_are_red_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run on a tree of three tests, of which the second asks which mutant it meets."""
    tests = tmp_path / "mutants/tests"
    tests.mkdir(parents=True)
    asks = "import os\ndef test_it():\n    assert os.environ['MUTANT_UNDER_TEST'] {}\n"
    (tests / "test_a.py").write_text(asks.format("is not None"))
    (tests / "test_b.py").write_text(asks.format("!= 'seen'"))
    monkeypatch.setattr(second_look, "OTHERS", ("a", "b"))
    monkeypatch.setattr(second_look, "PYTEST", ["-p", "no:xdist", "-p", "no:cacheprovider"])
    said: list[tuple[int, int | None]] = []
    found = look_again(tmp_path, ["seen", "lives"], 2, lambda *now: said.append(now[1:]))
    assert found == {"seen"} and said == [(0, None), (1, 2), (2, 2)]
    (tests / "test_b.py").write_text(asks.format("!= ''"))
    with pytest.raises(MutationError, match="the other tests are red without a mutant: "):
        look_again(tmp_path, ["seen"], 1, lambda *now: None)


def test_a_run_that_was_broken_off_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setup.cfg").write_text("")
    metas = tmp_path / "mutants/minisched/memory"
    metas.mkdir(parents=True)
    mutants = made({"memory": 3})
    codes = {item.name: code for item, code in zip(mutants, (1, None, 0), strict=True)}
    (metas / "m.py.meta").write_text(json.dumps({"exit_code_by_key": codes}))
    asked: list[str] = []

    class Running:
        """A mutmut that is through at once."""

        def __init__(self, *names: str) -> None:
            asked.extend(names)
            codes[names[0]] = 1
            (metas / "m.py.meta").write_text(json.dumps({"exit_code_by_key": codes}))

        def poll(self) -> int:
            return 0

        def terminate(self) -> None:
            """It is over."""

        def wait(self) -> int:
            return 0

    tree = MutantTree(tmp_path, 1)
    monkeypatch.setattr(tree, "_start", Running)
    tree.try_all(mutants, print)
    assert asked == [mutants[1].name] and tree.exit_codes() == codes


def test_a_file_that_is_being_written_has_no_results_yet(tmp_path: Path) -> None:
    path = tmp_path / "m.py.meta"
    path.write_text('{"exit_code_by_key": {')
    assert read_meta(path) == {}


def test_every_layer_is_changed_and_the_suite_comes_first() -> None:
    text = settings()
    assert all(f"    minisched/{layer}/*.py" in text for layer in LAYERS)
    assert "test_selection=\n    tests/mutation_suite.py\n" in text
    assert 0 in LIVED and 1 not in LIVED


def test_every_test_is_there_and_in_one_look_only() -> None:
    others = [f"test_{name}.py" for name in OTHERS]
    assert not {f"{name}.py" for name in TESTS} & set(others)
    for name in (*(f"{name}.py" for name in TESTS), *NAMED, *others):
        path, _, function = name.partition("::")
        text = (ROOT / "tests" / path).read_text("utf-8")
        assert f"\ndef {function or 'test_'}" in text, name


def test_each_known_survivor_says_what_kind_it_is() -> None:
    kinds = (survivors.EQUIVALENT, survivors.SPEED, survivors.WORDING)
    for item in KNOWN:
        assert item.why.startswith(kinds) and len(item.why) > 20, item
    assert len({item[:3] for item in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--sample some", "--sample is 'some', but it must be a number of mutants, or all."),
        ("--sample 3", "--sample is 3, but it must be at least 5, or all."),
        ("--sample 0 --module relay", "--sample is 0, but it must be at least 1, or all."),
        ("--module engine", "unknown module 'engine'; the modules are scheduler, memory, policy,"),
    ],
)
def test_a_bad_option_stops_before_anything_runs(cli: Any, line: str, sentence: str) -> None:
    code, out, err = cli(f"bench mutation {line}")
    assert (code, out) == (2, "") and sentence in err and len(err.splitlines()) == 1


def test_options_of_mutation_are_refused_elsewhere(cli: Any) -> None:
    code, _, err = cli("bench hidden --sample 9")
    assert code == 2 and "--sample belongs to bench mutation, not to bench hidden." in err


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs mutmut: pip install"):
        check_mutmut(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ValueError, match=r"runs in a checkout, but .* has no tests"):
        check_mutmut(tmp_path)
