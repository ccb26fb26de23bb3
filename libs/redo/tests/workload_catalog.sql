-- Catalog churn, a database copied page by page, full-page images outside of changes, SLRU pages.
SET search_path = w, public;
VACUUM FULL pg_class;                                                      -- RELMAP/UPDATE, XLOG/FPI
REINDEX TABLE pg_class;
ANALYZE;                                                                   -- HEAP/INPLACE
CLUSTER h USING h_pkey;
CREATE MATERIALIZED VIEW mv AS SELECT * FROM h; REFRESH MATERIALIZED VIEW mv; DROP MATERIALIZED VIEW mv;
ALTER TABLE h ALTER COLUMN k TYPE bigint;
CREATE DATABASE w_db1;                                                     -- 15+: DBASE/CREATE_WAL_LOG, XLOG/FPI
DROP DATABASE w_db1;
CREATE TABLE hint(a int); INSERT INTO hint SELECT g FROM generate_series(1,5000) g; CHECKPOINT; SELECT count(*) FROM hint;  -- XLOG/FPI_FOR_HINT
CHECKPOINT; INSERT INTO hint SELECT 1 FROM generate_series(1,100);
