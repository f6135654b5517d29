"""What keeps a batch from overlapping with the one before it."""

from __future__ import annotations

from ..core import ForwardMode, NoBatch, ScheduleBatch


def is_disable_overlap_for_batch(
    batch: ScheduleBatch | NoBatch,
    last_batch: ScheduleBatch | NoBatch,
    num_results: int,
    *,
    disable_consecutive_prefill_overlap: bool = False,
    is_speculative: bool = False,
    missing_history: str = "",
) -> str:
    """Why the last result is to be processed before ``batch`` is launched; or nothing.

    SGLang ``managers/scheduler.py:is_disable_overlap_for_batch``, with its two conditions. A
    prefill follows a prefill and the option is set
    (``SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP``): the first tokens get out sooner; a batch with
    prompts beside decodes is one, too. Or a decode batch both speculates and has a grammar, which
    cannot mask a draft before it has seen the last token, and one of ``num_results`` in the result
    queue brings that token. (There the second does not ask whether that token is really
    ``missing_history``, and penalties are one token late.)
    """
    if disable_consecutive_prefill_overlap and is_extend(batch) and is_extend(last_batch):
        return "prefill"
    blind_draft = is_speculative and is_decode(batch) and num_results > 0
    return missing_history if blind_draft else ""


def is_extend(batch: ScheduleBatch | NoBatch) -> bool:
    """Whether prompts are in it, alone or beside rows that decode.

    SGLang ``forward_batch_info.py:ForwardMode.is_extend``. That says yes to ``TARGET_VERIFY`` too,
    but there a batch has this mode only inside the worker; the scheduler, which asks, sees DECODE.
    """
    modes = ForwardMode.EXTEND, ForwardMode.MIXED
    return isinstance(batch, ScheduleBatch) and batch.mode in modes


def is_decode(batch: ScheduleBatch | NoBatch) -> bool:
    """Whether every row of it decodes, with drafts or without."""
    modes = ForwardMode.DECODE, ForwardMode.TARGET_VERIFY
    return isinstance(batch, ScheduleBatch) and batch.mode in modes
