"""Warning about an object that its user has not closed, as Python gives it for files.

Rules
- The warning is a ResourceWarning, given when the object is freed. Python hides it unless `-X dev` or `-W` is set.
- No warning is given in a process that Spark has started for its tasks, because Spark ends it without notice. Nor is
  one given in a fork of the process that has opened the object.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from typing import Any


def warn_unclosed(opened: object, name: str) -> weakref.finalize[Any, Any] | None:
    """Warn when `opened` is freed, unless the returned finalizer is detached before. None: there is no warning."""
    if _is_spark_worker():
        return None
    finalizer = weakref.finalize(opened, _warn, name, os.getpid())
    finalizer.atexit = False
    return finalizer


def _is_spark_worker() -> bool:
    """Return whether Spark has started this process for its tasks."""
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program is not None and program.name.startswith("pyspark.")


def _warn(name: str, process: int) -> None:
    if os.getpid() == process:
        warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=1)
