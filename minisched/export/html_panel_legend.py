"""What the looks of a panel's entries mean, as far as they occur in a run."""

from __future__ import annotations

from .state import Panel

ZOMBIE = "crossed (zombie): has ended or was retracted, but a launched step still names it"
LOOKS = {  # by panel and kind of stay
    "set": {
        "admitted": "holds memory",
        "sending": "framed: its KV moves from prefill to decode",
        "wasted": ZOMBIE,
    },
    "ring": {
        "promised": "promised: its step has not sampled it yet",
        "stored": "stored: somebody will read it",
        "stale": "stale: nobody reads it any more",
    },
    "pages": {
        "admitted": "a request's own",
        "protected": "cached, in use: its node is locked",
        "evictable": "cached, evictable",
        "wasted": "a zombie's",
    },
    "rows": {"admitted": "a request's", "wasted": "a zombie's"},
    "tree": {"protected": "locked: requests use it", "evictable": "may be evicted"},
}
NOBODY = {"ring": "not listed: empty", "pages": "free"}


def panel_legend(panel: Panel) -> str:
    """One line of swatches; none where there is but one look."""
    seen = {stay.kind for stay in panel.stays}
    looks = [(kind, text) for kind, text in LOOKS.get(panel.name, {}).items() if kind in seen]
    if panel.name in NOBODY:
        looks.append(("nobody", NOBODY[panel.name]))
    if len(looks) < 2:
        return ""
    samples = "".join(f'<span><i class="{kind}"></i>{text}</span>' for kind, text in looks)
    return f'<div class="looks">{samples}</div>'
