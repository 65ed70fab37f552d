#!/usr/bin/env bash
# Fetches Debian's Prometheus and unpacks it below build/web, without installing anything.
#   build/web/usr/bin/prometheus, promtool
# Instant when it was done before. Needs a Debian or Ubuntu with apt-get and dpkg-deb, not root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$here/../.." && pwd)/build/web
mkdir -p "$out" && exec 9> "$out.lock" && flock 9  # one at a time
[ -x "$out/usr/bin/prometheus" ] && exit 0
if ! (cd "$out" && apt-get download -qq prometheus); then
    # The lists of packages may be missing. Lists of our own need no rights.
    lists="$out/lists"
    mkdir -p "$lists/partial"
    options=(-o "Dir::State::lists=$lists" -o Debug::NoLocking=1)
    apt-get "${options[@]}" update -qq
    (cd "$out" && apt-get "${options[@]}" download -qq prometheus)
fi
dpkg-deb -x "$out"/prometheus_*.deb "$out"
rm "$out"/prometheus_*.deb
