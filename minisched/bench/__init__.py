"""Timing, always side by side in one run, interleaved, as medians with their spread."""
