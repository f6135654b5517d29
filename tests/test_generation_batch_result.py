"""Who writes and who reads each field of what a step returns: as its documentation says."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import minisched
from minisched.core import Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.devices.sim_stream import SimStream
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.worker import GenerationBatchResult

from .backends import EVERY_BACKEND, hash_model, open_device
from .laws import VARIANTS

NINE = (
    "logits_output", "next_token_ids", "num_accepted_tokens", "next_draft_input",
    "extend_input_len_per_req", "extend_logprob_start_len_per_req", "copy_done",
    "delay_sample_func", "future_indices",
)  # fmt: skip
PACKAGE = str(Path(minisched.__file__).parent)
Names = dict[str, set[str]]


class Watch:
    """Every access to a field from within the package, by the name of the function that did it."""

    def __init__(self) -> None:
        self.written: Names = defaultdict(set)
        self.read: Names = defaultdict(set)
        self.field_of: dict[int, set[str]] = defaultdict(set)  # id of a value -> where it stood
        self.made: dict[int, str] = {}  # id of an op -> the function whose value it has
        self.used: list[tuple[int, str]] = []  # id of an argument, and the function that got it
        self.kept: list[Any] = []  # so that no id is given twice

    @contextmanager
    def on(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Watch as long as this lasts; then add what ops made and used."""
        with monkeypatch.context() as patch:
            patch.setattr(GenerationBatchResult, "__setattr__", self.set_attribute())
            patch.setattr(GenerationBatchResult, "__getattribute__", self.get_attribute())
            patch.setattr(SimStream, "launch", self.launching(SimStream.launch))
            yield
        for value, function in self.used:
            for name in self.field_of.get(value, ()):
                self.read[name].add(function)
        for value, names in self.field_of.items():
            for name in names if value in self.made else ():
                self.written[name].add(self.made[value])

    def set_attribute(self) -> Any:
        def set_attribute(pending: Any, name: str, value: Any) -> None:
            function = caller(2)
            if function == "__init__":
                function = "" if value is None or value == [] else caller(3)
            if name in NINE and function:
                self.written[name].add(function)
                self.kept.append(value)
                self.field_of[id(value)].add(name)
            object.__setattr__(pending, name, value)

        return set_attribute

    def get_attribute(self) -> Any:
        def get_attribute(pending: Any, name: str) -> Any:
            if name in NINE and caller(2):
                self.read[name].add(caller(2))
            return object.__getattribute__(pending, name)

        return get_attribute

    def launching(self, launch: Any) -> Any:
        def watched(stream: Any, fn: Any, *args: Any, **options: Any) -> Any:
            op = launch(stream, fn, *args, **options)
            function = (fn.func if isinstance(fn, partial) else fn).__name__
            self.made[id(op)] = function
            self.used += [(id(arg), function) for arg in args if arg is not None]
            self.kept += [op, *args]
            return op

        return watched


def caller(depth: int) -> str:
    """The function that is so far up the stack, without its class; empty outside the package."""
    code = sys._getframe(depth).f_code
    if code.co_filename == "<string>":
        return "__init__"  # which a dataclass writes
    if not code.co_filename.startswith(PACKAGE):
        return ""
    return code.co_qualname.split(".<locals>")[0].rpartition(".")[2]


def documented() -> dict[str, str]:
    """The text behind each field."""
    (tree,) = ast.parse(inspect.getsource(GenerationBatchResult)).body
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for item, behind in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(behind, ast.Expr):
            assert isinstance(item.target, ast.Name) and isinstance(behind.value, ast.Constant)
            texts[item.target.id] = str(behind.value.value)
    return texts


def names_in(text: str) -> set[str]:
    """The functions that a text names."""
    return set(re.findall(r"``(\w+)``", text))


def every_kind_of_run() -> None:
    """Every loop with its relays and options, with log-probabilities; and with drafts."""
    params = SamplingParams(
        max_new_tokens=5, ignore_eos=True, return_logprob=True, logprob_start_len=0
    )
    cases = [(loop, relay, {}) for loop, spec in LOOPS.items() if not spec.whole_run
             for relay in spec.relays]  # fmt: skip
    for loop, relay, options in [*cases, *VARIANTS]:
        requests = [Request(f"r{i}", [1, 2, 3, i], params) for i in range(3)]
        config = SchedulerConfig(chunked_prefill_size=3)
        run_loop(loop, SimDevice(), HashModel(19), requests, config, relay=relay, **options)
    for loop, relay, algorithm in (("serial", "host", "NGRAM"), ("overlap", "pool", "NGRAM_GPU")):
        config = SchedulerConfig(speculative_algorithm=algorithm)
        requests = [Request("r", [1, 2, 1, 2, 1], params)]
        run_loop(loop, SimDevice(), HashModel(3), requests, config, relay=relay)


def test_the_nine_published_fields_stand_behind_the_batch() -> None:
    assert tuple(item.name for item in fields(GenerationBatchResult))[: 1 + len(NINE)] == (
        "batch", *NINE,
    )  # fmt: skip
    assert set(documented()) == set(NINE)


def test_each_field_is_written_and_read_by_who_its_documentation_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch()
    with watch.on(monkeypatch):
        every_kind_of_run()
    for name, text in documented().items():
        parts = re.split(r"\b[Rr]ead\b", text, maxsplit=1)
        assert len(parts) == 2 and "ritten by" in parts[0], name
        assert names_in(parts[0]) == watch.written[name], f"who writes {name}"
        assert names_in(parts[1]) == watch.read[name], f"who reads {name}"


def test_lengths_and_starts_are_those_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4 of a prompt of 10, of which log-probabilities are wanted from 6 on (SGLang)."""
    seen: list[tuple[list[int], list[int]]] = []
    result = GenerationBatchResult.result

    def look(pending: GenerationBatchResult) -> Any:
        found = result(pending)
        lens = pending.extend_input_len_per_req, pending.extend_logprob_start_len_per_req
        seen.append(lens)
        return found

    monkeypatch.setattr(GenerationBatchResult, "result", look)
    params = SamplingParams(max_new_tokens=2, return_logprob=True, logprob_start_len=6)
    requests = [Request("r", list(range(10)), params), Request("plain", [5, 6])]
    config = SchedulerConfig(chunked_prefill_size=4)
    run_loop("serial", SimDevice(), HashModel(19, eos_ids=frozenset()), requests, config)
    assert seen[:4] == [([4], [4]), ([4], [2]), ([2, 2], [0, 2]), ([], [])]


@EVERY_BACKEND
def test_who_asks_again_gets_the_same(backend: str) -> None:
    """Loops on MLX ask a step for its tokens once for each of its parts."""
    kept: list[tuple[GenerationBatchResult, Any]] = []
    result = GenerationBatchResult.result

    def keep(pending: GenerationBatchResult) -> Any:
        kept.append((pending, result(pending)))
        return kept[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenerationBatchResult, "result", keep)
        params = SamplingParams(max_new_tokens=3, return_logprob=True, logprob_start_len=0)
        requests = [Request("r", [1, 2, 3], params)]
        run_loop("overlap", open_device(backend), hash_model(backend, frozenset()), requests)
    assert len(kept) >= 3
    assert all(pending.result() is found and found.logprobs for pending, found in kept)
