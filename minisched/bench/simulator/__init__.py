"""The simulator's speed and its memory: begin at ``simulator``."""
