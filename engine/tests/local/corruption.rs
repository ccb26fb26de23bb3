//! Damage to every byte of every kind of file, misplaced and stale blocks, misnamed files: all of it must be
//! reported.

use crate::sim::block_on;
use crate::sim::damage::{
    BLOCK, Content, Subject, Tally, cut_and_wipe, flip_bits, histories, keep_stale, misname, misplace,
};
use crate::sim::disk::SimDisk;
use crate::sim::history::root;
use crate::sim::samples::Maker;
use anyhow::{Context, ensure};
use engine::tenant::storage_layer::EPHEMERAL_PREFIX;
use engine::tenant::timeline::Manifest;
use layer_format::block::BLOCK_PAYLOAD;
use utils::bin_ser::BeSer;

const SEED: u64 = 5;
/// Size of the sampled files in bytes.
const BYTES: usize = 52 << 10;
const MANIFEST_BYTES: usize = 64 << 10;
/// This much must follow for the first 64 KiB of an ephemeral file to be read from disk instead of memory.
const FOLLOWING_BYTES: usize = 2 << 20;

type Kind = &'static str;
const KINDS: [Kind; 5] =
    ["sealed delta layer", "written delta layer", "image layer", "manifest", "ephemeral file in use"];

async fn subject(maker: &mut Maker, kind: Kind, bytes: usize) -> anyhow::Result<Subject> {
    let layer = |(desc, path), versions: &[_]| Subject {
        kind,
        path,
        content: Content::Layer(desc, histories(versions)),
        part: None,
    };
    match kind {
        "sealed delta layer" => {
            let versions = maker.versions(bytes);
            Ok(layer(maker.sealed(&versions).await?, &versions))
        }
        "written delta layer" => {
            let versions = maker.versions(bytes);
            Ok(layer(maker.written(&versions).await?, &versions))
        }
        "image layer" => {
            let versions = maker.images(bytes);
            Ok(layer(maker.image(&versions).await?, &versions))
        }
        "manifest" => {
            let manifest = Box::new(maker.manifest(MANIFEST_BYTES).await?);
            let path = Manifest::path(&maker.dir());
            Ok(Subject { kind, path, content: Content::Manifest(manifest), part: None })
        }
        _ => {
            let mut versions = maker.versions(bytes);
            let content = histories(&versions);
            let stored: u64 = versions.iter().map(|(_, _, value)| value.serialized_size()).sum::<Result<u64, _>>()?;
            maker.fill_up(&mut versions, FOLLOWING_BYTES);
            let memory = Box::new(maker.in_memory(&versions).await?);
            let path = maker.dir().join(ephemeral_name(maker).await?);
            // Block 0 is written when the file is sealed.
            let part = BLOCK..BLOCK + (stored as usize).div_ceil(BLOCK_PAYLOAD) * BLOCK;
            Ok(Subject { kind, path, content: Content::Memory(memory, content), part: Some(part) })
        }
    }
}

async fn ephemeral_name(maker: &Maker) -> anyhow::Result<String> {
    let names = virtual_file::fs::list_dir(&maker.dir()).await?;
    names.into_iter().find(|name| name.starts_with(EPHEMERAL_PREFIX)).context("the ephemeral file")
}

/// Damages every byte, every sector, and every length of one kind of file.
fn damage_everywhere(kind: Kind) -> anyhow::Result<Tally> {
    let root = root(&format!("corruption {kind}"));
    let disk = SimDisk::new(&root);
    let _mounted = disk.mount();
    block_on(async {
        let mut maker = Maker::new(&root, SEED).await?;
        let subject = subject(&mut maker, kind, BYTES).await?;
        subject.check_intact().await.context("before any damage")?;
        let mut tally = Tally::default();
        flip_bits(&disk, &subject, 1, &mut tally).await?;
        cut_and_wipe(&disk, &subject, &mut tally).await?;
        let len = subject.bytes(&disk)?.len();
        println!("seed {SEED}, {len} bytes of {kind}: {tally:?}");
        ensure!(tally.flips as usize == len, "not every byte was tried");
        Ok(tally)
    })
}

#[test]
fn no_damaged_byte_goes_unnoticed() -> anyhow::Result<()> {
    let mut total = Tally::default();
    let tallies: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = KINDS.into_iter().map(|kind| scope.spawn(move || damage_everywhere(kind))).collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    for tally in tallies {
        total.add(tally.map_err(|_| anyhow::anyhow!("a reader panicked"))??);
    }
    println!(
        "{} kinds: {} bit flips, {} truncations, {} wiped sectors: all reported, 0 wrong values, 0 panics",
        KINDS.len(),
        total.flips,
        total.truncations,
        total.wiped_sectors
    );
    Ok(())
}

#[test]
fn no_misplaced_or_stale_block_goes_unnoticed() -> anyhow::Result<()> {
    let root = root("misplaced");
    let disk = SimDisk::new(&root);
    let _mounted = disk.mount();
    block_on(async {
        let mut maker = Maker::new(&root, SEED).await?;
        let mut subjects = Vec::new();
        for kind in &KINDS[..3] {
            for bytes in [BYTES, BYTES / 2] {
                subjects.push(subject(&mut maker, kind, bytes).await?);
            }
        }
        let mut stranger = Maker::new(&root, SEED + 1).await?;
        subjects.push(subject(&mut stranger, KINDS[0], BYTES).await?);
        let subjects: Vec<&Subject> = subjects.iter().collect();
        let mut tally = Tally::default();
        misplace(&disk, &subjects, &mut tally).await?;
        misname(&subjects, &mut tally).await?;
        for (number, subject) in subjects.iter().enumerate() {
            for older in subjects.iter().skip(number + 1) {
                let older = disk.read(&older.path).context("the file")?;
                keep_stale(&disk, subject, &older, &mut tally).await?;
            }
        }
        stale_twins(&disk, &mut maker, &mut tally).await?;
        println!(
            "seed {SEED}: {} misplaced blocks, {} stale blocks, {} misnamed layers: all reported, 0 wrong values; \
             {} reads met none of it",
            tally.swaps, tally.stale_blocks, tally.misnamed, tally.unharmed_reads
        );
        ensure!(tally.swaps > 10_000 && tally.stale_blocks > 200 && tally.misnamed >= 30, "too little was tried");
        Ok(())
    })
}

/// Two files with the same content, as written by a repeated flush: their blocks are not interchangeable.
async fn stale_twins(disk: &SimDisk, maker: &mut Maker, tally: &mut Tally) -> anyhow::Result<()> {
    let versions = maker.versions(BYTES);
    let (_, older) = maker.sealed(&versions).await?;
    let (desc, path) = maker.sealed(&versions).await?;
    let older = disk.read(&older).context("the file")?;
    let newer =
        Subject { kind: "layer written twice", path, content: Content::Layer(desc, histories(&versions)), part: None };
    keep_stale(disk, &newer, &older, tally).await
}
