"""Refuted: that a ring of three times the running requests is too small for prompts in chunks."""

from __future__ import annotations

from ..exhibit import Refuted
from .ring_lapped import EXHIBIT as LAPPED

REFUTED = Refuted(
    name="ring_too_small",
    title="A ring of 3 x max_running_requests is too small for prompts in chunks",
    references=("SGLang #13713", "SGLang #13916"),
    suspicion="Chunks of long prompts take so many future slots that the ring has to grow with "
    "the longest prompt, else a token is overwritten before it is read. #13713 and #13916 made it "
    "longer for that reason.",
    truth="The chunks do lap the ring, and it does no harm here: by the time slot 1 is taken "
    "again, the host has known the token in it for five steps, and sends the token itself. What "
    "was wrong is that a placeholder went on standing for a token that was known. With that put "
    "right, nobody reads the slot of a step that has come back, and with two steps in flight a "
    "ring of three times the running requests is enough, however long the prompts are.",
    case=LAPPED.case,
)
