"""Peers: programs that run in an environment of their own, each answering one line at a time."""
