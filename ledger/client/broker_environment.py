"""Environment variables of a broker that a client's process starts.

Rules
- A broker gets the variables of the process that starts it. Reason: boto3 reads credentials, region, endpoint, proxies
  and certificate authorities from these variables.
- Variables of Spark are removed, because they contain a secret of the Spark process, and a broker needs none of them.
- A relative path in a variable of boto3 is made absolute, because the broker's working directory is `/`. A path that
  begins with `~` is not changed.
- `PYTHONPATH` has only the given directories.
"""

from __future__ import annotations

import importlib.util
import os
import site
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from pyspark_ledger.ledger.errors import Refused

_SPARK_PREFIXES = ("SPARK_", "PYSPARK_", "_SPARK_", "_PYSPARK_", "PYTHON_WORKER_FACTORY_")
_SPARK_NAMES = frozenset(
    {
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE",
        "PYTHON_FAULTHANDLER_DIR",
        "PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS",
        "PYTHON_UDF_BATCH_SIZE",
        "PYTHON_UNIX_DOMAIN_ENABLED",
    }
)
_PACKAGES = ("pyspark_ledger", "boto3", "pyarrow", "msgspec", "numpy", "google_crc32c", "google.protobuf")
_PATH_NAMES = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CREDENTIAL_FILE",
    "AWS_LOGIN_CACHE_DIRECTORY",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "BOTO_CONFIG",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)


# The first release of pyarrow whose allocator (mimalloc 3) shares an arena well between threads.
_PYARROW_MIN = 26
_ALLOCATOR = {
    "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
    "MIMALLOC_RESERVE_OS_MEMORY": "2GiB",  # address space only
    "MIMALLOC_DISALLOW_OS_ALLOC": "1",
    "MIMALLOC_ARENA_MAX_OBJECT_SIZE": "160MiB",
}


def broker_environment(environ: Mapping[str, str], packages: Iterable[str]) -> dict[str, str]:
    """Return the environment for a broker. `packages` are the directories of the modules that the broker imports.

    Raises Refused if a variable has a relative path and the working directory was deleted.
    """
    kept = {name: value for name, value in environ.items() if not _is_spark(name)}
    paths = {name: _absolute(name, kept[name]) for name in _PATH_NAMES if kept.get(name)}
    return {**kept, **paths, "PYTHONPATH": os.pathsep.join(packages), "PYTHONSAFEPATH": "1"}


def package_paths() -> list[str]:
    """Return the directories of the broker's packages, without those that the interpreter searches by default."""
    defaults = {os.path.realpath(path) for path in site.getsitepackages()}
    directories: dict[str, None] = {}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        depth = name.count(".") + (spec.submodule_search_locations is not None)
        root = str(Path(spec.origin).absolute().parents[depth])
        if os.path.realpath(root) not in defaults:
            directories[root] = None
    return list(directories)


def _is_spark(name: str) -> bool:
    return name.startswith(_SPARK_PREFIXES) or name in _SPARK_NAMES


def _absolute(name: str, value: str) -> str:
    """Return the absolute path that boto3 would use in the working directory of this process."""
    if value.startswith("~") or Path(os.path.expandvars(value)).is_absolute():
        return value
    try:
        return str(Path.cwd() / value)
    except FileNotFoundError as gone:
        raise Refused(
            f"{name} is {value!r}, a relative path, and the working directory does not exist",
            hint=f"Set {name} to an absolute path",
        ) from gone


def bounded_allocator(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that bound Arrow's memory in a broker which other processes reach over TCP.

    Reason: Arrow decompresses a received batch before the broker's code sees it. A few kilobytes can become gigabytes.
    With these variables one allocation of Arrow is at most 160 MiB, and all together are at most 2 GiB. A larger one
    fails, with an error of this call only. Maps, gRPC and Python allocate elsewhere.

    Returns an empty dictionary if a variable of `environ` chooses the allocator, or if pyarrow is too old. Also if the
    host counts reserved address space as used memory.
    """
    if any(name.startswith(("MIMALLOC_", "ARROW_DEFAULT_MEMORY_POOL")) for name in environ):
        return {}
    if int(metadata.version("pyarrow").partition(".")[0]) < _PYARROW_MIN or _counts_reserved_memory():
        return {}
    return dict(_ALLOCATOR)


def _counts_reserved_memory() -> bool:
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        return True
