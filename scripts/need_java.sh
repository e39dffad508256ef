# Check for Java 17 and Maven, which Cassandra, Kafka and ZooKeeper need; install them, or print how
# to get them.
set -eu
have() {
    command -v mvn >/dev/null 2>&1 || return 1
    ls /usr/lib/jvm/java-17-*/bin/java >/dev/null 2>&1 && return 0
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | grep -q 'version "17'
}
have && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Java 17 and Maven (apt-get install openjdk-17-jre-headless maven)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless maven >/dev/null
    have && exit 0
fi
echo "Java 17 or Maven, which Cassandra, Kafka and ZooKeeper need, is missing: apt-get install openjdk-17-jre-headless maven" >&2
exit 1
