"""An overlap loop that reads each step before it launches the next one, so nothing overlaps."""

from __future__ import annotations

from dataclasses import replace

from ...checks.case import Case, Workload
from ...checks.judge import Finding, Verdict, judge
from ...checks.overlap import measure
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at


def it_overlaps(case: Case) -> Verdict:
    """The general laws, and: some of the host's work is hidden behind the device."""
    verdict = judge(case)
    report = measure(verdict.trace)
    if report.host_hidden_ns:
        return verdict
    sentence = (
        f"the host worked for {report.host_busy_ns / 1e6:g} ms, never while the device did, "
        f"which idled for {report.bubble_ns / 1e6:g} ms"
    )
    return replace(verdict, findings=(*verdict.findings, Finding("overlap", sentence)))


EXHIBIT = Exhibit(
    name="finalized_first",
    title="An overlap loop that never overlaps",
    chapter="what the scheduler believes",
    references=("vllm-omni #4442", "SGLang #22114", "SGLang #22416"),
    symptom="Overlap is switched on, yet the trace looks serial: each launch comes only when the "
    "step before it has been sampled, read and delivered (vllm-omni #4442).",
    here="The loop reads a step before it launches the next one. So there is never more than one "
    "graph in flight, and whenever the host works, the device has nothing to do. Every token is "
    "right; only the times show it. (As soon as a has ended there is no chained step at all; "
    "below, it is on its way while step 2 is read.)",
    cure="The next step is launched first, on tokens that nobody has computed yet, and only then "
    "is the last one read: SGLang's MLX backend since #22416 "
    "(scheduler_mixin.py:event_loop_overlap_mlx), which closed #22114. The order above is nobody's "
    "published one; it is the shortest way to what the report shows.",
    law="overlap",
    says="never while the device did",
    case=Case(
        Workload(
            [Request("a", [4], SamplingParams(max_new_tokens=2))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1),
        ),
        "mlx_async",
        "chain",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "loops.mlx_async:mlx_async",
            healthy="""\
        if not unsafe:
            pending_next = _launch_chained(engine, tp_worker, pending_curr)
        if chain_extend and not (unsafe or pending_next):
            pending_next = _launch_behind(engine, tp_worker, pending_curr)
        _finalize_mlx_pending_job(engine, tp_worker, pending_curr)  # the device runs the next one
""",
            bug="""\
        _finalize_mlx_pending_job(engine, tp_worker, pending_curr)
        if not unsafe:
            pending_next = _launch_chained(engine, tp_worker, pending_curr)
        if chain_extend and not (unsafe or pending_next):
            pending_next = _launch_behind(engine, tp_worker, pending_curr)
""",
        ),
    ),
    judge_by=it_overlaps,
    points_at=at(
        ("wait", 2),
        ("process", 2),
        says="the host waits for step 2 and processes it with nothing else on the device",
    ),
)
