"""Version of the package, in a module that is cheap to import."""

from __future__ import annotations

__version__ = "0.1.0"
"""Release of this package."""
