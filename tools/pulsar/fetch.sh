#!/usr/bin/env bash
# Fetches Pulsar's own offload reader from Maven Central, pinned, and compiles ReadOffloaded.java against it.
#   build/pulsar/lib  the classpath   build/pulsar/nar  the offloader, unpacked   build/pulsar/classes  ours
# Instant when it was done before; Maven keeps what it fetched. Needs a JDK 17 and Maven.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$here/../.." && pwd)/build/pulsar
mkdir -p "$(dirname "$out")" && exec 9> "$out.lock" && flock 9  # one at a time
stamp=$(cat "$here/pom.xml" "$here"/*.java "$here/fetch.sh" | sha256sum)
[ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ] && exit 0
rm -rf "$out" && mkdir -p "$out/nar" "$out/classes"
maven="mvn -B -q -f $here/pom.xml"
$maven dependency:copy-dependencies -DoutputDirectory="$out/lib" -DincludeScope=runtime
# What Central calls a jar is a NAR: classes, and the jars they need below META-INF.
$maven dependency:copy -Dartifact=org.apache.pulsar:tiered-storage-jcloud:4.0.8:jar -DoutputDirectory="$out"
(cd "$out/nar" && jar xf "$out/tiered-storage-jcloud-4.0.8.jar")
javac -d "$out/classes" -cp "$out/nar:$out/nar/META-INF/bundled-dependencies/*:$out/lib/*" "$here"/*.java
echo "$stamp" > "$out/stamp"
