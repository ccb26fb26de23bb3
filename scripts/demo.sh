#!/usr/bin/env bash
# The main job on a small real cluster: a pageserver behind a live Postgres, its history as it grows, a branch of an
# earlier moment, and in the end every page compared. Needs nothing but what scripts/setup.sh installs, and leaves
# nothing behind but the picture of the layers.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

TARGET=${CARGO_TARGET_DIR:-target}/release
PAGECTL=${PAGECTL:-$TARGET/pagectl}
PAGESERVER=${PAGESERVER:-$TARGET/pageserver}
PICTURE=${DEMO_PICTURE:-test_output/demo-layers.svg}
BIN=$(find_postgres)
[ -n "$BIN" ] || { echo "demo: no Postgres $PG_MAJOR found; run make setup" >&2; exit 1; }
for program in "$PAGECTL" "$PAGESERVER"; do
    [ -x "$program" ] || { echo "demo: $program is not built; run make build" >&2; exit 1; }
done

WORK=$(mktemp -d "${TMPDIR:-/tmp}/pageserver-demo.XXXXXX")
DATA=$WORK/data
STORE=$WORK/store
# A socket's path is limited to 107 bytes, so it does not lie below a long TMPDIR.
SOCKETS=$(mktemp -d /tmp/pgdemo.XXXXXX)
SERVER_PID=

cleanup() {
    local dir
    [ -z "$SERVER_PID" ] || kill -KILL "$SERVER_PID" 2>/dev/null || true
    for dir in "$DATA" "$WORK/branch"; do
        if [ -e "$dir/postmaster.pid" ]; then
            as_postgres "$BIN/pg_ctl" -D "$dir" -m immediate stop >/dev/null 2>&1 || true
        fi
    done
    rm -rf "$WORK" "$SOCKETS"
}
trap cleanup EXIT

fail() {
    echo "demo: $*" >&2
    [ ! -e "$WORK/pageserver.log" ] || tail "$WORK/pageserver.log" >&2
    exit 1
}

# postgres DIR PG_CTL_ARGUMENTS
postgres() {
    local dir=$1
    shift
    as_postgres "$BIN/pg_ctl" -D "$dir" -l "$dir.log" -w -s "$@" || { tail "$dir.log" >&2; exit 1; }
}

# sql PORT STATEMENT: the port names the socket, there is no network.
sql() {
    as_postgres "$BIN/psql" -X -q -At -v ON_ERROR_STOP=1 -h "$SOCKETS" -p "$1" -U postgres -c "$2"
}

bench() {
    as_postgres "$BIN/pgbench" -h "$SOCKETS" -p 5432 -U postgres "$@" >"$WORK/pgbench.log" 2>&1 ||
        { tail "$WORK/pgbench.log" >&2; exit 1; }
}

# The value of a string member of a JSON object.
member() {
    sed -nE 's/.*"'"$1"'": ?"([^"]*)".*/\1/p' | head -n 1
}

ctl() {
    PAGECTL_SERVER=http://$HTTP "$PAGECTL" "$@"
}

# api METHOD PATH [BODY]
api() {
    curl -sS --fail-with-body --noproxy '*' -X "$1" "http://$HTTP$2" ${3:+-d "$3"} || fail "$1 $2 failed"
}

# until_true SECONDS COMMAND...
until_true() {
    local tries=$(($1 * 10))
    shift
    until "$@"; do
        kill -0 "$SERVER_PID" 2>/dev/null || fail "the pageserver has ended"
        ((tries-- > 0)) || fail "waited in vain: $*"
        sleep 0.1
    done
}

start_pageserver() {
    "$PAGESERVER" --workdir "$STORE" 2>>"$WORK/pageserver.log" &
    SERVER_PID=$!
    until_true 30 test -s "$STORE/pageserver.addr"
    HTTP=$(member listen_http_addr <"$STORE/pageserver.addr")
    PAGES=$(member listen_pg_addr <"$STORE/pageserver.addr")
}

# has LSN: whether the pageserver has taken in all WAL up to there.
has() {
    api POST "/v1/tenant/$TENANT/wait_lsn" "{\"timelines\": {\"$MAIN\": \"$1\"}, \"timeout\": \"60s\"}"
}

# page TIMELINE FILE: the first page of the accounts of pgbench, as of the timeline's last LSN.
page() {
    api GET "/v1/tenant/$TENANT/timeline/$1/getpage?key=$KEY" >"$2"
    "$PAGECTL" page show --file "$2" | sed -n 1,3p
}

balance() {
    sql "$1" "SELECT count(*) || ' accounts with ' || sum(abalance) || ' in all' FROM pgbench_accounts"
}

chmod 755 "$WORK" "$SOCKETS"
[ "$(id -u)" != 0 ] || chown postgres "$WORK" "$SOCKETS"
mkdir -p "$(dirname "$PICTURE")"

say "a pageserver"
"$PAGESERVER" init --workdir "$STORE" -c listen_pg_addr=127.0.0.1:0 -c listen_http_addr=127.0.0.1:0 >/dev/null
start_pageserver
echo "pages on $PAGES, management on $HTTP"

say "a stock Postgres $PG_MAJOR, with pgbench's tables"
as_postgres "$BIN/initdb" -D "$DATA" -U postgres --locale=C -E UTF8 -A trust -N >/dev/null
as_postgres tee -a "$DATA/postgresql.conf" >/dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$SOCKETS'
fsync = off
CONF
postgres "$DATA" start
bench -i -q -s 2

say "attach it while it works"
bench -c 2 -T 15 -n &
BENCH=$!
sleep 1
ATTACHED=$(ctl --json attach "host=$SOCKETS user=postgres dbname=postgres") || fail "the attach failed"
TENANT=$(member tenant_id <<<"$ATTACHED")
MAIN=$(member timeline_id <<<"$ATTACHED")
echo "tenant $TENANT, timeline $MAIN"
wait "$BENCH"

say "a moment to come back to"
MOMENT=$(sql 5432 'SELECT pg_current_wal_insert_lsn()')
THEN=$(balance 5432)
echo "LSN $MOMENT: $THEN"

say "then an accident, and work goes on"
sql 5432 'DELETE FROM pgbench_accounts WHERE aid % 2 = 0'
bench -c 2 -j 2 -t 2000 -n
echo "LSN $(sql 5432 'SELECT pg_current_wal_insert_lsn()'): $(balance 5432)"

say "a branch of that moment"
has "$(sql 5432 'SELECT pg_current_wal_flush_lsn()')"
BRANCH=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
ctl --tenant "$TENANT" --timeline "$MAIN" timeline branch --at-lsn "$MOMENT" --id "$BRANCH"
HEX="lpad(upper(to_hex(%s::int)), 8, '0')"
# A key: 00, tablespace, database, relation, fork, block.
KEY=000000067F$(sql 5432 "SELECT $(printf "$HEX" oid) || $(printf "$HEX" "pg_relation_filenode('pgbench_accounts')") \
    FROM pg_database WHERE datname = 'postgres'")0000000000
echo "the first page of the accounts now:"
page "$MAIN" "$WORK/page-now"
echo "and on the branch:"
page "$BRANCH" "$WORK/page-then"
! cmp -s "$WORK/page-now" "$WORK/page-then" || fail "both pages are the same"

say "a Postgres on the branch"
mkdir "$WORK/branch"
"$BIN/psql" -X -q "host=${PAGES%:*} port=${PAGES##*:} user=demo dbname=demo" -c "fullbackup $TENANT $BRANCH" |
    tar -x -C "$WORK/branch"
chmod 700 "$WORK/branch"
[ "$(id -u)" != 0 ] || chown -R postgres "$WORK/branch"
as_postgres tee -a "$WORK/branch/postgresql.conf" >/dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$SOCKETS'
port = 5433
CONF
postgres "$WORK/branch" start
FOUND=$(balance 5433)
echo "$FOUND"
[ "$FOUND" = "$THEN" ] || fail "the branch has $FOUND, there were $THEN"
postgres "$WORK/branch" stop -m fast

say "the picture of all layers"
ctl --tenant "$TENANT" --timeline "$MAIN" checkpoint
ctl --tenant "$TENANT" --timeline "$MAIN" layers --svg "$PICTURE"
say "stop both, compare every page"
postgres "$DATA" stop -m fast
kill -TERM "$SERVER_PID"
wait "$SERVER_PID" || fail "the pageserver ended with exit code $?"
SERVER_PID=
"$PAGECTL" --workdir "$STORE" --tenant "$TENANT" --timeline "$MAIN" verify --pgdata "$DATA"
say "done: every page rebuilt from WAL is what Postgres itself has"
