use std::time::Duration;

use super::*;

fn load(text: &str, env: &[(&str, &str)], flags: &[&str]) -> Result<(Settings, Vec<String>), String> {
    let overrides = Overrides {
        env: env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        flags: flags.iter().map(ToString::to_string).collect(),
    };
    Settings::of(Utf8Path::new("pageserver.toml"), text, &overrides).map_err(|error| error.to_string())
}

fn refusal(text: &str, env: &[(&str, &str)], flags: &[&str]) -> String {
    load(text, env, flags).unwrap_err()
}

#[test]
fn every_default_is_printed_as_it_is_parsed() {
    for key in KEYS {
        let mut settings = Settings::default();
        settings.set(key.name, &key.default_value()).unwrap();
        assert_eq!(settings, Settings::default(), "{}", key.name);
        assert_eq!(settings.get(key.name), Some(key.default_value()), "{}", key.name);
        assert!(!key.doc.trim().is_empty() && !key.unit.is_empty(), "{}", key.name);
    }
}

#[test]
fn flags_win_over_environment_and_environment_over_file() {
    let file = "page_cache_size = 1\nmax_connections = 2\ncheckpoint_timeout = \"3s\"\n";
    let env = [("PAGESERVER_MAX_CONNECTIONS", "4"), ("PAGESERVER_CHECKPOINT_TIMEOUT", "5s"), ("HOME", "/root")];
    let (settings, remarks) = load(file, &env, &["checkpoint_timeout = 6 s", "log_format=json"]).unwrap();
    assert_eq!(settings.page_cache_size.get(), 1);
    assert_eq!(settings.max_connections.get(), 4);
    assert_eq!(settings.checkpoint_timeout, Duration::from_secs(6));
    assert_eq!(settings.log_format, LogFormat::Json);
    assert!(remarks.is_empty());
    assert_eq!(load("", &[], &[]).unwrap().0, Settings::default());
}

#[test]
fn a_default_is_lowered_to_what_another_key_permits() {
    let (settings, _) = load("max_get_vectored_keys = 8", &[], &[]).unwrap();
    assert_eq!(settings.page_service_max_batch_size.get(), 8);
    let (settings, _) = load("max_get_vectored_keys = 500", &[], &[]).unwrap();
    assert_eq!(settings.page_service_max_batch_size, Settings::default().page_service_max_batch_size);
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_one() {
    let error = refusal("\nlisten_http_adr = \"x\"\n", &[], &[]);
    assert_eq!(error, "pageserver.toml line 2: unknown key \"listen_http_adr\", did you mean \"listen_http_addr\"?");
    assert!(refusal("[chekpoint_distance]\nx = 1", &[], &[]).contains("line 1"), "tables too");
    assert!(refusal("", &[], &["chekpoint_distance=1"]).contains("did you mean \"checkpoint_distance\""));
    assert!(!refusal("zzz = 1", &[], &[]).contains("did you mean"));
    let (_, remarks) = load("", &[("PAGESERVER_PORT", "tcp://10.0.0.1:9898")], &[]).unwrap();
    assert_eq!(remarks, ["environment variable PAGESERVER_PORT names no key: ignored"]);
}

#[test]
fn values_of_a_wrong_kind_are_refused_at_their_place() {
    for (line, expected) in [
        ("page_cache_size = 0", "at least 1"),
        ("page_cache_size = \"1\"", "not negative"),
        ("checkpoint_distance = -1", "not negative"),
        ("checkpoint_distance = 4096", "1 MiB"),
        ("compaction_threshold = 1", "compaction_threshold: must be 0 or at least 2"),
        ("compaction_threshold = 7", "compaction_l0_slow: must not be below compaction_threshold, which is 7"),
        ("compaction_target_size = 65535", "compaction_target_size: must be at least 65536 (64 KiB)"),
        ("compaction_memory = 1048575", "compaction_memory: must be at least 1048576 (1 MiB)"),
        ("compaction_height = 1", "compaction_height: must be at least 2"),
        ("compaction_l0_slow = 3", "compaction_l0_slow: must not be below compaction_threshold, which is 4"),
        ("compaction_l0_wait = 6", "compaction_l0_wait: must be above compaction_l0_slow, which is 6"),
        ("pitr_interval = \"0s\"", "pitr_interval: expected a duration"),
        ("pitr_interval = \"999ms\"", "pitr_interval: must be at least 1s"),
        ("pitr_interval = \"101 years\"", "pitr_interval: must not be above 36500days"),
        ("pitr_interval = \"-7d\"", "pitr_interval: expected a duration"),
        ("gc_horizon = 0", "gc_horizon: must not be 0"),
        ("gc_horizon = -1", "not negative"),
        ("history_max_bytes = -1", "not negative"),
        ("history_max_bytes = 67108863", "history_max_bytes: must be 0, for no limit, or at least gc_horizon"),
        ("gc_period = \"0s\"", "longer than 0"),
        ("gc_period = \"10ms\"", "gc_period: must be at least 1s"),
        ("gc_period = \"500 years\"", "gc_period: must not be above 36500days"),
        ("gc_pause_after_attach = \"500 years\"", "gc_pause_after_attach: must not be above 36500days"),
        ("lsn_lease_length = \"500000 years\"", "lsn_lease_length: must not be above 36500days"),
        ("checkpoint_timeout = 10", "such as \"10m\""),
        ("checkpoint_timeout = \"10 parsecs\"", "such as \"10m\""),
        ("checkpoint_timeout = \"0s\"", "longer than 0"),
        ("http_auth_type = \"jwt\"", "expected one of Trust, JWT, NeonJWT"),
        ("virtual_file_io_engine = \"aio\"", "std-fs, tokio-epoll-uring, auto"),
        ("virtual_file_io_mode = true", "a string"),
        ("listen_pg_addr = \"localhost\"", "host:port"),
        ("listen_http_addr = \"localhost:70000\"", "host:port"),
        ("max_get_vectored_keys = 8\npage_service_max_batch_size = 32", "max_get_vectored_keys, which is 8"),
        ("log_format = \"xml\"", "human, json"),
        ("remote_storage = \"ftp://x\"", "file:DIR, s3://BUCKET"),
        ("remote_storage = \"s3:///prefix\"", "bucket"),
        ("attach_on_start = \"some\"", "own, all, local"),
        ("server_id = \"a b\"", "letters, digits"),
    ] {
        let error = refusal(line, &[], &[]);
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert!(refusal("page_cache_size = 0", &[], &[]).starts_with("pageserver.toml line 1: page_cache_size: "));
    let error = refusal("", &[("PAGESERVER_ALLOW_INSECURE_LISTEN", "yes")], &[]);
    assert!(error.starts_with("environment variable PAGESERVER_ALLOW_INSECURE_LISTEN: "), "{error}");
    assert!(refusal("", &[], &["page_cache_size"]).contains("expected key=value"));
    assert!(refusal("a = ", &[], &[]).contains("not valid TOML"));
}

#[test]
fn ingest_is_not_slowed_for_what_nobody_does() {
    let conf = |flags: &[&str]| load("", &[], flags).unwrap().0.engine_conf("/nowhere".into()).compaction;
    assert_eq!(conf(&[]), CompactionPolicy::ON, "the defaults are those of the engine");
    let off = conf(&["compaction_threshold=0"]);
    assert_eq!((off.l0_layers, off.l0_slow), (0, 0));
    let never = conf(&["compaction_l0_slow=0", "compaction_l0_wait=0", "compaction_threshold=20"]);
    assert_eq!((never.l0_layers, never.l0_slow), (20, 0));
    let small = conf(&["compaction_target_size=65536", "compaction_threshold=2", "compaction_l0_slow=2"]);
    assert_eq!((small.file_bytes, small.l0_layers, small.l0_slow), (65536, 2, 2));
}

#[test]
fn how_much_history_is_kept_is_as_in_the_file() {
    let conf = |flags: &[&str]| load("", &[], flags).unwrap().0.engine_conf("/nowhere".into()).retention;
    assert_eq!(conf(&[]), RetentionPolicy::DEFAULT, "the defaults are those of the engine");
    let small = conf(&["pitr_interval=1s", "gc_horizon=1", "history_max_bytes=1", "gc_period=36500days"]);
    assert_eq!((small.pitr_interval.as_secs(), small.gc_horizon, small.history_max_bytes), (1, 1, 1));
    assert_eq!(conf(&["history_max_bytes=67108864"]).history_max_bytes, 64 << 20);
}

#[test]
fn the_commented_file_means_the_same_when_read() {
    let (mut settings, _) = load(&commented_file(&Settings::default()), &[], &[]).unwrap();
    assert_eq!(settings, Settings::default());
    settings.http_auth_type = AuthType::Jwt;
    settings.checkpoint_distance = 1 << 30;
    let text = commented_file(&settings);
    assert!(text.contains("\nhttp_auth_type = \"JWT\"\n") && text.contains("\n#pg_auth_type = \"Trust\"\n"), "{text}");
    assert_eq!(load(&text, &[], &[]).unwrap().0, settings);
    let all_set = commented_file(&Settings::default()).replace("\n#", "\n");
    let all_set: String = all_set.lines().filter(|line| line.contains(" = ")).map(|line| format!("{line}\n")).collect();
    assert!(KEYS.iter().all(|key| all_set.contains(&format!("{} = ", key.name))));
}

#[test]
fn only_loopback_is_open_without_authentication() {
    let (settings, _) = load("", &[], &["pg_auth_type=NeonJWT"]).unwrap();
    for (addr, safe) in
        [("127.0.0.1:1", true), ("[::1]:1", true), ("[::ffff:127.0.0.1]:1", true), ("127.9.9.9:1", true)]
            .into_iter()
            .chain([("0.0.0.0:1", false), ("[::]:1", false), ("10.0.0.1:1", false), ("[::ffff:10.0.0.1]:1", false)])
    {
        let addr = addr.parse().unwrap();
        assert_eq!(settings.check_exposure(Port::Http, addr).is_ok(), safe, "{addr}");
        let (refused, token) = (settings.check_exposure(Port::Http, addr), settings.check_exposure(Port::Pg, addr));
        assert!(safe || refused.unwrap_err().contains("allow_insecure_listen"));
        assert_eq!(token.is_ok(), safe, "a token is asked for, but goes over the network in the clear");
        assert!(safe || token.unwrap_err().contains("enable_tls_page_service_api to true"));
    }
}

#[test]
fn what_is_insecure_beyond_loopback_is_wanted_or_refused() {
    let addr = "0.0.0.0:1".parse().unwrap();
    let check = |flags: &[&str], port| load("", &[], flags).unwrap().0.check_exposure(port, addr);
    let secure = ["http_auth_type=JWT", "enable_tls_http_api=true"];
    assert_eq!(check(&secure, Port::Http), Ok(None));
    assert!(check(&secure, Port::Pg).is_err(), "the other port's TLS and tokens are no help");
    let said = check(&secure[1..], Port::Http).unwrap_err();
    assert!(said.contains("anybody could read") && said.contains("allow_insecure_listen"), "{said}");
    let said = check(&secure[..1], Port::Http).unwrap_err();
    assert!(said.contains("in the clear") && said.contains("allow_plaintext_tokens"), "{said}");
    // If it is explicitly permitted, there is only a warning at each start.
    for (auth, permit, warned) in [
        ("JWT", "allow_plaintext_tokens", "in the clear"),
        ("JWT", "allow_insecure_listen", "in the clear"),
        ("Trust", "allow_insecure_listen", "anybody could read"),
    ] {
        let flags = [format!("http_auth_type={auth}"), format!("{permit}=true")];
        let warning = check(&flags.each_ref().map(String::as_str), Port::Http).unwrap().unwrap();
        assert!(warning.contains(warned) && warning.ends_with(&format!("{permit} permits it")), "{warning}");
    }
    let open = check(&["allow_plaintext_tokens=true"], Port::Http).unwrap_err();
    assert!(open.contains("anybody could read"), "{open}");
}

#[test]
fn the_documentation_lists_these_keys() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let table = markdown_table();
    assert!(text.contains(&table), "docs/configuration.md should have:\n{table}");
}
