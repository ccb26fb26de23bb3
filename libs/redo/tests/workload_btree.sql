-- Btree indexes. After a statement: the records it is there for.

-- BTREE
CREATE TABLE b1(a int, b text); CREATE INDEX b1_a ON b1(a); CREATE INDEX b1_b ON b1(b);
INSERT INTO b1 SELECT g, md5(g::text) FROM generate_series(1,4000) g;   -- SPLIT_R (asc), SPLIT_L/R (random), NEWROOT, INSERT_UPPER
INSERT INTO b1 SELECT -g, md5((g*7)::text) FROM generate_series(1,1500) g;  -- descending
CREATE TABLE bd(a int, b int); CREATE INDEX bd_a ON bd(a);
INSERT INTO bd SELECT g%30, g FROM generate_series(1,10000) g;            -- DEDUP, posting splits later
DELETE FROM bd WHERE b % 5 = 0 AND a < 10;
VACUUM bd;                                                               -- VACUUM with updated posting lists
INSERT INTO bd SELECT g%30, g FROM generate_series(1,2500) g;            -- INSERT_POST: heap TID slots reused inside a posting range
CREATE TABLE bl(a int PRIMARY KEY, b int, c text); CREATE INDEX bl_b ON bl(b); CREATE INDEX bl_c ON bl(c);
INSERT INTO bl SELECT g, g%10, 'c'||g%10 FROM generate_series(1,2000) g;
DO $$ BEGIN FOR i IN 1..60 LOOP UPDATE w.bl SET b = b+1 WHERE a%20 = 3; COMMIT; END LOOP; END $$;    -- bottom-up deletion -> DELETE (+posting updates)
-- LP_DEAD deletion: index scans mark killed items, then inserts fill the page
CREATE TABLE bk(a int, b text) WITH (autovacuum_enabled=off); CREATE INDEX bk_a ON bk(a) WITH (deduplicate_items=off);
INSERT INTO bk SELECT g, 'x' FROM generate_series(1,4000) g; DELETE FROM bk WHERE a BETWEEN 100 AND 3000;
SET enable_seqscan=off; SET enable_bitmapscan=off;
SELECT count(*) FROM bk WHERE a BETWEEN 100 AND 3000; SELECT count(*) FROM bk WHERE a BETWEEN 100 AND 3000;
INSERT INTO bk SELECT 100 + g%2900, 'y' FROM generate_series(1,8000) g;  -- BTREE/DELETE
RESET enable_seqscan; RESET enable_bitmapscan;
-- page deletion
-- the key is a padded 400-byte text, so few rows make many leaf pages and several internal pages
CREATE TABLE bp(a int); CREATE INDEX bp_a ON bp(lpad(a::text,400,'0'));
INSERT INTO bp SELECT g FROM generate_series(1,6000) g;
DELETE FROM bp WHERE a BETWEEN 1000 AND 4500; VACUUM bp;                -- MARK_PAGE_HALFDEAD, UNLINK_PAGE, META_CLEANUP
SELECT 1 FROM pg_current_xact_id(); SELECT 1 FROM pg_current_xact_id();
INSERT INTO bp SELECT g FROM generate_series(1000,1200) g;
VACUUM bp; SELECT 1 FROM pg_current_xact_id(); SELECT 1 FROM pg_current_xact_id();
INSERT INTO bp SELECT g FROM generate_series(300000,301500) g;       -- REUSE_PAGE
DELETE FROM bp; VACUUM bp;                                                -- UNLINK_PAGE_META
VACUUM bp;
INSERT INTO bp SELECT g FROM generate_series(1,1500) g;             -- INSERT_META (fast root split)
-- deep suffix-truncation / long keys
CREATE TABLE bw(a text); CREATE INDEX bw_a ON bw(a); INSERT INTO bw SELECT repeat(md5(g::text), 20) FROM generate_series(1,1500) g;
DELETE FROM bw WHERE a < '8'; VACUUM bw;
-- wide incompressible keys in random order: 3+ levels, internal SPLIT_L/SPLIT_R with child block (blk3), then deep page deletion
CREATE TABLE bx(a text); CREATE INDEX bx_a ON bx(a);
INSERT INTO bx SELECT (SELECT string_agg(md5(g||'-'||i),'') FROM generate_series(1,20) i) FROM generate_series(1,2500) g;
DELETE FROM bx WHERE a >= '2' AND a < 'e'; VACUUM bx;
CREATE TABLE binc(a int, b int, c int); CREATE INDEX binc_i ON binc(a) INCLUDE (b,c); INSERT INTO binc SELECT g%100,g,g FROM generate_series(1,5000) g;
CREATE INDEX b1_build ON b1(a,b);                                         -- build: XLOG/FPI (log_newpage / bulk_write)
REINDEX INDEX b1_build;
