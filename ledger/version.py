"""Version of the package, in a module that costs nothing to import."""

from __future__ import annotations

__version__ = "0.1.0"
