//! The server's identity, which distinguishes its tenants from those of other servers.
//!
//! It is the setting `server_id`, if given. Otherwise it is derived from what survives the loss of the disk: the
//! machine, its name, and the working directory. Where the machine has no id of its own, as in most containers, it is
//! random, and lost with the disk. Every id used is recorded in the working directory, so that a renamed machine
//! keeps its identity.

use camino::Utf8Path;

use super::Settings;
use engine::config::ServerIdentity;
use errors::{ErrorKind, StorageError};

/// File in the working directory: the ids that this server has had, one per line, the current one first.
const FILE_NAME: &str = "server_id";
/// Maximum number of ids kept.
const IDS_MAX: usize = 16;
const MACHINE_ID: &str = "/etc/machine-id";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

impl Settings {
    /// The identity of the server with this working directory. A new id is recorded there durably, before anything is
    /// owned under it.
    ///
    /// # Errors
    /// Those of accessing the file.
    pub async fn identity(&self, workdir: &Utf8Path) -> Result<ServerIdentity, StorageError> {
        let noted = noted(workdir).await?;
        let identity = choose(&self.server_id, &noted, workdir);
        let ids: Vec<&str> = identity.all().collect();
        if ids != noted {
            virtual_file::write_file_durably(&workdir.join(FILE_NAME), format!("{}\n", ids.join("\n")).as_bytes())
                .await?;
        }
        Ok(identity)
    }

    /// Like [`Settings::identity`], for a directory that must not be modified.
    ///
    /// # Errors
    /// Those of accessing the file.
    pub async fn known_identity(&self, workdir: &Utf8Path) -> Result<ServerIdentity, StorageError> {
        Ok(choose(&self.server_id, &noted(workdir).await?, workdir))
    }
}

/// Why a text is not a valid server id, if it is not. The empty one, which stands for none, is valid.
pub(crate) fn defect(id: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let good = id.len() <= 64 && id.bytes().all(plain);
    (!good).then(|| "at most 64 letters, digits, and any of ._-".to_owned())
}

async fn noted(workdir: &Utf8Path) -> Result<Vec<String>, StorageError> {
    match virtual_file::read_file(&workdir.join(FILE_NAME)).await {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(text.lines().filter(|id| !id.is_empty() && defect(id).is_none()).map(str::to_owned).collect())
        }
        Err(error) if error.kind() == ErrorKind::Gone => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn choose(setting: &str, noted: &[String], workdir: &Utf8Path) -> ServerIdentity {
    let host = read(HOST_NAME);
    let id = match (setting, noted.first()) {
        ("", Some(noted)) => noted.clone(),
        ("", None) => of_machine(&read(MACHINE_ID), &host, workdir),
        (setting, _) => setting.to_owned(),
    };
    let former = noted.iter().filter(|noted| **noted != id).take(IDS_MAX - 1).cloned().collect();
    ServerIdentity { id, former, host }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Depends only on the machine, its name and the directory, unless the machine has no id.
fn of_machine(machine: &str, host: &str, workdir: &Utf8Path) -> String {
    if machine.is_empty() {
        return format!("{:016x}", env::random::u64());
    }
    format!("{:016x}", fnv1a(format!("pageserver\0{machine}\0{host}\0{workdir}").as_bytes()))
}

/// The FNV-1a hash (Fowler, Noll, Vo): short, and stable forever.
fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_a_server_is_outlives_its_disk_and_its_name() {
        let (dir, other) = (Utf8Path::new("/var/lib/pageserver"), Utf8Path::new("/srv/pageserver"));
        let id = |machine, host, dir| of_machine(machine, host, dir);
        assert_eq!(id("m1", "a", dir), "3e783d66a65f69d9", "it must never change");
        assert_eq!(id("m1", "a", dir), id("m1", "a", dir));
        for another in
            [id("m2", "a", dir), id("m1", "b", dir), id("m1", "a", other), id("", "a", dir), id("", "a", dir)]
        {
            assert_ne!(another, id("m1", "a", dir));
        }
        assert_ne!(id("", "a", dir), id("", "a", dir), "a container's");
        let noted = ["old".to_owned()];
        assert_eq!(choose("", &noted, dir).all().collect::<Vec<_>>(), ["old"], "it was renamed");
        assert_eq!(choose("new", &noted, dir).all().collect::<Vec<_>>(), ["new", "old"]);
        assert_eq!(choose("old", &noted, dir).all().collect::<Vec<_>>(), ["old"]);
    }

    #[tokio::test]
    async fn it_is_noted_once() {
        let dir = camino_tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        let first = settings.identity(dir.path()).await.unwrap();
        assert!(!first.id.is_empty() && first.former.is_empty());
        assert_eq!(settings.known_identity(dir.path()).await.unwrap().id, first.id);
        settings.server_id = "named".to_owned();
        let second = settings.identity(dir.path()).await.unwrap();
        assert!(second.is("named") && second.is(&first.id) && !second.is("") && !second.is("other"));
        settings.server_id = String::new();
        assert_eq!(settings.identity(dir.path()).await.unwrap().id, "named");
    }
}
