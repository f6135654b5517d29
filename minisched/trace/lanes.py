"""Which side a lane is on: its name says so.

``host`` is the scheduler's process. Further host lanes end in ``host`` (a second scheduler, such as
``decode host``) or in ``thread`` (``worker thread``). A lane on which a forward pass runs is
``forward``, ends in it (``decode forward``), or is a pipeline's ``stage 0``, ``stage 1`` and so
on. Everything else is another stream of the device.
"""

from __future__ import annotations


def is_host(lane: str) -> bool:
    """Whether a lane is the host's."""
    return lane.endswith(("host", "thread"))


def is_forward(lane: str) -> bool:
    """Whether forward passes run on a lane; a run has as many devices as it has such lanes."""
    return lane.endswith("forward") or lane.startswith("stage ")


def is_copy(lane: str) -> bool:
    """Whether tokens are copied to the host on a lane."""
    return lane.endswith("copy")


def lane_words(lane: str) -> str:
    """``host``, ``worker thread``, ``copy stream``, ``stage 1``."""
    is_named = is_host(lane) or lane.startswith("stage") or "stream" in lane
    return lane if is_named else f"{lane} stream"
