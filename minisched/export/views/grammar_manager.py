"""The grammar over time: what each mask allows, what comes of it, and who has to wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...checks.causes import Idle, idle_times, waits
from ...trace import Mark, Trace
from ...trace.events import is_forward, is_host
from ..scene import Data, LaneItem, LaneRow, Lanes, Part, Scene, TextTable, about_run
from ..units import ms
from .marks import NothingToShow, lacking, many, named, number, numbers, short, word
from .steps import opening

# -- What each grammar allowed at each step, and what it then got, read from a trace ---------------

REASON = "grammar"  # of the waits that are its own


@dataclass
class Choice:
    """One step's token of a constrained request; with drafts there are several."""

    step: int
    allowed: tuple[int, ...]  # how many tokens the mask allowed, at each place
    masked: int  # when the mask was there
    sampled: int  # when the step had been sampled
    accepted: int  # when the grammar took what was sampled
    tokens: tuple[int, ...] = ()  # what it took; none: nobody wanted it, or the trace ends
    terminated: bool = False  # nothing can follow

    @property
    def phases(self) -> list[tuple[str, int, int]]:
        """With a mask (promised), then sampled (stored), as far as that takes time."""
        moments = (
            ("promised", self.masked, self.sampled),
            ("stored", self.sampled, self.accepted),
        )
        return [(kind, start, end) for kind, start, end in moments if end > start]


@dataclass
class Constrained:
    """One request with a grammar, and its choices in order of time."""

    rid: str
    rule: str
    choices: list[Choice] = field(default_factory=list)


def constrained_of(trace: Trace) -> list[Constrained]:
    """Every request with a grammar, in the order in which they came.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    found: dict[str, Constrained] = {}
    sampled = {
        (side_of(item.lane), item.step): item.end
        for item in trace.slices
        if item.name == "sample" and is_forward(item.lane)
    }
    for mark in named(trace, "grammar"):
        rid = word(mark, "rid")
        found.setdefault(rid, Constrained(rid, printable(word(mark, "rule"))))
    accepts = {key_of(mark): mark for mark in named(trace, "grammar accept")}
    for mark in named(trace, "grammar mask"):
        side, step, rid = key_of(mark)
        if rid not in found:
            raise lacking(mark, f"a grammar of {rid}")
        allowed = tuple(numbers(mark, "allowed"))
        end = max(mark.time, sampled.get((side, step), trace.end))
        choice = Choice(step, allowed, mark.time, end, end)
        if taken := accepts.get((side, step, rid)):
            choice.accepted = max(end, taken.time)
            choice.tokens = tuple(numbers(taken, "tokens"))
            choice.terminated = bool(number(taken, "terminated"))
        found[rid].choices.append(choice)
    return list(found.values())


def printable(rule: str) -> str:
    """A rule in one line, without what neither a picture nor a terminal can show."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in rule
    )


def key_of(mark: Mark) -> tuple[str, int, str]:
    """Side, step and request of a mark."""
    return str(mark.attrs.get("side", "")), number(mark, "step"), word(mark, "rid")


def side_of(lane: str) -> str:
    """Whose lane it is, where two engines share a trace."""
    return lane.removesuffix("forward").rstrip() if lane.endswith("forward") else ""


def waits_of(trace: Trace) -> list[Mark]:
    """When a step was told to wait for a grammar."""
    return [mark for mark in waits(trace) if mark.attrs["reason"] == REASON]


def idle_of(trace: Trace) -> list[Idle]:
    """When a device idled because of that."""
    return [item for item in idle_times(trace) if item.reason == REASON]


# -- Host and device, and a lane for each request with a grammar -----------------------------------

MOST_STEPS, MOST_REQUESTS = 14, 6
SHOWN = ("mask", "process", "launch", "forward", "sample")  # phases and ops that matter here
WORDS = {"promised": "may be sampled", "stored": "sampled; the host does not know it yet"}
LEGEND = {
    "promised": "its mask is built: it may be sampled",
    "stored": "sampled; the host does not know the token yet",
    "end": "terminated: nothing can follow",
    "mask": "mask",
    "launch": "launch",
    "process": "process: the grammar accepts the token",
    "forward": "forward",
    "sample": "sample",
    "waited": "the device waits for a mask",
    "flag-head": "told to wait: its mask needs a token in flight",
}
HEADS = ("step", "request", "mask, ms", "allowed", "sampled, ms", "accepted, ms", "token", "")
NOTE = "26 → t: 26 tokens were allowed, t was sampled; # before the id of what is no character"


def scene(trace: Trace) -> Scene:
    """Host and device, a lane for each request with a grammar, and a line for every mask.

    Raises:
        NothingToShow: no step ran, or no request had a grammar.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (everybody := constrained_of(part)):
        raise NothingToShow("the trace has no grammar mark: no request had a grammar.")
    requests, is_text = everybody[:MOST_REQUESTS], trace.model == "hash"
    rows = [LaneRow(short(one.rid, 12), [item for choice in one.choices
                                         for item in items_of(one, choice, is_text)])
            for one in requests]  # fmt: skip
    masks = sorted(((choice.step, one.rid, choice) for one in requests for choice in one.choices),
                   key=lambda row: row[:2])  # fmt: skip
    lines = [table_row(rid, choice, is_text) for _, rid, choice in masks]
    choices = [choice for one in everybody for choice in one.choices]
    accepted = sum(len(choice.tokens) for choice in choices)
    ended = sum(choice.terminated for choice in choices)
    lost = sum(item.end - item.start for item in idle_of(part))
    told_to = many(len(waits_of(part)), "step")
    notes = [f"{short(one.rid, 12)} follows {short(one.rule, 100)}" for one in requests]
    notes.append(f"{many(len(choices), 'mask')}, {many(accepted, 'token')} accepted, "
                 f"{ended} terminated")  # fmt: skip
    if hidden := len(everybody) - len(requests):
        notes.append(f"{many(hidden, 'request')} more with a grammar left out.")
    return Scene(
        f"grammar_manager: {told_to} told to wait, for which devices idled {ms(lost)} ms",
        about_run(trace, shown),
        [
            Part("Requests with a grammar", NOTE, [Lanes(rows, part.end)]),
            Part("Host and device", "numbers: steps", [Lanes(run_rows(part), part.end)]),
            Part("Mask by mask", "# before the id of what is no character",
                 [TextTable(HEADS, lines)]),
        ],
        LEGEND,
        notes,
    )  # fmt: skip


def run_rows(trace: Trace) -> list[LaneRow]:
    """Masks on the host, steps on the device, who was told to wait, and what that cost."""
    items = [s for s in trace.slices if is_host(s.lane) or is_forward(s.lane)]
    items = [item for item in items if item.name in SHOWN]
    rows = list[LaneRow]()
    for lane in sorted({item.lane for item in items}, key=is_forward):
        found = [
            LaneItem(item.name, item.start, item.end, str(item.step), "",
                     f"step {item.step}, {item.name}", {"step": item.step, "op": item.name})
            for item in items
            if item.lane == lane
        ]  # fmt: skip
        for idle in idle_of(trace):
            if idle.lane == lane:
                length = idle.end - idle.start
                about = f"the device waits {ms(length)} ms for the mask"
                data: Data = {"step": idle.step, "lost": length}
                found.append(LaneItem("waited", idle.start, idle.end, f"{ms(length)} ms", "", about,
                                      data))  # fmt: skip
        if not rows:
            for mark in waits_of(trace):
                step = str(mark.attrs["step"])
                about = f"the {mark.attrs['op']} of step {step} waits for a token its mask needs"
                found.append(LaneItem("flag-head", mark.time, mark.time, about=about,
                                      data={"wait": step}))  # fmt: skip
        rows.append(LaneRow(lane, found))
    return rows


def items_of(one: Constrained, choice: Choice, is_text: bool) -> list[LaneItem]:
    """One step's token: how many were allowed, which one came, and whether it was the last."""
    allowed = " ".join(map(str, choice.allowed))
    where: Data = {"rid": one.rid, "step": choice.step}
    about = f"{one.rid}, step {choice.step}: {told(choice, is_text)}"
    phases = choice.phases or [("promised", choice.masked, choice.masked)]
    longest = max(phases, key=lambda phase: phase[2] - phase[1])
    items = [
        LaneItem(
            *phase, told(choice, is_text) if phase is longest else "",
            told(choice, is_text).replace(" ", "") if phase is longest else "",
            f"{about}; {WORDS[phase[0]]}", {**where, "allowed": allowed} if not at else where,
        )
        for at, phase in enumerate(phases)
    ]  # fmt: skip
    if choice.terminated:
        items.append(LaneItem("end", choice.accepted, choice.accepted, about=about, data=where))
    return items


def told(choice: Choice, is_text: bool) -> str:
    """``26 → t``: so many were allowed, and one came."""
    allowed = " ".join(map(str, choice.allowed))
    return f"{allowed} → {tokens(choice, is_text)}" if choice.tokens else allowed


def tokens(choice: Choice, is_text: bool) -> str:
    """What came: characters where every byte is a token, else ids."""
    return " ".join(character(token) if is_text else f"#{token}" for token in choice.tokens)


def character(token: int) -> str:
    """A byte as a character, if it can be printed."""
    return "space" if token == 32 else chr(token) if 32 < token < 127 else f"#{token}"


def table_row(rid: str, choice: Choice, characters: bool) -> tuple[object, ...]:
    """A line about one mask."""
    allowed, came = " ".join(map(str, choice.allowed)), tokens(choice, characters)
    accepted = ms(choice.accepted) if choice.tokens else "-"
    end = "terminated" if choice.terminated else "" if choice.tokens else "for nobody, or not yet"
    return (choice.step, short(rid, 12), ms(choice.masked), allowed, ms(choice.sampled), accepted,
            came, end)  # fmt: skip
