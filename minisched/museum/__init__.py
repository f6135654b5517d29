"""Published bugs of overlap scheduling: each put back, caught by a law, drawn, and cured."""

from .exhibit import Exhibit, Refuted, exhibits, find, refuted

__all__ = ["Exhibit", "Refuted", "exhibits", "find", "refuted"]
