#!/usr/bin/env bash
# Packs a Python environment with this package for `spark.archives`: executors then need no installed package.
#
# The archive has a virtual environment. Its interpreter is a link to a Python, so every host needs that Python at the same
# path. Run the script on a host of the cluster's image, such as an EMR node or an `amazonlinux:2023` container.
#
# Use: deploy/pack_environment.sh [WHEEL-OR-REQUIREMENT] [ARCHIVE]     PYTHON=python3.11 selects the interpreter
set -euo pipefail

package=${1:-pyspark-ledger[s3,crypto]}
archive=$(realpath -m "${2:-environment.tar.gz}")
python=${PYTHON:-python3.11}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m venv "$scratch/environment"
"$scratch/environment/bin/python" -m pip install --quiet --disable-pip-version-check "$package" 'venv-pack==0.2.0' setuptools
"$scratch/environment/bin/venv-pack" --quiet --prefix "$scratch/environment" --force --output "$archive"
echo "packed: $archive, $(du -m "$archive" | cut -f1) MiB. Give it to Spark:"
echo "  --archives $archive#environment --conf spark.pyspark.python=./environment/bin/python"
