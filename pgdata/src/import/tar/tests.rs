use proptest::prelude::*;

use super::*;

fn header(path: &str, size: u64, kind: EntryType) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.set_size(size);
    header.set_entry_type(kind);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn archive(files: &[(String, Vec<u8>)], zeros: usize) -> Vec<u8> {
    let mut out = header("pg_wal", 0, EntryType::Directory);
    for (path, content) in files {
        out.extend(header(path, content.len() as u64, EntryType::Regular));
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + zeros, 0);
    out
}

/// All files of an archive that arrives in the given pieces.
fn read(pieces: impl IntoIterator<Item = Bytes>) -> Result<Vec<(String, Vec<u8>)>, TarError> {
    let mut reader = TarReader::default();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut open = None;
    for piece in pieces {
        reader.push(piece);
        while let Some(event) = reader.next()? {
            match event {
                TarEvent::File { path, size } => {
                    assert!(open.replace(size).is_none());
                    files.push((path, Vec::new()));
                }
                TarEvent::Data(data) => files.last_mut().unwrap().1.extend_from_slice(&data),
                TarEvent::End => assert_eq!(open.take(), Some(files.last().unwrap().1.len() as u64)),
            }
        }
    }
    reader.finish().map(|()| files)
}

proptest! {
    #[test]
    fn files_come_out_whatever_the_pieces(
        sizes in prop::collection::vec(0_usize..3000, 0..6),
        cuts in prop::collection::vec(1_usize..2000, 1..20),
        zeros in 0_usize..3,
    ) {
        let files: Vec<_> =
            sizes.iter().enumerate().map(|(at, size)| (format!("base/5/{at}"), vec![at as u8 + 1; *size])).collect();
        let mut rest = Bytes::from(archive(&files, zeros * BLOCK));
        let mut pieces = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            pieces.push(rest.split_to((*cut).min(rest.len())));
        }
        prop_assert_eq!(read(pieces).unwrap(), files);
    }

    #[test]
    fn damage_is_an_error_or_other_files_but_no_panic(at in 0_usize..4096, byte: u8) {
        let mut bytes = archive(&[("a".to_owned(), vec![7; 1000]), ("b".to_owned(), vec![8; 700])], 1024);
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = read([Bytes::from(bytes)]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let error = |bytes: Vec<u8>| read([Bytes::from(bytes)]).unwrap_err().to_string();
    let whole = archive(&[("a".to_owned(), vec![7; 1000])], 1024);
    assert!(error(whole[..700].to_vec()).contains("at byte 700"), "{}", error(whole[..700].to_vec()));
    assert!(error(whole[..1100].to_vec()).contains("ends in the middle"));
    assert!(error([whole.clone(), vec![1]].concat()).contains("follows the end"));
    let mut damaged = whole.clone();
    damaged[BLOCK + 3] ^= 1;
    assert!(error(damaged).contains("at byte 512 of the archive: no valid header"));
    for path in ["../a", "/etc/passwd", "a//b", "a/./b"] {
        assert!(error(header(path, 0, EntryType::Regular)).contains("makes no sense"), "{path}");
    }
    assert!(error(header("a", 0, EntryType::Fifo)).contains("unknown type"));
    assert_eq!(read([]).unwrap(), []);
}
