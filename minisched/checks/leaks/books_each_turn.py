"""Looks at a scheduler's memory while a run goes on."""

from __future__ import annotations

from ...engine.engine import Engine
from ..laws import Broken
from .books import check_step


class Books:
    """Looks at a scheduler's memory after every turn, and keeps what was wrong first."""

    def __init__(self) -> None:
        self.error: Broken | None = None

    def look(self, engine: Engine) -> None:
        """After a turn."""
        if self.error is None:
            try:
                check_step(engine.scheduler)
            except Broken as error:
                self.error = error

    def check(self) -> None:
        """When the run is over.

        Raises:
            Broken: something was wrong after one of the turns.
        """
        if self.error is not None:
            raise self.error
