//! Base backups as a server of version 14 sends them, and hostile messages in the WAL stream.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use utils::lsn::Lsn;

use super::connection::major_version;
use super::physical::decode;
use super::{BackupEvent, BaseBackupOptions, PhysicalEvent, ReplicationClient};
use crate::backend::put;
use crate::client::{Client, ClientError};

/// A client whose server has already sent all of `answer`.
async fn scripted(server_major: u32, answer: &BytesMut) -> (ReplicationClient, tokio::io::DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    theirs.write_all(answer).await.unwrap();
    (ReplicationClient { client: Client::over(Box::new(ours)), server_major }, theirs)
}

fn set(buf: &mut BytesMut, columns: &[&str], rows: &[&[Option<&[u8]>]]) {
    put::row_description(buf, columns);
    rows.iter().for_each(|row| put::data_row(buf, row));
    put::command_complete(buf, "SELECT");
}

fn backup_of_version_14() -> BytesMut {
    let mut buf = BytesMut::new();
    set(&mut buf, &["recptr", "tli"], &[&[Some(b"0/2000028"), Some(b"1")]]);
    let spaces: [&[_]; 2] = [&[Some(b"16384".as_slice()), Some(b"/x"), Some(b"7")], &[None, None, Some(b"9")]];
    set(&mut buf, &["spcoid", "spclocation", "size"], &spaces);
    for data in ["one", "two"] {
        put::copy_out(&mut buf);
        put::copy_data(&mut buf, |buf| buf.extend_from_slice(data.as_bytes()));
        put::copy_done(&mut buf);
    }
    set(&mut buf, &["recptr", "tli"], &[&[Some(b"0/2000138"), Some(b"1")]]);
    put::command_complete(&mut buf, "BASE_BACKUP");
    put::ready_for_query(&mut buf);
    buf
}

#[tokio::test]
async fn version_14_has_a_copy_for_each_archive() {
    let (client, _server) = scripted(14, &backup_of_version_14()).await;
    let mut backup = client.base_backup(&BaseBackupOptions::default()).await.unwrap();
    assert_eq!((backup.start().lsn, backup.tablespaces().len()), (Lsn(0x200_0028), 2));
    let mut events = vec![];
    while let Some(event) = backup.next().await.unwrap() {
        events.push(event);
    }
    let archive = |name: &str, spcoid, path: Option<&str>| BackupEvent::NewArchive {
        name: name.to_owned(),
        spcoid,
        path: path.map(str::to_owned),
    };
    let data = |text: &'static str| BackupEvent::Data(Bytes::from(text));
    let expected =
        vec![archive("16384.tar", Some(16384), Some("/x")), data("one"), archive("base.tar", None, None), data("two")];
    assert_eq!(events, expected);
    assert_eq!(backup.end().unwrap().lsn, Lsn(0x200_0138));
    assert!(backup.into_client().is_some());
}

#[tokio::test]
async fn a_backup_that_breaks_off_is_an_error() {
    let whole = backup_of_version_14();
    for len in 0..whole.len() {
        let (client, server) = scripted(14, &BytesMut::from(&whole[..len])).await;
        drop(server);
        let result: Result<(), ClientError> = async {
            let mut backup = client.base_backup(&BaseBackupOptions::default()).await?;
            while backup.next().await?.is_some() {}
            Ok(())
        }
        .await;
        assert!(result.is_err(), "cut at {len}");
    }
}

#[test]
fn versions() {
    assert_eq!(major_version("15.13 (Debian 15.13-1)"), Some(15));
    assert_eq!(major_version("18beta1"), Some(18));
    assert_eq!(major_version(""), None);
}

#[test]
fn wal_messages() {
    let mut wal = vec![b'w'];
    wal.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 7, 7]);
    let event = PhysicalEvent::XLogData {
        start: Lsn(0x100_0000),
        server_end: Lsn(0x200_0000),
        bytes: Bytes::from_static(&[7, 7]),
    };
    assert_eq!(decode(wal.clone().into()), Ok(event));
    assert!(decode(Bytes::copy_from_slice(&wal[..20])).is_err());
    wal[1..9].fill(0xFF);
    assert!(decode(wal.into()).is_err(), "the end of the data is no LSN");
    let keepalive = PhysicalEvent::KeepAlive { server_end: Lsn(1 << 56), reply_requested: true };
    let bytes = [b'k', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(decode(Bytes::copy_from_slice(&bytes)), Ok(keepalive));
}

proptest! {
    #[test]
    fn any_bytes_in_the_wal_stream(bytes: Vec<u8>) {
        let _ = decode(bytes.into());
    }
}
