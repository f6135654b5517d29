"""``minisched/nano.py`` in lockstep with the package: the same batches, tokens and step times."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minisched import nano
from minisched.checks.draw import DRAFTERS, Letters, Scale, at_level, draw
from minisched.core import Request
from minisched.devices.base import Buffer
from minisched.devices.cost import MILLISECOND, CostModel
from minisched.devices.sim import SimDevice, Vector
from minisched.loops.run import run_loop
from minisched.models.base import ForwardBatch
from minisched.models.hash import HashModel
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.support import many

SHARDS = 5  # tests, so that each of them is short
ROOT = Path(nano.__file__).parents[1]
COST = CostModel(
    host={"schedule": nano.SCHEDULE_MS * MILLISECOND, "process": nano.PROCESS_MS * MILLISECOND},
    forward_base=nano.FORWARD_MS * MILLISECOND,
)
Batches = list[list[tuple[str, int]]]  # of each step: requests, and the positions to compute
Times = list[tuple[int, int]]  # of each step: start and end of its forward pass, in milliseconds


class NanoModel(HashModel):
    """The model of ``nano.py`` in the package: its logits are the tokens themselves."""

    def forward(self, batch: ForwardBatch, ids: Vector, page_table: Buffer) -> Any:
        at, tokens = 0, Vector()
        for row, prefix, length in zip(
            batch.rows, batch.prefix_lens, batch.extend_lens, strict=True
        ):
            start = row * self.max_len
            slots = page_table[start : start + prefix + length]
            self.kv[0][slots[prefix:]] = ids[at : at + length]
            values = self.kv[0][slots]
            tokens.append(nano.next_token(values, range(len(values))))
            at += length
        return tokens

    def sample(self, logits: Any, batch: ForwardBatch) -> Vector:
        return Vector(logits)


SCALE = Scale(
    themes=("any",),
    letters=Letters(
        51, (*[frozenset[int]()] * 50, *(frozenset({n}) for n in range(1, 51))), (frozenset(),)
    ),
    wishes=("none",),
    num_requests=range(1, 9),
    prompt_lens=range(1, 21),
    answer_lens=range(1, 13),
    page_sizes=(1,),
    chunks=range(1, 11),
    spare_pages=(*[0] * 40, *range(41)),
    refused_share=0,
    search_share=0,
)


def drawn(seed: int) -> tuple[list[Request], int, int]:
    """Requests, slots and a chunk size; memory is often near the least that can work."""
    workload = at_level(draw(seed * len(DRAFTERS), odd=False, scale=SCALE).workload, "tight")
    return workload.requests, workload.config.kv_tokens, workload.config.chunked_prefill_size


def in_nano(loop: str, seed: int) -> tuple[Batches, list[list[int]], Times]:
    requests, num_slots, chunk_size = drawn(seed)
    reqs = [
        nano.Request(list(req.prompt), req.params.max_new_tokens, *req.params.stop_token_ids)
        for req in requests
    ]
    names = {id(mine): req.rid for mine, req in zip(reqs, requests, strict=True)}
    scheduler, device = nano.Scheduler(reqs, num_slots, chunk_size), nano.Device()
    batches, forward = Batches(), scheduler.forward

    def watched(batch: list[nano.Row]) -> list[int]:
        batches.append([(names[id(row.req)], len(row.input_ids)) for row in batch])
        return forward(batch)

    scheduler.forward = watched  # type: ignore[method-assign]
    getattr(nano, loop)(scheduler, device)
    assert sorted(scheduler.free_slots) == list(range(num_slots)), "all memory is released"
    assert [req.output_ids for req in reqs] == [nano.alone(req) for req in reqs]
    times = [(start, end) for lane, _, start, end in device.slices if lane == "forward"]
    return batches, [req.output_ids for req in reqs], times


def in_the_package(
    loop: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Batches, list[list[int]], Times]:
    reqs, num_slots, chunk_size = drawn(seed)
    config = SchedulerConfig(
        rules="mini-sglang",
        kv_tokens=num_slots,
        chunked_prefill_size=chunk_size,
        disable_radix_cache=True,
    )
    batches, commit = Batches(), Scheduler.commit

    def watched(self: Scheduler, *args: Any) -> Any:
        batch = commit(self, *args)
        batches.append(list(zip(batch.rids, map(len, batch.ids), strict=True)))
        return batch

    monkeypatch.setattr(Scheduler, "commit", watched)
    model = NanoModel(vocab_size=51, eos_ids=frozenset())
    run = run_loop(loop, SimDevice(), model, reqs, config, COST)
    slices = [item for item in run.trace.slices if item.name == "forward"]
    times = [(item.start // MILLISECOND, item.end // MILLISECOND) for item in slices]
    return batches, [req.output_ids for req in reqs], sorted(times)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_nano_and_the_package_make_the_same_steps(
    loop: str, shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(shard, many(40, 400), SHARDS):
        with monkeypatch.context() as patch:
            assert in_nano(loop, seed) == in_the_package(loop, seed, patch), f"seed {seed}"


def test_nano_is_one_short_file_of_the_standard_library_and_runs_in_a_moment() -> None:
    assert len(Path(nano.__file__).read_text(encoding="utf-8").splitlines()) <= 300
    done = subprocess.run(
        [sys.executable, "-S", "-m", "minisched.nano"],
        capture_output=True,
        text=True,
        timeout=60,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("True") == 2 and done.stdout.count("forward |") == 2
    for name in ("README.md", "README.zh-CN.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        (told,) = re.findall(r"```text\n(overlap: .*?)```", text, re.DOTALL)
        assert told.strip() in done.stdout
        assert re.findall(r"208", text) and done.stdout.startswith("serial: 208 ms;")


def test_a_request_that_can_never_run_is_refused() -> None:
    with pytest.raises(ValueError, match="num_slots is 4, but a request needs 5"):
        nano.Scheduler([nano.Request([1, 2], 3)], num_slots=4, chunk_size=8)
