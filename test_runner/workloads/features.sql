-- What people do with Postgres besides tables and transactions, with psql: each statement in a transaction of its own.
-- Wanted: wal_level logical. Variables: tag, a schema; space, a tablespace; place, an empty directory for it.

CREATE SCHEMA :tag;
SET search_path = :tag;

---------------------------------------------------------------- large objects
SELECT lo_from_bytea(0, decode(repeat('0123456789abcdef', 2000), 'hex')) AS lo FROM generate_series(1, 20);
SELECT lo_put(oid, 5000, '\xDEADBEEF') FROM pg_largeobject_metadata;
SELECT lo_unlink(oid) FROM (SELECT oid FROM pg_largeobject_metadata ORDER BY oid LIMIT 7) l;
VACUUM pg_largeobject;

---------------------------------------------------------------- event triggers, sequences, messages
CREATE TABLE ddl_log (at timestamptz DEFAULT now(), tag text, id serial);
CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO ddl_log (tag) VALUES (tg_tag); PERFORM pg_logical_emit_message(true, 'ddl', tg_tag); END $$;
ALTER FUNCTION note() SET search_path = :tag;
CREATE EVENT TRIGGER notes ON ddl_command_end EXECUTE FUNCTION note();
CREATE TABLE made_with_trigger (id int GENERATED ALWAYS AS IDENTITY, v text);
INSERT INTO made_with_trigger (v) SELECT 'v' FROM generate_series(1, 500);
CREATE SEQUENCE cached CACHE 50;
SELECT count(nextval('cached')) FROM generate_series(1, 333);
SELECT setval('cached', 100000);
ALTER SEQUENCE cached INCREMENT 7 RESTART;
SELECT nextval('cached');
SELECT pg_logical_emit_message(false, 'alone', repeat('m', 20000));

---------------------------------------------------------------- materialized views
CREATE TABLE facts AS SELECT g AS id, g % 100 AS kind, repeat(md5(g::text), 5) AS v FROM generate_series(1, 8000) g;
CREATE MATERIALIZED VIEW sums AS SELECT kind, count(*) AS n, max(v) AS v FROM facts GROUP BY kind;
CREATE UNIQUE INDEX ON sums (kind);
UPDATE facts SET kind = kind + 1 WHERE id % 7 = 0;
REFRESH MATERIALIZED VIEW CONCURRENTLY sums;
DELETE FROM facts WHERE kind > 90;
REFRESH MATERIALIZED VIEW sums;

---------------------------------------------------------------- COPY FREEZE, and reading what it has frozen
BEGIN;
CREATE TABLE frozen (id int, v text);
COPY frozen FROM STDIN WITH (FREEZE, DELIMITER ',');
1,one
2,two
3,three
\.
INSERT INTO frozen SELECT g, 'more' FROM generate_series(4, 4000) g;
COMMIT;
SELECT count(*) FROM frozen;
UPDATE frozen SET v = 'thawed' WHERE id % 100 = 0;

---------------------------------------------------------------- indexes while others write
CREATE INDEX by_v ON facts (v);
CREATE INDEX CONCURRENTLY by_kind ON facts (kind) INCLUDE (id);
REINDEX INDEX CONCURRENTLY by_v;
REINDEX TABLE CONCURRENTLY facts;
CREATE INDEX by_words ON facts USING gin (to_tsvector('simple', v)) WITH (fastupdate = on);
INSERT INTO facts SELECT g, g % 50, md5(g::text) FROM generate_series(10000, 12000) g;
SELECT gin_clean_pending_list('by_words');
DROP INDEX CONCURRENTLY by_kind;
CREATE INDEX by_range ON facts USING brin (id) WITH (pages_per_range = 4, autosummarize = on);
SELECT brin_summarize_new_values('by_range');
CREATE TABLE booked (during int4range, EXCLUDE USING gist (during WITH &&));
INSERT INTO booked SELECT int4range(g * 10, g * 10 + 9) FROM generate_series(1, 1500) g;

---------------------------------------------------------------- catalogs and tables rewritten
VACUUM FULL pg_class;
VACUUM FULL pg_attribute;
VACUUM FULL pg_shdepend;
REINDEX TABLE pg_class;
VACUUM FULL facts;
CLUSTER facts USING by_v;
ALTER TABLE facts ALTER COLUMN id TYPE bigint;
VACUUM (FREEZE, ANALYZE);

---------------------------------------------------------------- logged and not
CREATE UNLOGGED TABLE fleeting AS SELECT * FROM facts;
CREATE INDEX ON fleeting (id);
ALTER TABLE fleeting SET LOGGED;
INSERT INTO fleeting SELECT id + 100000, kind, v FROM facts LIMIT 500;
ALTER TABLE frozen SET UNLOGGED;
CREATE TEMP TABLE t AS SELECT * FROM facts;

---------------------------------------------------------------- partitions
CREATE TABLE parts (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE parts_2 (id int, v text);
INSERT INTO parts_2 SELECT g, 'v' FROM generate_series(1000, 1999) g;
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (1000) TO (2000);
CREATE INDEX ON parts (id);
INSERT INTO parts SELECT g, 'v' FROM generate_series(0, 999) g;
UPDATE parts SET id = id + 1000 WHERE id BETWEEN 900 AND 950;
ALTER TABLE parts DETACH PARTITION parts_1 CONCURRENTLY;
TRUNCATE parts_1;

---------------------------------------------------------------- visibility: truncated maps, pages read into memory
CREATE EXTENSION IF NOT EXISTS pg_visibility;
CREATE EXTENSION IF NOT EXISTS pg_prewarm;
SELECT pg_truncate_visibility_map('made_with_trigger');
SELECT pg_prewarm('facts'), pg_prewarm('by_v');
VACUUM made_with_trigger;
DROP EVENT TRIGGER notes;

---------------------------------------------------------------- tablespaces and databases
CREATE TABLESPACE :space LOCATION :'place';
CREATE TABLE elsewhere TABLESPACE :space AS SELECT * FROM frozen;
CREATE INDEX ON elsewhere (id) TABLESPACE :space;
