"""vLLM's own scheduler and engine core, on a CPU: whole and unchanged, over configs of its own.

``EngineCore.step`` and ``step_with_batch_queue`` are the original's too. Their executor is not
there: it answers with the case's tokens as soon as it is asked.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module, metadata
from typing import Any

from ..bench.peers.missing import PACKAGES
from ..bench.peers.peer import Answer, serve
from ..bench.peers.vllm_scheduler import import_without_gpu, make_hasher, make_scheduler
from .case import EOS, Arrival, FidelityCase, Rows, Schedule, ScheduledStep, Shape
from .turns import DEVICE, ENTRY, SETTINGS, Played, StandIn, Turns

SCHED = "vllm.v1.core.sched"
DECIDING = (
    f"{SCHED}.scheduler", f"{SCHED}.async_scheduler", f"{SCHED}.request_queue", f"{SCHED}.utils",
    "vllm.v1.core.kv_cache_manager", "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.single_type_kv_cache_manager", "vllm.v1.core.block_pool",
    "vllm.v1.core.kv_cache_utils", "vllm.v1.request", "vllm.v1.engine.core",
)  # fmt: skip
CORE = "vllm.v1.engine.core:EngineCore"
STAND_INS = (
    *(StandIn(name, DEVICE, why) for name, why in PACKAGES["vllm"].items()),
    StandIn("vllm.config:VllmConfig.model_config", SETTINGS, "a text model of nothing special"),
    StandIn(f"{CORE}.__init__", SETTINGS, "parts are made one by one"),
    StandIn(f"{CORE}.__getattr__", SETTINGS, "what was not set is off"),
    StandIn(f"{CORE}.model_executor", ENTRY, "the case's tokens are the result"),
)
LOOPS = {"serial": "vllm_step", "queue": "vllm_batch_queue", "async": "vllm_async"}
PLAIN = {"disable_radix_cache": True}
PARTS = {
    **{
        f"{loop}, {cache}, {memory}": Shape(
            name, 0, "exact" if memory == "tight" else memory, unified=True,
            more=None if cache == "cache" else PLAIN,
        )
        for loop, name in LOOPS.items()
        for cache in ("plain", "cache")
        for memory in ("roomy", "tight")
    },
    **{
        f"{loop}, conversations": Shape(name, 0, "exact", unified=True, turns=True)
        for loop, name in LOOPS.items()
    },
}  # fmt: skip


class Executor:
    """Runs nothing: a step's tokens are those that the case says."""

    def __init__(self, turns: Turns, scheduler: Any) -> None:
        self.turns, self.scheduler = turns, scheduler
        self.output_of = import_module("vllm.v1.outputs").ModelRunnerOutput
        self.sampled: Any = None

    def execute_model(self, plan: Any, non_block: bool) -> Future[Any]:
        """Note what was scheduled; the result of a step that samples is that of its sampling."""
        rows, told = [], []
        for rid, count in plan.num_scheduled_tokens.items():
            request = self.scheduler.requests[rid]
            end = request.num_computed_tokens
            rows.append(Rows(rid, end - count, end))
            is_chunk = request.is_prefill_chunk
            told.append([] if is_chunk else [self.turns.by_rid[rid].token(end)])
        names = [row.rid for row in rows]
        output = self.output_of(names, {name: at for at, name in enumerate(names)}, told)
        if not rows:
            return done(output)
        self.turns.launched(ScheduledStep("step", tuple(sorted(rows))))
        self.sampled = output
        return done(None)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The tokens of the step that was launched last."""
        return done(self.sampled) if non_block else self.sampled


def done(value: Any) -> Future[Any]:
    """Something that has come."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def engine_core() -> Any:
    """``EngineCore``, as a class that is made for a case."""
    module: Any = import_module("vllm.v1.engine.core")

    class Vllm(module.EngineCore):  # type: ignore[misc]
        """The engine core of one case."""

        def __init__(self, case: FidelityCase) -> None:
            config = case.config
            scheduler = make_scheduler(
                config.max_running_requests, config.max_prefill_tokens, config.num_pages,
                config.page_size, not config.disable_radix_cache, case.loop == LOOPS["async"],
            )  # fmt: skip
            turns = Turns(case)
            self.__dict__.update(
                scheduler=scheduler, model_executor=Executor(turns, scheduler), turns=turns,
                batch_queue=deque(maxlen=2), batch_queue_size=2, is_pooling_model=False,
                is_mm_encoder_only=False, check_for_draft_tokens=False,
                aborts_queue=queue.Queue(), vllm_config=scheduler.vllm_config,
            )  # fmt: skip

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return None

    return Vllm


def make_request(arrival: Arrival, hasher: Any) -> Any:
    """The request of an arrival."""
    params = import_module("vllm.sampling_params").SamplingParams(
        max_tokens=arrival.max_new_tokens, ignore_eos=arrival.ignore_eos, temperature=0.0
    )
    params._eos_token_id = None if arrival.ignore_eos else EOS
    params.stop_token_ids = [] if arrival.ignore_eos else [EOS]
    return import_module("vllm.v1.request").Request(
        request_id=arrival.rid, prompt_token_ids=list(arrival.prompt), sampling_params=params,
        pooling_params=None, block_hasher=hasher,
    )  # fmt: skip


def play(made: Any, case: FidelityCase) -> Schedule:
    """A case, turn by turn."""
    core = made(case)
    turns: Turns = core.turns
    requests: dict[str, Any] = {}
    caches = not case.config.disable_radix_cache
    hasher = make_hasher(case.config.page_size) if caches else None
    step = core.step if case.loop == LOOPS["serial"] else core.step_with_batch_queue

    def turn() -> None:
        is_done = not (core.scheduler.has_unfinished_requests() or core.batch_queue)
        lost = {rid: request.num_preemptions for rid, request in requests.items()}
        for arrival in turns.begin(is_done, lost):
            request = requests[arrival.rid] = make_request(arrival, hasher)
            core.scheduler.add_request(request)
        step()

    return turns.play(turn)


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import it, with the stand-ins."""
    import_without_gpu()
    made = engine_core()
    import_module(f"{SCHED}.async_scheduler")
    overridden = [name for name in vars(made) if callable(getattr(made, name))]
    version = metadata.version("vllm")
    return Played(lambda case: play(made, case), version, DECIDING, "vllm", overridden).answer


if __name__ == "__main__":
    serve(start)
