-- pgbench script: lock chains, multixacts, speculative insertions. Needs table pgb (id, v, k).
\set id random(1, 50)
\set act random(1, 10)
BEGIN;
SELECT v FROM pgb WHERE id = :id FOR KEY SHARE;
UPDATE pgb SET v = v + 1 WHERE id = :id;
SAVEPOINT s;
SELECT v FROM pgb WHERE id = :id FOR NO KEY UPDATE;
ROLLBACK TO s;
\if :act = 1
INSERT INTO pgb VALUES (1000 + random()*30, 0, 1) ON CONFLICT (id) DO UPDATE SET k = pgb.k + 1;
\endif
\if :act = 2
DELETE FROM pgb WHERE id >= 1000 AND id < 1015;
\endif
\if :act = 3
UPDATE pgb SET k = k + 1 WHERE id = :id;
\endif
END;
