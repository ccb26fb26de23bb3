//! The tail of the journal in the bucket (decision 0039): every few seconds, what has come in since is put there as it
//! came, long before layers of it are. Whoever attaches the tenant on an empty disk takes it in, so that a server that
//! is lost together with the Postgres loses no more than those seconds.

mod object;
mod shipping;
mod taking;

pub(super) use taking::take_in_all;
