//! The WAL timelines that a server has been on (`timeline.c`), and whether the stored WAL is on one of them.

use pq_proto::replication::ReplicationClient;
use utils::lsn::Lsn;

use super::failure::Failure;

/// The WAL timelines of a server, from the first to the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct History {
    /// Earlier timelines, and where the server left each; ascending.
    left: Vec<(u32, Lsn)>,
    current: u32,
}

/// The histories of the store and the server have diverged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Diverged {
    /// The server left the timeline before the end of what is stored.
    #[error("the server left its timeline {timeline} at LSN {left}, but the store has WAL of it up to {stored}")]
    LeftBefore { timeline: u32, left: Lsn, stored: Lsn },
    /// The server was never on that timeline.
    #[error("the store has WAL of timeline {timeline}, which is not in the history of the server's timeline {current}")]
    Unknown { timeline: u32, current: u32 },
}

impl History {
    /// The history of the server that is asked, which is on timeline `current`.
    pub(super) async fn ask(client: &mut ReplicationClient, current: u32) -> Result<Self, Failure> {
        if current <= 1 {
            return Ok(Self::only(current));
        }
        let file = client.timeline_history(current).await?;
        let parsed = Self::parse(current, &file.content);
        parsed.map_err(|reason| Failure::Wrong(format!("history file {}: {reason}", file.filename)))
    }

    /// The history of a server that is on its first timeline, or about which nothing else is known.
    pub(super) fn only(current: u32) -> Self {
        Self { left: Vec::new(), current }
    }

    /// Parses the history file of timeline `current`: each line has a timeline, the LSN where it was left, and the
    /// reason.
    pub(super) fn parse(current: u32, content: &[u8]) -> Result<Self, String> {
        let mut left: Vec<(u32, Lsn)> = Vec::new();
        let text = String::from_utf8_lossy(content);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split_ascii_whitespace();
            let timeline = words.next().and_then(|word| word.parse().ok());
            let lsn = words.next().and_then(|word| word.parse().ok());
            let entry = timeline.zip(lsn).ok_or_else(|| format!("the line {line:?} makes no sense"))?;
            if left.last().is_some_and(|last| last.0 >= entry.0 || last.1 > entry.1) || entry.0 >= current {
                return Err(format!("the line {line:?} is out of order"));
            }
            left.push(entry);
        }
        Ok(Self { left, current })
    }

    /// The timeline that has the WAL after `lsn`, if the server has any.
    pub(super) fn at(&self, lsn: Lsn) -> u32 {
        self.left.iter().find(|(_, left)| *left > lsn).map_or(self.current, |(timeline, _)| *timeline)
    }

    /// The timeline that has the WAL after `stored`, the end of the last record, which is on `timeline`.
    pub(super) fn locate(&self, timeline: u32, stored: Lsn) -> Result<u32, Diverged> {
        let mut later = self.left.iter().skip_while(|(left, _)| *left != timeline).peekable();
        if let Some((_, left)) = later.peek() {
            if *left < stored {
                return Err(Diverged::LeftBefore { timeline, left: *left, stored });
            }
        } else if timeline != self.current {
            return Err(Diverged::Unknown { timeline, current: self.current });
        }
        Ok(later.find(|(_, left)| *left > stored).map_or(self.current, |(timeline, _)| *timeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_next_record_is() {
        let content = b"1\t0/5000000\tno recovery target specified\n\n# note\n2\t0/7000000\twhy\n4\t0/7000000\twhy\n";
        let history = History::parse(6, content).unwrap();
        assert_eq!(history.locate(1, Lsn(0x4000000)), Ok(1));
        assert_eq!(history.locate(1, Lsn(0x5000000)), Ok(2));
        assert_eq!(history.locate(2, Lsn(0x6000000)), Ok(2));
        assert_eq!(history.locate(2, Lsn(0x7000000)), Ok(6));
        assert_eq!(history.locate(6, Lsn(0x9000000)), Ok(6));
        assert_eq!((history.at(Lsn(0x4000000)), history.at(Lsn(0x5000000)), history.at(Lsn(0x7000000))), (1, 2, 6));
        let (timeline, left, stored) = (1, Lsn(0x5000000), Lsn(0x5000008));
        assert_eq!(history.locate(1, stored), Err(Diverged::LeftBefore { timeline, left, stored }));
        assert_eq!(history.locate(3, stored), Err(Diverged::Unknown { timeline: 3, current: 6 }));
        assert_eq!(History::only(1).locate(1, stored), Ok(1));
        assert_eq!(History::only(1).locate(2, stored), Err(Diverged::Unknown { timeline: 2, current: 1 }));
    }

    #[test]
    fn damaged_files_are_refused() {
        for bad in ["x", "1", "1 0/z", "2 0/5 a\n1 0/6 b", "1 0/5 a\n2 0/4 b", "3 0/5 a"] {
            assert!(History::parse(3, bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(History::parse(3, b"").unwrap(), History::only(3));
    }
}
