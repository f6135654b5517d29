"""What keeps a batch from overlapping with the one before it, wholly or with its sampling only."""

from __future__ import annotations

from ..core import ForwardMode, NoBatch, ScheduleBatch
from ..engine.engine import Engine


def is_disable_overlap_for_batch(
    batch: ScheduleBatch | NoBatch,
    last_batch: ScheduleBatch | NoBatch,
    num_results: int,
    *,
    disable_consecutive_prefill_overlap: bool = False,
    is_speculative: bool = False,
    has_grammar: bool = False,
) -> bool:
    """Whether the last result is to be processed before ``batch`` is launched.

    SGLang ``managers/scheduler.py:is_disable_overlap_for_batch``, with its two conditions. A
    prefill follows a prefill and the option is set
    (``SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP``): the first tokens get out sooner. Or a decode
    batch both speculates and has a grammar, which cannot mask a draft before it has seen the last
    token, and one of ``num_results`` in the result queue brings that token.
    """
    consecutive_prefills = is_extend(batch) and is_extend(last_batch)
    need_grammar_sync = is_speculative and has_grammar and is_decode(batch) and num_results > 0
    return (disable_consecutive_prefill_overlap and consecutive_prefills) or need_grammar_sync


def is_extend(batch: ScheduleBatch | NoBatch) -> bool:
    """Whether this is a batch of prompts."""
    return isinstance(batch, ScheduleBatch) and batch.mode is ForwardMode.EXTEND


def is_decode(batch: ScheduleBatch | NoBatch) -> bool:
    """Whether every row of it decodes."""
    return isinstance(batch, ScheduleBatch) and batch.mode is ForwardMode.DECODE


def has_grammar(batch: ScheduleBatch | NoBatch) -> bool:
    """Whether a request's grammar decides what this batch may sample: none has one yet."""
    return False


def update_vocab_mask(engine: Engine, batch: ScheduleBatch) -> None:
    """The host's work on the mask of what a batch may sample, as one phase, ``mask``.

    It needs the tokens of the step before (SGLang
    ``sampling/sampling_batch_info.py:update_regex_vocab_mask``). Without a grammar it is only the
    time that it takes.
    """
    label = engine.recording.label(batch)
    with engine.device.host("mask", engine.cost.host.get("mask", 0), label):
        pass
