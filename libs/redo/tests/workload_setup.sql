-- Prologue of the workloads, which run in one psql session:
--   psql -X -v ON_ERROR_STOP=1 -v conn=<how dblink connects> -f workload_setup.sql -f workload_....sql
-- Wanted: max_prepared_transactions > 0, autovacuum = off (so that nothing cleans up before the workload does).
\set QUIET 1
\pset pager off
\o /dev/null
SET client_min_messages = warning;
SELECT current_setting('server_version_num')::int >= 150000 AS v15 \gset
SELECT count(*) >= 3 AS have_contrib FROM pg_available_extensions WHERE name IN ('bloom','dblink','btree_gist') \gset
\if :have_contrib
CREATE EXTENSION IF NOT EXISTS bloom;
CREATE EXTENSION IF NOT EXISTS dblink;
CREATE EXTENSION IF NOT EXISTS btree_gin;
CREATE EXTENSION IF NOT EXISTS btree_gist;
\endif
SELECT count(*) = 1 AS have_pg_surgery FROM pg_available_extensions WHERE name='pg_surgery' \gset
DROP SCHEMA IF EXISTS w CASCADE;
CREATE SCHEMA w;
SET search_path = w, public;
