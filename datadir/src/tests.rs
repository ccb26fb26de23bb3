use postgres_formats::page::{Page, set_data_checksum};
use test_postgres::data_directory::{control, data_dir};

use super::*;

#[test]
fn opens_a_stopped_directory() {
    let dir = data_dir(&control(ClusterState::Shutdowned).encode());
    let data = DataDir::open(dir.path()).unwrap();
    assert_eq!(data.start_lsn().unwrap(), Lsn(0x1_0000_0028));
    assert_eq!(data.tablespaces().number(70000).unwrap(), 0xF000);
    assert_eq!(data.databases().unwrap().len(), 2);
    assert!(data.parameters().data_checksums);
}

#[test]
fn a_backup_starts_at_its_label() {
    let dir = data_dir(&control(ClusterState::InProduction).encode());
    let error = DataDir::open(dir.path()).unwrap().start_lsn().unwrap_err().to_string();
    assert!(error.contains("pg_control") && error.contains("InProduction"), "{error}");
    let label = "START WAL LOCATION: 0/3000028 (file 000000010000000000000003)\nCHECKPOINT LOCATION: 0/3000060\n";
    std::fs::write(dir.path().join("backup_label"), label).unwrap();
    assert_eq!(DataDir::open(dir.path()).unwrap().start_lsn().unwrap(), Lsn(0x300_0028));
    std::fs::write(dir.path().join("backup_label"), "START WAL LOCATION: x\n").unwrap();
    assert!(DataDir::open(dir.path()).unwrap_err().to_string().contains("backup_label"));
}

#[test]
fn damage_names_file_and_offset() {
    let good = control(ClusterState::Shutdowned).encode();
    let mut flipped = good;
    flipped[100] ^= 1;
    let error = DataDir::open(data_dir(&flipped).path()).unwrap_err().to_string();
    assert!(error.contains("global/pg_control at offset 288") && error.contains("CRC"), "{error}");
    assert!(DataDir::open(data_dir(&good[..200]).path()).is_err());
    let mut large_pages = control(ClusterState::Shutdowned);
    large_pages.fields.block_size = 32768;
    let error = DataDir::open(data_dir(&large_pages.encode()).path()).unwrap_err().to_string();
    assert!(error.contains("offset 216"), "{error}");
    let dir = data_dir(&good);
    std::fs::write(dir.path().join("PG_VERSION"), "9.6\n").unwrap();
    assert!(DataDir::open(dir.path()).unwrap_err().to_string().contains("PG_VERSION"));
    let dir = data_dir(&good);
    std::fs::write(dir.path().join("base/5/16384"), vec![0; 8192 + 100]).unwrap();
    let files = DataDir::open(dir.path()).unwrap().databases().unwrap().pop().unwrap();
    let error = files.forks().unwrap_err().to_string();
    assert!(error.contains("base/5/16384 at offset 8192"), "{error}");
}

#[test]
fn unlogged_relations_have_only_their_init_fork() {
    let dir = data_dir(&control(ClusterState::Shutdowned).encode());
    for name in ["16384", "16384_init", "16384_vm", "16390", "16390_fsm", "t4_16400"] {
        std::fs::write(dir.path().join("base/5").join(name), vec![0; 8192]).unwrap();
    }
    let files = DataDir::open(dir.path()).unwrap().databases().unwrap().pop().unwrap();
    let names: Vec<_> = files.forks().unwrap().into_keys().collect();
    assert_eq!(names, [(16384, 3), (16390, 0), (16390, 1)]);
}

#[test]
fn pages_are_read_in_order_and_checked() {
    let dir = data_dir(&control(ClusterState::Shutdowned).encode());
    let path = dir.path().join("base/5/16384");
    let mut file = Vec::new();
    for blkno in 0..300u32 {
        let mut page = Page::new([0; BLCKSZ]);
        page.init(0);
        page.set_lsn(u64::from(blkno) + 1);
        let mut bytes = page.into_inner();
        set_data_checksum(&mut bytes, blkno);
        file.extend_from_slice(&bytes);
    }
    file[299 * BLCKSZ + 5000] = 7;
    std::fs::write(&path, &file).unwrap();
    let mut reader = PageReader::new(ForkFiles { segments: vec![path.clone()], blocks: 300 });
    let mut seen = Vec::new();
    let mut failed = Vec::new();
    while let Some(chunk) = reader.read_chunk().unwrap() {
        for (blkno, page) in chunk.pages() {
            seen.push(*page);
            failed.extend(check_page(page, blkno, &chunk.path, chunk.offset_of(blkno)).err());
        }
    }
    assert_eq!(seen.concat(), file);
    assert_eq!(failed.len(), 1);
    assert!(failed[0].to_string().contains(&format!("base/5/16384 at offset {}", 299 * BLCKSZ)), "{}", failed[0]);
}
