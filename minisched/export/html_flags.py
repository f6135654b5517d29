"""Which marks get a flag above the lanes, and in which colour: its legend and its drawing agree."""

from __future__ import annotations

FLAGS = {  # by mark: a colour of the page (``svg_style.py:variables``, ``svg_waits.py``)
    "wasted row": "bubble",
    "stale output": "bubble",
    "retraction": "bubble",
    "wait": "waited",
    "finish": "ink",
    "flush cache": "bubble",
}
