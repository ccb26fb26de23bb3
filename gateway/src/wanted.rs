//! What a client wants, as its startup packet says it.

use pq_proto::frontend::StartupParameters;

use crate::settings::Settings;

/// The branch that a client wants, and perhaps a moment of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) branch: String,
    pub(crate) moment: Option<String>,
}

impl Wanted {
    /// `NAME`, or `NAME@MOMENT`.
    fn parse(text: &str) -> Option<Self> {
        let (branch, moment) = text.split_once('@').map_or((text, None), |(branch, moment)| (branch, Some(moment)));
        let is_named = !branch.is_empty() && moment != Some("");
        is_named.then(|| Self { branch: branch.to_owned(), moment: moment.map(str::to_owned) })
    }

    /// Takes what is meant for the gateway out of the parameters; the rest is for the compute. In this order: the
    /// setting `branch` among the options, what follows `@` in the user's name, the server name of TLS below the
    /// gateway's domain, the gateway's default. `None` if none of them names a branch.
    pub(crate) fn take(
        startup: &mut StartupParameters,
        server_name: Option<&str>,
        settings: &Settings,
    ) -> Option<Self> {
        if let Some(text) = of_options(startup) {
            return Self::parse(&text);
        }
        if let Some(text) = of_user(startup) {
            return Self::parse(&text);
        }
        let below = server_name.zip(settings.domain.as_deref()).and_then(|(name, domain)| label(name, domain));
        below.or(settings.default_branch.as_deref()).and_then(Self::parse)
    }
}

/// `NAME` of `NAME.DOMAIN`.
fn label<'a>(name: &'a str, domain: &str) -> Option<&'a str> {
    let at = name.len().checked_sub(domain.len())?;
    let (below, end) = name.split_at_checked(at)?;
    below.strip_suffix('.').filter(|_| end.eq_ignore_ascii_case(domain))
}

/// `alice@dev`: the compute gets to know alice only, by whose name the database is called if the client gives none.
fn of_user(startup: &mut StartupParameters) -> Option<String> {
    let (role, branch) = startup.get("user")?.split_once('@')?;
    let (role, branch, whole) = (role.to_owned(), branch.to_owned(), startup.get("user")?.to_owned());
    for (name, value) in &mut startup.parameters {
        if name == "user" || (name == "database" && *value == whole) {
            role.clone_into(value);
        }
    }
    Some(branch)
}

/// The setting `branch` in the options, which must not reach a compute: Postgres does not know it.
fn of_options(startup: &mut StartupParameters) -> Option<String> {
    let options = startup.get("options")?;
    let mut found = None;
    let mut kept = Vec::new();
    let mut words = split(options).into_iter().peekable();
    while let Some(word) = words.next() {
        // `-c name=value` in two words or in one, or `--name=value`.
        let (setting, next) = match word.as_str() {
            "-c" => (words.peek().cloned(), true),
            one => (one.strip_prefix("--").or_else(|| one.strip_prefix("-c")).map(str::to_owned), false),
        };
        match setting.as_deref().and_then(|setting| setting.split_once('=')) {
            Some(("branch", value)) => {
                found = Some(value.to_owned());
                if next {
                    words.next();
                }
            }
            _ => kept.push(word),
        }
    }
    found.as_ref()?;
    startup.parameters.retain(|(name, _)| name != "options");
    if !kept.is_empty() {
        startup.parameters.push(("options".to_owned(), joined(&kept)));
    }
    found
}

/// As Postgres does (`pg_split_opts`): words are separated by white space, and a backslash takes what follows as it is.
fn split(options: &str) -> Vec<String> {
    let (mut words, mut word, mut in_word) = (Vec::new(), String::new(), false);
    let mut chars = options.chars();
    while let Some(char) = chars.next() {
        match char {
            ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' => {
                if in_word {
                    words.push(std::mem::take(&mut word));
                }
                in_word = false;
                continue;
            }
            '\\' => word.extend(chars.next()),
            other => word.push(other),
        }
        in_word = true;
    }
    if in_word {
        words.push(word);
    }
    words
}

fn joined(words: &[String]) -> String {
    let escaped = |word: &String| {
        let mut text = String::new();
        for char in word.chars() {
            if char == '\\' || char.is_ascii_whitespace() || char == '\x0b' {
                text.push('\\');
            }
            text.push(char);
        }
        text
    };
    words.iter().map(escaped).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::tests::settings;

    fn startup(parameters: &[(&str, &str)]) -> StartupParameters {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        StartupParameters { minor: 0, parameters: parameters.iter().map(owned).collect() }
    }

    /// What is wanted, and what is left for the compute.
    fn taken(parameters: &[(&str, &str)], server_name: Option<&str>) -> (Option<String>, Vec<(String, String)>) {
        let mut startup = startup(parameters);
        let settings = Settings { domain: Some("db.example".to_owned()), ..settings() };
        let wanted = Wanted::take(&mut startup, server_name, &settings);
        let text = |wanted: Wanted| match wanted.moment {
            Some(moment) => format!("{} as of {moment}", wanted.branch),
            None => wanted.branch,
        };
        (wanted.map(text), startup.parameters)
    }

    fn wanted(parameters: &[(&str, &str)], server_name: Option<&str>) -> Option<String> {
        taken(parameters, server_name).0
    }

    #[test]
    fn a_branch_has_several_ways_to_be_named() {
        for options in ["-cbranch=dev", "-c branch=dev", "--branch=dev", " -cwork_mem=1MB\t--branch=dev "] {
            let (found, left) = taken(&[("user", "alice@x.com"), ("options", options)], Some("other.db.example"));
            assert_eq!(found.as_deref(), Some("dev"), "{options}");
            assert_eq!(left.first().unwrap().1, "alice@x.com", "with the option a user's name is that");
            let rest = left.iter().find(|(name, _)| name == "options").map(|(_, value)| value.as_str());
            assert_eq!(rest, options.contains("work_mem").then_some("-cwork_mem=1MB"));
        }
        let (found, left) = taken(&[("user", "alice@dev"), ("database", "alice@dev")], Some("other.db.example"));
        assert_eq!(found.as_deref(), Some("dev"));
        assert_eq!(left.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["alice", "alice"]);
        let user = [("user", "alice"), ("options", "-cbranches=7")];
        assert_eq!(wanted(&user, Some("Dev.DB.example")).as_deref(), Some("Dev"));
        for elsewhere in ["db.example", "dev.db.example.org", "devdb.example", "localhost", ".db.example"] {
            assert_eq!(wanted(&user, Some(elsewhere)), None, "{elsewhere}");
        }
        assert_eq!(wanted(&user, None), None);
    }

    #[test]
    fn a_moment_follows_the_branch() {
        let of = |options: &str| wanted(&[("user", "a"), ("options", options)], None);
        assert_eq!(of("-cbranch=main@-10min").as_deref(), Some("main as of -10min"));
        assert_eq!(of("-cbranch=main@2026-01-31T12:30:00Z").as_deref(), Some("main as of 2026-01-31T12:30:00Z"));
        assert_eq!(of("-cbranch=main@2026-01-31\\ 12:30:00Z").as_deref(), Some("main as of 2026-01-31 12:30:00Z"));
        assert_eq!(wanted(&[("user", "a@main@0/1")], None).as_deref(), Some("main as of 0/1"));
        for nothing in ["-cbranch=", "-cbranch=@-10min", "-cbranch=main@"] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn options_that_are_kept_mean_the_same(words in prop::collection::vec("[ -~\\t]{1,8}", 0..5)) {
            prop_assert_eq!(split(&joined(&words)), words);
        }

        #[test]
        fn any_options_are_taken(options in "\\PC{0,40}") {
            let _ = taken(&[("user", "a@b"), ("options", &options)], None);
        }
    }
}
