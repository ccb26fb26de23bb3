"""The six queries, and what was published for them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Query:
    sql: str
    # Types of its keys.
    keys: str
    # Theirs, with nothing cached: {delay in ms: (p50 ms, p90 ms, GETs, MB)}.
    theirs: dict[int, tuple[float, float, float, float]]


QUERIES = {
    "post": Query(
        "SELECT p.*, u.name, u.school FROM posts p JOIN users u ON u.id = p.user_id WHERE p.id = $1", "bigint",
        {4: (77, 93, 10.5, 4), 25: (192, 324, 20.0, 31)}),
    "profile": Query(
        "SELECT u.*, p.* FROM users u JOIN posts p ON p.user_id = u.id WHERE u.id = $1 ORDER BY p.created_at DESC "
        "LIMIT 10", "bigint", {4: (190, 278, 41.7, 54), 25: (524, 806, 41.5, 54)}),
    "who-liked": Query(
        "SELECT u.*, l.created_at FROM likes l JOIN users u ON u.id = l.user_id WHERE l.post_id = $1 "
        "ORDER BY l.created_at DESC LIMIT 50", "bigint", {4: (129, 182, 15.7, 14), 25: (340, 572, 16.6, 24)}),
    "mutual": Query(
        "SELECT u.* FROM friendships f1 JOIN friendships f2 USING (user_b) JOIN users u ON u.id = f1.user_b "
        "WHERE f1.user_a = $1 AND f2.user_a = $2 LIMIT 20", "bigint, bigint",
        {4: (82, 114, 17.3, 29), 25: (183, 264, 13.1, 17)}),
    "idx-filter": Query(
        "SELECT count(*) FROM posts WHERE user_id = $1", "bigint", {4: (74, 86, 8.0, 3), 25: (173, 242, 19.5, 38)}),
    "scan-filter": Query(
        "SELECT count(*) FROM posts WHERE like_count > $1", "int",
        {4: (586, 692, 98.4, 139), 25: (984, 1300, 102.4, 139)}),
}
# What is in memory before the query, from nothing to everything: pages of indexes above the leaves, whole indexes.
LEVELS = ("none", "interior", "index", "data")
