"""``minisched compare``: serial against other loops, verdict and pictures."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from ..compare import Comparison, compare
from ..devices.registry import open_device
from ..loops.registry import find_loop
from .options import Options, overlapped_loop
from .pictures import write_pictures
from .progress import token_progress
from .report import as_json, print_errors, print_report

DIFFERENT, BAD_INPUT = 1, 2  # exit codes


def run_compare(
    options: Options, loops: str | None, out: Path, as_json_only: bool, with_tokens: bool
) -> int:
    """Compare, report and draw; returns the exit code: 0, 1 if not identical, 2 on bad input.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    names = check_loops(loops, options.device)
    model = options.open_model()
    out = check_folder(out)
    requests = options.make_requests(model)
    total = sum(request.params.max_new_tokens for request in requests)
    with token_progress(names, total) as on_output:
        comparison = compare(
            names,
            options.device,
            model,
            requests,
            options.make_config(model, requests),
            options.cost(),
            on_output,
        )
    files = [str(path) for path in write_pictures(comparison, out)]
    if as_json_only:
        print(json.dumps(as_json(comparison, files, with_tokens)))
    else:
        console = Console(highlight=False)
        print_report(console, comparison)
        console.print(
            f"Pictures and traces are in {out}; open {out / 'compare.html'} first.", soft_wrap=True
        )
    return exit_code(comparison)


def exit_code(comparison: Comparison) -> int:
    """Says on stderr which requests ended badly, and what that means for the exit code."""
    print_errors(comparison.errors)
    if not comparison.identical:
        return DIFFERENT
    return BAD_INPUT if comparison.errors else 0


def check_loops(loops: str | None, device: str) -> list[str]:
    """The loops to run, serial first.

    Raises:
        ValueError: one is unknown, or the device is not to be had.
    """
    open_device(device).close()
    chosen = loops.split(",") if loops is not None else [overlapped_loop(device)]
    for name in chosen:
        find_loop(name.strip())
    return list(dict.fromkeys(["serial", *(name.strip() for name in chosen)]))


def check_folder(out: Path) -> Path:
    """The folder for pictures, made if it is not there.

    Raises:
        ValueError: it can't be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out} can't be used as a folder: {error.strerror}.") from error
    return out
