#!/usr/bin/env bash
# Installs wheel and sdist with all extras, as `pip install` would: from an index on this host, into a clean
# environment for each Python, with the lowest and with the newest versions that the extras allow.
#
# In each environment: the first steps of a new user with Spark (tools/smoke.py). For the wheel, also the tests of
# what the extras bring: S3, Avro, encryption, certificates, Delta's files. No package may need a compiler.
#
# Use: tools/try_installs.sh PYTHON…      (after make release-check, which builds dist/)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
uv=$root/.venv/bin/uv
scratch=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$scratch"' EXIT
version=$("$root/.venv/bin/python" -c 'import tomllib; print(tomllib.load(open("'"$root"'/pyproject.toml", "rb"))["project"]["version"])')
extras=$("$root/.venv/bin/python" -c 'import tomllib; print(",".join(tomllib.load(open("'"$root"'/pyproject.toml", "rb"))["project"]["optional-dependencies"]))')
tests=(tests/ledger/message/schema tests/ledger/message/test_encryption.py tests/ledger/objects
    tests/ledger/api/test_typed_messages.py tests/ledger/transport/test_certificates.py tests/offload/table)

# An index is a folder for each package, with its files. The server lists the folders and prints the port that it got.
mkdir -p "$scratch/index/pyspark-ledger"
cp "$root"/dist/pyspark_ledger-"$version"* "$scratch/index/pyspark-ledger/"
"$root/.venv/bin/python" -u -m http.server 0 --bind 127.0.0.1 --directory "$scratch/index" >"$scratch/server" 2>/dev/null &
server=$!
until grep -q port "$scratch/server"; do kill -0 "$server"; sleep 0.1; done
index=http://127.0.0.1:$(sed -n 's/.*port \([0-9]*\).*/\1/p' "$scratch/server")/

# try PYTHON RESOLUTION SOURCE: SOURCE is wheel or sdist.
try() {
    local python=$1 resolution=$2 source=$3 environment=$scratch/$2-$3 chosen=()
    echo "try: $("$python" --version), $resolution versions, $source"
    "$uv" venv --quiet --clear --python "$python" "$environment"
    "$uv" pip compile --quiet "$root/pyproject.toml" --all-extras --group "$root/pyproject.toml:stories" \
        --python "$python" --resolution "$resolution" --output-file "$environment/versions"
    [ "$source" = wheel ] || chosen=(--no-binary pyspark-ledger)
    CC=false CXX=false "$uv" pip install --quiet --python "$environment" --index "$index" \
        --requirement "$environment/versions" "${chosen[@]}" "pyspark-ledger[$extras]==$version"
    "$uv" pip check --quiet --python "$environment"
    cp "$root/tools/smoke.py" "$environment/"
    (cd "$environment" && env -u PYTHONPATH -u LEDGER_STORE bin/python smoke.py)
    [ "$source" = sdist ] || (cd "$root" && "$environment/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}" | tail -n 1)
    rm -rf "$environment"
}

for python; do
    try "$python" lowest-direct wheel
    try "$python" highest wheel
    try "$python" highest sdist
done
