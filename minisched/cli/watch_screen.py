"""The screen of ``minisched watch``: a frame laid out with rich, and what each key does."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..export.watch_frame import CURSOR, Frame, Watched
from ..export.watch_source import HERE
from .watch_keys import read_keys, single_keys

HELP = "→ n next   ← b back   ↓ N step   ↑ P step back   home end   p play   q quit"
FEW_KEYS = "n next  b back  N P a step  p play  q quit"  # where the screen is narrow
USUAL_DELAY, PATIENCE = 0.3, 0.5  # seconds: between events, and between looks at the screen's size
LEAST_ROWS, MOST_SOURCE = 5, 84  # lines of source and state; columns of source


@dataclass
class Player:
    """Where one is in a run."""

    run: Watched
    time: int
    is_playing: bool = False

    def press(self, key: str) -> None:
        """Do what a key means; one that means nothing does nothing."""
        moments, time = self.run.moments, self.time
        goes_to = {
            "next": moments.after(time),
            "back": moments.before(time),
            "next step": moments.next_step(time),
            "previous step": moments.previous_step(time),
            "home": moments.times[0],
            "end": moments.times[-1],
        }
        if key == "play":
            self.is_playing = not self.is_playing
        elif key in goes_to:
            self.is_playing, self.time = False, goes_to[key]

    def tick(self) -> None:
        """Go on by one event, if it plays; it pauses at the end."""
        if self.is_playing:
            self.time = self.run.moments.after(self.time)
            self.is_playing = self.time < self.run.moments.times[-1]


def watch_keys(run: Watched, time: int, delay: float) -> None:
    """Show a run until somebody quits; above 0, ``delay`` plays it."""
    player, console = Player(run, time, delay > 0), Console(highlight=False)
    with (
        single_keys(),
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        try:
            _play(player, console, live, delay or USUAL_DELAY)
        finally:  # some terminals show again what was there when they had another size
            live.update(Text(), refresh=True)


def _play(player: Player, console: Console, live: Live, delay: float) -> None:
    """Draw and listen, until somebody quits; ``delay`` is in seconds."""
    while True:
        live.update(screen(player, *console.size), refresh=True)
        keys = read_keys(delay if player.is_playing else PATIENCE)
        if "quit" in keys:
            return
        for key in keys:
            player.press(key)
        if not keys:
            player.tick()


def prompt(run: Watched, time: int) -> None:
    """The same where there are no single keys: a line is a key."""
    player, lines = Player(run, time), {"": "next", "b": "back", "q": "quit"}
    while True:
        print(run.frame(player.time).plain())
        try:
            key = lines.get(input("enter: next, b: back, q: quit > ").strip(), "")
        except EOFError:
            return
        if key == "quit":
            return
        player.press(key)


def screen(player: Player, columns: int, rows: int) -> RenderableType:
    """A moment as large as the terminal: lanes above, below them source and state side by side."""
    left = min(MOST_SOURCE, columns * 55 // 100)
    lanes = len(player.run.whole.lanes) + 2
    room, signs, blank = layout(rows, lanes)
    frame = player.run.frame(player.time, columns, room, max(10, columns - left - 2))
    return Group(
        Text(frame.title + (", playing" if player.is_playing else ""), "bold"),
        Text(frame.now, "cyan"),
        *blank,
        *(_line(line) for line in frame.lanes[: max(0, rows - 4)]),
        *blank,
        _beside(frame, left, room),
        *(Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in frame.signs[:signs]),
        Text(HELP if len(HELP) <= columns else FEW_KEYS[:columns], "dim"),
    )


def layout(rows: int, lanes: int) -> tuple[int, int, list[Text]]:
    """Lines of source and state, lines of signs, and what stands between the parts.

    Title, event, lanes and keys are always there. Where rows are short blank lines go first, then
    the signs, then lines of state.
    """
    spare = rows - lanes - 3
    signs = 2 * (spare >= LEAST_ROWS + 2)
    blank = [Text()] * (spare - signs >= LEAST_ROWS + 2)
    return max(1, spare - signs - 2 * len(blank)), signs, blank


def _beside(frame: Frame, left: int, room: int) -> Table:
    """The source, and the state as far as there is room."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=left, no_wrap=True, overflow="crop")
    table.add_column(no_wrap=True, overflow="crop")
    for at in range(room):
        source, state = "".join(frame.source[at : at + 1]), "".join(frame.state[at : at + 1])
        table.add_row(_line(source), Text(state))
    return table


def _line(line: str) -> Text:
    """Plain text, with the cursor and the current line in colour."""
    text = Text(line, "bold yellow" if line.startswith(HERE) else "", no_wrap=True, overflow="crop")
    text.highlight_words([CURSOR], "bold red")
    return text
