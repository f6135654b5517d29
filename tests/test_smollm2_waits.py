"""A real model where overlap has to wait: a JSON schema, and prompt lookup; torch and MLX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.registry import open_device
from minisched.loops.run import Run, run_loop
from minisched.models.base import Model
from minisched.models.registry import LLAMA, load
from minisched.scheduler import SchedulerConfig

pytestmark = pytest.mark.weights

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "jazz"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
ASK = "A person as JSON with name, age and likes: "
REPEAT = "one two three four one two three four one two three four one two"


@pytest.fixture(scope="module")
def model_on(smollm2: Path) -> Any:
    """SmolLM2 for a device, loaded once each."""
    loaded: dict[str, Model] = {}

    def model(device: str) -> Model:
        if device not in loaded:
            loaded[device] = load(*LLAMA[device], "a test")(smollm2)
        return loaded[device]

    return model


def run_on(model: Model, device: str, loop: str, requests: list[Request], **settings: Any) -> Run:
    config = SchedulerConfig(page_size=4, chunked_prefill_size=16, context_len=256, **settings)
    return run_loop(loop, open_device(device), model, requests, config)


@pytest.mark.parametrize(
    ("device", "loops"), [("thread", ("serial", "overlap")), ("mlx", ("serial", "mlx_async"))]
)
def test_json_by_a_schema(model_on: Any, device: str, loops: tuple[str, ...]) -> None:
    """One request must be JSON; the one beside it must not notice."""
    model = model_on(device)
    outputs = {}
    for loop in loops:
        schema = SamplingParams(json_schema=json.dumps(SCHEMA), max_new_tokens=64)
        free = SamplingParams(max_new_tokens=12, ignore_eos=True)
        requests = [
            Request("json", model.tokenizer.encode(ASK), schema),
            Request("free", model.tokenizer.encode("The capital of France is"), free),
        ]
        run = run_on(model, device, loop, requests)
        assert not run.errors
        assert requests[0].finish_reason is FinishReason.STOP
        check_person(json.loads(model.tokenizer.decode(run.outputs["json"])))
        outputs[loop] = run.outputs
    first, second = loops
    assert outputs[first] == outputs[second]
    alone = run_on(model, device, "serial", [Request("free", requests[1].prompt, free)])
    assert alone.outputs["free"] == outputs[first]["free"]


def check_person(value: dict[str, Any]) -> None:
    """What the schema says, said again."""
    assert set(value) == {"name", "age", "likes"}
    assert isinstance(value["name"], str) and len(value["name"]) <= 12
    assert isinstance(value["age"], int) and 0 <= value["age"] <= 120
    assert len(value["likes"]) <= 2 and set(value["likes"]) <= {"tea", "jazz"}


@pytest.mark.parametrize("device", ["thread", "mlx"])
@pytest.mark.parametrize("algorithm", ["NGRAM", "NGRAM_GPU"])
def test_prompt_lookup(model_on: Any, device: str, algorithm: str) -> None:
    """The same tokens in far fewer steps; where the host looks up, overlapped by a batch queue."""
    model = model_on(device)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    texts = {"again": REPEAT, "free": "The capital of France is"}

    def requests() -> list[Request]:
        return [Request(rid, model.tokenizer.encode(text), params) for rid, text in texts.items()]

    plain = run_on(model, device, "serial", requests())
    overlapped = "overlap" if algorithm == "NGRAM_GPU" else "vllm_batch_queue"
    for loop in ("serial", overlapped):
        run = run_on(model, device, loop, requests(), speculative_algorithm=algorithm)
        assert run.outputs == plain.outputs, loop
        steps = [item for item in run.trace.slices if item.name == "forward"]
        of_again = [item for item in steps if "again" in item.rids]
        assert len(of_again) < 16, "one token a step would be 24 and its prompt"
