//! SQL that runs on a branch before anybody uses it: which branches have some, and what is refused until it is done.

use utils::lsn::Lsn;

use super::error::ApiError;
use super::models::{InitInfo, SqlInfo};
use crate::walreceiver::card::BranchCard;
use crate::walreceiver::init_sql::{Init, InitState, SQL_MAX, Script};
use crate::walreceiver::stored::name_of;
use engine::tenant::timeline::Timeline;

/// Maximum length of the name of a database, in bytes, as in Postgres.
const DATABASE_MAX: usize = 63;

/// How far the SQL of a branch is.
pub(super) struct Standing {
    pub(super) init: Init,
    /// Where it was done, and is still there.
    pub(super) done_at: Option<Lsn>,
}

impl Standing {
    /// `None` if anybody may use the branch, at any moment.
    pub(super) fn of(timeline: &Timeline) -> Result<Option<Self>, ApiError> {
        let Some(init) = BranchCard::of(timeline)?.init else { return Ok(None) };
        let done_at = init.done_at(timeline.last_record_lsn());
        Ok(Some(Self { init, done_at }))
    }

    /// As people see it.
    pub(super) fn state(&self) -> InitState {
        match (self.init.state, self.done_at) {
            (InitState::Done, None) => InitState::Pending,
            (state, _) => state,
        }
    }

    /// Why nobody may use the branch.
    fn closed(&self, name: &str) -> Option<String> {
        let retry = format!("pagectl branch init {name}");
        let why = match self.state() {
            InitState::Done => return None,
            InitState::Pending => format!("has not run yet: {retry}"),
            InitState::Running => "is being run".to_owned(),
            InitState::Failed => {
                let error = self.init.error.as_deref().unwrap_or("for an unknown reason");
                format!("has failed: {error}. After mending it: {retry} --retry")
            }
        };
        Some(format!("branch {name} is closed: the SQL that is to run on it first {why}"))
    }
}

/// How far the SQL of a branch is, for people. Of a branch whose metadata cannot be read it is not known that anybody
/// may use it.
pub(super) fn of(timeline: &Timeline) -> Option<InitInfo> {
    match Standing::of(timeline) {
        Ok(standing) => standing.map(|standing| {
            let (state, lsn) = (standing.state(), standing.done_at);
            let sql = standing.init.scripts.iter().map(SqlInfo::of).collect();
            InitInfo { state, lsn, error: standing.init.error, sql }
        }),
        Err(error) => {
            let error = Some(error.msg().to_owned());
            Some(InitInfo { state: InitState::Failed, lsn: None, error, sql: Vec::new() })
        }
    }
}

/// SQL that somebody has given.
pub(super) fn script(sql: &str, database: Option<String>) -> Result<Script, ApiError> {
    let refused = |why: String| Err(ApiError::bad_request(format!("init_sql: {why}")));
    if sql.trim().is_empty() {
        return refused("there is nothing in it".to_owned());
    }
    if sql.len() > SQL_MAX {
        return refused(format!("it has {} bytes, and may have {SQL_MAX}", sql.len()));
    }
    if sql.contains('\0') {
        return refused("it has a zero byte".to_owned());
    }
    let database = database.unwrap_or_else(|| "postgres".to_owned());
    if database.is_empty() || database.len() > DATABASE_MAX || database.contains(char::is_control) {
        return refused("the database needs a name of 63 bytes at most".to_owned());
    }
    Script::new(sql, database).map_err(|error| ApiError::bad_request(format!("init_sql: {error}")))
}

/// What is to run on a new branch of `ancestor` that begins at `lsn`, with SQL of its own or without. Refused where the
/// ancestor is closed, now or then.
pub(super) fn of_branch(ancestor: &Timeline, lsn: Lsn, own: Option<Script>) -> Result<Option<Init>, ApiError> {
    let scripts = scripts(ancestor, own)?;
    let Some(above) = Standing::of(ancestor)? else {
        return Ok((!scripts.is_empty()).then(|| Init::pending(scripts)));
    };
    let name = shown(ancestor);
    let Some(done) = above.done_at else {
        return Err(ApiError::precondition(above.closed(&name).unwrap_or_default()));
    };
    if lsn < done {
        return Err(ApiError::not_acceptable(format!(
            "LSN {lsn} is before {done}, where the SQL of branch {name} was done: nobody is to see what was before"
        )));
    }
    if scripts.is_empty() {
        // Moments of the ancestor can be read through it.
        return Ok(Some(Init { state: InitState::Done, lsn: Some(done), ..Init::default() }));
    }
    Ok(Some(Init::pending(scripts)))
}

/// What is to run on a branch of `ancestor`: what all of those have, then its own.
fn scripts(ancestor: &Timeline, own: Option<Script>) -> Result<Vec<Script>, ApiError> {
    let standing = BranchCard::of(ancestor)?.branches_init.map(Script::for_all);
    Ok(standing.into_iter().chain(own).collect())
}

/// A branch's name, or its id.
pub(super) fn shown(timeline: &Timeline) -> String {
    name_of(timeline).ok().flatten().unwrap_or_else(|| timeline.timeline_id().to_string())
}

/// Refuses what needs a branch that anybody may use, at `lsn`.
pub(super) fn check_open(timeline: &Timeline, lsn: Lsn) -> Result<(), ApiError> {
    let Some(standing) = Standing::of(timeline)? else { return Ok(()) };
    match standing.done_at {
        None => Err(ApiError::precondition(standing.closed(&shown(timeline)).unwrap_or_default())),
        Some(done) if lsn < done => Err(ApiError::not_acceptable(format!(
            "LSN {lsn} is before {done}, where the SQL of branch {} was done: nobody is to see what was before",
            shown(timeline)
        ))),
        Some(_) => Ok(()),
    }
}

/// Refuses a compute that wants to write a branch which is closed, unless it is there to run the SQL, or to repair.
pub(super) fn check_writer(timeline: &Timeline, run: Option<&str>, repairs: bool) -> Result<(), ApiError> {
    let Some(standing) = Standing::of(timeline)? else { return Ok(()) };
    let Some(closed) = standing.closed(&shown(timeline)) else { return Ok(()) };
    let is_it = run.is_some() && standing.init.run.as_deref() == run && standing.state() == InitState::Running;
    if is_it || repairs { Ok(()) } else { Err(ApiError::precondition(closed)) }
}

/// What is to run on the branch that takes the place of one that was made of `ancestor`.
pub(super) fn anew_of(ancestor: &Timeline, lsn: Lsn, former: Option<Init>) -> Result<Option<Init>, ApiError> {
    let own = former.into_iter().flat_map(|init| init.scripts).find(|script| !script.standing);
    of_branch(ancestor, lsn, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_has_limits() {
        assert_eq!(script("SELECT 1", None).unwrap().database, "postgres");
        let long = " ".repeat(SQL_MAX) + ";";
        for (bad, database) in [("", None), (" \n", None), (&*long, None), ("a\0", None), ("a", Some(String::new()))] {
            assert!(script(bad, database).is_err());
        }
        assert!(script("a", Some("x".repeat(64))).is_err());
    }

    #[test]
    fn why_a_branch_is_closed_is_told() {
        let closed = |init: Init, end| {
            let done_at = init.done_at(Lsn(end));
            Standing { init, done_at }.closed("dev")
        };
        let done = Init { state: InitState::Done, lsn: Some(Lsn(8)), ..Init::default() };
        assert_eq!(closed(done.clone(), 8), None);
        assert!(closed(done, 7).unwrap().contains("has not run yet"), "it was lost");
        let failed = Init { state: InitState::Failed, error: Some("no such table".to_owned()), ..Init::default() };
        let reason = closed(failed, 8).unwrap();
        assert!(reason.contains("no such table") && reason.contains("--retry"), "{reason}");
    }
}
