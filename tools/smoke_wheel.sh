#!/usr/bin/env bash
# Installs a wheel or an sdist into a clean environment with exactly the versions of a lock, and uses it from there.
#
# Use: tools/smoke_wheel.sh requirements/wheel.lock [FILE]      (after make wheel, whose dist/*.whl is the default)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
lock=$root/${1:?which lock?}
built=$(realpath "${2:-$(echo "$root"/dist/*.whl)}")
python=${PYTHON:-$root/.venv/bin/python}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
install=("$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input)
"${install[@]}" --require-hashes --no-deps -r "$root/requirements/bootstrap.lock"
"${install[@]}" --require-hashes --no-deps --no-build-isolation -r "$lock"
"${install[@]}" --no-deps --no-build-isolation "$built"
# The lock is complete and fits the wheel's own bounds, or this says what does not.
"$scratch/venv/bin/python" -m pip check
cp "$root/tools/smoke.py" "$scratch/"
cd "$scratch"
env -u PYTHONPATH -u LEDGER_STORE venv/bin/python smoke.py
