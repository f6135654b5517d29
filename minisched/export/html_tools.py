"""The page's buttons, its position bar, and the list of its keys."""

from __future__ import annotations

BUTTONS = (  # action, text, what it does
    ("first", "|◀", "to the beginning (Home)"),
    ("step-back", "◀◀", "one step back (shift + ←)"),
    ("back", "◀", "one event back (←)"),
    ("play", "▶ play", "play or pause (space)"),
    ("forward", "▶", "one event forward (→)"),
    ("step-forward", "▶▶", "one step forward (shift + →)"),
    ("last", "▶|", "to the end (End)"),
)
ZOOMS = (
    ("out", "−", "zoom out (-)"),
    ("in", "+", "zoom in (+)"),
    ("left", "‹", "earlier (,)"),
    ("right", "›", "later (.)"),
    ("few", "a few steps", "show a few steps (1)"),
    ("all", "whole run", "show everything (0)"),
    ("keys", "?", "all keys (?)"),
)
SPEEDS = ((0.25, "¼"), (1, "1"), (4, "4"), (16, "16"))  # steps a second


def _buttons(buttons: tuple[tuple[str, str, str], ...]) -> str:
    return "".join(
        f'<button data-do="{do}" title="{about}" aria-label="{about}">{text}</button>'
        for do, text, about in buttons
    )


TOOLBAR = (
    '<nav aria-label="time"><span class="group">'
    + _buttons(BUTTONS)
    + '</span><label class="group">speed <select id="speed" title="steps a second">'
    + "".join(
        f'<option value="{value}"{" selected" * (value == 1)}>{text} step/s</option>'
        for value, text in SPEEDS
    )
    + '</select></label><output id="time" aria-live="off"></output><span class="group">'
    + _buttons(ZOOMS)
    + "</span></nav>"
)
POSITION = (
    '<div id="whole"><span>whole run</span>'
    '<div id="position" role="slider" tabindex="0" aria-label="time in ms" aria-valuemin="0" '
    'title="the whole run: drag to move in time"><canvas role="img" '
    'aria-label="where the devices compute, over the whole run"></canvas>'
    '<i class="window"></i><i class="handle"></i></div></div>'
)
SHORTCUTS = (
    ("space", "play or pause"),
    ("← →", "one event back or forward"),
    ("shift + ← →", "one step back or forward: to where a forward pass starts"),
    ("Home, End", "to the beginning, to the end"),
    ("+ − 0 1", "zoom in, zoom out, the whole run, a few steps"),
    (", .", "move the picture without moving in time"),
    ("Enter", "follow the requests of the slice at the cursor; again: those of the next lane"),
    ("Tab, Enter", "go through buttons and requests, and choose one"),
    ("Escape", "choose no request"),
    ("?", "these keys"),
)
KEYS = (
    '<dialog id="keys" aria-label="keys"><h3>Keys</h3><dl>'
    + "".join(f"<dt>{key}</dt><dd>{about}</dd>" for key, about in SHORTCUTS)
    + '</dl><form method="dialog"><button>close</button></form></dialog>'
)
