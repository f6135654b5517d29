"""What most designs' figures say about the device."""

from __future__ import annotations

ON_DEVICE = {  # for actors called ``worker`` and ``copy``
    "forward": ["worker: forward {step}\n{ms} ms"],
    "sample": ["worker: sample {step}\n{ms} ms"],
    "sample end": ["worker ->> copy: tokens of {step}"],
    "copy": ["copy: copy {step}\n{ms} ms"],
}
