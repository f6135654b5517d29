"""``python -m minisched`` is ``minisched``."""

from .cli.app import main

if __name__ == "__main__":
    main()
