"""Five figures of the published sources, each drawn with the participants of its design.

The words at each event of a run are written here (``story.py``). Times, counts, order and numbers
come from the run.
"""

from __future__ import annotations

from ...engine.engine import Engine
from ...loops.mindie_placeholder import PlaceholderLedger
from ...loops.mindie_plugin import ModelOutput, PluginManager
from ...loops.vllm import execute_model, sample_tokens, update_from_output
from ...models.base import ForwardBatch
from ...recipes import recipe, run_of, trace_of
from ...relay.future_map import FutureMapRing
from ...relay.prev_sampled import PrevSampled
from ...scheduler import Scheduler
from ...trace import Trace
from ..layout import make_view, shown, view_of_steps
from ..puml_style import Actor, Code
from ..story import Chapter, Story, to_story

COPY_STREAM = Actor("copy stream", "device")
ON_DEVICE = """
forward    | worker
sample     | worker
sample end | worker ->> copy: tokens of {step}
copy       | copy
"""  # the note of most figures

# -- SGLang: the event loop, and the FutureMap between two steps -----------------------------------

EVENT_LOOP = Story(
    {
        "scheduler": Actor("Scheduler", "host"),
        "queue": Actor("result_queue", "host"),
        "worker": Actor("forward stream", "device"),
        "copy": COPY_STREAM,
    },
    ON_DEVICE
    + """
schedule | scheduler -> scheduler: recv_requests(), get_next_batch_to_run()
         | scheduler: schedule
prepare  | scheduler
launch   | scheduler
put      | scheduler ->> worker: run_batch({step}), does not wait
         | scheduler -> queue: append {step}, now: {queue}
take     | queue --> scheduler: popleft: {step}, left: {queue}
wait     | scheduler: synchronize on copy_done of {step}
process  | copy ->> scheduler: copy_done: tokens of {step} are on the host
         | scheduler -> scheduler: process_batch_result({step})
         | scheduler
output   | scheduler: output of {step}
         | scheduler -> scheduler: launch_batch_sample_if_needed(): no sampling is delayed here
""",
    {
        "recv_requests": Engine.recv_requests,
        "launch_batch_sample_if_needed": Engine.launch_batch_sample_if_needed,
        "get_next_batch_to_run": Engine.get_next_batch_to_run,
        "run_batch": Engine.run_batch,
        "process_batch_result": Engine.process_batch_result,
    },
)

FUTURE_MAP = Story(
    {
        "scheduler": Actor("Scheduler", "host"),
        "map": Actor("token_ids_map\\n(FutureMap)", "relay"),
        "worker": Actor("forward stream", "device"),
        "copy": COPY_STREAM,
    },
    ON_DEVICE
    + """
mark future slots | scheduler -> map: alloc_future_indices(): slots {slots} for the tokens of {step}
                  | scheduler -> scheduler: ids of {step}: minus ({reads})
launch            | scheduler
put               | scheduler ->> worker: step {step}
relay             | map --> worker: resolve_future: slots {reads} hold the tokens of {src}
sample end        | worker -> map: store_to_map: slots {slots}
                  | worker ->> copy: tokens of {step}
process           | copy ->> scheduler: tokens of {step}
                  | scheduler
""",
    {
        "alloc_future_indices": FutureMapRing.alloc_future_indices,
        "ids": ForwardBatch,
        "resolve_future": FutureMapRing.resolve_future,
        "store_to_map": FutureMapRing.store_to_map,
    },
)


def event_loop() -> str:
    """Draw a settled turn: the host's work while the device runs a step."""
    title = "SGLang event_loop_overlap: the host works on the steps before and after"
    return to_story(EVENT_LOOP, title, one_period(trace_of("overlap")))


def future_map() -> str:
    """Draw a settled turn with a ring for two requests."""
    title = "SGLang FutureMap: a token reaches the next step without the host"
    return to_story(FUTURE_MAP, title, one_period(trace_of("future_map")))


def one_period(trace: Trace) -> Chapter:
    """Return one settled step of a run, which is step N."""
    view = shown(trace, 1)
    return Chapter(view, base=view.first_step)


# -- vLLM: the batch queue, filled before it is harvested ------------------------------------------

VLLM = {"core": Actor("EngineCore", "host"), "scheduler": Actor("AsyncScheduler", "host")}
GPU = {"worker": Actor("GPU worker", "device"), "copy": COPY_STREAM}
VLLM_CODE: Code = {
    "schedule": Scheduler.next_batch,
    "execute_model": execute_model,
    "sample_tokens": sample_tokens,
    "update_from_output": update_from_output,
    "prev_sampled_token_ids": PrevSampled,
}

BATCH_QUEUE = Story(
    {**VLLM, "queue": Actor("batch_queue", "host"), **GPU},
    ON_DEVICE
    + """
schedule | core -> scheduler: schedule()
         | scheduler: schedule
prepare  | core: prepare inputs of {step}
mark prev sampled | core ->> worker: execute_model({step}, non_block=True); \
prev_sampled_token_ids: {path}, {new} ids from the host
launch   | core
put      | core -> queue: appendleft the Future of {step}, in flight: {queue}
take     | queue --> core: pop {step}, in flight: {queue}
wait     | core: block on {step}
process  | copy ->> core: tokens of {step}
         | core -> scheduler: update_from_output({step})
         | scheduler: one placeholder less\\nfor {rids}
output   | core: output of {step}
""",
    VLLM_CODE,
)
# the next turn begins at the same time, so it stands with the launch
FIRST = """
launch | core
       | core -> queue: appendleft the Future of {step}, in flight: {step}
       | core -> core: there is room: return without waiting
"""
SECOND = """
put     |
put 1 2 | core -> queue: appendleft the Future of {step}, in flight: {queue}
"""


def batch_queue() -> str:
    """Draw the first turns with async scheduling, the default on one device: fill, then harvest."""
    trace = run_of("vllm_async")
    _, second, end = [item.start for item in trace.on("host") if item.name == "schedule"][:3]
    return to_story(
        BATCH_QUEUE,
        "vLLM step_with_batch_queue: fill the queue, then launch N+1 and block on N",
        Chapter(make_view(trace, 0, second), "The queue is empty: fill it", FIRST, base=1),
        Chapter(
            make_view(trace, second, end), "It is full: launch N+1, block on N", SECOND, base=1
        ),
    )


# -- MindIE: the plugin pipeline with its thread, and the scheduler's placeholders -----------------

PIPELINE = Story(
    {
        "engine": Actor("LlmEngine", "host"),
        "manager": Actor("PluginManager", "host"),
        "input": Actor("input_queue", "host"),
        "output": Actor("output_queue", "host"),
        "thread": Actor("forward_loop\\n(thread)", "host"),
        "worker": Actor("NPU", "device"),
        "copy": COPY_STREAM,
    },
    ON_DEVICE
    + """
schedule | engine: schedule
prepare  | engine -> manager: generate_token_async({step})
         | manager: preprocess {step}, one step later
mark placeholder fill | manager -> manager: hit mask of {step}: rows ({rows}) of the step before
fill     | output --> manager: get: {before}
         | manager: fill tokens of {before} into {step}
fill end | manager -> input: put {step}
forward thread launch | input --> thread: get {step}
                      | thread: launch forward {step}
forward thread launch end | thread ->> worker: forward {step}
                          | thread --> manager: launch_done of {before}
forward thread verify end | thread -> output: put {step}
copy end | copy ->> manager: tokens of {step}
wait     | manager: blocked ({step})
postprocess | manager
postprocess end | manager ->> thread: postprocess_done of {step}
process  | manager --> engine: answer: the tokens of {step}
         | engine
output   | engine: output of {step}
""",
    {
        "generate_token_async": PluginManager.generate_token_async,
        "launch_done": ModelOutput,
        "postprocess_done": ModelOutput,
    },
)

PLACEHOLDERS = Story(
    {
        "client": Actor("client", "host"),
        "engine": Actor("LlmEngine (C++)", "host"),
        "ledger": Actor("the sequence's\\noutput tokens", "host"),
        "python": Actor("generate_token_async\\n(Python)", "host"),
        "worker": Actor("NPU", "device"),
    },
    """
schedule | engine: schedule
mark ledger schedule | engine -> ledger: {step} is sent: AddNextTokenPlaceHolder gives {tokens}
prepare  | engine ->> python: execute {step}
         | python
forward  | worker
sample   | worker
mark ledger response | python --> engine: tokens of {step}, in answer to the call after it
                     | engine -> ledger: ReplacePlaceHolderWithToken gives {tokens}
mark ledger dummy | python --> engine: a dummy: nothing has ended before the first call
                  | engine -> ledger: nothing is replaced: {tokens} remains
process  | engine
output   | engine ->> client: output of {step}
""",
    {
        "AddNextTokenPlaceHolder": PlaceholderLedger.add_next_token_placeholder,
        "ReplacePlaceHolderWithToken": PlaceholderLedger.replace_placeholder_with_token,
    },
)


def plugin_pipeline() -> str:
    """Draw a settled turn of the Python layer."""
    title = "MindIE's plugin pipeline: a call puts N and answers with the tokens of N-1"
    return to_story(PIPELINE, title, one_period(run_of("mindie_plugin")))


def scheduler_placeholders() -> str:
    """Draw the steps from the prompt to the second token of one request."""
    trace = recipe("mindie_dual", "s: 0-11 -> 4").run()
    title = "MindIE's scheduler: -1 stands for a token until the next call returns it"
    return to_story(PLACEHOLDERS, title, Chapter(view_of_steps(trace, 1, 2)))


STORIES = {
    "sglang_cpu_gpu_overlap_event_loop": event_loop,
    "sglang_futuremap_overlap": future_map,
    "vllm_cpu_gpu_overlap_batch_queue": batch_queue,
    "mindie_async_plugin_manager_pipeline": plugin_pipeline,
    "mindie_scheduler_placeholder_async": scheduler_placeholders,
}
