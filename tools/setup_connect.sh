#!/usr/bin/env bash
# Puts what Spark Connect's client imports into a directory beside .venv: it is large, and only `make test-connect` wants it.
#
# Use: tools/setup_connect.sh DIRECTORY        (after make setup). Instant when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:?which directory?}
stamp=$target/.made-from
made_from=$(cksum < requirements/connect.lock)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$made_from" ]; then
    exit 0
fi
rm -rf "$target"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes --no-deps \
    --target "$target" -r requirements/connect.lock
printf '%s\n' "$made_from" > "$stamp"
