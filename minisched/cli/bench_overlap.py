"""``minisched bench overlap``: what is hidden of what could be, device by device."""

from __future__ import annotations

from collections.abc import Iterator

from ..bench.figures import Figure, not_measured, opened
from ..bench.overlap import BATCHES, DEVICES, MODELS, make_cells, overlap_figures, ways
from ..defaults import overlapped_loop
from ..devices.registry import open_device
from ..models.llama import AUTO
from ..models.registry import open_model
from .bench import BenchCall


def measure(call: BenchCall) -> list[Figure]:
    """Every cell of devices, models and batches, or those that options name.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "max_new_tokens")
    check(call)
    figures = []
    with ways() as doing:
        for device, name, batch in cells(call):
            if reason := absent(device):
                figures.append(not_measured(f"{device}, {name}", "%", reason))
                continue
            title = f"{device}, {name}, batch {batch}"
            call.report(title)
            with opened(name, device, call.dtype or AUTO) as model:
                found = make_cells(title, device, model, batch, overlapped_loop(device))
                figures += overlap_figures(found, doing, call.repetitions, call.report)
    return figures


def check(call: BenchCall) -> None:
    """Refuse what can't be measured.

    Raises:
        ValueError: the device has no real time or is not here, or no request is asked for.
    """
    if call.device not in (None, *DEVICES):
        raise ValueError(f"--device is {call.device!r}; bench overlap knows {', '.join(DEVICES)}.")
    if call.device and (reason := absent(call.device)):
        raise ValueError(reason)
    if call.model == "hash":
        raise ValueError("bench overlap measures real models, so --model can't be hash.")
    if call.model and call.model not in MODELS:
        open_model(call.model, call.device or DEVICES[0], call.dtype or AUTO)
    if call.requests is not None and call.requests < 1:
        raise ValueError(f"--requests is {call.requests}, but it must be at least 1.")


def cells(call: BenchCall) -> Iterator[tuple[str, str, int]]:
    """(device, model, batch); of a device that is not here, one for each model."""
    for device in [call.device] if call.device else DEVICES:
        for name in [call.model] if call.model else MODELS:
            batches = [call.requests] if call.requests else BATCHES
            for batch in batches[:1] if absent(device) else batches:
                yield device, name, batch


def absent(device: str) -> str:
    """Why a device can't be opened here, or nothing."""
    try:
        open_device(device).close()
    except ValueError as error:
        return str(error)
    return ""
