"""A grid of settings, each run once: ``minisched sweep GRID.toml``."""
