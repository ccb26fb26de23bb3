-- A small social network: the tables of a tiered file system's published benchmark, as Postgres has them.
CREATE TABLE users (id bigint, name text NOT NULL, school int NOT NULL, joined timestamptz NOT NULL);
CREATE TABLE posts (id bigint, user_id bigint NOT NULL, created_at timestamptz NOT NULL, like_count int NOT NULL,
                    content text NOT NULL);
CREATE TABLE friendships (user_a bigint, user_b bigint, since timestamptz NOT NULL);
CREATE TABLE likes (user_id bigint, post_id bigint, created_at timestamptz NOT NULL);
-- Read by nothing that is measured: a compute finds its page server again with it.
CREATE TABLE unrelated (id int, filler text);
