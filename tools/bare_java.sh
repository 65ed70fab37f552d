#!/usr/bin/env bash
# Prints a JAVA_HOME whose Java, and so Spark's JVM and its Python processes, have no variable LEDGER_* or AWS_*.
#
# Databricks' standard compute passes only a fixed list of variables to the engine. The driver's own process keeps its
# variables.
#
# Use: JAVA_HOME=$(tools/bare_java.sh build/bare)
set -euo pipefail
home=${1:?which directory?}
java=${JAVA_HOME:+$JAVA_HOME/bin/java}
java=$(command -v "${java:-java}")
mkdir -p "$home/bin"
cat > "$home/bin/java" <<SCRIPT
#!/usr/bin/env bash
for name in \$(compgen -e); do
    case \$name in LEDGER_* | AWS_*) unset "\$name" ;; esac
done
exec '$java' "\$@"
SCRIPT
chmod +x "$home/bin/java"
(cd "$home" && pwd)
