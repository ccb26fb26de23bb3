//! SQL that runs on a new branch before anybody uses it, and how far that is. It is stored beside the branch's name, so
//! it survives restarts, and goes with the tenant to whatever server has it.

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use utils::lsn::Lsn;

/// SQL is refused that is longer: manifests have it, and are written often.
pub(crate) const SQL_MAX: usize = 512 << 10;

/// SQL, and the database that it is for. It may have secrets, so it is never shown by itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Script {
    /// The SQL, compressed, in base64.
    packed: String,
    /// The database that it runs in.
    pub(crate) database: String,
    /// The hash of the SQL, in hexadecimal digits.
    pub(crate) sha256: String,
    /// Length of the SQL.
    pub(crate) bytes: u64,
    /// It is for all branches of the one that this was made of.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) standing: bool,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").field("sha256", &self.sha256).finish_non_exhaustive()
    }
}

impl Script {
    /// Fails if the SQL cannot be compressed.
    pub(crate) fn new(sql: &str, database: String) -> std::io::Result<Self> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(sql.as_bytes())?;
        let packed = STANDARD.encode(encoder.finish()?);
        let sha256 = digest(&SHA256, sql.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { packed, database, sha256, bytes: sql.len() as u64, standing: false })
    }

    /// The same, as one for all branches of the one that this was made of.
    pub(crate) fn for_all(self) -> Self {
        Self { standing: true, ..self }
    }

    /// The SQL; the error has nothing of it.
    pub(crate) fn sql(&self) -> Result<String, String> {
        let damaged = |_| "the SQL of the branch is damaged".to_owned();
        let bytes = STANDARD.decode(&self.packed).map_err(|error| damaged(error.to_string()))?;
        let mut sql = String::new();
        let mut decoder = ZlibDecoder::new(bytes.as_slice()).take(SQL_MAX as u64 + 1);
        decoder.read_to_string(&mut sql).map_err(|error| damaged(error.to_string()))?;
        Ok(sql)
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InitState {
    /// Nothing of it has run.
    #[default]
    Pending,
    /// Somebody runs it.
    Running,
    /// All of it has succeeded.
    Done,
    /// It has failed.
    Failed,
}

/// What runs on a branch before anybody uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Init {
    /// What is run, in this order. Empty for a branch of one where it was done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) scripts: Vec<Script>,
    pub(crate) state: InitState,
    /// Who runs it, or has run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// Where it was done: nothing before is for anybody to see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lsn: Option<Lsn>,
    /// Why it has failed, or was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Init {
    /// That of a branch on which all this is to be run.
    pub(crate) fn pending(scripts: Vec<Script>) -> Self {
        Self { scripts, ..Self::default() }
    }

    /// Where it was done, if the branch has all of that: it ends at `end`.
    pub(crate) fn done_at(&self, end: Lsn) -> Option<Lsn> {
        self.lsn.filter(|lsn| self.state == InitState::Done && *lsn <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_comes_back_and_is_not_shown() {
        let sql = "UPDATE people SET name = 's3cret';\n".repeat(1000);
        let script = Script::new(&sql, "app".to_owned()).unwrap();
        assert_eq!(script.sql().unwrap(), sql);
        assert_eq!((script.bytes, script.sha256.len()), (35_000, 64));
        let stored = serde_json::to_string(&script).unwrap();
        assert!(stored.len() < 2000 && !stored.contains("s3cret") && !format!("{script:?}").contains("s3cret"));
        let damaged = Script { packed: "s3cret!".to_owned(), ..script };
        assert!(!damaged.sql().unwrap_err().contains("s3cret"));
    }

    #[test]
    fn what_was_lost_is_not_done() {
        let done = Init { state: InitState::Done, lsn: Some(Lsn(100)), ..Init::default() };
        assert_eq!(done.done_at(Lsn(100)), Some(Lsn(100)));
        assert_eq!(done.done_at(Lsn(99)), None, "the branch ends before it was done");
        for state in [InitState::Pending, InitState::Running, InitState::Failed] {
            assert_eq!(Init { state, ..done.clone() }.done_at(Lsn(100)), None);
        }
    }
}
