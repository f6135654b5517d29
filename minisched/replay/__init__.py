"""Recorded workloads, replayed on the simulated device with a model that only knows lengths."""

SCENARIOS = ("long-document", "long-paper", "many-pictures", "long-answer")
"""Published cases that ``minisched scenario`` replays beside their claims."""
