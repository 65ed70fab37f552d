"""ResourceWarnings of a call, whose result nobody keeps."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable


def resource_warnings(use: Callable[[], object]) -> list[str]:
    """Return the messages of the ResourceWarnings that a call gives until everything it has left is freed."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
        gc.collect()
    return [str(warning.message) for warning in caught if warning.category is ResourceWarning]
