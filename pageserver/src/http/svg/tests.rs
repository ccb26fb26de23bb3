use super::*;

fn layer(kind: LayerKind, keys: (i128, i128), lsns: (u64, u64)) -> LayerInfo {
    LayerInfo {
        kind,
        keys: Key::from_i128(keys.0)..Key::from_i128(keys.1),
        lsns: Lsn(lsns.0)..Lsn(lsns.1),
        size: 3 << 20,
        l0: false,
        file_name: Some("a&b".to_owned()),
        resident: true,
        in_bucket: false,
        filter: kind == LayerKind::Delta,
        last_access: 0,
        accesses: 0,
    }
}

/// Left, top, width and height of every layer's box.
fn boxes(svg: &str) -> Vec<[f64; 4]> {
    let of_layers = svg.lines().filter(|line| line.starts_with("<rect") && line.contains("stroke-width"));
    let number = |line: &str, name: &str| {
        let from = line.split_once(&format!(" {name}=\"")).unwrap().1;
        from.split_once('"').unwrap().0.parse().unwrap()
    };
    of_layers.map(|line| ["x", "y", "width", "height"].map(|name| number(line, name))).collect()
}

#[test]
fn boxes_lie_as_their_keys_and_lsns_do() {
    let layers = [
        layer(LayerKind::Image, (0, 10), (100, 101)),
        layer(LayerKind::Image, (10, 1_000_000), (100, 101)),
        layer(LayerKind::Delta, (0, 1_000_000), (101, 900)),
    ];
    let svg = draw("t", &layers, Lsn(500));
    let [left, right, above] = boxes(&svg)[..] else { panic!("{svg}") };
    assert_eq!((left[0], left[2], right[0], right[2]), (LEFT, WIDTH / 2.0, LEFT + WIDTH / 2.0, WIDTH / 2.0));
    assert_eq!((above[0], above[2]), (LEFT, WIDTH));
    assert_eq!(svg.matches("with a key filter").count(), 1);
    assert!(above[1] + above[3] <= left[1] + 0.1, "later is higher");
    assert!(svg.contains("image: 2, 6.0 MiB") && svg.contains("a&amp;b") && svg.contains("on disk up to LSN 0/1F4"));
}

#[test]
fn thousands_of_layers_do_not_overlap_nor_leave_the_picture() {
    let layers: Vec<LayerInfo> =
        (0..5000).map(|n| layer(LayerKind::Delta, (n * 7, n * 7 + 7), (n as u64, n as u64 + 1))).collect();
    let svg = draw("many", &layers, Lsn(0));
    let boxes = boxes(&svg);
    assert_eq!(boxes.len(), 5000);
    assert!(boxes.iter().all(|[x, y, w, h]| *x >= LEFT && x + w <= LEFT + WIDTH + 1.0 && *y >= TOP && *h >= 4.0));
    assert!(boxes.windows(2).all(|pair| pair[1][1] < pair[0][1]));
    let labels = svg.lines().filter(|line| line.starts_with("<text x=\"122\"")).count();
    assert!((500..2000).contains(&labels), "{labels} labels");
}

#[test]
fn nothing_to_draw_is_drawn() {
    let svg = draw("<none>", &[], Lsn(0));
    assert!(svg.contains("&lt;none&gt;") && svg.contains("no layers") && svg.ends_with("</svg>\n"));
}

#[test]
fn sizes_have_a_fitting_unit() {
    assert_eq!([0, 1023, 1536, 300 << 20, 5 << 40].map(size), ["0 B", "1023 B", "1.5 KiB", "300 MiB", "5.0 TiB"]);
}
