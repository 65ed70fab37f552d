#!/usr/bin/env bash
# Writes dist/pyspark_ledger.cdx.json: every package that the wheel of dist/ needs with all its extras, with versions
# and licences, in the format CycloneDX. The versions are those of an installation of this day.
#
# Use: tools/sbom.sh        (after make release-check)
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(echo dist/*.whl)
extras=$(.venv/bin/python -c 'import tomllib; print(",".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]))')

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
.venv/bin/uv venv --quiet --python .venv/bin/python "$scratch/user"
.venv/bin/uv pip install --quiet --python "$scratch/user" "$wheel[$extras]"
# The tool has an environment of its own, as the list has everything that is installed beside the wheel.
.venv/bin/uv venv --quiet --python .venv/bin/python "$scratch/tool"
.venv/bin/uv pip sync --quiet --python "$scratch/tool" --require-hashes requirements/sbom.lock
list=dist/pyspark_ledger.cdx.json
"$scratch/tool/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --output-format JSON \
    --output-file "$list" "$scratch/user/bin/python"
echo "sbom: $list"
