# Makes each of the servers in PAGECTL_SERVER a standby of the tenants that another one owns.
set -eu
servers=$(echo "$PAGECTL_SERVER" | tr , ' ')
# A server that is away is one for the next time.
list() { pagectl --server "$1" tenant list; }
failed=0
for owner in $servers; do
    for tenant in $(list "$owner" | awk '$2 == "Active" { print $1 }'); do
        for other in $servers; do
            [ "$other" != "$owner" ] || continue
            seen=$(list "$other") || continue
            case $(echo "$seen" | awk -v tenant="$tenant" '$1 == tenant { print $2 }') in
            Active | Standby | Unleased) ;;
            *) pagectl --server "$other" tenant standby "$tenant" || failed=1 ;;
            esac
        done
    done
done
exit "$failed"
