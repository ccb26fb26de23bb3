//! Prepared statements and portals of one session: texts by name. The unnamed ones are replaced, as in Postgres;
//! portals end with their group of messages, as there are no transactions.

use std::collections::HashMap;

use crate::backend::ErrorFields;
use crate::frontend::Target;
use crate::sqlstate::SqlState;

/// Maximum bytes of all names and texts of a session, with [`ENTRY_OVERHEAD`] for each.
const MAX_BYTES: usize = 1 << 20;
/// Bytes that an entry takes besides its name and text.
const ENTRY_OVERHEAD: usize = 128;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    statements: HashMap<String, String>,
    portals: HashMap<String, String>,
}

impl Prepared {
    /// Prepares a statement.
    pub(super) fn parse(&mut self, name: String, text: String) -> Result<(), ErrorFields> {
        self.insert(Target::Statement, name, text)
    }

    /// Makes a portal of a statement.
    pub(super) fn bind(&mut self, portal: String, statement: &str) -> Result<(), ErrorFields> {
        let text = self.text(Target::Statement, statement)?.to_owned();
        self.insert(Target::Portal, portal, text)
    }

    /// The text of a statement or portal.
    pub(super) fn text(&self, target: Target, name: &str) -> Result<&str, ErrorFields> {
        let (found, state) = match target {
            Target::Statement => (self.statements.get(name), SqlState::INVALID_SQL_STATEMENT_NAME),
            Target::Portal => (self.portals.get(name), SqlState::INVALID_CURSOR_NAME),
        };
        let missing = || ErrorFields::new(state, format!("{} \"{name}\" does not exist", kind(target)));
        found.map(String::as_str).ok_or_else(missing)
    }

    /// Forgets a statement or portal, if it exists.
    pub(super) fn close(&mut self, target: Target, name: &str) {
        self.of(target).remove(name);
    }

    /// Ends a group of messages.
    pub(super) fn sync(&mut self) {
        self.portals.clear();
    }

    /// A command of the simple protocol replaces what is unnamed.
    pub(super) fn simple(&mut self) {
        self.statements.remove("");
        self.portals.clear();
    }

    fn of(&mut self, target: Target) -> &mut HashMap<String, String> {
        match target {
            Target::Statement => &mut self.statements,
            Target::Portal => &mut self.portals,
        }
    }

    /// Adds one under a name that is still free, or replaces the unnamed one.
    fn insert(&mut self, target: Target, name: String, text: String) -> Result<(), ErrorFields> {
        if !name.is_empty() && self.of(target).contains_key(&name) {
            let state = match target {
                Target::Statement => SqlState::DUPLICATE_PREPARED_STATEMENT,
                Target::Portal => SqlState::DUPLICATE_CURSOR,
            };
            return Err(ErrorFields::new(state, format!("{} \"{name}\" already exists", kind(target))));
        }
        self.of(target).remove(&name);
        self.check_room(&name, &text)?;
        self.of(target).insert(name, text);
        Ok(())
    }

    fn check_room(&self, name: &str, text: &str) -> Result<(), ErrorFields> {
        let bytes = |(name, text): (&String, &String)| name.len() + text.len() + ENTRY_OVERHEAD;
        let taken: usize = self.statements.iter().chain(&self.portals).map(bytes).sum();
        if taken + name.len() + text.len() + ENTRY_OVERHEAD <= MAX_BYTES {
            return Ok(());
        }
        let reason = format!("prepared statements and portals of a session may have {MAX_BYTES} bytes: close some");
        Err(ErrorFields::new(SqlState::PROGRAM_LIMIT_EXCEEDED, reason))
    }
}

/// What errors call it.
fn kind(target: Target) -> &'static str {
    match target {
        Target::Statement => "prepared statement",
        Target::Portal => "portal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(result: Result<(), ErrorFields>) -> Option<SqlState> {
        result.err().map(|error| error.code)
    }

    #[test]
    fn names_are_unique_and_the_unnamed_are_replaced() {
        let mut prepared = Prepared::default();
        for text in ["one", "two"] {
            assert_eq!(code(prepared.parse(String::new(), text.into())), None);
            assert_eq!(code(prepared.bind(String::new(), "")), None);
            assert_eq!(prepared.text(Target::Portal, "").unwrap(), text);
        }
        assert_eq!(code(prepared.parse("s".into(), "three".into())), None);
        let again = code(prepared.parse("s".into(), "four".into()));
        assert_eq!(again, Some(SqlState::DUPLICATE_PREPARED_STATEMENT));
        assert_eq!(code(prepared.bind("p".into(), "s")), None);
        assert_eq!(code(prepared.bind("p".into(), "s")), Some(SqlState::DUPLICATE_CURSOR));
        assert_eq!(code(prepared.bind("q".into(), "t")), Some(SqlState::INVALID_SQL_STATEMENT_NAME));
        prepared.close(Target::Statement, "s");
        assert_eq!(prepared.text(Target::Portal, "p").unwrap(), "three", "a portal outlives its statement");
        prepared.sync();
        assert_eq!(prepared.text(Target::Portal, "p").unwrap_err().code, SqlState::INVALID_CURSOR_NAME);
        assert_eq!(prepared.text(Target::Statement, "").unwrap(), "two");
        prepared.simple();
        assert!(prepared.text(Target::Statement, "").is_err());
    }

    #[test]
    fn a_session_cannot_prepare_without_bound() {
        let mut prepared = Prepared::default();
        let count = (0..).take_while(|n| prepared.parse(format!("s{n}"), "x".repeat(1000)).is_ok()).count();
        assert!((900..1000).contains(&count), "{count}");
        assert_eq!(code(prepared.bind("p".into(), "s0")), Some(SqlState::PROGRAM_LIMIT_EXCEEDED));
        prepared.close(Target::Statement, "s1");
        assert_eq!(code(prepared.bind("p".into(), "s0")), None);
    }
}
