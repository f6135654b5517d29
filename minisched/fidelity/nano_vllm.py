# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy==2.4.6", "xxhash==4.1.0"]
# ///
"""nano-vllm's own scheduler, block manager and engine step, from a checkout, without a model.

Its ``max_num_seqs`` limits the rows of a step, not the running requests, because it has no table
of rows. Here every running request has a row, so these cases have a row for each request.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ..bench.peers.peer import serve
from ..bench.steps import NEW_TOKENS, HostWorkload, result_of, settle
from ..scheduler import SchedulerConfig
from .case import EOS, FidelityCase, Rows, ScheduledStep
from .original import DEVICE, ENTRY, SETTINGS, UNUSED, Original, StandIn, Turns, stand_in

DECIDING = tuple(f"nanovllm.engine.{name}" for name in ("scheduler", "block_manager", "sequence"))
ENGINE = "nanovllm.engine.llm_engine:LLMEngine"
STAND_INS = (
    StandIn("torch", DEVICE, f"processes: {UNUSED}"),
    StandIn("transformers", DEVICE, f"tokenizers: {UNUSED}"),
    StandIn("tqdm", DEVICE, f"bars: {UNUSED}"),
    StandIn("nanovllm.engine.model_runner", DEVICE, "it runs batches"),
    StandIn("nanovllm.config:Config", SETTINGS, "the values of the case; its own has pages of 256"),
    StandIn(f"{ENGINE}.__init__", SETTINGS, "the scheduler is made alone"),
    StandIn(f"{ENGINE}.model_runner", ENTRY, "the case's tokens are the result"),
)


def make_scheduler(config: SchedulerConfig) -> Any:
    """Return a scheduler of these sizes."""
    module: Any = import_module("nanovllm.engine.llm_engine")
    module.Sequence.block_size = config.page_size
    chunk = config.chunked_prefill_size
    return module.Scheduler(
        SimpleNamespace(
            max_num_seqs=config.max_running_requests, eos=EOS,
            max_num_batched_tokens=config.max_prefill_tokens if chunk == -1 else chunk,
            kvcache_block_size=config.page_size, num_kvcache_blocks=config.num_pages,
        )
    )  # fmt: skip


def set_up() -> Any:
    """Import it, and return its engine as a class that is made for a case."""
    stand_in(STAND_INS, "nanovllm")
    module: Any = import_module("nanovllm.engine.llm_engine")
    params = import_module("nanovllm.sampling_params").SamplingParams

    class NanoVllm(module.LLMEngine):  # type: ignore[misc]
        """The engine of one case, with its model runner: a step's tokens come from the case."""

        def __init__(self, case: FidelityCase) -> None:
            self.turns, self.names = Turns(case), dict[int, str]()
            self.scheduler, self.model_runner = make_scheduler(case.config), self
            self.ran, self.lost = set[int](), dict[str, int]()

        def call(self, method: str, seqs: list[Any], is_prefill: bool) -> list[int]:
            """Record the step, and return its tokens."""
            rids = [self.names[seq.seq_id] for seq in seqs]
            starts = [seq.num_cached_tokens if is_prefill else len(seq) - 1 for seq in seqs]
            ends = [at + seq.num_scheduled_tokens for at, seq in zip(starts, seqs, strict=True)]
            if is_prefill:
                rows = tuple(map(Rows, rids, starts, ends))
                self.turns.launched(ScheduledStep("extend", rows))
            else:
                self.turns.launched(ScheduledStep("decode", (), tuple(sorted(rids))))
            return [self.turns.by_rid[rid].token(end) for rid, end in zip(rids, ends, strict=True)]

        def loop(self) -> None:
            """Run one turn."""
            for seq in self.scheduler.waiting:
                if seq.seq_id in self.ran:  # it was preempted in the turn before
                    rid = self.names[seq.seq_id]
                    self.lost[rid] = self.lost.get(rid, 0) + 1
            for arrival in self.turns.begin(self.is_finished(), self.lost):
                told = params(max_tokens=arrival.max_new_tokens, ignore_eos=arrival.ignore_eos)
                self.add_request(list(arrival.prompt), told)
                self.names[self.scheduler.waiting[-1].seq_id] = arrival.rid
            self.ran = {seq.seq_id for seq in self.scheduler.running}
            if not self.is_finished():
                self.step()

    return NanoVllm


class NanoVllmEngine:
    """``schedule`` and ``postprocess`` in turn."""

    def __init__(self, load: HostWorkload) -> None:
        self.scheduler = make_scheduler(load.config)
        self.Sequence = import_module("nanovllm.engine.sequence").Sequence
        params = import_module("nanovllm.sampling_params").SamplingParams
        self.params = params(max_tokens=NEW_TOKENS, ignore_eos=True)
        settle(self.step, load, self.add)

    def add(self, tokens: list[int]) -> None:
        """Receive one request."""
        self.scheduler.add(self.Sequence(tokens, self.params))

    def step(self) -> int:
        """Run one turn of its engine."""
        seqs, is_prefill = self.scheduler.schedule()
        self.scheduler.postprocess(seqs, result_of(len(seqs)).tokens, is_prefill)
        return len(seqs)


ORIGINAL = Original("nano-vllm", "nano-vllm", DECIDING, STAND_INS, set_up, engine_of=NanoVllmEngine)

if __name__ == "__main__":
    serve(ORIGINAL.start)
