//! Leaf pages of a real server lead where it says itself.
#![allow(clippy::disallowed_methods)]

mod support;

use postgres_formats::BLCKSZ;
use postgres_formats::btree::{is_leaf, leaf_entries};
use postgres_formats::page::{Page, PageBytes};
use support::{cluster, machine};
use test_needs::need;
use test_postgres::Server;

const LOAD: &str = "
CREATE EXTENSION pageinspect;
CREATE TABLE t (id bigint PRIMARY KEY, few int, name text, f float8);
INSERT INTO t SELECT (i * 7919) % 50021, i % 97, repeat(md5((i % 5000)::text), 1 + i % 3), i
    FROM generate_series(1, 50000) i;
CREATE INDEX t_few ON t (few);
CREATE INDEX t_name ON t (name, few) INCLUDE (f);
CREATE INDEX t_plain ON t (few) WITH (deduplicate_items = off);
CREATE INDEX t_hash ON t USING hash (id);
CREATE INDEX t_gist ON t USING gist (point(id, few));
DELETE FROM t WHERE id % 11 = 0; VACUUM t;
INSERT INTO t SELECT 100000 + i, i % 97, 'new', i FROM generate_series(1, 3000) i;
CHECKPOINT;
";
/// For each leaf: how many rows it leads to, and the blocks of these in order.
const LEAVES: &str = "
SELECT s.blkno,
    coalesce(string_agg((split_part(trim(both '()' from tid::text), ',', 1)), ',' ORDER BY i.itemoffset, n), '')
FROM generate_series(1, pg_relation_size('INDEX') / 8192 - 1) AS b(block),
    bt_page_stats('INDEX', b.block::int) AS s
LEFT JOIN LATERAL (SELECT * FROM bt_page_items('INDEX', b.block::int)) AS i
    ON i.itemoffset > CASE WHEN s.btpo_next = 0 THEN 0 ELSE 1 END
LEFT JOIN LATERAL unnest(coalesce(i.tids, ARRAY[i.htid])) WITH ORDINALITY AS u(tid, n) ON true
WHERE s.type = 'l' GROUP BY s.blkno ORDER BY s.blkno";

fn file(server: &Server, relation: &str) -> Vec<u8> {
    let path = server.sql(&format!("SELECT pg_relation_filepath('{relation}')"));
    std::fs::read(server.data().join(path)).unwrap()
}

fn leaves(bytes: &[u8]) -> impl Iterator<Item = (usize, Page<&PageBytes>)> {
    let pages = bytes.chunks_exact(BLCKSZ).map(|page| Page::new(<&PageBytes>::try_from(page).unwrap()));
    pages.enumerate().filter(|(_, page)| is_leaf(page))
}

#[test]
fn leaves_lead_where_the_server_says() {
    let server = cluster(&need!(machine()));
    server.sql(LOAD);
    let mut compared = 0;
    for index in ["t_pkey", "t_few", "t_name", "t_plain"] {
        let told = server.sql(&LEAVES.replace("INDEX", index));
        let bytes = file(&server, index);
        let mut found = Vec::new();
        for (block, page) in leaves(&bytes) {
            let rows = leaf_entries(&page).unwrap();
            assert!(rows.is_sorted_by_key(|row| row.key));
            compared += rows.len();
            let blocks: Vec<String> = rows.iter().map(|row| row.block.to_string()).collect();
            found.push(format!("{block}|{}", blocks.join(",")));
        }
        assert!(found.len() > 5, "{index} has few leaves");
        assert!(found == told.lines().collect::<Vec<_>>(), "{index} differs");
    }
    println!("{compared} rows compared");
    for other in ["t", "t_hash", "t_gist"] {
        assert_eq!(leaves(&file(&server, other)).count(), 0, "{other} has no leaves of a btree");
    }
}

#[test]
fn rows_of_one_key_are_told_from_those_of_others() {
    let server = cluster(&need!(machine()));
    server.sql(LOAD);
    let mut keys = 0;
    for (_, page) in leaves(&file(&server, "t_plain")) {
        keys += leaf_entries(&page).unwrap().last().map_or(0, |row| usize::from(row.key) + 1);
    }
    let pages = leaves(&file(&server, "t_plain")).count();
    // 97 of them; one that goes on on the next page counts twice.
    assert!((97..97 + pages).contains(&keys), "{keys} keys on {pages} pages");
}
