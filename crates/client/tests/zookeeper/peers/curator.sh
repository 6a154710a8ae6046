#!/bin/sh
# Runs Increment.java with Curator, as Debian's package libcurator-recipes-java has it.
jars=/usr/share/java
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -cp \
    "$jars/curator-recipes.jar:$jars/curator-framework.jar:$jars/curator-client.jar:$jars/zookeeper.jar:$jars/guava.jar:$jars/slf4j-api.jar:$jars/slf4j-nop.jar" \
    "$(dirname "$0")/Increment.java" "$@"
