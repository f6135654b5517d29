"""Published bugs of overlap scheduling: each put back, caught by a law, drawn, and cured."""

from .exhibit import CHAPTERS, Exhibit, Refuted
from .registry import exhibits, find, refuted

__all__ = ["CHAPTERS", "Exhibit", "Refuted", "exhibits", "find", "refuted"]
