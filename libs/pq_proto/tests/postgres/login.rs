//! Every supported way to log in; errors are informative but never contain the password.

use std::fs;
use std::process::Command;

use pq_proto::client::{Client, ClientError, Config};
use pq_proto::sqlstate::SqlState;
use test_needs::need;
use test_postgres::{Postgres, Server, run};

const HBA: &str = "
local all postgres trust
local all scram scram-sha-256
local all md5 md5
local all clear password
hostnossl all plainonly 127.0.0.1/32 scram-sha-256
hostssl all scram 127.0.0.1/32 scram-sha-256
";
const SECRET: &str = "it's a \"secret\" \\ \u{e4}";

fn with_tls(postgres: &Postgres) -> Server {
    let server = postgres.place().server("data").on_loopback();
    server.init(&[]);
    let (key, cert) = (server.data().join("server.key"), server.data().join("server.crt"));
    let kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    run(Command::new("openssl")
        .args(kind)
        .args(["-subj", "/CN=somebody else", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert));
    server.own();
    server.configure("ssl = on");
    fs::write(server.data().join("pg_hba.conf"), HBA).unwrap();
    server.start();
    server
}

fn by_socket(server: &Server, more: &str) -> Config {
    format!("{} {more}", server.socket()).parse().unwrap()
}

fn by_tcp(server: &Server, more: &str) -> Config {
    format!("{} {more}", server.loopback()).parse().unwrap()
}

async fn one(config: &Config, sql: &str) -> Result<String, ClientError> {
    let mut client = Client::connect(config, &[]).await?;
    let sets = client.simple_query(sql).await?;
    client.close().await;
    Ok(String::from_utf8(sets[0].rows[0][0].clone().unwrap().into()).unwrap())
}

fn with_password(mut config: Config, password: &str) -> Config {
    config.password(password).dbname("postgres");
    config
}

async fn create_users(server: &Server) {
    let mut admin = Client::connect(&by_socket(server, "user=postgres"), &[]).await.unwrap();
    let quoted = SECRET.replace('\'', "''");
    let sql = format!(
        "CREATE USER scram PASSWORD '{quoted}'; CREATE USER clear PASSWORD '{quoted}';
         CREATE USER plainonly PASSWORD '{quoted}';
         SET password_encryption = 'md5'; CREATE USER md5 PASSWORD '{quoted}'"
    );
    assert_eq!(admin.simple_query(&sql).await.unwrap().len(), 5);
    // An error leaves the connection usable.
    let error = admin.simple_query("SELECT 1; SELECT nonsense").await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().as_str(), "42703");
    let nulls = admin.simple_query("SELECT NULL, 'x' WHERE true; SELECT 1 WHERE false").await.unwrap();
    assert_eq!((nulls[0].rows[0][0].clone(), nulls[1].rows.len(), nulls[1].columns.len()), (None, 0, 1));
    admin.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_log_in() {
    let server = with_tls(&need!(Postgres::find()));
    create_users(&server).await;
    for user in ["scram", "md5", "clear"] {
        let config = with_password(by_socket(&server, &format!("user={user}")), SECRET);
        assert_eq!(one(&config, "SELECT current_user").await.unwrap(), user);
        let wrong = one(&with_password(config.clone(), "wrong"), "SELECT 1").await.unwrap_err();
        assert_eq!(wrong.sqlstate(), Some(SqlState::INVALID_PASSWORD), "{wrong}");
        let none = one(&by_socket(&server, &format!("user={user} dbname=postgres")), "SELECT 1").await.unwrap_err();
        assert!(matches!(none, ClientError::Authentication(_)), "{none}");
    }
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    for mode in ["prefer", "require"] {
        let config = with_password(by_tcp(&server, &format!("user=scram sslmode={mode}")), SECRET);
        assert_eq!(one(&config, encrypted).await.unwrap(), "t", "{mode}");
    }
    let config = with_password(by_tcp(&server, "user=scram sslmode=disable"), SECRET);
    let refused = one(&config, encrypted).await.unwrap_err();
    assert_eq!(refused.sqlstate(), Some(SqlState::INVALID_AUTHORIZATION), "{refused}");
    // Accepted only without TLS: `prefer` falls back, `require` does not.
    let config = with_password(by_tcp(&server, "user=plainonly sslmode=prefer"), SECRET);
    assert_eq!(one(&config, encrypted).await.unwrap(), "f");
    let config = with_password(by_tcp(&server, "user=plainonly sslmode=require"), SECRET);
    assert_eq!(one(&config, encrypted).await.unwrap_err().sqlstate(), Some(SqlState::INVALID_AUTHORIZATION));
}

#[tokio::test]
async fn a_host_that_is_down_is_skipped_and_named() {
    let server = need!(Postgres::find()).start("");
    let two = format!("host=/nowhere,{} port=1,{} user=postgres", server.place().path(), server.port());
    assert_eq!(one(&two.parse().unwrap(), "SELECT 7").await.unwrap(), "7");
    let secret = "host=127.0.0.1 port=1 user=x password=hunter2".parse().unwrap();
    let error = Client::connect(&secret, &[]).await.err().unwrap();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}
