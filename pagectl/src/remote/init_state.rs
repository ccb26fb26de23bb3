//! Whether a branch may be used: SQL may have to run on it first.

use serde_json::Value;
use utils::lsn::Lsn;

use crate::table::text;

/// Why nobody may use a branch, unless it may be.
pub(super) fn closed(branch: &Value) -> Option<String> {
    let init = &branch["init"];
    let why = match init["state"].as_str() {
        None | Some("done") => return None,
        Some("failed") => format!("has failed: {}", text(init, "error")),
        Some("running") => "is being run".to_owned(),
        Some(_) => match init["error"].as_str() {
            Some(error) => format!("could not be run yet: {error}"),
            None => "has not run yet".to_owned(),
        },
    };
    Some(format!("the branch {} is closed: the SQL that is to run on it first {why}", name_of(branch)))
}

/// What to do about a branch that is closed.
pub(super) fn hint(branch: &Value) -> String {
    let retry = if branch["init"]["state"] == "failed" { " --retry, after mending what has failed" } else { "" };
    format!("pagectl branch init {}{retry}", name_of(branch))
}

/// Refuses a moment of a branch that nobody is to see.
pub(super) fn check_moment(branch: &Value, lsn: Lsn) -> Result<(), String> {
    if let Some(closed) = closed(branch) {
        return Err(closed);
    }
    let done = branch["init"]["lsn"].as_str().and_then(|done| done.parse::<Lsn>().ok());
    match (done, branch["init"].is_null()) {
        (_, true) => Ok(()),
        (Some(done), _) if lsn >= done => Ok(()),
        (Some(done), _) => Err(format!(
            "LSN {lsn} is before {done}, where the SQL of the branch {} was done: nobody is to see what was before",
            name_of(branch)
        )),
        (None, _) => Err(format!("where the SQL of the branch {} was done is not known", name_of(branch))),
    }
}

/// How far it is, in a few words.
pub(super) fn words(branch: &Value) -> Option<String> {
    let init = &branch["init"];
    let error = || init["error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
    match init["state"].as_str()? {
        "done" => None,
        state => Some(format!("closed, SQL {state}{}", error())),
    }
}

/// A branch's name, or its id if it has none.
pub(super) fn name_of(branch: &Value) -> String {
    branch["name"].as_str().map_or_else(|| text(branch, "timeline_id"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_branch_is_open_once_its_sql_is_done() {
        let with = |init: Value| json!({ "name": "dev", "init": init });
        assert!(closed(&with(Value::Null)).is_none() && check_moment(&with(Value::Null), Lsn(1)).is_ok());
        let done = with(json!({ "state": "done", "lsn": "0/64" }));
        assert!(closed(&done).is_none() && words(&done).is_none());
        assert!(check_moment(&done, Lsn(100)).is_ok());
        assert!(check_moment(&done, Lsn(99)).unwrap_err().contains("before 0/64"));
        let failed = with(json!({ "state": "failed", "error": "no such table" }));
        assert!(closed(&failed).unwrap().contains("no such table") && hint(&failed).contains("--retry"));
        for state in ["pending", "running", "failed", "of a later version"] {
            let other = with(json!({ "state": state, "lsn": "0/64" }));
            assert!(closed(&other).is_some() && check_moment(&other, Lsn(1000)).is_err(), "{state}");
            assert!(words(&other).unwrap().contains(state));
        }
        assert!(check_moment(&with(json!({ "state": "done" })), Lsn(1000)).is_err(), "nothing says since when");
    }
}
