"""Probe of another interpreter: `ledger doctor` runs this file in the Python that Spark would start.

Rules
- Only the standard library is imported, because the interpreter may have no packages, and may be old.
- The result is one JSON document on standard output. A failure is a text in the document.
- The interpreter runs the source of this file with `python -c`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from importlib.util import find_spec
from typing import Any

NEEDED = ("pyspark", "pyarrow", "numpy", "msgspec", "google_crc32c", "google.protobuf", "sortedcontainers")
OWN = ("pyspark_ledger", "pyspark_ledger.connector", "pyspark_ledger.ledger", "pyspark_ledger.offload")


def probe() -> dict[str, Any]:
    """Return the interpreter's version, the packages that a task needs, and this project's packages.

    `discovery` has the modules `pyspark_…`, in which Spark searches for data sources, with the errors of their imports.
    """
    return {
        "executable": sys.executable,
        "python": list(sys.version_info[:3]),
        "modules": {name: _imported(name) for name in NEEDED},
        "origins": {name: _origin(name) for name in OWN},
        "ours": _imported("pyspark_ledger"),
        "discovery": {
            found.name: _imported(found.name).get("error", "")
            for found in pkgutil.iter_modules()
            if found.name.startswith("pyspark_")
        },
    }


def _imported(name: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001  # also SystemExit, which ends Spark's search for data sources
        return {"error": f"{type(error).__name__}: {error}"}
    return {"version": str(getattr(module, "__version__", "")), "origin": str(getattr(module, "__file__", ""))}


def _origin(name: str) -> str:
    try:
        spec = find_spec(name)
    except BaseException as error:  # noqa: BLE001  # a broken parent
        return f"{type(error).__name__}: {error}"
    return "" if spec is None else str(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))


if __name__ == "__main__":
    print(json.dumps(probe()))  # noqa: T201  # its purpose
