# Shared by the scripts here: where Postgres is, and how to run as a user that it accepts. Sourced, not run.

PG_MAJOR=15
# Tests by version run with this one, too.
PG_NEWEST=18

# Servers of the other major versions, one directory each. Root's are run by another user, who cannot look into /root.
if [ "$(id -u)" = 0 ]; then
    PG_SERVERS_DIR=${PG_SERVERS_DIR:-/var/cache/pageserver-postgres}
else
    PG_SERVERS_DIR=${PG_SERVERS_DIR:-$HOME/.cache/pageserver-postgres}
fi

# Prints the directory of the Postgres programs, or nothing. PG_BIN overrides it.
find_postgres() {
    local dir
    for dir in "${PG_BIN:-}" "/usr/lib/postgresql/$PG_MAJOR/bin" "$(pg_config --bindir 2>/dev/null)"; do
        if [ -n "$dir" ] && [ -x "$dir/initdb" ] && "$dir/postgres" --version | grep -q " $PG_MAJOR\."; then
            echo "$dir"
            return
        fi
    done
}

# Sets PAGECTL and PAGESERVER, unless they are given, and BIN, the directory of Postgres. Ends the script, which calls
# itself $1, if something is not there.
find_programs() {
    local target=${CARGO_TARGET_DIR:-target}/${TEST_PROFILE:-release} program
    PAGECTL=${PAGECTL:-$target/pagectl}
    PAGESERVER=${PAGESERVER:-$target/pageserver}
    BIN=$(find_postgres)
    [ -n "$BIN" ] || { echo "$1: no Postgres $PG_MAJOR found; run make setup" >&2; exit 1; }
    for program in "$PAGECTL" "$PAGESERVER" "$(dirname "$PAGECTL")/compute-fs"; do
        [ -x "$program" ] || { echo "$1: $program is not built; run make build" >&2; exit 1; }
    done
}

# Runs a command as the user that owns the cluster: Postgres refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        runuser -u postgres -- "$@"
    else
        "$@"
    fi
}

# Runs a command as root, through sudo where needed.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

say() {
    printf '\n== %s\n' "$*"
}
