"""``diagrams/rules.md``: the rules of each system side by side, and what each answer costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from random import Random

from ..checks.overlap.overlap import measure
from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, SIM_COST
from ..devices.registry import open_device
from ..loops.run import Run, run_loop
from ..models.hash import HashModel
from ..policy.rules import RULES, Rules
from ..scheduler import SchedulerConfig
from .markdown import table

CONFIG = SchedulerConfig(
    kv_tokens=640, page_size=4, max_running_requests=12, chunked_prefill_size=64,
    schedule_conservativeness=0.1, enable_priority_scheduling=True,
)  # fmt: skip
EOS = range(0, 250, 40)

TEXT = """\
# The rules of each system

Lengths, leases, budgets and batches are one code for all (`minisched/policy`, `minisched/memory`).
Where the published schedulers differ, there is a rule (`minisched/policy/rules.py`): a question,
and a word for every answer that somebody gives. A loop runs under the rules of its system;
`--rules` chooses others, whole (`--rules vllm`) or with some answers changed (`--rules
sglang,free_rule=at_once`). `minisched fidelity` runs each system's rules beside its original.

{answers}

## The answers in words

{words}

## Where does the choice matter?

{count} requests with shared beginnings, some of them urgent, on a pool of {kv} slots that is too
small for all, on the loop `overlap` of the simulated device. The first row has SGLang's rules; in
each row below one answer is another, or all of a system's are. What does not change a figure here
decides something that this workload does not have (a rule of the unified budget, say), or is
decided otherwise by another rule. Every row says the same tokens.

{costs}

A retraction throws work away; a prefix hit spares it. Neither is all: who waits longer for memory
computes less twice, and everybody behind waits with it.
"""


def rules_page() -> str:
    """The page, the same every time."""
    return TEXT.format(
        answers=answers_table(),
        words="\n".join(words()),
        count=len(workload()),
        kv=CONFIG.kv_tokens,
        costs=costs_table(),
    )


def answers_table() -> str:
    """Markdown: a row for each rule, a column for each system."""
    rows = (
        (f"`{item.name}`", item.metadata["question"],
         *(getattr(rules, item.name) for rules in RULES.values()))
        for item in fields(Rules)
    )  # fmt: skip
    return table(("rule", "question", *RULES), rows)


def words() -> Iterator[str]:
    """What each answer means."""
    for item in fields(Rules):
        yield f"- `{item.name}`: {item.metadata['question']}"
        for answer, meaning in item.metadata["answers"].items():
            yield f"  - `{answer}`: {meaning}."


def costs_table() -> str:
    """Markdown: the same workload under SGLang's rules, and with each answer that is not theirs."""
    heads = ("rules", "steps", "prompt tokens computed", "prefix hits", "retractions",
             "mean ms to first token", "ms in all")  # fmt: skip
    return table(heads, (figures(name) for name in variants()))


def variants() -> Iterator[str]:
    """Rules by name: SGLang's, those with one answer changed, and the other systems'."""
    yield "sglang"
    theirs = Rules()
    for item in fields(Rules):
        for answer in item.metadata["answers"]:
            if answer != getattr(theirs, item.name):
                yield f"sglang,{item.name}={answer}"
    yield from (name for name in RULES if name != "sglang")


def figures(rules: str) -> tuple[str, ...]:
    """A row of the table of costs.

    Raises:
        RuntimeError: the tokens are not those of SGLang's rules; a bug.
    """
    run = played(rules)
    if run.outputs != played("sglang").outputs:
        raise RuntimeError(f"rules {rules!r} changed tokens")
    first = [m.ttft_ns for m in run.metrics.ended if m.ttft_ns is not None]
    admitted = [mark.attrs for mark in run.trace.marks if mark.name == "admit"]
    return (
        f"`{rules.removeprefix('sglang,')}`",
        str(measure(run.trace).steps),
        str(sum(int(attrs["extend_len"]) for attrs in admitted)),
        f"{run.metrics.cache_hit_rate:.0%}",
        str(run.metrics.num_retractions),
        f"{sum(first) / len(first) / MILLISECOND:.1f}",
        f"{run.metrics.last_output / MILLISECOND:.1f}",
    )


@cache
def played(rules: str) -> Run:
    """The workload's run under these rules."""
    config = replace(CONFIG, rules=rules)
    model = HashModel(250, eos_ids=frozenset(EOS))
    return run_loop("overlap", open_device("sim"), model, workload(), config, SIM_COST)


def workload() -> list[Request]:
    """Requests with shared beginnings; some ignore EOS, and every sixth is urgent."""
    dice = Random(7)
    beginnings = [[dice.randrange(250) for _ in range(dice.randrange(16, 60))] for _ in range(4)]
    return [
        Request(
            f"r{at}",
            dice.choice(beginnings) + [dice.randrange(250) for _ in range(dice.randrange(1, 40))],
            SamplingParams(max_new_tokens=dice.randrange(8, 90), ignore_eos=dice.random() < 0.5),
            arrival_time=at * 25 * MILLISECOND,
            priority=20 * (at % 6 == 5),
        )
        for at in range(40)
    ]
