//! Request handlers, one module per kind of object.

pub(super) mod branch;
mod branch_rules;
pub(super) mod detach;
pub(super) mod diff;
pub(super) mod fleet;
pub(super) mod history;
pub(super) mod init_sql;
pub(super) mod journal;
pub(super) mod layers;
pub(super) mod lsn;
pub(super) mod node;
pub(super) mod page;
pub(super) mod placement;
pub(super) mod quota;
pub(super) mod slow;
pub(super) mod stored;
pub(super) mod tenant;
pub(super) mod timeline;
pub(super) mod window;
pub(super) mod writer;
