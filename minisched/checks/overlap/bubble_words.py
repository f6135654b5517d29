"""What a bubble is, in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ...trace import Slice

WHY = {
    "host": "{where} is busy with {what}",
    "token": "the tokens of the step before come over the host ({what})",
    "copy": "the host waits for {what} before it goes on",
    "mask": "{where} is busy with {what}: what a grammar or penalties let it sample",
    "upload": "prompts are on their way to the device ({what})",
    "transfer": "KV is on its way from another device ({what})",
    "stage": "{where} has it first ({what})",
    "memory": "nobody can be admitted until memory or a row comes back ({what})",
    "arrival": "nobody is there to be served",
    "message": "its scheduler sleeps until the other one says something",
    "latency": "it has been launched, and the device takes that long to begin",
    "unknown": "nothing recorded explains it",
    "host wait": "the host launches it only afterwards ({what})",
    "kernel wait": "it has been launched, and the device takes that long to begin",
    "other": "it has been launched, and nothing recorded says what it waits for",
    "grammar": "its mask has to see a token first ({what})",
    "penalty": "its penalties have to see a token first ({what})",
    "prefill": "two prefills in a row may not overlap ({what})",
    "speculation": "its drafts have to see a token first ({what})",
}
MOST = 48  # letters of a name in a sentence
LESS = re.compile(r"<[^<>]*>|\(anonymous namespace\)::|\[clone [^\]]*\]")


def milliseconds(nanoseconds: int) -> str:
    """A time to read: ``2.2 ms``, to a thousandth of a millisecond."""
    return f"{round(nanoseconds / 1e6, 3):g} ms"


def sentence(lane: str, ns: int, cause: str, item: Slice | None, op: Slice | None) -> str:
    """``forward idles for 2.2 ms before forward 5: the host is busy with process 4.``"""
    what = _named(item) if item else "nothing that was recorded"
    where = (f"the {item.lane}" if item else "nobody").replace("the stage", "stage")
    why = WHY.get(cause, "it has to wait: " + cause).format(what=what, where=where)
    before = f" before {_named(op)}" if op else ""
    return f"{lane} idles for {milliseconds(ns)}{before}: {why}."


def _named(item: Slice) -> str:
    return f"{item.name} {item.step}" if item.step else item.name


def kernel_named(op: Slice) -> str:
    """What an op is called: its kernel, without return type, templates and arguments, if long."""
    name, before = str(op.attrs.get("kernel", op.name)), ""
    while len(name) > MOST and before != name:
        before, name = name, LESS.sub("", name)
    if len(name) > MOST:
        name = name.split("(")[0].strip().rpartition(" ")[2].rpartition("::")[2] or name
    return shortened(name)


def shortened(name: str) -> str:
    """A name that fits into a sentence, perhaps with an ellipsis in its middle."""
    tail = MOST // 3
    return name if len(name) <= MOST else f"{name[: MOST - tail - 1]}…{name[-tail:]}"


def with_short_names(
    sentences: Iterable[str], names: Sequence[str], untouched: str
) -> Iterator[str]:
    """The sentences with such names made short, and behind them what each of these stands for.

    One sentence stays as it is: it tells of such names.
    """
    whole = sorted((name for name in names if len(name) > MOST), key=len, reverse=True)
    told: dict[str, None] = {}
    for sentence_ in sentences:
        for name in whole if sentence_ != untouched else ():
            if name in sentence_:
                sentence_ = sentence_.replace(name, shortened(name))
                told[name] = None
        yield sentence_
    if told:
        yield "; ".join(f"{shortened(name)} is {name}" for name in told) + "."
