"""Version of the package. This module imports nothing, so that every module can import it."""

from __future__ import annotations

__version__ = "0.1.0"
"""Release of this package."""
