#!/usr/bin/env bash
# Recompiles requirements/*.lock from pyproject.toml: every package, or only those named, at the newest version allowed.
#
# Rule: no host name stands in a lock (--no-emit-index-url, and not uv.lock, which stores addresses), so the
# locks install from whatever index pip is configured for, and the hashes say whether the files are the same.
#
# Use: tools/lock.sh [PACKAGE…]        (after make setup, or with UV=/path/to/uv)
set -euo pipefail
cd "$(dirname "$0")/.."

upgrade=(--upgrade)
[ $# -eq 0 ] || upgrade=("${@/#/--upgrade-package=}")
compile() {
    "${UV:-.venv/bin/uv}" pip compile --quiet "${upgrade[@]}" --python-version "${python:-3.11}" \
        --generate-hashes --no-emit-index-url --no-header "$@"
}
compile requirements/bootstrap.in --output-file requirements/bootstrap.lock
compile requirements/sbom.in --output-file requirements/sbom.lock
compile pyproject.toml --extra spark --extra delta --extra history --extra s3 --extra demo --extra metrics --group dev \
    --override requirements/overrides.txt --constraint requirements/bootstrap.lock --output-file requirements/dev.lock
# The packages of a user of the wheel with Spark: the newest allowed, and the lowest allowed.
compile pyproject.toml --extra spark --output-file requirements/wheel.lock
compile pyproject.toml --extra spark --resolution lowest-direct --output-file requirements/lowest.lock
python=3.13 compile pyproject.toml --extra spark --resolution lowest-direct --output-file requirements/lowest313.lock
# Other Sparks for the Spark stories, and the imports of Spark Connect's client.
for spark in spark402 spark411 spark413 spark42 spark43; do
    [ "$spark" != spark43 ] || python=3.13 # the stories run on both Pythons
    overrides=()
    [ ! -f "requirements/$spark.overrides.txt" ] || overrides=(--override "requirements/$spark.overrides.txt")
    compile pyproject.toml "requirements/$spark.in" "${overrides[@]}" --extra s3 --group stories \
        --constraint requirements/bootstrap.lock --output-file "requirements/$spark.lock"
done
python=3.11 compile requirements/connect.in --constraint requirements/dev.lock --output-file requirements/connect.lock
