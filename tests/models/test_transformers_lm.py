"""Models of transformers on our page table: in any batch the tokens are transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from copy import copy
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.cli.models import read_tried
from minisched.core import Request, SamplingParams
from minisched.loops.run import run_loop
from minisched.models.checkpoint import WeightsError
from minisched.models.llama_torch import ROWS
from minisched.models.pretrained import DTYPES
from minisched.models.promise import measure_apart
from minisched.models.transformers_lm import TransformersLM
from minisched.scheduler import SchedulerConfig
from tests.models.test_llama import Keeps, any_loop, long_workloads, play_exact
from tests.models.zoo import ARCHITECTURES, random_model
from tests.support import many, open_device, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")

# -- a Llama and two Qwens: exact to the bit -------------------------------------------------------


class Exact(Keeps, TransformersLM):
    """It keeps its logits, and knows what they are alone, all at once."""

    def __init__(self, *loaded: Any) -> None:
        TransformersLM.__init__(self, *loaded)
        self.kept = []
        self.logits_after = cache(self.alone)

    def alone(self, tokens: tuple[int, ...]) -> list[float]:
        count, alone = len(tokens), copy(self)
        with closing(open_device("thread")) as device:
            alone.allocate(device, count + 1, count)
        padding = [0] * (-count % ROWS)
        table = torch.tensor([0] * count + list(range(1, count + 1)))
        ids, positions = torch.tensor([*tokens, *padding]), torch.tensor([*range(count), *padding])
        batch: Any = SimpleNamespace(
            rows=[1], prefix_lens=[0], extend_lens=[count], positions=positions, num_tokens=count,
            token_rows=torch.tensor([1] * count + padding), logits_at=torch.tensor([count - 1]),
        )  # fmt: skip
        last: list[float] = alone.forward(batch, ids, table)[0].tolist()
        return last


@pytest.fixture(scope="module")
def exact(kinds: dict[str, Path]) -> Callable[..., Exact]:
    return cache(lambda kind, dtype: Exact.from_directory(kinds[kind], dtype))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3 scaled"])
@given(data=st.data())
@settings(max_examples=many(3, 9))
def test_it_is_exact_to_the_bit(
    kind: str, data: st.DataObject, exact: Callable[..., Exact]
) -> None:
    model = exact(kind, data.draw(st.sampled_from([*DTYPES])))
    workload = data.draw(long_workloads())
    seen = play_exact(workload, "thread", model, *any_loop(data, "thread"))
    assert seen >= sum(len(req.output_ids) for req in workload.requests)


# -- small random checkpoints of many architectures: transformers' own pass is the truth -----------

CLASSES = {each.architecture: each for each in read_tried()[0] if each.library == "transformers"}
FEW = ("gemma2", "gpt2", "mixtral")  # the others only if pytest is thorough
RUN: list[Any] = [
    kind if kind in FEW else pytest.param(kind, marks=pytest.mark.thorough)
    for kind, tried in CLASSES.items()
    if tried.kind != "refused"
]
UNTIED = ("gemma", "gemma2", "gemma3_text")  # tied as they are, few different tokens are chosen
REFUSED = [kind for kind, tried in CLASSES.items() if tried.kind == "refused"]


def some() -> list[Request]:
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    return [Request(f"r{i}", prompt(i, n), params) for i, n in enumerate((3, 17, 40, 70))]


def alone(model: Any, request: Request) -> list[int]:
    """The request's tokens by whole passes, each without a cache."""
    tokens = list(request.prompt)
    with torch.inference_mode():
        for _ in range(request.params.max_new_tokens):
            logits = model(torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(request.prompt) :]


@pytest.mark.parametrize("kind", RUN)
def test_any_architecture_has_the_tokens_that_transformers_computes(kind: str) -> None:
    untied = dict(tie_word_embeddings=False) if kind in UNTIED else {}
    model = random_model(kind, **{**ARCHITECTURES[kind], **untied})
    truth = {request.rid: alone(model, request) for request in some()}
    assert len({*chain(*truth.values())}) > 8  # else little here could fail
    config = SchedulerConfig(chunked_prefill_size=32, max_running_requests=3, page_size=4)
    ours = TransformersLM(model)
    for loop in ("serial", "overlap"):
        run = run_loop(loop, open_device("thread"), ours, some(), config)
        assert not run.errors and run.outputs == truth
    for request in some():  # the model that was given computes as before
        assert alone(model, request) == truth[request.rid]


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_more_than_keys_and_values_is_refused(kind: str) -> None:
    with pytest.raises(WeightsError, match="can't run here: ") as caught:
        model = TransformersLM(random_model(kind, **ARCHITECTURES[kind]), name=kind)
        measure_apart(model, "thread")
    assert str(caught.value) == CLASSES[kind].reason


def test_smollm2_runs_in_every_dtype(smollm2: Path) -> None:
    """In bfloat16 its logits after unused special tokens move by 2 with the kind of attention.

    A CPU with AMX adds numbers in bfloat16 in another order for another number of rows. Then they
    move by rounding: ``measure_apart`` refuses more.
    """
    for dtype in DTYPES:
        model = TransformersLM.from_directory(smollm2, dtype)
        apart = measure_apart(model, "thread")
        assert model.dtype == dtype and (apart == 0.0 or dtype == "bfloat16")
