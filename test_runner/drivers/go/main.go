// As ../README.md says, by pgx.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func connect(ctx context.Context, user, options string) *pgx.Conn {
	address := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(user, os.Getenv("GATEWAY_PASSWORD")),
		Host:   "127.0.0.1:" + os.Getenv("GATEWAY_PORT"),
		Path:   "postgres",
	}
	if options != "" {
		address.RawQuery = url.Values{"options": {options}}.Encode()
	}
	conn, err := pgx.Connect(ctx, address.String())
	if err != nil {
		log.Fatal(err)
	}
	return conn
}

func main() {
	ctx, branch := context.Background(), os.Getenv("GATEWAY_BRANCH")
	conn := connect(ctx, "postgres", "-cbranch="+branch)
	count := 0
	for _, most := range []int{10, 20} {
		rows, err := conn.Query(ctx, "SELECT i FROM kept WHERE i <= $1", most)
		if err != nil {
			log.Fatal(err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			log.Fatal(err)
		}
		count += len(found)
	}
	var long string
	if err := conn.QueryRow(ctx, "SELECT repeat('x', 3000000)").Scan(&long); err != nil {
		log.Fatal(err)
	}
	go func() {
		time.Sleep(time.Second)
		if err := conn.PgConn().CancelRequest(ctx); err != nil {
			log.Fatal(err)
		}
	}()
	code := "not"
	var refused *pgconn.PgError
	if _, err := conn.Exec(ctx, "SELECT pg_sleep(60)"); errors.As(err, &refused) {
		code = refused.Code
	}
	var after int
	if err := conn.QueryRow(ctx, "SELECT 1").Scan(&after); err != nil {
		log.Fatal(err)
	}
	var user string
	other := connect(ctx, "postgres@"+branch, "")
	if err := other.QueryRow(ctx, "SELECT current_user").Scan(&user); err != nil {
		log.Fatal(err)
	}
	other.Close(ctx)
	conn.Close(ctx)
	fmt.Printf("rows %d, long %d, cancelled %s, after %d, user %s\n", count, len(long), code, after, user)
}
