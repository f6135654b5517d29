"""Who writes and who reads each field of what a step returns: as its documentation says."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minisched
from minisched.checks.overlap.overlap import forwards
from minisched.core import Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.devices.sim_stream import SimStream
from minisched.engine.engine import Engine
from minisched.export.recipes import trace_of
from minisched.export.views import NothingToShow
from minisched.export.views.copy_paths import paths_of
from minisched.export.views.generation_batch_result import MOST_PUML_STEPS, MOST_STEPS, puml, view
from minisched.export.views.generation_batch_result import text as in_terminal
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Mark, Slice, Trace
from minisched.worker import GenerationBatchResult
from tests.shown_forms import picture_and_text
from tests.support import (
    EVERY_BACKEND,
    LOOP_OPTIONS,
    VARIANTS,
    VOCAB,
    hash_model,
    open_device,
    play,
    workloads,
)

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


# -- its view: the copy path -------------------------------------------------------------------

US = 1000  # nanoseconds


@st.composite
def runs(draw: st.DrawFn) -> tuple[Trace, dict[int, int]]:
    """A random run on a device that is fast or slow, and the host buffer that each step got."""
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    workload = draw(workloads(max_requests=4))
    phases = ("receive", "schedule", "prepare", "launch", "process", "output")
    # A pipeline's stages share a forward pass: each still has whole microseconds, as they are told.
    forward = draw(st.sampled_from([0, 12, 96])) * US
    cost = CostModel(dict.fromkeys(phases, 7 * US), forward, 12 * US, 5 * US, 3 * US)
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    buffers: dict[int, int] = {}

    def watch(engine: Engine) -> None:
        launch = engine.worker.copy_stream.launch

        def launched(fn: Any, *args: Any, **more: Any) -> Any:
            if more["name"] == "copy":
                targets = [target for _, target in engine.worker.outputs.buffers]
                (buffers[more["label"].step],) = (
                    at for at, target in enumerate(targets) if target is args[0]
                )
            return launch(fn, *args, **more)

        engine.worker.copy_stream.launch = launched  # type: ignore[method-assign]

    play(workload, loop, relay, options, device, model, cost, watch)
    return device.recorder.trace(loop, "sim", "hash", "virtual"), buffers


def in_ns(words: str) -> int:
    """Milliseconds, as they are written, in nanoseconds."""
    return int(Decimal(words) * 1_000_000)


def of_steps(trace: Trace, name: str, steps: set[int]) -> list[Slice]:
    """The slices of a name that belong to some steps."""
    return [item for item in trace.slices if item.name == name and item.step in steps]


@settings(max_examples=50, deadline=None)
@given(runs())
def test_the_waits_and_the_times_ready_are_those_of_the_run(run: Any) -> None:
    """Of every form: waits are the host's slices; readiness lies between copy and process."""
    trace, buffers = run
    picture, words = picture_and_text(view, in_terminal, trace)
    shown = [item.step for item in forwards(trace)[:MOST_STEPS]]
    steps = {*shown}
    waits = Counter[int]()
    for item in of_steps(trace, "wait", steps):
        waits[item.step] += item.duration
    drawn = Counter[int]()
    for shape in picture.shapes("rect", op="wait"):
        drawn[int(shape["data-step"])] += int(shape["data-ns"])
    assert +drawn == +waits
    slices = {item.id: item for item in trace.slices}
    pairs = [(slices[e.src], slices[e.dst]) for e in trace.edges if e.kind == "result"]
    ready = Counter({dst.step: dst.start - src.end for src, dst in pairs if dst.step in steps})
    rows = [line.split() for line in
            words.partition("taken\n")[2].partition("\n\n")[0].splitlines()]  # fmt: skip
    assert [int(row[0]) for row in rows] == shown
    assert [in_ns(row[6]) for row in rows] == [ready[step] for step in shown]
    assert {int(s["data-ready"]) for s in picture.shapes("rect", ready="*")} == {*+ready}
    assert [in_ns(row[7]) for row in rows] == [waits[step] for step in shown]
    uploads = of_steps(trace, "upload", steps)
    assert len(picture.shapes("rect", op="upload")) == len(uploads)
    assert [row[3] != "-" for row in rows].count(True) == len({item.step for item in uploads})
    held = {int(s["data-step"]): int(s["data-buffer"]) for s in picture.shapes("rect", buffer="*")}
    assert held == {step: buffers[step] for step in shown}
    check_puml(puml(trace), shown[:MOST_PUML_STEPS], waits)


def check_puml(diagram: str, steps: list[int], waits: Counter[int]) -> None:
    """The first steps are taken in turn, and waited for as the run says."""
    assert diagram.startswith("@startuml\n") and diagram.endswith("@enduml\n")
    assert [int(step) for step in re.findall(r"result\(\) of step (\d+)", diagram)] == steps
    assert {int(step) for step in re.findall(r" ms for step (\d+)", diagram)} == {
        step for step in steps if waits[step]
    }


@settings(max_examples=50, deadline=None)
@given(runs())
def test_no_buffer_is_written_before_it_was_read(run: Any) -> None:
    """What the picture of the buffers says: one stay ends before the next begins."""
    free_at: dict[int, int] = {}
    for one in paths_of(run[0]):
        if one.copy and one.process:
            assert one.copy.start >= free_at.get(one.buffer, 0)
            free_at[one.buffer] = one.process.start


@pytest.mark.parametrize("topic", ["mindie_plugin", "overlap_thread", "pd", "vllm_pp", "serial"])
def test_all_waits_of_a_whole_run_are_somebody_s(topic: str) -> None:
    """Also where a step is waited for twice, or two engines number their steps by themselves."""
    trace = trace_of(topic)
    waits = [item for item in trace.slices if item.name == "wait"]
    paths = paths_of(trace)
    assert sum(one.waited for one in paths) == sum(item.duration for item in waits) > 0
    assert sorted(s.id for one in paths for s in one.waits) == sorted(s.id for s in waits)


def test_the_golden_run_waits_for_prompts_only() -> None:
    paths = paths_of(trace_of("generation_batch_result"))
    prompts = [one.step for one in paths if one.mode == "extend"]
    assert [one.step for one in paths if one.waited] == prompts and len(prompts) == 2
    assert [one.step for one in paths if one.upload] == prompts
    assert all(one.ready for one in paths if one.step not in prompts)


def test_a_trace_that_does_not_say_how_many_buffers_there_are_has_none_drawn() -> None:
    trace = trace_of("generation_batch_result")
    without = [mark for mark in trace.marks if mark.name != "host buffers"]
    silent = Trace(trace.loop, "sim", "hash", "virtual", trace.slices, (), (), tuple(without))
    assert "Pinned" in view(trace) and "Pinned" not in view(silent)
    wrong = (*without, Mark("host buffers", 0, {"count": "two"}))
    with pytest.raises(NothingToShow, match="lacks count as a whole number"):
        view(Trace(trace.loop, "sim", "hash", "virtual", trace.slices, (), (), wrong))
