"""Published bugs of overlap scheduling: each put back, caught by a law, drawn, and cured."""

from .exhibit import Exhibit, exhibits, find, refuted

__all__ = ["Exhibit", "exhibits", "find", "refuted"]
