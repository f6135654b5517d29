"""The whole measurement of one GPU: begin at ``cuda``."""
