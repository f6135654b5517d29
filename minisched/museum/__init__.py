"""Published bugs of overlap scheduling: each is put back, caught by a law, drawn, and fixed."""

from .exhibit import Exhibit, exhibits, find, refuted

__all__ = ["Exhibit", "exhibits", "find", "refuted"]
