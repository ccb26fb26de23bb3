//! Boot images: a server starts from one, with the relations listed in its manifest.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use bytes::Bytes;
use pageserver::page_service::PageServiceSettings;
use pageserver_api::boot_image::{
    CATALOG_INDEX_NAME, CATALOG_PAGES_NAME, CatalogIndex, MANIFEST_NAME, Manifest, SUMS_NAME, Sums,
};
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query};
use pageserver_client::PageStream;
use postgres_formats::page::set_data_checksum;
use test_needs::need;
use test_postgres::{Postgres, tar};

use crate::backups::{DIGEST, collect, source};
use crate::fixture::{Fixture, at, serve};

/// The files of the archive, each checked against the sums.
fn unpack(archive: &Bytes, dir: &str) -> BTreeMap<String, Vec<u8>> {
    tar(&["-x", "-C", dir], archive);
    let mut names: Vec<String> = tar(&["-t"], archive).lines().map(str::to_owned).collect();
    names.retain(|name| !name.ends_with('/') && !fs::metadata(format!("{dir}/{name}")).unwrap().is_dir());
    assert_eq!(names.last().unwrap(), SUMS_NAME);
    let files: BTreeMap<_, _> =
        names.iter().map(|name| (name.clone(), fs::read(format!("{dir}/{name}")).unwrap())).collect();
    let sums = Sums::decode(&files[SUMS_NAME]).unwrap().0;
    assert_eq!(sums.len() + 1, files.len());
    for (sum, name) in sums.iter().zip(&names) {
        let file = &files[name];
        assert_eq!((&sum.path, sum.size, sum.crc), (name, file.len() as u64, utils::crc32c::crc32c(file)));
    }
    files
}

async fn block(stream: &mut PageStream, manifest: &Manifest, rel: pageserver_api::reltag::RelTag, n: u32) -> Vec<u8> {
    let request = at(manifest.lsn, manifest.lsn, Query::GetPage(rel, n));
    let Answer::Page(page) = stream.request(&request).await.unwrap() else { panic!("no page {n} of {rel}") };
    let mut page = <[u8; 8192]>::try_from(&page[..]).unwrap();
    if manifest.data_checksums {
        set_data_checksum(&mut page, n);
    }
    page.to_vec()
}

/// Writes all relation files; included blocks must equal those from the page service. Returns the numbers of included
/// blocks and of all blocks.
async fn write_relations(fixture: &Fixture, files: &BTreeMap<String, Vec<u8>>, data: &str) -> (usize, usize) {
    let manifest = Manifest::decode(&files[MANIFEST_NAME]).unwrap();
    let index = CatalogIndex::decode(&files[CATALOG_INDEX_NAME]).unwrap();
    let pages = &files[CATALOG_PAGES_NAME];
    assert_eq!(pages.len(), index.0.len() * 8192);
    let (mut same, mut all) = (0, 0);
    let stream = fixture.client.pagestream(ProtocolVersion::V3, fixture.tenant, fixture.timeline_id()).await;
    let mut stream = stream.unwrap();
    for entry in &manifest.relations {
        let mut content = vec![];
        for n in 0..entry.blocks {
            let page = block(&mut stream, &manifest, entry.rel, n).await;
            if let Some((position, crc)) = index.find(entry.rel, n) {
                assert_eq!(&pages[position as usize * 8192..][..8192], page);
                assert_eq!(crc, utils::crc32c::crc32c(&page));
                same += 1;
            }
            content.extend_from_slice(&page);
            all += 1;
        }
        let path = format!("{data}/{}", manifest.path(entry.rel));
        assert!(!fs::exists(&path).unwrap(), "{path} is in the archive and in the manifest");
        fs::write(path, content).unwrap();
    }
    assert_eq!(same, index.0.len());
    (same, all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_starts_from_a_boot_image() {
    let postgres = need!(Postgres::find());
    let original = source(&postgres);
    let expected = original.sql(DIGEST);
    original.stop();
    original.offline("pg_checksums", &["--enable"]);
    let fixture = serve(original.data(), PageServiceSettings::default()).await;
    let lsn = fixture.timeline.last_record_lsn();
    let stream = fixture.client.boot_image(fixture.tenant, fixture.timeline_id(), lsn, false).await.unwrap();
    let archive = collect(stream).await;
    let copy = postgres.place().server("data");
    let dir = copy.place().path();
    let files = unpack(&archive, dir.as_str());
    fs::rename(dir.join("upper"), copy.data()).unwrap();
    symlink("../pg_wal", copy.data().join("pg_wal")).unwrap();
    let (came_along, all) = write_relations(&fixture, &files, copy.data().as_str()).await;
    println!("{} bytes, {came_along} of {all} blocks came along", archive.len());
    assert!(came_along > 300 && all > 2000, "{came_along} of {all}");
    copy.configure("fsync = off\nshared_buffers = 16MB");
    copy.own();
    copy.start();
    assert_eq!(copy.sql(DIGEST), expected);
    assert_eq!(copy.sql("SELECT count(*) FROM in_space"), "1000");
    assert_eq!(copy.sql("SELECT count(*) FROM u"), "0", "an unlogged table starts empty");
    copy.sql("COMMIT PREPARED 'first'");
    copy.sql("INSERT INTO u VALUES (1, 'x'); UPDATE t SET x = 'y' WHERE i < 100; VACUUM; CHECKPOINT");
    copy.stop();
    copy.verify_checksums();
    fixture.stop().await;
}
