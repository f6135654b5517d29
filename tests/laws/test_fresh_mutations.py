"""Operators change what they name; and a fresh mutation is judged as ``minisched check`` does."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest

from minisched.museum.patch import Edit
from tests.laws.mutations import fresh
from tests.laws.mutations.fresh import Candidate, Fate, Fresh
from tests.laws.mutations.mutation import places
from tests.laws.mutations.operators import Function, changes_at, siblings_in, statements
from tests.laws.mutations.records import Recorded

OPERATORS: dict[str, tuple[str, set[str]]] = {
    "border": ("return a < b", {"return a <= b"}),
    "negate": ("return a == b", {"return a != b"}),
    "and_or": ("return a and b", {"return a or b", "return (a)", "return (b)"}),
    "one_branch": ("return a if b else 5", {"return a", "return 5"}),
    "off_by_one": ("return a[b:]", {"return a[b + 1:]"}),
    "wrong_constant": ("return True", {"return False"}),
    "arithmetic": ("return a // b", {"return -(-a // b)", "return a"}),
    "min_max": ("return min(a, b)", {"return max(a, b)", "return a", "return b"}),
    "other_order": ("return a[0]", {"return a[-1]"}),
    "fewer": (
        "for it in a: b(it)",
        {f"for it in list(a){part}: b(it)" for part in ("[1:]", "[:-1]", "[:1]")},
    ),
    "lost_field": ("return a(b, key=1)", {"return a(b)"}),
    "swapped_arguments": ("return g(a, b)", {"return g(b, a)"}),
    "sibling": ("return a.rows", {"return a.pages"}),
    "drop_call": ("a.wait(b)", {"pass"}),
    "drop_update": ("a.b += 1", {"pass", "a.b -= 1", "a.b = 1"}),
    "guard": ("if a: b()", {"if True: b()", "if False: b()"}),
    "other_jump": ("while a: continue", set()),
    "swap": ("a()\nb()", {"b()\na()"}),
    "early_end": ("a()\nb()", {"a()\nreturn\nb()"}),
    "stale_snapshot": (
        "a.go()\nb(a.rows)",
        {"stale = a.rows\na.go()\nb(stale)"},
    ),
}
SETS = "def fill(pool):\n    pool.rows = 1\n"
REFUSE = "def refuse(recorder, need, left):\n    recorder.mark('x', need=need)\n    return left\n"
ROWS = "class Pool:\n    rows: int\n    pages: int\n    name: str\n"


def function(body: str) -> Function:
    text = f"def f(a, b):\n{textwrap.indent(body, '    ')}\n"
    return Function(text, siblings_in([ROWS]), recorded=Recorded([REFUSE, SETS, text]))


def changed(operator: str, body: str) -> set[str]:
    found = set()
    whole = function(body)
    for at in statements(whole):
        for change in changes_at(whole, *at).get(operator, ()):
            found.add(textwrap.dedent(change.source.partition("\n")[2]).rstrip())
    return found


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_changes_what_it_names(operator: str) -> None:
    body, expected = OPERATORS[operator]
    if operator == "other_jump":
        body, expected = (
            "while a:\n    continue",
            {f"while a:\n    {it}" for it in ("break", "pass")},
        )
    assert changed(operator, body) == expected


@pytest.mark.parametrize(
    "body",
    [
        '"""Return a + 1."""',
        "raise ValueError(a + 1)",
        "assert a < b",
        "import a",
        "c: list[a[0]]",
        "zip(strict=True)",
    ],
)
def test_texts_types_and_errors_never_change(body: str) -> None:
    found = {operator for operator in OPERATORS if changed(operator, body)}
    assert found <= {"drop_call"}, found


def test_the_smaller_of_two_stays_the_smaller() -> None:
    assert not changed("swapped_arguments", "return min(a, b)")


def test_a_message_stays_as_it_is() -> None:
    assert not changed("arithmetic", "a = f'{a + 1} of {b}'")


def test_what_only_writes_the_trace_never_changes() -> None:
    for body in ("self.recorder.mark('x', a=a + 1)", "if self.recorder.is_on:\n    a.go(b + 1)"):
        assert not list(statements(function(body))), body
    assert list(statements(function("self.recorder.touch(a + 1)")))
    assert not changed("lost_field", "a.go(label=b)")


def test_a_value_for_the_recorder_alone_never_changes() -> None:
    """Follow a value through calls and variables; one that is read elsewhere may change."""
    only = "need = len(a) + 1\nreturn refuse(b.recorder, need, b + 1)"
    assert changed("arithmetic", only) == {
        only.replace("b + 1", change) for change in ("b - 1", "b")
    }
    both = "need = len(a) + 1\nb.go(need)\nreturn refuse(b.recorder, need, b)"
    assert changed("arithmetic", both) == {both.replace("+ 1", "- 1"), both.replace(" + 1", "")}
    assert not changed("arithmetic", "if not a.recorder.is_on:\n    return\nb.go(a + 1)")
    assert not list(statements(function("refuse(b.recorder, a, b)")))


def test_an_attribute_that_stays_is_read_at_any_time() -> None:
    assert changed("stale_snapshot", "a.go()\nb(a.rows)")
    assert not changed("stale_snapshot", "a.go()\nb(a.pages)")


def test_an_edit_has_the_lines_that_differ_and_is_unique() -> None:
    healthy = "def f():\n    a()\n    b()\n    a()\n    c()\n"
    bug = "def f():\n    a()\n    b()\n    pass\n    c()\n"
    edit = fresh.smallest_edit("x:f", healthy, bug)
    assert healthy.count(edit.healthy) == 1 and len(edit.healthy.splitlines()) == 3
    assert healthy.replace(edit.healthy, edit.bug) == bug
    assert "-    a()\n+    pass" in Fresh("drop_call", edit, 4, 1).diff
    shorter = fresh.smallest_edit("x:f", healthy, healthy.removesuffix("    c()\n"))
    assert healthy.replace(shorter.healthy, shorter.bug) == healthy.removesuffix("    c()\n")


def test_all_code_that_may_change_is_of_the_engine() -> None:
    found = fresh.candidates()
    assert len(found) > 700 and len({item.where for item in found}) == len(found)
    assert {item.where.partition(".")[0] for item in found} == {*fresh.FOLDERS, "devices"}
    assert not any("cuda" in item.where or "__str__" in item.where for item in found)


# -- a mutation is judged --------------------------------------------------------------------------

FIRST = list(places(range(2), "sim"))


def judged(where: str, healthy: str, bug: str, cases: int = 3) -> Fate:
    return fresh.judge_one(Fresh("test", Edit(where, healthy, bug), 1, 2**cases - 1), FIRST)


def test_a_mutation_is_caught_survives_or_does_not_compile() -> None:
    where = "memory.pool:LeasePool.release", "self.cache.dec_lock_ref(lease.node)"
    caught = judged(*where, "pass")
    assert (caught.outcome, caught.cases) == ("caught", 1) and caught.law in ("leak", "livelock")
    survived = judged(*where, f"{where[1]}  # a comment")
    assert (survived.outcome, survived.entered, survived.cases) == ("survived", 3, len(FIRST))
    assert judged(*where, "f(").outcome == "does not compile"


@pytest.mark.thorough
def test_what_a_case_enters_is_measured_and_mutations_are_drawn_from_it() -> None:
    some = [it for it in fresh.candidates() if it.where.startswith(("policy.decode", "devices."))]
    never = Candidate("memory.pool:LeasePool.close", "def close(self, lease):\n    lease.close()\n")
    at = FIRST[:2]
    entered = fresh.measure(some, at, jobs=1)
    assert {0, 3} < set(entered.values()), "a statement is entered by no case, by one or by both"
    drawn = fresh.draw_mutations(5, 7, [*some, never], entered)
    assert len({item.edit for item in drawn}) == 5 and all(item.entered_by for item in drawn)
    assert drawn == fresh.draw_mutations(5, 7, [*some, never], entered)
    result = fresh.judge_all(drawn[:3], at, jobs=1)
    assert [item for item, _ in result] == drawn[:3]
    assert {fate.outcome for _, fate in result} <= {"caught", "survived"}
    table = fresh.as_table(result)
    assert "operator" in table and table.endswith("% caught or hung")
    assert fresh.as_json(result).count('"outcome"') == 3


def test_a_process_that_takes_too_long_is_ended() -> None:
    found = dict(fresh.in_children([0, 60], time.sleep, jobs=2, longest=1.0))
    assert found == {0: None, 60: None}
    assert dict(fresh.in_children([1, 2], lambda it: it * 2, jobs=1)) == {1: 2, 2: 4}


# -- the draw whose survivors are kept -------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "lessons/site/docs/the_code.md"


def test_each_survivor_has_a_reason_and_the_page_has_the_figures() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    for draw, survivors in fresh.kept_draws():
        assert draw["caught"] + len(survivors) == draw["mutations"]
        assert all(bool(item.equivalent) != bool(item.missed) for item in survivors)
        equivalent = sum(bool(item.equivalent) for item in survivors)
        caught, real = draw["caught"], draw["mutations"] - equivalent
        assert f"--fresh {draw['drawn']} --seed {draw['seed']}" in text
        assert f"{caught} of {real} ({100 * caught / real:.0f} %)" in text
