"""Shows what requests say while they say it: text, or token ids where there is no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..core import Output, Request
from ..models.base import Model
from ..models.tokenizer import StreamDecoder
from .layout import STEP, say


class Transcript:
    """What each request has said so far."""

    def __init__(self, model: Model, requests: Sequence[Request]) -> None:
        self.tokenizer = model.tokenizer
        self.said = {request.rid: "" for request in requests}
        self.ended = {request.rid: "" for request in requests}
        self.decoders: dict[str, StreamDecoder] = {}

    def hear(self, output: Output) -> None:
        """Note an output."""
        self.said[output.rid] += self._text(output)
        if output.finish_reason:
            self.ended[output.rid] = output.finish_reason.value

    def _text(self, output: Output) -> str:
        if self.tokenizer is None:
            return "" if output.token is None else f"{output.token} "
        decoder = self.decoders.setdefault(output.rid, StreamDecoder(self.tokenizer))
        text = decoder.push(output.token) if output.token is not None else ""
        return text + (decoder.finish() if output.finish_reason else "")

    def __rich__(self) -> Table:
        """One line for each request."""
        table = Table.grid(padding=(0, 2))
        for rid, text in self.said.items():
            table.add_row(Text(rid, "bold"), Text(text), Text(self.ended[rid], "dim"))
        return table


@contextmanager
def streaming(console: Console, transcript: Transcript) -> Iterator[None]:
    """Keep the transcript on show; where nobody watches, print it once, at the end, unwrapped."""
    if console.is_terminal:
        with Live(transcript, console=console, refresh_per_second=12):
            yield
        return
    yield
    for rid, text in transcript.said.items():
        say(console, escape(f"{rid}: {text} ({transcript.ended[rid]})"), STEP)
