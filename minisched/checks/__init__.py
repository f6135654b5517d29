"""Verdicts on runs: the same tokens, and how much overlapped."""
