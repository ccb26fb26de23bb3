#!/usr/bin/env bash
# Installs what is missing to build, test and run the demo; with --for-demo, most of what only tests use is left out.
# Asks nothing, may be run again at any time.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

VENV=${VENV:-.venv}

install_packages() {
    local missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    command -v curl >/dev/null || missing+=(curl)
    command -v runuser >/dev/null || missing+=(util-linux)
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    [ -n "$(find_postgres)" ] || missing+=("postgresql-$PG_MAJOR")
    if [ "${#missing[@]}" = 0 ]; then
        echo "packages: nothing missing"
        return
    fi
    command -v apt-get >/dev/null || { echo "setup: install these yourself: ${missing[*]}" >&2; exit 1; }
    echo "packages: ${missing[*]}"
    # Debian's package would start a server of its own at once; no test wants it.
    if [[ " ${missing[*]} " == *" postgresql-"* ]]; then
        as_root mkdir -p /etc/postgresql-common
        [ -e /etc/postgresql-common/createcluster.conf ] ||
            echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
    fi
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# Computes of ordinary users mount by it.
install_fuse() {
    command -v fusermount3 >/dev/null && return
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends fuse3 ||
        { as_root apt-get update -q &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends fuse3; } ||
        echo "setup: no package fuse3: the tests of computes without privileges will fail" >&2
}

# Checks the text of /metrics, whose names are checked without it, too.
install_promtool() {
    scripts/promtool.sh >/dev/null || echo "setup: no promtool: the test of what it says of /metrics will fail" >&2
}

# Tests of the console look at it as people do.
install_browser() {
    command -v chromium >/dev/null && command -v chromedriver >/dev/null && return
    local install="apt-get install -q -y --no-install-recommends chromium chromium-driver"
    as_root env DEBIAN_FRONTEND=noninteractive $install ||
        { as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive $install; } ||
        echo "setup: no packages chromium and chromium-driver: the tests of the console will fail" >&2
}

# Says what it thinks of the unit in the Debian package.
install_systemd() {
    command -v systemd-analyze >/dev/null && return
    local install="apt-get install -q -y --no-install-recommends systemd"
    as_root env DEBIAN_FRONTEND=noninteractive $install ||
        { as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive $install; } ||
        echo "setup: no systemd-analyze: the tests of units will fail" >&2
}

# Drivers of other languages, which tests of the gateway use.
install_drivers() {
    local missing=()
    command -v node >/dev/null && command -v npm >/dev/null || missing+=(nodejs npm)
    command -v javac >/dev/null || missing+=(default-jdk-headless)
    local install="apt-get install -q -y --no-install-recommends ${missing[*]}"
    [ "${#missing[@]}" = 0 ] || as_root env DEBIAN_FRONTEND=noninteractive $install ||
        { as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive $install; } || true
    scripts/drivers.sh >/dev/null || echo "setup: no drivers: the tests of the gateway that use them will fail" >&2
}

install_rust() {
    # A toolchain manager installed for this user may not be on the path yet.
    [ ! -e "${CARGO_HOME:-$HOME/.cargo}/env" ] || . "${CARGO_HOME:-$HOME/.cargo}/env"
    if ! command -v cargo >/dev/null; then
        if apt-cache show rustup >/dev/null 2>&1; then
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends rustup
        else
            echo "setup: this system has no package for rustup: install it first, see https://rustup.rs" >&2
            exit 1
        fi
    fi
    # The toolchain that rust-toolchain.toml names comes with the first call.
    cargo --version
    scripts/aarch64.sh
}

install_python() {
    [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r test_runner/requirements.txt
    "$VENV/bin/python" -m pytest --version
}

say "packages"
install_packages
install_fuse
# Only tests use these: a demo begins sooner without.
if [ "${1:-}" != --for-demo ]; then
    install_promtool
    install_browser
    install_systemd
    install_drivers
fi
say "servers"
scripts/postgres_servers.sh "$PG_NEWEST"
scripts/postgres_regress.sh "$PG_MAJOR" || echo "setup: no sources of Postgres' own tests: what runs them will fail" >&2
say "Rust"
install_rust
say "Python"
install_python
say "ready: Postgres $PG_MAJOR in $(find_postgres), $PG_NEWEST in $PG_SERVERS_DIR"
