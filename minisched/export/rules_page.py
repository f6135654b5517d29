"""``diagrams/rules.md``: the rules of each system side by side, and what each answer costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from random import Random

from ..checks.overlap import measure
from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND
from ..loops.run import Run
from ..models.hash import HashModel
from ..policy.rules import Rules, rules_of_admission
from ..policy.systems import RULES, find_rules
from ..scheduler import SchedulerConfig
from ..scheduler.wiring import OBJECTS
from .recipes import Recipe
from .tables import filled, table

CONFIG = SchedulerConfig(
    kv_tokens=300, page_size=4, max_running_requests=8, chunked_prefill_size=32,
    schedule_conservativeness=0.0, enable_priority_scheduling=True,
)  # fmt: skip
EOS = range(0, 250, 40)
OTHERS = ("mini-sglang", "nano-vllm")

HEADS = (
    "rules", "steps", "prompt tokens computed", "prefix hits", "retractions",
    "mean ms to first token", "ms in all",
)  # fmt: skip


def rules_page() -> str:
    """Fill the page, the same every time."""
    sglang, sglang_same = changes("sglang")
    vllm, vllm_same = changes("vllm")
    systems = [*map(rules_of_admission, RULES.values())]
    answers = (
        (f"`{item.name}`", item.metadata["question"],
         *(getattr(rules, item.name) for rules in systems))
        for item in fields(Rules)
    )  # fmt: skip
    return filled(
        "diagrams/rules.md",
        answers=table(("rule", "question", *RULES), answers),
        words="\n".join(words()),
        count=len(workload()),
        kv=CONFIG.kv_tokens,
        sglang=sglang,
        sglang_same=sglang_same,
        vllm=vllm,
        vllm_same=vllm_same,
        others=table(HEADS, (row_of(f"`{name}`", name) for name in OTHERS)),
    )


def words() -> Iterator[str]:
    """List the meaning of each answer, with the code that gives it if it has a name of its own."""
    for item in fields(Rules):
        yield f"- `{item.name}`: {item.metadata['question']}"
        for answer, meaning in item.metadata["answers"].items():
            given = OBJECTS.get(item.name, {}).get(answer)
            yield f"  - `{answer}`{code_of(given)}: {meaning}."


def code_of(given: object) -> str:
    """Return the name and the file of an object, function or class in parentheses, or nothing."""
    if given is None:
        return ""
    named = given if hasattr(given, "__qualname__") else type(given)
    return f" (`{named.__qualname__}` in `{named.__module__.replace('.', '/')}.py`)"


def changes(system: str) -> tuple[str, str]:
    """Return a table of a system's rules and of each answer that changes a figure, and the others.

    ``run_first`` is left out, because another answer to it is another system. So are the answers
    of other systems that agree with SGLang's.
    """
    rows, same = [row_of(f"`{system}`", system)], []
    for item in fields(Rules):
        theirs = getattr(RULES[system], item.name)
        is_asked = system == "sglang" or theirs != getattr(Rules(), item.name)
        for answer in item.metadata["answers"] if is_asked and item.name != "run_first" else ():
            change = f"{item.name}={answer}"
            row = row_of(f"`{change}`", f"{system},{change}") if answer != theirs else ()
            if row and row[1:] == rows[0][1:]:
                same.append(row[0])
            elif row:
                rows.append(row)
    return table(HEADS, rows), ", ".join(same)


def row_of(name: str, rules: str) -> tuple[str, ...]:
    """Return a row of the table; an empty one if the answers can't be combined.

    Raises:
        RuntimeError: the tokens are not those of SGLang's rules; a bug.
    """
    try:
        on = " (on `serial`)" * (loop_for(rules) == "serial")
    except ValueError:
        return ()
    run = played(rules)
    if run.outputs != played("sglang").outputs:
        raise RuntimeError(f"rules {rules!r} changed tokens")
    first = [m.ttft_ns for m in run.metrics.ended if m.ttft_ns is not None]
    admitted = [mark.attrs for mark in run.trace.marks if mark.name == "admit"]
    return (
        f"{name}{on}",
        str(measure(run.trace).steps),
        str(sum(int(attrs["extend_len"]) for attrs in admitted)),
        f"{run.metrics.cache_hit_rate:.0%}",
        str(run.metrics.num_retractions),
        f"{sum(first) / len(first) / MILLISECOND:.1f}",
        f"{run.metrics.last_output / MILLISECOND:.1f}",
    )


def loop_for(rules: str) -> str:
    """Return ``serial`` for rules that reserve memory for the prompt alone, otherwise ``overlap``.

    Raises:
        ValueError: the answers can't be combined.
    """
    return "serial" if find_rules(rules).reserves == "prompt" else "overlap"


@cache
def played(rules: str) -> Run:
    """Run the workload under these rules."""
    model = HashModel(250, eos_ids=frozenset(EOS))
    return Recipe(loop_for(rules), workload(), replace(CONFIG, rules=rules), model=model).play()


def workload() -> list[Request]:
    """Make requests with shared prefixes; one in ten ignores EOS, every sixth is urgent."""
    dice = Random(7)
    beginnings = [[dice.randrange(250) for _ in range(dice.randrange(16, 60))] for _ in range(4)]
    return [
        Request(
            f"r{at}",
            dice.choice(beginnings) + [dice.randrange(250) for _ in range(dice.randrange(1, 40))],
            SamplingParams(max_new_tokens=dice.randrange(8, 48), ignore_eos=at % 10 == 3),
            arrival_time=at * 10 * MILLISECOND,
            priority=20 * (at % 6 == 5),
        )
        for at in range(30)
    ]
