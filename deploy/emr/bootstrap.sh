#!/usr/bin/env bash
# Bootstrap action for EMR on EC2: installs the wheel for the Python that Spark runs, on every node.
#
# Use: aws emr create-cluster … --bootstrap-actions Path=s3://BUCKET/bootstrap.sh,Args=[s3://BUCKET/pyspark_ledger-0.1.0-py3-none-any.whl]
set -euo pipefail

wheel=${1:?which wheel, as s3://…?}
python=${2:-python3.11}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
aws s3 cp --quiet "$wheel" "$scratch/"
sudo "$python" -m pip install --quiet "$(echo "$scratch"/*.whl)[s3,crypto]"
