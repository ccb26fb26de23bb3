//! What a replica notes of its primary.

use serde::{Deserialize, Serialize};

/// What a replica follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaOf {
    /// The name of the compute.
    pub primary: String,
    /// Its unique id: another compute of the same name may have another history.
    pub primary_id: String,
    /// How it is reached.
    pub connstr: String,
    /// Settings that may not be smaller than the primary's, as `name=value`.
    pub minimums: Vec<String>,
}

impl ReplicaOf {
    /// The settings of a replica. Its name at the primary is none that commits wait for.
    pub(super) fn settings(&self, name: &str) -> Vec<String> {
        let mut all = vec![
            "hot_standby=on".to_owned(),
            format!("primary_conninfo={} application_name=replica_{name}", self.connstr),
            // What is sent to it is kept for as long as it is connected, and nothing for one that is gone.
            "wal_receiver_create_temp_slot=on".to_owned(),
            "primary_slot_name=".to_owned(),
            "restore_command=".to_owned(),
            "recovery_target_timeline=latest".to_owned(),
            "wal_retrieve_retry_interval=500ms".to_owned(),
        ];
        all.extend(self.minimums.iter().cloned());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_nobody_that_commits_wait_for() {
        let minimums = vec!["max_connections=200".to_owned()];
        let of = ReplicaOf { primary: "p".into(), primary_id: "1".into(), connstr: "host='/x'".into(), minimums };
        let settings = of.settings("pageserver");
        assert!(settings.contains(&"primary_conninfo=host='/x' application_name=replica_pageserver".to_owned()));
        assert_eq!(settings.last().unwrap(), "max_connections=200");
    }
}
