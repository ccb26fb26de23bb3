-- Sequences, tables, row locks, multixacts. After a statement: the records it is there for.

-- SEQUENCE
CREATE SEQUENCE s1; SELECT count(nextval('s1')) FROM generate_series(1,200);  -- SEQ/LOG
SELECT setval('s1', 100000); ALTER SEQUENCE s1 RESTART;
CREATE UNLOGGED TABLE unl(a int PRIMARY KEY, b text);                     -- init forks: XLOG/FPI, SMGR/CREATE fork 3
CREATE INDEX ON unl USING hash(a); CREATE INDEX ON unl USING gin(to_tsvector('simple',b));
CREATE INDEX ON unl USING gist(point(a,a)); CREATE INDEX ON unl USING spgist(b); CREATE INDEX ON unl USING brin(a);
INSERT INTO unl SELECT g, g::text FROM generate_series(1,2000) g;

-- HEAP
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

-- MULTIXACT  (subtransaction trick: one session is enough)
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

-- XACT
BEGIN; INSERT INTO h VALUES (910001,1,'2pc'); PREPARE TRANSACTION 'w1'; COMMIT PREPARED 'w1';        -- XACT/PREPARE, COMMIT_PREPARED
BEGIN; INSERT INTO h VALUES (910002,1,'2pc'); SAVEPOINT a; DELETE FROM h WHERE id=910001; CREATE TABLE t2pc(a int); PREPARE TRANSACTION 'w2'; ROLLBACK PREPARED 'w2';  -- ABORT_PREPARED
BEGIN; CREATE TABLE t2pc(a int); DROP TABLE combo; INSERT INTO t2pc VALUES (1); PREPARE TRANSACTION 'w3'; COMMIT PREPARED 'w3';
CREATE TABLE sub(a int);
DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO w.sub VALUES (i); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$;  -- XACT/ASSIGNMENT (replica+)
BEGIN; SAVEPOINT a; INSERT INTO sub VALUES (1); ROLLBACK TO a; INSERT INTO sub VALUES (2); COMMIT;
BEGIN; LOCK TABLE sub IN ACCESS EXCLUSIVE MODE; INSERT INTO sub VALUES (3); COMMIT;                   -- STANDBY/LOCK
BEGIN; CREATE TABLE inv(a int); ALTER TABLE inv ADD COLUMN b int; SELECT 1 FROM inv; DROP TABLE inv; COMMIT;  -- XACT/INVALIDATION (logical)
