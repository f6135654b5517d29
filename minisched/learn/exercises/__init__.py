"""The exercises of the lessons, a file each: tables (``learn/exercise.py`` has a whole one)."""
