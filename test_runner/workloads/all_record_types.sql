-- Makes a server write every WAL record type that SQL can reach (PostgreSQL 14 to 18), with psql.
-- Wanted settings: max_prepared_transactions and max_replication_slots above 0, track_commit_timestamp,
-- allow_in_place_tablespaces, autovacuum off; wal_level logical for some, checksums or wal_log_hints for others.
-- Variables: conn (connection string for dblink), heavy=1 (over a million transactions, so that pg_xact is truncated),
-- skip_gist_delete=1.
\set QUIET 1
\pset pager off
SET client_min_messages = warning;
SELECT current_setting('server_version_num')::int >= 150000 AS v15,
       current_setting('server_version_num')::int >= 160000 AS v16,
       current_setting('server_version_num')::int >= 170000 AS v17,
       current_setting('wal_level') = 'logical' AS is_logical \gset
\if :{?conn}
\else
  \set conn ''
\endif
\if :{?heavy}
\else
  \set heavy 0
\endif
\if :{?skip_gist_delete}
\else
  \set skip_gist_delete 0
\endif

---------------------------------------------------------------- extensions
\set HAVE_CONTRIB 0
SELECT count(*) >= 3 AS have_contrib FROM pg_available_extensions WHERE name IN ('bloom','dblink','pageinspect') \gset
\if :have_contrib
CREATE EXTENSION IF NOT EXISTS bloom;
CREATE EXTENSION IF NOT EXISTS dblink;
CREATE EXTENSION IF NOT EXISTS pageinspect;
CREATE EXTENSION IF NOT EXISTS btree_gin;
CREATE EXTENSION IF NOT EXISTS btree_gist;
\endif
SELECT count(*) = 1 AS have_pg_surgery FROM pg_available_extensions WHERE name='pg_surgery' \gset
DROP SCHEMA IF EXISTS w CASCADE;
CREATE SCHEMA w;
SET search_path = w, public;

---------------------------------------------------------------- XLOG, LOGICALMSG, REPLORIGIN
SELECT 1 FROM pg_create_restore_point('w restore point');               -- XLOG/RESTORE_POINT
SELECT 1 FROM pg_logical_emit_message(true,  'w', 'transactional');      -- LOGICALMSG/MESSAGE
SELECT 1 FROM pg_logical_emit_message(false, 'w', repeat('x', 100000));  -- long, many pages
SELECT 1 FROM pg_replication_origin_create('w_origin');
SELECT 1 FROM pg_replication_origin_advance('w_origin', '0/1234567');    -- REPLORIGIN/SET
BEGIN;
SELECT 1 FROM pg_replication_origin_session_setup('w_origin');           -- records with origin header (id 253)
SELECT 1 FROM pg_replication_origin_xact_setup('0/2345678', now());
CREATE TABLE origin_t(a int); INSERT INTO origin_t VALUES (1);
COMMIT;
SELECT pg_replication_origin_session_reset();
SELECT 1 FROM pg_replication_origin_drop('w_origin');                    -- REPLORIGIN/DROP

---------------------------------------------------------------- SEQUENCE
CREATE SEQUENCE s1; SELECT count(nextval('s1')) FROM generate_series(1,200);  -- SEQ/LOG
SELECT setval('s1', 100000); ALTER SEQUENCE s1 RESTART;
CREATE UNLOGGED TABLE unl(a int PRIMARY KEY, b text);                     -- init forks: XLOG/FPI, SMGR/CREATE fork 3
CREATE INDEX ON unl USING hash(a); CREATE INDEX ON unl USING gin(to_tsvector('simple',b));
CREATE INDEX ON unl USING gist(point(a,a)); CREATE INDEX ON unl USING spgist(b); CREATE INDEX ON unl USING brin(a);
INSERT INTO unl SELECT g, g::text FROM generate_series(1,2000) g;

---------------------------------------------------------------- HEAP
CREATE TABLE h(id int PRIMARY KEY, k int, v text, big text) WITH (fillfactor=70);
ALTER TABLE h ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE INDEX h_k ON h(k);
INSERT INTO h SELECT g, g%50, repeat(chr(97+g%26), 20+g%100), NULL FROM generate_series(1,3000) g;  -- HEAP/INSERT(+INIT), BTREE/INSERT_LEAF
COPY h(id,k,v) FROM PROGRAM 'seq 10001 13000 | awk ''{print $1"\t"$1%50"\tcopy row "$1}''';           -- HEAP2/MULTI_INSERT(+INIT)
UPDATE h SET v = v || '!' WHERE id % 3 = 0;                       -- HEAP/HOT_UPDATE
UPDATE h SET k = k + 1 WHERE id % 7 = 0;                          -- HEAP/UPDATE(+INIT)
UPDATE h SET v = overlay(v placing 'ZZ' from 5 for 2) WHERE id BETWEEN 50 AND 400;  -- prefix+suffix compression
UPDATE h SET big = repeat('toast', 4000) WHERE id BETWEEN 1 AND 20;                  -- toast
UPDATE h SET big = NULL WHERE id BETWEEN 1 AND 20;
DELETE FROM h WHERE id % 11 = 0;                                  -- HEAP/DELETE
ALTER TABLE h REPLICA IDENTITY FULL;
UPDATE h SET id = id + 1000000 WHERE id = 5; DELETE FROM h WHERE id = 6; UPDATE h SET v='x' WHERE id=7;
ALTER TABLE h REPLICA IDENTITY DEFAULT;
UPDATE h SET id = id + 2000000 WHERE id = 8; DELETE FROM h WHERE id = 9;
BEGIN; SELECT count(*) FROM (SELECT 1 FROM h WHERE id < 200 FOR UPDATE) x; COMMIT;            -- HEAP/LOCK
BEGIN; SELECT count(*) FROM (SELECT 1 FROM h WHERE id < 200 FOR KEY SHARE) x; COMMIT;
BEGIN; SELECT count(*) FROM (SELECT 1 FROM h WHERE id < 200 FOR NO KEY UPDATE) x; ROLLBACK;
BEGIN; SELECT count(*) FROM (SELECT 1 FROM h WHERE id < 200 FOR SHARE) x; UPDATE h SET v = v||'s' WHERE id < 200; COMMIT;
INSERT INTO h VALUES (50,1,'conf') ON CONFLICT (id) DO UPDATE SET v = excluded.v;  -- HEAP/CONFIRM needs a non conflicting row:
INSERT INTO h VALUES (900001,1,'spec') ON CONFLICT (id) DO NOTHING;                -- HEAP/CONFIRM
BEGIN; INSERT INTO h VALUES (900002,1,'abort'); UPDATE h SET v='abort2' WHERE id=900002; ROLLBACK;  -- XACT/ABORT
-- insert into a new table inside one transaction with combo CID
BEGIN; CREATE TABLE combo(a int, b int); INSERT INTO combo SELECT g,g FROM generate_series(1,50) g;
UPDATE combo SET b=b+1; DELETE FROM combo WHERE a%2=0; UPDATE combo SET b=b+1; COMMIT;
-- moved partitions (UPDATE with partition key change => ctid moved marker, XLH_DELETE_IS_PARTITION_MOVE)
CREATE TABLE part(a int, b text) PARTITION BY RANGE(a);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (100) TO (200);
INSERT INTO part SELECT g, 'p' FROM generate_series(0,99) g; UPDATE part SET a = a+100 WHERE a < 50;
TRUNCATE origin_t;                                                        -- HEAP/TRUNCATE (logical only), SMGR/CREATE
-- pruning: HEAP2/PRUNE on access
CREATE TABLE pr(a int PRIMARY KEY, b text) WITH (fillfactor=100);
INSERT INTO pr SELECT g, repeat('p',100) FROM generate_series(1,500) g;
DO $$ BEGIN FOR i IN 1..30 LOOP UPDATE w.pr SET b = repeat(chr(97+i%26),100) WHERE a <= 60; COMMIT; END LOOP; END $$;
SELECT count(*) FROM pr;
DELETE FROM pr WHERE a BETWEEN 100 AND 300; SELECT count(*) FROM pr;
VACUUM pr;                                       -- HEAP2/PRUNE, HEAP2/VACUUM, HEAP2/VISIBLE, BTREE/VACUUM
INSERT INTO pr SELECT g, 'again' FROM generate_series(600,900) g;
DELETE FROM pr WHERE a > 700; VACUUM (FREEZE, VERBOSE off) pr;     -- HEAP2/FREEZE_PAGE (14-16), SMGR/TRUNCATE
VACUUM (DISABLE_PAGE_SKIPPING) pr;
DELETE FROM pr; VACUUM pr;                     -- SMGR/TRUNCATE (to zero)
-- all-visible + all-frozen bits clear: delete/lock/update on an all-visible page
CREATE TABLE av(a int, b text); COPY av FROM PROGRAM 'seq 1 2000 | awk ''{print $1"\tav"}''';
VACUUM av; UPDATE av SET b='c' WHERE a=1; DELETE FROM av WHERE a=500; INSERT INTO av VALUES (0,'ins');
VACUUM (FREEZE) av; BEGIN; SELECT 1 FROM av WHERE a=1000 FOR UPDATE; COMMIT; VACUUM av;
BEGIN; SELECT 1 FROM av WHERE a=1500 FOR UPDATE; COMMIT; DELETE FROM av WHERE a=1600; 
BEGIN; CREATE TABLE fz(a int, b text); COPY fz FROM PROGRAM 'seq 1 3000 | awk ''{print $1"\tfrozen row"}''' WITH (FREEZE); COMMIT; -- multi_insert ALL_FROZEN_SET
\if :have_pg_surgery
CREATE EXTENSION IF NOT EXISTS pg_surgery;
SELECT heap_force_kill('w.av'::regclass, ARRAY['(0,10)','(0,11)']::tid[]);   -- XLOG/FPI (log_newpage_buffer)
SELECT heap_force_freeze('w.av'::regclass, ARRAY['(0,12)']::tid[]);
DROP EXTENSION pg_surgery;
\endif

---------------------------------------------------------------- MULTIXACT  (subtransaction trick: one session is enough)
CREATE TABLE mx(a int PRIMARY KEY, b int); INSERT INTO mx SELECT g,0 FROM generate_series(1,2500) g;
DO $$ BEGIN FOR i IN 1..2500 LOOP
  PERFORM 1 FROM w.mx WHERE a=i FOR KEY SHARE;
  BEGIN UPDATE w.mx SET b=b+1 WHERE a=i; EXCEPTION WHEN division_by_zero THEN NULL; END;   -- MULTIXACT/CREATE_ID, ZERO_OFF_PAGE, ZERO_MEM_PAGE
END LOOP; END $$;
\if :have_contrib
SELECT dblink_connect('c1', :'conn' || ' dbname=' || current_database());
SELECT dblink_connect('c2', :'conn' || ' dbname=' || current_database());
SELECT dblink_exec('c1','BEGIN'); SELECT dblink_exec('c2','BEGIN');
SELECT * FROM dblink('c1','SELECT a FROM w.mx WHERE a<=40 FOR KEY SHARE') t(a int) LIMIT 1;
SELECT * FROM dblink('c2','SELECT a FROM w.mx WHERE a<=40 FOR KEY SHARE') t(a int) LIMIT 1;
SELECT dblink_exec('c1','COMMIT'); SELECT dblink_exec('c2','COMMIT');
-- HEAP2/LOCK_UPDATED: lock an old version whose update is still in progress in another session
SELECT dblink_exec('c1','BEGIN'); SELECT dblink_exec('c1','UPDATE w.mx SET b=b+1 WHERE a BETWEEN 100 AND 110');
BEGIN; SELECT count(*) FROM (SELECT a FROM mx WHERE a BETWEEN 100 AND 110 FOR KEY SHARE) x; COMMIT;
SELECT dblink_exec('c1','UPDATE w.mx SET b=b+1 WHERE a BETWEEN 100 AND 110');
BEGIN; SELECT count(*) FROM (SELECT a FROM mx WHERE a BETWEEN 100 AND 110 FOR KEY SHARE) x; COMMIT;
SELECT dblink_exec('c1','ROLLBACK');
SELECT dblink_disconnect('c1'); SELECT dblink_disconnect('c2');
\endif
VACUUM (FREEZE) mx;

---------------------------------------------------------------- XACT
BEGIN; INSERT INTO h VALUES (910001,1,'2pc'); PREPARE TRANSACTION 'w1'; COMMIT PREPARED 'w1';        -- XACT/PREPARE, COMMIT_PREPARED
BEGIN; INSERT INTO h VALUES (910002,1,'2pc'); SAVEPOINT a; DELETE FROM h WHERE id=910001; CREATE TABLE t2pc(a int); PREPARE TRANSACTION 'w2'; ROLLBACK PREPARED 'w2';  -- ABORT_PREPARED
BEGIN; CREATE TABLE t2pc(a int); DROP TABLE combo; INSERT INTO t2pc VALUES (1); PREPARE TRANSACTION 'w3'; COMMIT PREPARED 'w3';
CREATE TABLE sub(a int);
DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO w.sub VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$;  -- XACT/ASSIGNMENT (replica+)
BEGIN; SAVEPOINT a; INSERT INTO sub VALUES (1); ROLLBACK TO a; INSERT INTO sub VALUES (2); COMMIT;
BEGIN; LOCK TABLE sub IN ACCESS EXCLUSIVE MODE; INSERT INTO sub VALUES (3); COMMIT;                   -- STANDBY/LOCK
BEGIN; CREATE TABLE inv(a int); ALTER TABLE inv ADD COLUMN b int; SELECT 1 FROM inv; DROP TABLE inv; COMMIT;  -- XACT/INVALIDATION (logical)

---------------------------------------------------------------- BTREE
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

---------------------------------------------------------------- HASH
CREATE TABLE hs(a int, b text); CREATE INDEX hs_a ON hs USING hash(a);    -- INIT_META_PAGE, INIT_BITMAP_PAGE
INSERT INTO hs SELECT g, 'h' FROM generate_series(1,7000) g;             -- INSERT, SPLIT_ALLOCATE_PAGE, SPLIT_PAGE, SPLIT_COMPLETE
INSERT INTO hs SELECT 42, 'dup' FROM generate_series(1,2500) g;           -- ADD_OVFL_PAGE
DELETE FROM hs WHERE a % 3 = 0; VACUUM hs;                                -- DELETE, SQUEEZE_PAGE, MOVE_PAGE_CONTENTS, SPLIT_CLEANUP, UPDATE_META_PAGE
DELETE FROM hs WHERE a = 42 AND ctid < '(45,0)'; VACUUM hs;
INSERT INTO hs SELECT g, 'h2' FROM generate_series(1,3000) g;
DELETE FROM hs; VACUUM hs; INSERT INTO hs SELECT g%1000, 'h3' FROM generate_series(1,4000) g; DELETE FROM hs WHERE b='h3' AND a%2=0; VACUUM hs;
-- MOVE_PAGE_CONTENTS: squeeze where several tuples of the tail page fit in several holes ahead
CREATE TABLE hm(a int, b int); CREATE INDEX hm_a ON hm USING hash(a) WITH (fillfactor=100);
INSERT INTO hm SELECT 7, g FROM generate_series(1,3000) g; DELETE FROM hm WHERE b % 2 = 0; VACUUM hm; 
INSERT INTO hm SELECT 7, g FROM generate_series(1,3000) g; DELETE FROM hm WHERE b % 10 <> 0; VACUUM hm;
-- VACUUM_ONE_PAGE: killed items then insert into a full page
CREATE TABLE hk(a int) WITH (autovacuum_enabled=off); CREATE INDEX hk_a ON hk USING hash(a);
INSERT INTO hk SELECT 1 FROM generate_series(1,800) g; DELETE FROM hk; 
SET enable_seqscan=off; SET enable_bitmapscan=off; 
SELECT count(*) FROM hk WHERE a=1; SELECT count(*) FROM hk WHERE a=1;
INSERT INTO hk SELECT 1 FROM generate_series(1,800) g;                     -- VACUUM_ONE_PAGE
RESET enable_seqscan; RESET enable_bitmapscan;

---------------------------------------------------------------- GIN
CREATE TABLE gn(a int[], t tsvector); 
INSERT INTO gn SELECT ARRAY[g%5], to_tsvector('simple','w1') FROM generate_series(1,60000) g;
CREATE INDEX gn_a ON gn USING gin(a) WITH (fastupdate=off);                -- build; big posting trees
CREATE INDEX gn_t ON gn USING gin(t) WITH (fastupdate=on);
INSERT INTO gn SELECT ARRAY[g%5, 100+g%7, 1000+g], to_tsvector('simple','w'||g%20||' x'||g) FROM generate_series(1,4000) g;  -- INSERT, SPLIT, CREATE_PTREE, INSERT_LISTPAGE, UPDATE_META_PAGE
SELECT gin_clean_pending_list('w.gn_t');                                   -- DELETE_LISTPAGE
INSERT INTO gn SELECT ARRAY[g%5, 100+g%7, 105], to_tsvector('simple','w1 w2 w3') FROM generate_series(1,3000) g;
VACUUM gn;
DELETE FROM gn WHERE ctid < '(300,0)'; VACUUM gn;                          -- VACUUM_PAGE (FPI), VACUUM_DATA_LEAF_PAGE
DELETE FROM gn WHERE a[1] IN (0,1,2); VACUUM gn;                            -- DELETE_PAGE
INSERT INTO gn SELECT ARRAY[g%5, g], to_tsvector('simple','w2 q'||g) FROM generate_series(1,3000) g;
DELETE FROM gn; VACUUM gn; VACUUM gn; INSERT INTO gn SELECT ARRAY[g%3], 'a' FROM generate_series(1,3000) g;
-- wide entries: entry tree of 3 levels, non-leaf SPLIT (blk3) and INSERT into internal pages
CREATE TABLE gw(a text[]); CREATE INDEX gw_a ON gw USING gin(a) WITH (fastupdate=off);
INSERT INTO gw SELECT ARRAY[(SELECT string_agg(md5(g||'-'||i),'') FROM generate_series(1,60) i)] FROM generate_series(1,300) g;
CREATE TABLE gj(j jsonb); CREATE INDEX gj_j ON gj USING gin(j jsonb_path_ops); 
INSERT INTO gj SELECT jsonb_build_object('k', g%40, 'v', g) FROM generate_series(1,2000) g;

---------------------------------------------------------------- GIST
CREATE TABLE gs(p point, c circle, r int4range); CREATE INDEX gs_p ON gs USING gist(p) WITH (buffering=off); CREATE INDEX gs_r ON gs USING gist(r);
INSERT INTO gs SELECT point(g%1000, g/1000.0), circle(point(g,g),1), int4range(g,g+10) FROM generate_series(1,5000) g;    -- PAGE_UPDATE, PAGE_SPLIT
DELETE FROM gs WHERE p[0] < 700; VACUUM gs;                                -- PAGE_UPDATE(del), PAGE_DELETE
SELECT 1 FROM pg_current_xact_id(); SELECT 1 FROM pg_current_xact_id(); VACUUM gs; 
INSERT INTO gs SELECT point(g%1000, g/500.0), circle(point(g,g),1), int4range(g,g+10) FROM generate_series(1,4000) g;    -- PAGE_REUSE
-- 2 kB signatures: only 3-4 tuples a page, so internal pages split too (PAGE_SPLIT with left child blk0)
CREATE TABLE gw2(t tsvector); CREATE INDEX gw2_t ON gw2 USING gist(t tsvector_ops(siglen=2000));
INSERT INTO gw2 SELECT to_tsvector('simple', (SELECT string_agg('w'||((g*7919+i*104729)%5000),' ') FROM generate_series(1,60) i)) FROM generate_series(1,400) g;
-- stock 14.9/16.4/17.11/18.6 standbys fail wal_consistency_checking on GIST/DELETE (redo sets F_TUPLES_DELETED, the primary does not; fixed in 15.20):
-- run with -v skip_gist_delete=1 there
\if :skip_gist_delete
\else
CREATE TABLE gk(p point) WITH (autovacuum_enabled=off); CREATE INDEX gk_p ON gk USING gist(p);
INSERT INTO gk SELECT point(g%20, g%17) FROM generate_series(1,3000) g; DELETE FROM gk WHERE p[0] < 15;
SET enable_seqscan=off; SET enable_bitmapscan=off;
SELECT count(*) FROM gk WHERE p <@ box '((0,0),(100,100))'; SELECT count(*) FROM gk WHERE p <@ box '((0,0),(100,100))';
INSERT INTO gk SELECT point(g%20, g%17) FROM generate_series(1,3000) g;    -- DELETE (killed items)
RESET enable_seqscan; RESET enable_bitmapscan;
\endif
CREATE INDEX gs_p2 ON gs USING gist(p); CREATE INDEX gs_c ON gs USING gist(c);   -- build (sorted / insert)
CREATE INDEX gs_p3 ON gs USING gist(p) WITH (buffering=on);

---------------------------------------------------------------- SPGIST
CREATE TABLE sp(t text, p point, i inet); CREATE INDEX sp_t ON sp USING spgist(t); CREATE INDEX sp_p ON sp USING spgist(p); 
CREATE INDEX sp_k ON sp USING spgist(p kd_point_ops); CREATE INDEX sp_i ON sp USING spgist(i);
INSERT INTO sp SELECT 'prefix/' || md5(g::text) || g, point(g%1000, (g*7)%1000), ('10.'||g%200||'.'||g%250||'.1')::inet FROM generate_series(1,4000) g;   -- ADD_LEAF, MOVE_LEAFS, PICKSPLIT
INSERT INTO sp SELECT 'pre' || g, point(g,g), '192.168.0.1' FROM generate_series(1,1000) g;         -- SPLIT_TUPLE
INSERT INTO sp SELECT chr(33 + g%90) || 'zz' || g, point(-g,g), '2001:db8::1' FROM generate_series(1,1500) g;  -- ADD_NODE
INSERT INTO sp SELECT 'prefix/' || chr(200+g%200) || md5(g::text), point(0.5,0.5), '10.0.0.0/8' FROM generate_series(1,1500) g;
DELETE FROM sp WHERE ctid < '(100,0)'; VACUUM sp;                          -- VACUUM_LEAF, VACUUM_REDIRECT
INSERT INTO sp SELECT 'prefix/' || md5((g*3)::text) || g, point(g%500, g%333), '10.1.1.1' FROM generate_series(1,2500) g; VACUUM sp;
CREATE TABLE sp0(t text); CREATE INDEX sp0_t ON sp0 USING spgist(t); INSERT INTO sp0 SELECT 'a'||g FROM generate_series(1,20) g; DELETE FROM sp0 WHERE t > 'a15'; VACUUM sp0; DELETE FROM sp0; VACUUM sp0;  -- VACUUM_ROOT
-- An image of a page without an item: the hole lacks there, while the server's page keeps what was in it.
CREATE TABLE sp1(t text); CREATE INDEX sp1_t ON sp1 USING spgist(t); INSERT INTO sp1 SELECT 'a'||g FROM generate_series(1,20) g; CHECKPOINT; DELETE FROM sp1; VACUUM sp1;
-- ADD_NODE that does not fit its page and moves (blk1/blk2): several growing inner tuples share inner pages
CREATE TABLE spx(t text); CREATE INDEX spx_t ON spx USING spgist(t);
INSERT INTO spx SELECT chr(65+p)||chr(97+c)||md5((p*100+c)::text)||repeat(md5(c::text),5)||n FROM generate_series(0,13) p, generate_series(0,2) c, generate_series(1,20) n;
INSERT INTO spx SELECT chr(65+p)||chr(33+c)||md5(c::text)||p FROM generate_series(0,92) c, generate_series(0,13) p;
CREATE INDEX sp_t2 ON sp USING spgist(t);

---------------------------------------------------------------- BRIN
CREATE TABLE br(a int, t text) WITH (fillfactor=10); CREATE INDEX br_a ON br USING brin(a) WITH (pages_per_range=1, autosummarize=off);   -- CREATE_INDEX
CREATE INDEX br_t ON br USING brin(t) WITH (pages_per_range=1);
INSERT INTO br SELECT g, md5(g::text) FROM generate_series(1,20000) g;     
SELECT brin_summarize_new_values('w.br_a'), brin_summarize_new_values('w.br_t');  -- INSERT, REVMAP_EXTEND
UPDATE br SET a = a + 1 WHERE a % 300 = 0;                                  -- SAMEPAGE_UPDATE
UPDATE br SET t = t || repeat('long', 60) WHERE a % 50 = 7;                 -- UPDATE (moved)
SELECT brin_desummarize_range('w.br_a', 3); SELECT brin_desummarize_range('w.br_t', 5);   -- DESUMMARIZE
SELECT brin_summarize_range('w.br_a', 3); SELECT brin_summarize_new_values('w.br_t');
DELETE FROM br WHERE a > 18000; VACUUM br;

---------------------------------------------------------------- GENERIC (bloom)
\if :have_contrib
CREATE TABLE blm(a int, b text); CREATE INDEX blm_i ON blm USING bloom(a,b);
INSERT INTO blm SELECT g, g::text FROM generate_series(1,3000) g; DELETE FROM blm WHERE a%2=0; VACUUM blm;    -- GENERIC
INSERT INTO blm SELECT g, g::text FROM generate_series(1,2000) g;
\endif

---------------------------------------------------------------- RELMAP, HEAP2/REWRITE, INPLACE, full catalog churn
-- the slot is made only here: its catalog_xmin would hold back page recycling (BTREE/REUSE_PAGE, GIST/PAGE_REUSE) above
\if :is_logical
SELECT 1 FROM pg_create_logical_replication_slot('w_slot', 'pgoutput');
\endif
CREATE TABLE uct(a int, b text) WITH (user_catalog_table=true); CREATE INDEX uct_a ON uct(a);
INSERT INTO uct SELECT g,'u' FROM generate_series(1,500) g; UPDATE uct SET b='v' WHERE a<100;
CLUSTER uct USING uct_a;                                                   -- HEAP2/REWRITE (logical slot present)
BEGIN; INSERT INTO uct SELECT g,'n' FROM generate_series(501,520) g; UPDATE uct SET b='w' WHERE a>500; DELETE FROM uct WHERE a=510; COMMIT;  -- HEAP2/NEW_CID (logical)
VACUUM FULL pg_class;                                                      -- RELMAP/UPDATE
VACUUM FULL pg_attribute; REINDEX TABLE pg_class;
ANALYZE;                                                                   -- HEAP/INPLACE
VACUUM FULL h; CLUSTER h USING h_pkey;
CREATE MATERIALIZED VIEW mv AS SELECT * FROM h; REFRESH MATERIALIZED VIEW mv; DROP MATERIALIZED VIEW mv;
ALTER TABLE h ALTER COLUMN k TYPE bigint;

---------------------------------------------------------------- DBASE / TBLSPC
CREATE DATABASE w_db1;                                                     -- 15+: CREATE_WAL_LOG ; 14: CREATE
\if :v15
CREATE DATABASE w_db2 STRATEGY file_copy;                                  -- CREATE_FILE_COPY
\else
CREATE DATABASE w_db2;
\endif
SET allow_in_place_tablespaces = on;      -- developer GUC (14+): directory lives inside pg_tblspc, so primary and standby may share a host
CREATE TABLESPACE w_ts LOCATION '';                                        -- TBLSPC/CREATE
ALTER DATABASE w_db2 SET TABLESPACE w_ts;                                  -- CREATE_FILE_COPY + DROP
CREATE TABLE w.tst(a int) TABLESPACE w_ts; INSERT INTO w.tst VALUES (1); ALTER TABLE w.h SET TABLESPACE w_ts; ALTER TABLE w.h SET TABLESPACE pg_default; DROP TABLE w.tst;
DROP DATABASE w_db2; DROP TABLESPACE w_ts;                                 -- DBASE/DROP, TBLSPC/DROP
DROP DATABASE w_db1;

---------------------------------------------------------------- CHECKPOINT, FPI_FOR_HINT
CREATE TABLE hint(a int); INSERT INTO hint SELECT g FROM generate_series(1,5000) g; CHECKPOINT; SELECT count(*) FROM hint;  -- XLOG/FPI_FOR_HINT
CHECKPOINT; INSERT INTO hint SELECT 1 FROM generate_series(1,100);
ALTER SYSTEM SET full_page_writes = off; SELECT pg_reload_conf(); SELECT pg_sleep(1); INSERT INTO hint VALUES (7);
ALTER SYSTEM RESET full_page_writes; SELECT pg_reload_conf(); SELECT pg_sleep(1);                 -- XLOG/FPW_CHANGE
SELECT 1 FROM pg_switch_wal();                                                                    -- XLOG/SWITCH
\if :v15
SELECT 1 FROM pg_backup_start('w', true); SELECT 1 FROM pg_backup_stop(false);                    -- XLOG/BACKUP_END
\else
SELECT 1 FROM pg_start_backup('w', true, false); SELECT 1 FROM pg_stop_backup(false, false);
\endif

---------------------------------------------------------------- SLRU page crossing and truncation
CREATE TABLE burn(a int);
CREATE OR REPLACE PROCEDURE w.burn_xids(n int) LANGUAGE plpgsql AS $$
DECLARE i int; BEGIN FOR i IN 1..n LOOP
  BEGIN INSERT INTO w.burn VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END;
  IF i % 5000 = 0 THEN COMMIT; TRUNCATE w.burn; END IF;
END LOOP; END $$;
SET wal_consistency_checking = '';
CALL w.burn_xids(70000);                                                   -- CLOG/ZEROPAGE, COMMIT_TS/ZEROPAGE
\if :heavy
CALL w.burn_xids(1100000);
\endif
RESET wal_consistency_checking;
\if :is_logical
SELECT pg_drop_replication_slot('w_slot');
\endif
UPDATE pg_database SET datallowconn = true WHERE datname = 'template0';
VACUUM (FREEZE);
\connect template0
VACUUM (FREEZE);
\connect template1
VACUUM (FREEZE);
\connect postgres
VACUUM (FREEZE);
SELECT 1 FROM pg_current_xact_id();
VACUUM (FREEZE);                                                           -- CLOG/TRUNCATE, COMMIT_TS/TRUNCATE, MULTIXACT/TRUNCATE_ID
UPDATE pg_database SET datallowconn = false WHERE datname = 'template0';
CHECKPOINT;
