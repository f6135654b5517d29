"""Models that tests share. The folder of fetched models is ``$MINISCHED_HOME``, as for users."""

from pathlib import Path

import pytest

from minisched.models.fetch import fetch
from minisched.models.tiny import write_tiny_llama


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct; downloads 93 MB if it is not on this machine yet."""
    return fetch("smollm2")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama without a tokenizer (``models/tiny.py``)."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))
