#!/usr/bin/env bash
# The main job on a small real cluster: make it, write to it, stop it, take it in, follow its WAL, compare every page.
# Needs nothing but what scripts/setup.sh installs, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

PAGECTL=${PAGECTL:-${CARGO_TARGET_DIR:-target}/release/pagectl}
BIN=$(find_postgres)
[ -n "$BIN" ] || { echo "demo: no Postgres $PG_MAJOR found; run make setup" >&2; exit 1; }
[ -x "$PAGECTL" ] || { echo "demo: $PAGECTL is not built; run make build" >&2; exit 1; }

WORK=$(mktemp -d "${TMPDIR:-/tmp}/pageserver-demo.XXXXXX")
DATA=$WORK/data
# A socket's path is limited to 107 bytes, so it does not lie below a long TMPDIR.
SOCKETS=$(mktemp -d /tmp/pgdemo.XXXXXX)

cleanup() {
    if [ -e "$DATA/postmaster.pid" ]; then
        as_postgres "$BIN/pg_ctl" -D "$DATA" -m immediate stop >/dev/null 2>&1 || true
    fi
    rm -rf "$WORK" "$SOCKETS"
}
trap cleanup EXIT

server() {
    as_postgres "$BIN/pg_ctl" -D "$DATA" -l "$WORK/server.log" -w -s "$@" || { tail "$WORK/server.log" >&2; exit 1; }
}

sql() {
    as_postgres "$BIN/psql" -X -q -v ON_ERROR_STOP=1 -h "$SOCKETS" -U postgres -d "${DB:-postgres}" -c "$1" >/dev/null
}

bench() {
    as_postgres "$BIN/pgbench" -h "$SOCKETS" -U postgres "$@" bench >"$WORK/pgbench.log" 2>&1 ||
        { tail "$WORK/pgbench.log" >&2; exit 1; }
}

chmod 755 "$WORK" "$SOCKETS"
[ "$(id -u)" != 0 ] || chown postgres "$WORK" "$SOCKETS"

say "a new Postgres $PG_MAJOR cluster"
as_postgres "$BIN/initdb" -D "$DATA" -U postgres --locale=C -E UTF8 -N >/dev/null
as_postgres tee -a "$DATA/postgresql.conf" >/dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$SOCKETS'
wal_level = replica
wal_keep_size = 1GB
fsync = off
CONF
server start
sql 'CREATE DATABASE bench'
bench -i -q -s 1
server stop -m fast
# The image to start from; from here on only WAL counts.
cp -a "$DATA" "$WORK/base"

say "work on it: pgbench, DDL, VACUUM"
server start
bench -c 2 -j 2 -t 1000 -n
DB=bench sql "CREATE TABLE notes AS SELECT g AS id, repeat('n', 100) AS note FROM generate_series(1, 5000) g"
DB=bench sql 'CREATE INDEX ON notes (id)'
DB=bench sql 'DELETE FROM notes WHERE id % 3 = 0'
DB=bench sql 'VACUUM notes'
DB=bench sql 'TRUNCATE pgbench_history'
DB=bench sql 'CREATE TABLE gone (a int); DROP TABLE gone'
sql 'CREATE DATABASE second'
server stop -m fast

say "pagectl import, ingest, verify"
"$PAGECTL" --workdir "$WORK/store" import --pgdata "$WORK/base"
"$PAGECTL" --workdir "$WORK/store" ingest --wal "$DATA/pg_wal"
"$PAGECTL" --workdir "$WORK/store" verify --pgdata "$DATA"
say "done: every page rebuilt from WAL is what Postgres itself has"
