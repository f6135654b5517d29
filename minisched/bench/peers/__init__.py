"""Peers: programs in an environment of their own, asked line by line: begin at ``peer``."""
