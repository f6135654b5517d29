"""Random workloads on the simulator, with a random cost for every phase and op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from minisched.checks.play import play
from minisched.devices.cost import CostModel
from minisched.devices.registry import open_device
from minisched.models.hash import HashModel
from minisched.trace import Trace
from tests.support import VOCAB, Workload, fresh

PHASES = (
    "receive", "schedule", "prepare", "advance step", "launch", "launch eager", "launch sample",
    "fill", "postprocess", "mask", "process", "output",
)  # fmt: skip
OPS = ("forward_base", "forward_per_token", "sample", "copy", "verify", "draft", "recv", "logprobs")
few = st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 60))
costs = st.builds(
    lambda host, ops: CostModel(host, **ops),
    st.fixed_dictionaries(dict.fromkeys(PHASES, few)),
    st.fixed_dictionaries(dict.fromkeys(OPS, few)),
)


def played(
    workload: Workload, loop: str, relay: str, options: Mapping[str, Any], cost: CostModel
) -> Trace:
    """The trace of a fresh copy of a workload; who comes when goes by turns, not by time."""
    device, workload = open_device("sim"), fresh(workload)
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, dict(options), device, model, cost)
    return device.recorder.trace(loop, "sim", "hash", "virtual")
