//! Creates a compute: its directory, filled, with `compute.json` written last.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use super::config::{ComputeConfig, Storage, Subscriptions};
use super::options::Options;
use super::owner::Owner;
use super::replica::Primary;
use super::server::{self, State};
use super::{Computes, LifecycleError, Result, access, copy, install, io_error, mounted, port, subscriptions};
use crate::boot;
use crate::layout::Layout;
use crate::private;

/// How long processes that were killed may take to end.
const ENDED: Duration = Duration::from_secs(10);

/// A compute to be created.
#[derive(Clone, Debug)]
pub struct NewCompute<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its tenant.
    pub tenant: TenantId,
    /// The timeline.
    pub timeline: TimelineId,
    /// The timeline's name.
    pub branch: Option<String>,
    /// The LSN to start from; the end of the timeline if the compute is to write it.
    pub lsn: Lsn,
    /// Where the timeline begins, if it is a branch.
    pub branch_point: Option<Lsn>,
    /// Keep the logical replication subscriptions that the branch inherited from its ancestor enabled.
    pub keep_subscriptions: bool,
    /// Major version of Postgres.
    pub pg_version: u32,
    /// Page service, as a libpq connection string.
    pub page_service: &'a str,
    /// Token for the page service.
    pub token: Option<String>,
    /// The compute writes nothing to the branch.
    pub read_only: bool,
    /// It is a replica of this one, and begins there: it only reads.
    pub replica: Option<&'a Primary>,
    /// Copy all relations to the local disk before it starts.
    pub copy: bool,
    /// Port for Postgres; by default a free one.
    pub port: Option<u16>,
    /// The system user that runs Postgres, if the caller is root.
    pub user: &'a str,
    /// The Postgres user that may replicate.
    pub superuser: &'a str,
    /// Directory with the Postgres programs; searched for by default.
    pub pg_bin: Option<&'a Path>,
}

/// Creates a compute. On failure nothing is left behind.
pub fn create(computes: &Computes, new: &NewCompute<'_>) -> Result<ComputeConfig> {
    let layout = computes.layout(new.name)?;
    let (bin_dir, owner) = (install::find(new.pg_version, new.pg_bin)?, Owner::choose(new.user)?);
    if layout.config().exists() {
        return Err(LifecycleError::Refused(format!("the compute {} exists already", new.name)));
    }
    let mut config = ComputeConfig {
        id: TimelineId::generate().to_string(),
        name: new.name.to_owned(),
        tenant: new.tenant,
        timeline: new.timeline,
        branch: new.branch.clone(),
        boot_lsn: new.lsn,
        released_lsn: None,
        pg_version: new.pg_version,
        data_checksums: false,
        bin_dir,
        port: 0,
        page_service: new.page_service.to_owned(),
        token: new.token.clone(),
        read_only: new.read_only || new.replica.is_some(),
        replica: new.replica.map(Primary::noted),
        superuser: new.superuser.to_owned(),
        owner,
        storage: if new.copy { Storage::Copy } else { Storage::Lazy },
        options: new.replica.map(options_of).unwrap_or_default(),
        subscriptions: Subscriptions::Settled,
    };
    make_root(&layout)?;
    let reserved = port::reserve(computes, &layout, new.port).map(|port| config.port = port);
    let filled = reserved.and_then(|()| fill_new(&layout, &mut config, new)).and_then(|()| config.store(&layout));
    let filled = filled.and_then(|()| port::settle(&layout));
    if filled.is_err()
        && let Err(left) = std::fs::remove_dir_all(layout.root())
    {
        tracing::warn!("{} is left: {left}", layout.root().display());
    }
    filled.map(|()| config)
}

/// The socket is in this directory: whoever may enter it can act as any role in this Postgres.
fn make_root(layout: &Layout) -> Result<()> {
    let root = layout.root();
    // The user that runs Postgres must be able to traverse the parent.
    let parent = root.parent().map_or(Ok(()), |dir| DirBuilder::new().recursive(true).mode(0o711).create(dir));
    parent.map_err(io_error(root))?;
    match private::make_dir(root) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(LifecycleError::Refused(format!(
            "{} exists already, and is no compute: remove it, or give another name",
            root.display()
        ))),
        other => other.map_err(io_error(root)),
    }
}

/// A replica can take its primary's place, so it has its options; what is the primary's own it has not.
fn options_of(primary: &Primary) -> Options {
    Options { connstr: None, sleeps: false, ..primary.compute.options.clone() }
}

/// Fills the directory of a replica anew: what it had is given up. It begins where its primary is now.
pub fn renew(layout: &Layout, config: &ComputeConfig, primary: &Primary) -> Result<ComputeConfig> {
    let new = ComputeConfig { boot_lsn: primary.redo, replica: Some(primary.noted()), ..config.clone() };
    refill(layout, new, Some(primary))
}

/// Turns a replica into a compute that writes its branch, from `lsn` on: it is another compute of the same name. What
/// it had is given up.
pub fn rewrite(layout: &Layout, config: &ComputeConfig, lsn: Lsn) -> Result<ComputeConfig> {
    let id = TimelineId::generate().to_string();
    let new =
        ComputeConfig { id, boot_lsn: lsn, released_lsn: None, read_only: false, replica: None, ..config.clone() };
    refill(layout, new, None)
}

/// The configuration is written last: until then it is a replica, which begins anew with its next start.
fn refill(layout: &Layout, mut config: ComputeConfig, primary: Option<&Primary>) -> Result<ComputeConfig> {
    if let State::Running(pid) = State::of(&config, layout) {
        return Err(LifecycleError::Refused(format!("{} runs, as process {pid}: stop it first", config.name)));
    }
    mounted::force(layout)?;
    server::forget_crashed(&config, layout, ENDED)?;
    for entry in std::fs::read_dir(layout.root()).map_err(io_error(layout.root()))? {
        let path = entry.map_err(io_error(layout.root()))?.path();
        if path == layout.config() || path == server::log_path(layout) {
            continue;
        }
        let is_dir = path.symlink_metadata().map_err(io_error(&path))?.is_dir();
        let removed = if is_dir { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(io_error(&path))?;
    }
    fill(layout, &mut config, primary, None)?;
    config.store(layout)?;
    Ok(config)
}

fn fill_new(layout: &Layout, config: &mut ComputeConfig, new: &NewCompute<'_>) -> Result<()> {
    fill(layout, config, new.replica, Some(new))
}

/// Fills it; `new` says what may be inherited, unless the branch has been written before.
fn fill(
    layout: &Layout,
    config: &mut ComputeConfig,
    primary: Option<&Primary>,
    new: Option<&NewCompute<'_>>,
) -> Result<()> {
    let runtime = server::runtime()?;
    runtime.block_on(async {
        let booted = boot::fetch(&config.page_servers()?, &config.at(), layout).await?;
        config.data_checksums = booted.manifest.data_checksums;
        if !config.read_only
            && let Some(new) = new
        {
            let inherited = subscriptions::of_new(config, &booted.manifest, new.branch_point, new.keep_subscriptions);
            config.subscriptions = inherited.await;
        }
        if config.storage == Storage::Copy {
            let files = crate::manifest::read(&layout.manifest()).map_err(io_error(&layout.manifest()))?;
            let blocks = copy::all(&config.source()?, &files, &layout.upper()).await?;
            tracing::info!("{} files with {blocks} blocks copied", files.len());
        }
        Ok::<_, LifecycleError>(())
    })?;
    let data = layout.data();
    private::make_dir(&data).map_err(io_error(&data))?;
    let hba = layout.upper().join("pg_hba.conf");
    std::fs::write(&hba, access::hba()).map_err(io_error(&hba))?;
    if let Some(primary) = primary {
        primary.begin(layout)?;
    } else if config.read_only {
        let path = layout.upper().join("standby.signal");
        std::fs::write(&path, "").map_err(io_error(&path))?;
    }
    if let Some(owner) = &config.owner {
        owner.give_all(layout.root(), &layout.config()).map_err(io_error(layout.root()))?;
    }
    Ok(())
}
