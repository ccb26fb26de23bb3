-- Hash, GIN, GiST, SP-GiST, BRIN and bloom indexes. After a statement: the records it is there for.

-- HASH
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

-- GIN
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

-- GIST
CREATE TABLE gs(p point, c circle, r int4range); CREATE INDEX gs_p ON gs USING gist(p) WITH (buffering=off); CREATE INDEX gs_r ON gs USING gist(r);
INSERT INTO gs SELECT point(g%1000, g/1000.0), circle(point(g,g),1), int4range(g,g+10) FROM generate_series(1,5000) g;    -- PAGE_UPDATE, PAGE_SPLIT
DELETE FROM gs WHERE p[0] < 700; VACUUM gs;                                -- PAGE_UPDATE(del), PAGE_DELETE
SELECT 1 FROM pg_current_xact_id(); SELECT 1 FROM pg_current_xact_id(); VACUUM gs; 
INSERT INTO gs SELECT point(g%1000, g/500.0), circle(point(g,g),1), int4range(g,g+10) FROM generate_series(1,4000) g;    -- PAGE_REUSE
-- 2 kB signatures: only 3-4 tuples a page, so internal pages split too (PAGE_SPLIT with left child blk0)
CREATE TABLE gw2(t tsvector); CREATE INDEX gw2_t ON gw2 USING gist(t tsvector_ops(siglen=2000));
INSERT INTO gw2 SELECT to_tsvector('simple', (SELECT string_agg('w'||((g*7919+i*104729)%5000),' ') FROM generate_series(1,60) i)) FROM generate_series(1,400) g;
CREATE TABLE gk(p point) WITH (autovacuum_enabled=off); CREATE INDEX gk_p ON gk USING gist(p);
INSERT INTO gk SELECT point(g%20, g%17) FROM generate_series(1,3000) g; DELETE FROM gk WHERE p[0] < 15;
SET enable_seqscan=off; SET enable_bitmapscan=off;
SELECT count(*) FROM gk WHERE p <@ box '((0,0),(100,100))'; SELECT count(*) FROM gk WHERE p <@ box '((0,0),(100,100))';
INSERT INTO gk SELECT point(g%20, g%17) FROM generate_series(1,3000) g;    -- DELETE (killed items)
RESET enable_seqscan; RESET enable_bitmapscan;
CREATE INDEX gs_p2 ON gs USING gist(p); CREATE INDEX gs_c ON gs USING gist(c);   -- build (sorted / insert)
CREATE INDEX gs_p3 ON gs USING gist(p) WITH (buffering=on);

-- SPGIST
CREATE TABLE sp(t text, p point, i inet); CREATE INDEX sp_t ON sp USING spgist(t); CREATE INDEX sp_p ON sp USING spgist(p); 
CREATE INDEX sp_k ON sp USING spgist(p kd_point_ops); CREATE INDEX sp_i ON sp USING spgist(i);
INSERT INTO sp SELECT 'prefix/' || md5(g::text) || g, point(g%1000, (g*7)%1000), ('10.'||g%200||'.'||g%250||'.1')::inet FROM generate_series(1,4000) g;   -- ADD_LEAF, MOVE_LEAFS, PICKSPLIT
INSERT INTO sp SELECT 'pre' || g, point(g,g), '192.168.0.1' FROM generate_series(1,1000) g;         -- SPLIT_TUPLE
INSERT INTO sp SELECT chr(33 + g%90) || 'zz' || g, point(-g,g), '2001:db8::1' FROM generate_series(1,1500) g;  -- ADD_NODE
INSERT INTO sp SELECT 'prefix/' || chr(200+g%200) || md5(g::text), point(0.5,0.5), '10.0.0.0/8' FROM generate_series(1,1500) g;
DELETE FROM sp WHERE ctid < '(100,0)'; VACUUM sp;                          -- VACUUM_LEAF, VACUUM_REDIRECT
INSERT INTO sp SELECT 'prefix/' || md5((g*3)::text) || g, point(g%500, g%333), '10.1.1.1' FROM generate_series(1,2500) g; VACUUM sp;
CREATE TABLE sp0(t text); CREATE INDEX sp0_t ON sp0 USING spgist(t); INSERT INTO sp0 SELECT 'a'||g FROM generate_series(1,20) g; DELETE FROM sp0 WHERE t > 'a15'; VACUUM sp0; DELETE FROM sp0; VACUUM sp0;  -- VACUUM_ROOT
-- ADD_NODE that does not fit its page and moves (blk1/blk2): several growing inner tuples share inner pages
CREATE TABLE spx(t text); CREATE INDEX spx_t ON spx USING spgist(t);
INSERT INTO spx SELECT chr(65+p)||chr(97+c)||md5((p*100+c)::text)||repeat(md5(c::text),5)||n FROM generate_series(0,13) p, generate_series(0,2) c, generate_series(1,20) n;
INSERT INTO spx SELECT chr(65+p)||chr(33+c)||md5(c::text)||p FROM generate_series(0,92) c, generate_series(0,13) p;
CREATE INDEX sp_t2 ON sp USING spgist(t);

-- BRIN
CREATE TABLE br(a int, t text) WITH (fillfactor=10); CREATE INDEX br_a ON br USING brin(a) WITH (pages_per_range=1, autosummarize=off);   -- CREATE_INDEX
CREATE INDEX br_t ON br USING brin(t) WITH (pages_per_range=1);
INSERT INTO br SELECT g, md5(g::text) FROM generate_series(1,20000) g;     
SELECT brin_summarize_new_values('w.br_a'), brin_summarize_new_values('w.br_t');  -- INSERT, REVMAP_EXTEND
UPDATE br SET a = a + 1 WHERE a % 300 = 0;                                  -- SAMEPAGE_UPDATE
UPDATE br SET t = t || repeat('long', 60) WHERE a % 50 = 7;                 -- UPDATE (moved)
SELECT brin_desummarize_range('w.br_a', 3); SELECT brin_desummarize_range('w.br_t', 5);   -- DESUMMARIZE
SELECT brin_summarize_range('w.br_a', 3); SELECT brin_summarize_new_values('w.br_t');
DELETE FROM br WHERE a > 18000; VACUUM br;

-- GENERIC (bloom)
\if :have_contrib
CREATE TABLE blm(a int, b text); CREATE INDEX blm_i ON blm USING bloom(a,b);
INSERT INTO blm SELECT g, g::text FROM generate_series(1,3000) g; DELETE FROM blm WHERE a%2=0; VACUUM blm;    -- GENERIC
INSERT INTO blm SELECT g, g::text FROM generate_series(1,2000) g;
\endif
