# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "numpy==2.4.6", "pandas==3.1.1", "scipy==1.17.1", "ddsketch==3.0.1"
# ]
# ///
"""vidur's side: one simulation of a trace, with steps that cost what ours cost.

vidur predicts a step's time with models that it trains on measurements; of those for attention its
repository has only pointers. So its event loop, scheduler and entities are measured, and a stand-in
says what a step takes: the cost model of a profile of this project. Metrics and plots are off.
https://github.com/microsoft/vidur.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

from ...devices.profiles import find_profile
from .peer import Answer, serve

PREDICTOR = "vidur.execution_time_predictor"
UNUSED = ("wandb", "plotly", "plotly_express", "plotly.express", "plotly.graph_objs")
HOST = ("schedule", "prepare", "launch", "process", "output")  # phases of each of our steps


class StepPredictor:
    """Says what a step takes, in seconds, and counts the steps."""

    def __init__(self, profile: str) -> None:
        cost = find_profile(profile).cost
        self.cost = cost
        self.besides = sum(cost.host[name] for name in HOST) + cost.sample + cost.copy
        self.num_steps = 0

    def get_execution_time(self, batch: Any, stage: int) -> SimpleNamespace:
        """The time of a batch of vidur's."""
        self.num_steps += 1
        starts = (request.num_processed_tokens for request in batch.requests)
        rows = zip(starts, batch.num_tokens, strict=True)
        seconds = (self.cost.forward_rows(rows) + self.besides) / 1e9
        return SimpleNamespace(total_time=seconds, model_time=seconds)


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import vidur from ``folder``; whatever it writes goes to ``work``."""
    sys.path.insert(0, settings["folder"])
    os.chdir(settings["work"])
    for name in UNUSED:
        sys.modules[name] = ModuleType(name)
    for name in ("express", "graph_objs"):
        setattr(sys.modules["plotly"], name, sys.modules[f"plotly.{name}"])
    predictor = StepPredictor(settings["profile"])
    stub = ModuleType(PREDICTOR)
    stub.BaseExecutionTimePredictor = object  # type: ignore[attr-defined]
    registry = SimpleNamespace(get=lambda *args, **options: predictor)
    stub.ExecutionTimePredictorRegistry = registry  # type: ignore[attr-defined]
    sys.modules[PREDICTOR] = stub
    simulator: Any = import_module("vidur.simulator")
    simulator.atexit = SimpleNamespace(register=lambda function: None)  # no report at the end
    return lambda question: simulate(simulator, predictor, {**settings, **question})


def simulate(simulator: Any, predictor: StepPredictor, asked: dict[str, Any]) -> Answer:
    """Seconds, steps and requests of one run, without reading its trace."""
    entities: Any = import_module("vidur.entities.base_entity")
    for kind in entities.BaseEntity.__subclasses__():
        kind._id = -1  # they are numbered through, and lists are indexed by these numbers
    run, predictor.num_steps = simulator.Simulator(settings_of(asked)), 0
    num_requests = len(run._event_queue)
    began = perf_counter()
    run.run()
    seconds = perf_counter() - began
    return {"seconds": seconds, "steps": predictor.num_steps, "requests": num_requests}


def settings_of(asked: dict[str, Any]) -> Any:
    """One replica with vLLM's scheduler, prompts first, and our profile's memory."""
    config: Any = import_module("vidur.config.config")
    scheduler = config.VllmSchedulerConfig(
        batch_size_cap=asked["max_running_requests"],
        block_size=asked["page_size"],
        num_blocks=asked["num_pages"],
        max_tokens_in_batch=asked["max_tokens"],
    )
    replica = config.ReplicaConfig(
        model_name="meta-llama/Meta-Llama-3-8B", device="h100", network_device="h100_dgx"
    )
    return config.SimulationConfig(
        log_level="error",
        cluster_config=config.ClusterConfig(
            num_replicas=1, replica_config=replica, replica_scheduler_config=scheduler
        ),
        request_generator_config=config.TraceRequestGeneratorConfig(
            trace_file=asked["trace"], max_tokens=asked["max_tokens"]
        ),
        metrics_config=config.MetricsConfig(
            write_metrics=False, enable_chrome_trace=False, store_plots=False
        ),
    )


if __name__ == "__main__":
    serve(start)
