"""mlx-lm's architectures on the page table: the tokens of mlx-lm's own forward."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from minisched.cli.models import read_tried
from minisched.core import Request, SamplingParams
from minisched.loops.run import run_loop
from minisched.models.mlx_lm import MlxLm
from minisched.scheduler import SchedulerConfig
from tests.models.zoo import save
from tests.support import open_device, prompt

RUN = [each.architecture for each in read_tried()[0] if each == (*each[:1], "mlx-lm", "exact", "")]

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.thorough]


@pytest.mark.parametrize("kind", RUN)
def test_an_architecture_gives_mlx_lm_s_own_tokens(kind: str, tmp_path: Path) -> None:
    model = MlxLm.from_directory(save(kind, tmp_path), "float32")
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    requests = [Request(f"r{n}", prompt(n, n), params) for n in (3, 33, 40)]
    config = SchedulerConfig(chunked_prefill_size=32, max_running_requests=3, context_len=64)
    run = run_loop("mlx_async", open_device("mlx"), model, requests, config)
    assert not run.errors
    model.model[model.body].wanted_at = None
    for req in requests:
        tokens = [*req.prompt]
        for token in req.output_ids:
            logits = model.model(mx.array([tokens]))[0, -1]  # without any cache
            assert logits.max() - logits[token] < 1e-3
            tokens.append(token)
