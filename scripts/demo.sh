#!/usr/bin/env bash
# The main job on a small real cluster: a pageserver behind a live Postgres, its history as it grows, an accident, a
# stock Postgres on the moment before it, and in the end every page compared. Needs nothing but what scripts/setup.sh
# installs, and leaves nothing behind but the picture of the layers.
#
# Then the pageserver's disk is lost, and everything read back from the bucket: a directory, or with DEMO_STORE=weed (or
# moto) a bucket of an S3 server on loopback. In the end a plain psql goes back in time through the gateway, and the
# console shows what happened: as long as somebody looks at it, at most DEMO_STAY seconds (600 at a terminal, else 0).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

find_programs demo
PYTHON=${VENV:-.venv}/bin/python
PICTURE=${DEMO_PICTURE:-test_output/demo-layers.svg}

WORK=$(mktemp -d "${TMPDIR:-/tmp}/pageserver-demo.XXXXXX")
DATA=$WORK/data
STORE=$WORK/store
COMPUTES=$WORK/computes
# A socket's path is limited to 107 bytes, so it does not lie below a long TMPDIR.
SOCKETS=$(mktemp -d /tmp/pgdemo.XXXXXX)
SERVER_PID=
BUCKET_PID=
GATEWAY_PID=
COPIED=
if [ -t 0 ] && [ -t 1 ]; then
    STAY=${DEMO_STAY:-600}
else
    STAY=${DEMO_STAY:-0}
fi

cleanup() {
    local compute
    [ -z "$GATEWAY_PID" ] || { kill -TERM "$GATEWAY_PID" 2>/dev/null; wait "$GATEWAY_PID" 2>/dev/null; } || true
    for compute in "$COMPUTES"/*/; do
        [ ! -d "$compute" ] || ctl compute destroy "$(basename "$compute")" --force >/dev/null 2>&1 || true
    done
    [ -z "$SERVER_PID" ] || kill -KILL "$SERVER_PID" 2>/dev/null || true
    if [ -n "$BUCKET_PID" ]; then
        # It ends with its standard input, and takes the S3 server along.
        exec {BUCKET_IN}>&-
        wait "$BUCKET_PID" 2>/dev/null || true
    fi
    if [ -e "$DATA/postmaster.pid" ]; then
        as_postgres "$BIN/pg_ctl" -D "$DATA" -m immediate stop >/dev/null 2>&1 || true
    fi
    rm -rf --one-file-system "$WORK" "$SOCKETS"
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
    PAGECTL_SERVER=http://$HTTP PAGECTL_PAGE_SERVICE="host=${PAGES%:*} port=${PAGES##*:} user=demo" \
        PAGECTL_COMPUTES=$COMPUTES PAGECTL_PG_BIN=$BIN "$PAGECTL" "$@"
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

stop_pageserver() {
    kill -TERM "$SERVER_PID"
    wait "$SERVER_PID" || fail "the pageserver ended with exit code $?"
    SERVER_PID=
}

# Sets STORE_FLAGS to where the pageserver is to keep everything.
open_store() {
    local line
    if [ "${DEMO_STORE:-directory}" = directory ]; then
        STORE_FLAGS=(-c "remote_storage=file://$WORK/objects")
        return
    fi
    STORE_FLAGS=()
    mkfifo "$WORK/bucket-in" "$WORK/bucket-out"
    "$PYTHON" test_runner/s3_server.py "$DEMO_STORE" "$WORK/s3" <"$WORK/bucket-in" >"$WORK/bucket-out" &
    BUCKET_PID=$!
    exec {BUCKET_IN}>"$WORK/bucket-in" {BUCKET_OUT}<"$WORK/bucket-out"
    while read -r line <&"$BUCKET_OUT" && [ -n "$line" ]; do
        STORE_FLAGS+=(-c "$line")
    done
    [ ${#STORE_FLAGS[@]} -gt 0 ] || fail "the S3 server did not start"
}

# Whether the bucket has everything up to the end of the timeline.
stored() {
    local info
    info=$(api GET "/v1/tenant/$TENANT/timeline/$MAIN")
    [ "$(member remote_consistent_lsn <<<"$info")" = "$(member last_record_lsn <<<"$info")" ]
}

# has LSN: whether the pageserver has taken in all WAL up to there.
has() {
    api POST "/v1/tenant/$TENANT/wait_lsn" "{\"timelines\": {\"$MAIN\": \"$1\"}, \"timeout\": \"60s\"}"
}

# Starts a gateway, and sets GATEWAY to its port.
start_gateway() {
    # In place of the shell that begins it: what ends that has to end the gateway.
    (exec env PAGECTL_SERVER=http://"$HTTP" PAGECTL_PAGE_SERVICE="host=${PAGES%:*} port=${PAGES##*:} user=demo" \
        PAGECTL_COMPUTES="$COMPUTES" PAGECTL_PG_BIN="$BIN" "$PAGECTL" gateway --trust --listen 127.0.0.1:0 \
        >"$WORK/gateway.out" 2>"$WORK/gateway.log") &
    GATEWAY_PID=$!
    until_true 30 grep -q listening "$WORK/gateway.out"
    GATEWAY=$(sed -n 's/^listening on .*://p' "$WORK/gateway.out")
}

# The console at URL, in a browser if there is somebody to see one. Waits for Enter, or STAY seconds.
show() {
    curl -sS --fail --noproxy '*' -o /dev/null "$1" || fail "the console does not answer at $1"
    echo "the console, with the branches along time: $1"
    if [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] && command -v xdg-open >/dev/null; then
        xdg-open "$1" >/dev/null 2>&1 || true
    fi
    if [ "$STAY" != 0 ]; then
        echo "both are there until you press Enter, and for $STAY s at most"
        read -r -t "$STAY" _ || true
    fi
}

# page TIMELINE FILE: the first page of the accounts of pgbench, as of the timeline's last LSN.
page() {
    api GET "/v1/tenant/$TENANT/timeline/$1/getpage?key=$KEY" >"$2"
    "$PAGECTL" page show --file "$2" | sed -n 1,3p
}

BALANCE="SELECT count(*) || ' accounts with ' || coalesce(sum(abalance), 0) || ' in all' FROM pgbench_accounts"

# Runs SQL on the compute.
on_rescue() {
    as_postgres "$BIN/psql" -X -q -At -v ON_ERROR_STOP=1 "$RESCUE" -c "$1"
}

chmod 755 "$WORK" "$SOCKETS"
[ "$(id -u)" != 0 ] || chown postgres "$WORK" "$SOCKETS"
mkdir -p "$(dirname "$PICTURE")"

say "a pageserver"
open_store
"$PAGESERVER" init --workdir "$STORE" -c listen_pg_addr=127.0.0.1:0 -c listen_http_addr=127.0.0.1:0 \
    "${STORE_FLAGS[@]}" >/dev/null
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

say "follow it while it works"
bench -c 2 -T 15 -n &
BENCH=$!
sleep 1
FOLLOWED=$(ctl --json follow "host=$SOCKETS user=postgres dbname=postgres") || fail "the follow failed"
TENANT=$(member tenant_id <<<"$FOLLOWED")
MAIN=$(member timeline_id <<<"$FOLLOWED")
echo "tenant $TENANT, timeline $MAIN"
ctl branch set "$MAIN" --name main >/dev/null
wait "$BENCH"

say "a moment to come back to"
MOMENT=$(sql 5432 "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
THEN=$(sql 5432 "$BALANCE")
echo "$MOMENT: $THEN"
sleep 1.1

say "then an accident, and work goes on"
FILE=$(sql 5432 "SELECT pg_relation_filenode('pgbench_accounts')")
echo 'DELETE FROM pgbench_accounts;  -- and where is the WHERE?'
sql 5432 'DELETE FROM pgbench_accounts'
echo 'DROP TABLE pgbench_history;'
sql 5432 'DROP TABLE pgbench_history; CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int,
    mtime timestamp, filler char(22))'
bench -c 2 -j 2 -t 1000 -n
echo "now: $(sql 5432 "$BALANCE")"

say "a stock Postgres on the moment before, read-write, nothing copied"
has "$(sql 5432 'SELECT pg_current_wal_flush_lsn()')"
echo "pagectl compute start rescue --branch rescue --at $MOMENT"
if ! ctl compute start rescue --branch rescue --at "$MOMENT" 2>"$WORK/start.log"; then
    cat "$WORK/start.log"
    grep -q -- --copy "$WORK/start.log" || fail "the compute does not start"
    echo "there is no FUSE here: the compute gets a copy of its own"
    COPIED=1
    ctl branch delete rescue
    ctl compute start rescue --branch rescue --at "$MOMENT" --copy
fi
RESCUE="$(ctl --json compute connect rescue --print | member connstr)"
FOUND=$(on_rescue "$BALANCE")
echo "there: $FOUND"
[ "$FOUND" = "$THEN" ] || fail "the compute has $FOUND, there were $THEN"
echo "and the history is there: $(on_rescue 'SELECT count(*) FROM pgbench_history') rows"

say "what it writes is on its own branch"
on_rescue "UPDATE pgbench_accounts SET abalance = 0 WHERE aid = 1; CREATE TABLE saved AS SELECT now() AS at"
ctl compute stop rescue
ctl branch diff rescue | tail -n 1
BRANCH=$(ctl --json compute list | member timeline_id)
ctl compute destroy rescue
HEX="lpad(upper(to_hex(%s::int)), 8, '0')"
# A key: 00, tablespace, database, relation, fork, block.
KEY=000000067F$(sql 5432 "SELECT $(printf "$HEX" oid) || $(printf "$HEX" "$FILE")
    FROM pg_database WHERE datname = 'postgres'")0000000000
echo "the first page of the accounts on the main branch:"
page "$MAIN" "$WORK/page-now"
echo "and on this one:"
page "$BRANCH" "$WORK/page-then"
! cmp -s "$WORK/page-now" "$WORK/page-then" || fail "both pages are the same"

say "the picture of all layers"
ctl --tenant "$TENANT" --timeline "$MAIN" checkpoint
ctl --tenant "$TENANT" --timeline "$MAIN" layers --svg "$PICTURE"
say "stop both, and lose the pageserver's disk"
END=$(sql 5432 'SELECT pg_current_wal_flush_lsn()')
postgres "$DATA" stop -m fast
has "$END"
ctl --tenant "$TENANT" --timeline "$MAIN" checkpoint
until_true 60 stored
stop_pageserver
find "$STORE" -mindepth 1 -maxdepth 1 ! -name pageserver.toml -exec rm -rf {} +
echo "left of $(basename "$STORE"): $(ls "$STORE")"
say "start on the empty disk, compare every page with what the bucket has"
start_pageserver
page "$MAIN" "$WORK/page-back"
stop_pageserver
"$PAGECTL" --workdir "$STORE" --tenant "$TENANT" --timeline "$MAIN" verify --pgdata "$DATA"
say "look at it: one connection string that goes back in time, and the console"
start_pageserver
if [ -z "$COPIED" ]; then
    start_gateway
    BACK="host=127.0.0.1 port=$GATEWAY user=postgres dbname=postgres options=-cbranch=main@$MOMENT"
    echo "psql '$BACK'"
    FOUND=$(as_postgres "$BIN/psql" -X -q -At -v ON_ERROR_STOP=1 "$BACK" -c "$BALANCE") ||
        { cat "$WORK/gateway.log" >&2; fail "nobody gets in through the gateway"; }
    echo "through the gateway: $FOUND"
    [ "$FOUND" = "$THEN" ] || fail "the gateway leads to $FOUND, there were $THEN"
else
    echo "there is no FUSE here, which the gateway's computes need"
fi
show "http://$HTTP/"

say "done: every page rebuilt from WAL is what Postgres itself has"
