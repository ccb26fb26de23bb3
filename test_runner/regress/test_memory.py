"""Data that is only in the bucket is read with a bounded amount of memory, however much of it there is."""

from fixtures.followed import Followed, rel_of
from fixtures.pagestream import get_page, nblocks
from fixtures.stored import all_stored, wipe

MIB = 1 << 20
LAYER = 16 * MIB
ROWS = 80_000
# Caches for what the server reads, and memory for what is on its way from the bucket.
CACHES = {"page_cache_size": 16 * MIB // 8192, "block_cache_memory": 48 * MIB}
CACHES_MIB = 16 + 48
# Compaction goes on while pages are read: one sort and one other job at once.
COMPACTION = {"compaction_memory": 16 * MIB}
COMPACTION_MIB = 2 * 16
# Everything else that a server of this size needs, including its buffers for requests and the allocator's spare pages.
OVERHEAD_MIB = 96


def cold_layers(make_postgres, make_pageserver, make_store) -> tuple[Followed, object]:
    """Some 400 MiB of changes of one table in layers of 16 MiB, in a bucket; the local disk is empty."""
    pg = make_postgres("large", max_replication_slots=10, full_page_writes="off").start()
    store = make_store("directory")
    settings = {"checkpoint_distance": LAYER, **CACHES, **COMPACTION, **store.settings("large")}
    server = make_pageserver("large", **settings).start()
    followed = Followed(pg, server, server.follow(pg))
    chaos = " || ".join(f"md5((g * 16 + {part})::text)" for part in range(16))
    for part in range(8):
        what = f"SELECT g AS id, {chaos} AS v FROM generate_series({part * ROWS}, {part * ROWS + ROWS - 1}) g"
        pg.sql(f"CREATE TABLE much AS {what}" if part == 0 else f"INSERT INTO much {what}")
        followed.catch_up()
    rel = rel_of(pg, "much")
    all_stored(followed)
    server.stop()
    wipe(server)
    objects = store.objects("large")
    stored = sum(objects.values()) // MIB
    print(f"{len(objects)} objects of {stored} MiB")
    assert stored > 2 * (CACHES_MIB + OVERHEAD_MIB), "there must be more than fits into memory"
    return followed, rel


def test_memory_of_a_sequential_reader_is_that_of_the_caches(make_postgres, make_pageserver, make_store):
    followed, rel = cold_layers(make_postgres, make_pageserver, make_store)
    server = followed.pageserver.start()
    idle = server.memory_mib()
    with followed.timeline.stream(timeout=300) as stream:
        blocks = stream.ask(nblocks(rel))
        read = sum(any(page) for page in stream.pipelined((get_page(rel, block) for block in range(blocks)), depth=64))
    assert read == blocks > 30_000
    peak = server.status_of_process("VmHWM") / 1024
    print(f"{blocks} pages, {idle:.0f} MiB at the start, {peak:.0f} MiB at most")
    assert peak <= CACHES_MIB + COMPACTION_MIB + OVERHEAD_MIB
    server.stop()


# A layer's index entries for that many versions of one page, some 50 bytes each with room to grow, and one piece.
LONG_HISTORY_MIB = 64

# Each commit changes the same page, and occasionally prunes it.
HOT = """DO $$ BEGIN FOR n IN 1..400000 LOOP UPDATE one SET i = i + 1; COMMIT; END LOOP; END $$"""


def test_memory_of_a_page_with_a_very_long_history_is_bounded(make_postgres, make_pageserver):
    settings = {"full_page_writes": "off", "synchronous_commit": "off", "checkpoint_timeout": "1h", "autovacuum": "off"}
    pg = make_postgres("hot", max_replication_slots=10, **settings).start()
    server = make_pageserver("hot", **CACHES).start()
    followed = Followed(pg, server, server.follow(pg))
    pg.sql("CREATE TABLE one AS SELECT 1 AS i")
    rel = rel_of(pg, "one")
    pg.sql(HOT)
    followed.catch_up()
    server.stop()
    server.start()
    followed.catch_up()
    idle = server.status_of_process("VmHWM") / 1024
    with followed.timeline.stream(timeout=120) as stream:
        assert any(stream.ask(get_page(rel, 0)))
    peak = server.status_of_process("VmHWM") / 1024
    print(f"{idle:.0f} MiB at the start, {peak:.0f} MiB at most")
    assert peak <= CACHES_MIB + OVERHEAD_MIB + LONG_HISTORY_MIB
    followed.stop_and_compare()
