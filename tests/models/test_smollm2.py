"""A real model, SmolLM2: what other libraries say of the same weights, and JSON by a schema."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch
from safetensors import safe_open

from minisched.checks.tokens.logprobs import OF_FLOATS
from minisched.core import FinishReason, Request, SamplingParams, TokenLogprob
from minisched.devices.registry import open_device
from minisched.loops.run import Run, run_loop
from minisched.models.base import Model
from minisched.models.registry import LLAMA, load
from minisched.models.weights import find_model, read_config
from minisched.scheduler import SchedulerConfig
from tests.support import PROMPTS

pytestmark = pytest.mark.weights
ON_BOTH = pytest.mark.parametrize(("device", "loop"), [("thread", "overlap"), ("mlx", "mlx_async")])
# Of its 272 float32 tensors, in the order of their names. They were compared, bit for bit, with
# MLX's own reading of the GGUF file and with transformers' (``gguf_file=``).
WEIGHTS = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"
REPEAT = "one two three four one two three four one two three four one two"


@pytest.fixture(scope="module")
def model_on(smollm2: Path) -> Callable[[str], Model]:
    """SmolLM2 for a device, loaded once each."""
    return cache(lambda device: load(*LLAMA[device], "a test")(smollm2))


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)


def run_on(model: Model, device: str, loop: str, requests: list[Request], **options: Any) -> Run:
    config = SchedulerConfig(
        chunked_prefill_size=12, page_size=4, max_running_requests=5, context_len=256, **options
    )
    run = run_loop(loop, open_device(device), model, requests, config)
    assert not run.errors
    return run


def requests_of(model: Model, texts: list[str], params: SamplingParams) -> list[Request]:
    return [Request(f"r{i}", model.tokenizer.encode(text), params) for i, text in enumerate(texts)]


def test_its_weights_are_those_that_were_compared(smollm2: Path) -> None:
    assert find_model("smollm2") == smollm2
    config = read_config(smollm2)
    assert (config.rope_theta, config.rms_norm_eps, config.eos_ids) == (100_000.0, 1e-5, {2})
    digest = hashlib.sha256()
    with safe_open(smollm2 / "model.safetensors", framework="np") as tensors:
        names = sorted(tensors.keys())
        for name in names:
            digest.update(name.encode() + tensors.get_tensor(name).tobytes())
    assert set(names) == {name for name, _ in config.tensor_shapes()} and len(names) == 272
    assert digest.hexdigest() == WEIGHTS


def test_it_says_what_transformers_says(model_on: Any, theirs: Any) -> None:
    model = model_on("thread")
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    truth = {
        f"r{i}": theirs.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(),
            do_sample=False, max_new_tokens=64, pad_token_id=0, eos_token_id=None,
        )[0, len(prompt) :].tolist()
        for i, prompt in enumerate(prompts)
    }  # fmt: skip
    greedy = SamplingParams(max_new_tokens=64, ignore_eos=True)
    for loop in ("serial", "overlap"):
        run = run_on(model, "thread", loop, requests_of(model, PROMPTS, greedy))
        assert run.outputs == truth, loop
    assert " Paris" in model.tokenizer.decode(truth["r0"])


def test_it_says_what_mlx_lm_says(model_on: Any, smollm2: Path) -> None:
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model, lm = model_on("mlx"), load_model(smollm2)[0]
    greedy = SamplingParams(max_new_tokens=32, ignore_eos=True)
    truth = {
        req.rid: [int(t) for t, _ in generate_step(mx.array(req.prompt), lm, max_tokens=32)]
        for req in requests_of(model, PROMPTS, greedy)
    }
    for loop in ("serial", "mlx_async"):
        run = run_on(model, "mlx", loop, requests_of(model, PROMPTS, greedy))
        assert run.outputs == truth, loop


@ON_BOTH
def test_its_log_probabilities_are_those_of_transformers(
    device: str, loop: str, model_on: Any, theirs: Any
) -> None:
    model = model_on(device)
    requests = [
        Request(
            f"r{i}",
            model.tokenizer.encode(text),
            SamplingParams(
                max_new_tokens=16, ignore_eos=True, temperature=0.7 * (i % 2),
                return_logprob=True, top_logprobs_num=5, logprob_start_len=i % 3,
            ),
        )
        for i, text in enumerate(PROMPTS[:6])
    ]  # fmt: skip
    run_on(model, device, "overlap", requests)
    for req in requests:
        tokens, start = [*req.prompt, *req.output_ids], req.params.logprob_start_len
        with torch.no_grad():
            truth = torch.log_softmax(theirs(torch.tensor([tokens])).logits[0], -1)
        of_prompt, of_output = req.input_token_logprobs, req.output_token_logprobs
        assert of_prompt[0] == TokenLogprob(None, req.prompt[start])
        places = [*of_prompt[1:], *of_output]
        assert len(of_output) == 16 and len(places) == len(tokens) - start - 1
        for row, token, found in zip(truth[start:], tokens[start + 1 :], places, strict=False):
            assert found.token_id == token
            assert found.logprob == pytest.approx(row[token].item(), abs=OF_FLOATS)
            best = row.topk(5).values.tolist()
            assert [value for value, _ in found.top_logprobs] == pytest.approx(best, abs=OF_FLOATS)
            for value, other in found.top_logprobs:
                assert value == pytest.approx(row[other].item(), abs=OF_FLOATS)


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


@ON_BOTH
def test_it_says_json_by_a_schema(device: str, loop: str, model_on: Any) -> None:
    """And a regex; the one beside them must not notice."""
    model, because = model_on(device), "(yes|no), because [a-z ]{5,9}[.]"
    wishes = [
        SamplingParams(json_schema=json.dumps(SCHEMA), max_new_tokens=64),
        SamplingParams(regex=because, max_new_tokens=30),
        SamplingParams(max_new_tokens=12, ignore_eos=True),
    ]

    def said(loop: str, which: list[int]) -> tuple[list[Request], dict[str, list[int]]]:
        texts = ["A person as JSON with name, age and likes: ", "Is it?", PROMPTS[0]]
        requests = [Request(f"r{i}", model.tokenizer.encode(texts[i]), wishes[i]) for i in which]
        return requests, run_on(model, device, loop, requests).outputs

    requests, outputs = said(loop, [0, 1, 2])
    assert outputs == said("serial", [0, 1, 2])[1]
    assert said("serial", [2])[1]["r2"] == outputs["r2"]
    assert {req.finish_reason for req in requests[:2]} == {FinishReason.STOP}
    value = json.loads(model.tokenizer.decode(outputs["r0"]))
    assert set(value) == {"name", "age", "likes"} and len(value["name"]) <= 12
    assert 0 <= value["age"] <= 120 and len(value["likes"]) <= 2
    assert set(value["likes"]) <= {"tea", "jazz"}
    assert re.fullmatch(because, model.tokenizer.decode(outputs["r1"]))


@pytest.mark.parametrize("device", ["thread", "mlx"])
@pytest.mark.parametrize("algorithm", ["NGRAM", "NGRAM_GPU"])
def test_prompt_lookup_takes_far_fewer_steps(device: str, algorithm: str, model_on: Any) -> None:
    """For the same tokens; where the host looks up, overlapped by a batch queue."""
    model, params = model_on(device), SamplingParams(max_new_tokens=24, ignore_eos=True)
    texts = [REPEAT, PROMPTS[0]]
    plain = run_on(model, device, "serial", requests_of(model, texts, params))
    overlapped = "overlap" if algorithm == "NGRAM_GPU" else "vllm_batch_queue"
    for loop in ("serial", overlapped):
        requests = requests_of(model, texts, params)
        run = run_on(model, device, loop, requests, speculative_algorithm=algorithm)
        assert run.outputs == plain.outputs, loop
        steps = [item for item in run.trace.slices if item.name == "forward"]
        of_repeat = [item for item in steps if "r0" in item.rids]
        assert len(of_repeat) < 18, "one token a step would be 24 and its prompt"
