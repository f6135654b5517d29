"""The command ``minisched``."""
