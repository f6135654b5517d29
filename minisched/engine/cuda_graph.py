"""What launching a step costs the host: a captured graph is one call, op by op is many."""

from __future__ import annotations

from ..core import ForwardMode, ScheduleBatch
from ..devices.cost import CostModel
from ..trace import Recorder


def launch_cost(
    batch: ScheduleBatch, cost: CostModel, cuda_graph_max_bs: int | None, recorder: Recorder
) -> int:
    """Nanoseconds: ``launch``, or ``launch eager`` for a decode batch too large for any graph.

    Graphs are captured for decode batches of up to ``cuda_graph_max_bs`` rows (None: as many as
    there are; SGLang ``model_executor/cuda_graph_runner.py``). Prompts have no graph; their cost
    is ``launch`` all the same, since a long step hides it. A larger batch leaves a mark, which is
    what SGLang's ``can_run_cuda_graph`` in a result is then: false.
    """
    launch = cost.phase("launch", *batch.size)
    if batch.mode is not ForwardMode.DECODE or cuda_graph_max_bs is None:
        return launch
    if len(batch.reqs) <= cuda_graph_max_bs:
        return launch
    recorder.mark("eager launch", step=batch.step, rows=len(batch.reqs))
    return cost.host.get("launch eager", launch)
