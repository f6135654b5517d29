"""Recorded workloads, replayed on the simulated device with a model that only knows lengths."""
