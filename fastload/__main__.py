"""``python -m fastload``: the command line."""

from __future__ import annotations

from fastload.cli import main

if __name__ == "__main__":
    main()
