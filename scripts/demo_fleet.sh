#!/usr/bin/env bash
# Two pageservers on one bucket and one compute under load: the owner is killed, the standby takes over by itself, and
# the load goes on. Needs what scripts/setup.sh installs, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

find_programs demo-fleet

WORK=$(mktemp -d "${TMPDIR:-/tmp}/pageserver-fleet.XXXXXX")
DATA=$WORK/data
COMPUTES=$WORK/computes
# A socket's path is limited to 107 bytes, so it does not lie below a long TMPDIR.
SOCKETS=$(mktemp -d /tmp/pgfleet.XXXXXX)
declare -A PID HTTP PAGES

cleanup() {
    if [ -d "$COMPUTES/dev" ]; then
        ctl compute destroy dev --force >/dev/null 2>&1 || true
    fi
    for name in "${!PID[@]}"; do
        kill -KILL "${PID[$name]}" 2>/dev/null || true
    done
    if [ -e "$DATA/postmaster.pid" ]; then
        as_postgres "$BIN/pg_ctl" -D "$DATA" -m immediate stop >/dev/null 2>&1 || true
    fi
    rm -rf --one-file-system "$WORK" "$SOCKETS"
}
trap cleanup EXIT

fail() {
    echo "demo-fleet: $*" >&2
    for log in "$WORK"/*.log; do
        [ ! -e "$log" ] || { echo "$log:"; tail -n 5 "$log"; } >&2
    done
    exit 1
}

# The value of a string member of a JSON object.
member() {
    sed -nE 's/.*"'"$1"'": ?"([^"]*)".*/\1/p' | head -n 1
}

# until_true SECONDS COMMAND...
until_true() {
    local tries=$(($1 * 20))
    shift
    until "$@" >/dev/null 2>&1; do
        ((tries-- > 0)) || fail "waited in vain: $*"
        sleep 0.05
    done
}

# start NAME: a pageserver that shares the bucket with the others.
start() {
    local place=$WORK/$1
    "$PAGESERVER" init --workdir "$place" >/dev/null
    "$PAGESERVER" --workdir "$place" -c listen_pg_addr=127.0.0.1:0 -c listen_http_addr=127.0.0.1:0 \
        -c "remote_storage=file://$WORK/objects" -c durability=journal 2>>"$WORK/$1.log" &
    PID[$1]=$!
    until_true 30 test -s "$place/pageserver.addr"
    HTTP[$1]=$(member listen_http_addr <"$place/pageserver.addr")
    PAGES[$1]=$(member listen_pg_addr <"$place/pageserver.addr")
}

# Both servers: commands and computes find the owner.
ctl() {
    local a=${PAGES[a]} b=${PAGES[b]}
    PAGECTL_SERVER=http://${HTTP[a]},http://${HTTP[b]} PAGECTL_COMPUTES=$COMPUTES PAGECTL_PG_BIN=$BIN \
        PAGECTL_PAGE_SERVICE="host=${a%:*} port=${a##*:} user=demo,host=${b%:*} port=${b##*:} user=demo" "$PAGECTL" "$@"
}

# of SERVER COMMAND...: a command for one of them.
of() {
    local server=${HTTP[$1]}
    shift
    PAGECTL_SERVER=http://$server "$PAGECTL" "$@"
}

is_standby() {
    of b tenant list | grep -q 'lease: Believed'
}

owns() {
    of "$1" --json tenant list | grep -q '"slug": \?"Active"'
}

psql_dev() {
    as_postgres "$BIN/psql" -X -q -At -v ON_ERROR_STOP=1 "$CONNSTR dbname=postgres" -c "$1"
}

now() {
    date +%s%N
}

echo "== Two pageservers, a and b, on one bucket. a follows a stock Postgres"
chmod 711 "$WORK"
chmod 755 "$SOCKETS"
[ "$(id -u)" != 0 ] || chown postgres "$SOCKETS"
mkdir -m 700 "$DATA"
[ "$(id -u)" != 0 ] || chown postgres "$DATA"
as_postgres "$BIN/initdb" -D "$DATA" -U postgres --no-sync >/dev/null
printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$SOCKETS'" "fsync = off" >>"$DATA/postgresql.conf"
touch "$DATA.log"
[ "$(id -u)" != 0 ] || chown postgres "$DATA.log"
as_postgres "$BIN/pg_ctl" -D "$DATA" -l "$DATA.log" -w -s start
as_postgres "$BIN/pgbench" -h "$SOCKETS" -U postgres -i -s 2 -q >/dev/null 2>&1
start a
start b
of a follow "host=$SOCKETS user=postgres dbname=postgres" >/dev/null
TENANT=$(of a tenant list | awk 'NR == 2 { print $1 }')

echo "== b becomes the standby of the tenant: it asks for a lease, which a keeps from now on"
until_true 60 of b tenant standby "$TENANT"
# a would look for that by itself within half a minute; told what it is already, it looks at once.
sleep 1
curl -sS --fail-with-body --noproxy '*' -X PUT "http://${HTTP[a]}/v1/tenant/$TENANT/location_config" \
    -d '{"mode": "AttachedSingle"}' >/dev/null || fail "a refuses"
until_true 40 is_standby
of b tenant list

echo "== A compute on a new branch, whose commits wait for the pageserver; pgbench on it"
ctl compute start dev --branch dev --wait-for-pageserver >/dev/null 2>&1
CONNSTR=$(ctl compute connect dev --print)
CONNSTR=${CONNSTR% dbname=*}
as_postgres "$BIN/pgbench" -n -c 2 -T "${FLEET_SECONDS:-30}" -P 5 "$CONNSTR dbname=postgres" >"$WORK/pgbench.log" 2>&1 &
BENCH=$!
sleep 4
psql_dev "CREATE TABLE moments (at timestamptz DEFAULT clock_timestamp())"

echo "== kill -9 of a, the owner"
kill -KILL "${PID[a]}"
KILLED=$(now)
psql_dev "INSERT INTO moments DEFAULT VALUES" || fail "a commit failed"
echo "   the next commit took $((($(now) - KILLED) / 1000000)) ms; takeover_after is 10 s"
until_true 30 owns b
of b tenant list
wait "$BENCH" || { tail "$WORK/pgbench.log" >&2; fail "pgbench had an error"; }
grep -E 'progress|failed' "$WORK/pgbench.log"
BALANCED=$(psql_dev "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)")
[ "$BALANCED" = t ] || fail "the books do not balance"
HISTORY=$(psql_dev "SELECT count(*) FROM pgbench_history")
ctl compute stop dev >/dev/null
ctl compute start dev >/dev/null 2>&1
[ "$(psql_dev "SELECT count(*) FROM pgbench_history")" = "$HISTORY" ] || fail "rows are missing"
ctl compute stop dev >/dev/null
echo "== No client saw an error, and all $HISTORY transactions are on the branch, at b"
