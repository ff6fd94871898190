"""Programs for frameworks that are not installed are not imported, as doctests would."""

from __future__ import annotations

import importlib.util

FRAMEWORKS = ("accelerate", "composer", "deepspeed", "lightning", "transformers")

collect_ignore = [f"{name}_worker.py" for name in FRAMEWORKS if importlib.util.find_spec(name) is None]
