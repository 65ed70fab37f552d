#!/usr/bin/env bash
# Fetches Debian's Prometheus and Chromium, and unpacks below build/web those that this machine lacks.
#   build/web/root/usr/bin/prometheus, promtool, chromium      libraries below build/web/root/usr/lib
# Instant when it was done before. Needs a Debian or Ubuntu with apt-get and dpkg-deb, not root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$here/../.." && pwd)/build/web
mkdir -p "$out" && exec 9> "$out.lock" && flock 9  # one at a time

missing=()
for name in prometheus chromium; do
    command -v "$name" >/dev/null || [ -e "$out/root/usr/bin/$name" ] || missing+=("$name")
done
[ ${#missing[@]} -eq 0 ] && exit 0

# The machine's lists of packages may be missing or old. Lists of our own need no rights.
lists="$out/lists"
mkdir -p "$lists/partial" "$out/packages" "$out/root"
options=(-o "Dir::State::lists=$lists" -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
apt-get "${options[@]}" update -qq
apt-get "${options[@]}" install -qq --no-install-recommends --print-uris "${missing[@]}" \
    | awk -F"'" '/^.http/ { print $2 }' > "$out/uris"
while read -r uri; do
    curl -fsSL --retry 5 -o "$out/packages/$(basename "$uri")" "$uri"
done < "$out/uris"
for package in "$out"/packages/*.deb; do
    dpkg-deb -x "$package" "$out/root"
done
rm -rf "$out/packages"
