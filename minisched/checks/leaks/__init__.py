"""Does it leak? ``leaks.py`` reads a trace's marks; ``books.py`` looks at a live scheduler."""
