//! Images made by compressors restore to the page; damaged ones yield errors within bounds.

use proptest::prelude::*;

use super::*;

/// A simple greedy pglz compressor: the format, not the server's heuristics.
fn pglz_compress(source: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (vec![], 0);
    while at < source.len() {
        let control_at = out.len();
        out.push(0u8);
        for bit in 0..8 {
            if at == source.len() {
                break;
            }
            let (len, distance) = longest_match(source, at);
            if len < 3 {
                out.push(source[at]);
                at += 1;
                continue;
            }
            out[control_at] |= 1 << bit;
            let code = (len - 3).min(15);
            out.extend_from_slice(&[(code | (distance >> 4 & 0xF0)) as u8, distance as u8]);
            if code == 15 {
                out.push((len - 18) as u8);
            }
            at += len;
        }
    }
    out
}

fn longest_match(source: &[u8], at: usize) -> (usize, usize) {
    let candidates = [1, 2, 3, 4, 8, 24, 64, 100, 128, 1000, 4095];
    let usable = candidates.into_iter().filter(|distance| *distance <= at);
    let length = |distance: usize| {
        (0..(source.len() - at).min(273)).take_while(|i| source[at + i] == source[at + i - distance]).count()
    };
    usable.map(|distance| (length(distance), distance)).max().unwrap_or((0, 1))
}

fn compress(bytes: &[u8], method: Option<ImageCompression>) -> Vec<u8> {
    match method {
        None => bytes.to_vec(),
        Some(ImageCompression::Pglz) => pglz_compress(bytes),
        Some(ImageCompression::Lz4) => lz4_flex::block::compress(bytes),
        Some(ImageCompression::Zstd) => zstd::bulk::compress(bytes, 3).unwrap(),
    }
}

const METHODS: [Option<ImageCompression>; 4] =
    [None, Some(ImageCompression::Pglz), Some(ImageCompression::Lz4), Some(ImageCompression::Zstd)];

fn image(bytes: &[u8], hole: (u16, u16), compression: Option<ImageCompression>) -> BlockImage<'_> {
    BlockImage { bytes, hole_offset: hole.0, hole_length: hole.1, compression, apply: true }
}

fn page_strategy() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<u8>(), 1..300usize).prop_map(|(byte, len)| vec![byte; len]);
    let noise = proptest::collection::vec(any::<u8>(), 1..200);
    proptest::collection::vec(prop_oneof![run, noise], 200).prop_map(|parts| {
        let mut page = parts.concat();
        page.resize(BLCKSZ, 7);
        page
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_compression_restores_the_page(mut page in page_strategy(), at in 1..4000u16, len in 0..4000u16) {
        let hole = if len == 0 { (0, 0) } else { (at, len) };
        let span = usize::from(hole.0)..usize::from(hole.0 + hole.1);
        page[span.clone()].fill(0);
        let packed = [&page[..span.start], &page[span.end..]].concat();
        for method in METHODS {
            let stored = compress(&packed, method);
            let mut restored = [0xCC; BLCKSZ];
            restore_image(&image(&stored, hole, method), &mut restored).unwrap();
            prop_assert!(restored[..] == page[..], "{method:?}");
        }
    }

    #[test]
    fn damaged_images_never_panic(
        page in page_strategy(),
        hits in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..9),
        hole in any::<(u16, u16)>(),
        cut in any::<proptest::sample::Index>(),
    ) {
        for method in METHODS {
            let mut stored = compress(&page[..4000], method);
            for (at, byte) in &hits {
                let at = usize::from(*at) % stored.len();
                stored[at] = *byte;
            }
            stored.truncate(cut.index(stored.len() + 1));
            let mut restored = [0; BLCKSZ];
            let _ = restore_image(&image(&stored, (100, 4192), method), &mut restored);
            let _ = restore_image(&image(&stored, hole, method), &mut restored);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), len in 0..8192u16) {
        for method in METHODS {
            let _ = restore_image(&image(&bytes, (1, len), method), &mut [0; BLCKSZ]);
        }
    }
}

#[test]
fn length_must_be_the_pages() {
    // The last byte is a literal: a back reference at the end would be cut to fit, as pglz allows.
    let short = [vec![1; 4999], vec![2]].concat();
    for method in METHODS {
        let stored = compress(&short, method);
        let error = restore_image(&image(&stored, (10, 3193), method), &mut [0; BLCKSZ]).unwrap_err();
        assert!(!matches!(error, ImageError::Hole { .. }), "{method:?}: {error}");
        restore_image(&image(&stored, (10, 3192), method), &mut [0; BLCKSZ]).unwrap();
        let error = restore_image(&image(&stored, (10, 3191), method), &mut [0; BLCKSZ]);
        assert!(error.is_err(), "{method:?}");
    }
    let beyond = restore_image(&image(&short, (8000, 193), None), &mut [0; BLCKSZ]);
    assert!(matches!(beyond, Err(ImageError::Hole { offset: 8000, length: 193 })));
}

#[test]
fn pglz_follows_the_servers_rules() {
    let pglz = |source: &[u8], len: usize| {
        let mut out = vec![0; len];
        pglz::decompress(source, &mut out).map(|()| out)
    };
    assert_eq!(pglz(&[0b010, b'a', 0x00, 0x01], 4).unwrap(), b"aaaa");
    assert_eq!(pglz(&[0b100, b'a', b'b', 0x0F, 0x02, 0], 20).unwrap(), b"abababababababababab");
    assert_eq!(pglz(&[0b010, b'a', 0x00, 0x01], 3).unwrap(), b"aaa", "the last reference is cut");
    assert_eq!(pglz(&[0b010, b'a', 0x00, 0x02], 4), Err(PglzError::Distance { distance: 2, at: 1 }));
    assert_eq!(pglz(&[0b010, b'a', 0x00, 0x00], 4), Err(PglzError::Distance { distance: 0, at: 1 }));
    assert_eq!(pglz(&[0, b'a', b'b'], 1), Err(PglzError::Trailing(1)));
    assert!(matches!(pglz(&[0, b'a'], 2), Err(PglzError::Truncated(_))));
    assert!(matches!(pglz(&[0b010, b'a', 0x0F, 0x01], 20), Err(PglzError::Truncated(_))));
}
