#!/usr/bin/env bash
# Fetches the SQL of Postgres' own regression, isolation and contrib tests from Debian's source packages, into
# PG_SERVERS_DIR/regress/<major>. What is there already is left alone. Debian has no sources of 14 and 16: those servers
# run the tests of the next version.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# Debian's release with the package of a major version.
declare -A RELEASES=([15]=bookworm [17]=trixie [18]=sid)
system_mirror() {
    cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list 2>/dev/null |
        grep -oE '(http|https)://[^ ]*/debian/?$' | head -n 1
}

MIRROR=${DEBIAN_MIRROR:-$(system_mirror || true)}
MIRROR=${MIRROR:-http://deb.debian.org/debian}

# apt with lists and sources of its own: the system's are left as they are.
private_apt() {
    local lists=$1
    shift
    (cd "$lists" && apt-get -q -o Dir::Etc::SourceList="$lists/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State::Lists="$lists/lists" -o Dir::Cache="$lists/cache" -o APT::Sandbox::User=root \
        -o Dir::Etc::Preferences=- "$@")
}

fetch_suite() {
    local major=$1 target=$PG_SERVERS_DIR/regress/$1 work dir
    if [ -d "$target" ]; then
        echo "tests of Postgres $major are in $target"
        return
    fi
    mkdir -p "$PG_SERVERS_DIR/regress"
    work=$(mktemp -d "$PG_SERVERS_DIR/regress/.new-XXXXXX")
    trap 'rm -rf "$work"' RETURN
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/tests"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR ${RELEASES[$major]} main" \
        >"$work/sources.list"
    private_apt "$work" update
    private_apt "$work" source --download-only "postgresql-$major"
    for dir in src/test/regress src/test/isolation contrib; do
        tar -xf "$work"/postgresql-"$major"_*.orig.tar.* -C "$work/tests" --strip-components=1 --wildcards "*/$dir/*"
    done
    chmod -R go+rX "$work" "$work/tests"
    chmod 755 "$PG_SERVERS_DIR" "$PG_SERVERS_DIR/regress"
    mv "$work/tests" "$target"
    echo "tests of Postgres $major are now in $target"
}

[ $# -gt 0 ] || set -- "${!RELEASES[@]}"
for major in "$@"; do
    fetch_suite "$major"
done
