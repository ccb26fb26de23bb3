"""Somebody has removed, overwritten or restored objects: that is detected, reported, and repaired by what the message
says."""

import json
import subprocess
import time

import pytest

from fixtures.followed import follow_new
from fixtures.http import HttpError
from fixtures.stored import QUICK, all_stored, wipe
from fixtures.wait import wait_until

# What a server logs about it.
DAMAGE = (
    r"(WARN|ERROR).*(index part|chain of generations|cannot be opened|cannot be attached|a scrub has found"
    r"|was damaged or missing, and is made anew)"
)


class Bucket:
    """A followed server that was stopped, and the directory that its pageserver uses as the bucket."""

    def __init__(self, followed, store, prefix: str, pagectl):
        self.followed, self.root, self.pagectl = followed, store.root / prefix, pagectl
        self.lsn = all_stored(followed)
        followed.pageserver.stop()

    def index_parts(self):
        return sorted(self.root.glob(f"tenants/*/timelines/{self.followed.timeline.id}/index_part-*"))

    def layer_lists(self):
        return sorted(self.root.glob(f"tenants/*/timelines/{self.followed.timeline.id}/layers-*"))

    def generations(self):
        return sorted(self.root.glob("tenants/*/generations/*"))

    def start_on_an_empty_disk(self):
        server = self.followed.pageserver
        server.allow(DAMAGE)
        wipe(server)
        server.start()

    def scrub(self, *args) -> tuple[int, dict]:
        server = f"http://127.0.0.1:{self.followed.pageserver.http_port}"
        command = [self.pagectl, "--server", server, "--json", "scrub", "--running", *args]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
        return done.returncode, json.loads(done.stdout)

    def is_not_served(self) -> str:
        with pytest.raises(HttpError) as refused:
            self.followed.timeline.info()
        assert refused.value.status == 503, refused.value
        return str(refused.value)

    def all_is_served(self):
        report = self.followed.assert_files_equal(self.lsn)
        self.followed.pageserver.stop()
        return report


@pytest.fixture
def bucket(make_postgres, make_pageserver, make_store, pagectl_binary, request):
    name = request.node.name.removeprefix("test_")[:30]
    store = make_store("directory")
    settings = {**QUICK, **store.settings(name), "checkpoint_distance": 1 << 20, "compaction_threshold": 2}
    followed = follow_new(make_postgres, make_pageserver, name, settings=settings)
    for _ in range(2):
        followed.postgres.bench(500)
        followed.catch_up()
        followed.pageserver.http.put(f"{followed.timeline.path}/checkpoint")
    done = followed.pageserver.http.put(f"{followed.timeline.path}/compact")
    assert done["sort"]["jobs"] > 0 or followed.timeline.info()["compaction"]["sort"]["jobs"] > 0, done
    yield Bucket(followed, store, name, pagectl_binary)
    if followed.pageserver.is_running():
        followed.pageserver.stop()


def test_an_index_part_that_was_removed(bucket):
    assert len(bucket.layer_lists()) == 1, "its layers were compacted, and one list of them is kept"
    for path in bucket.index_parts():
        path.unlink()
    bucket.start_on_an_empty_disk()
    said = bucket.is_not_served()
    assert "index part is gone" in said and "--repair-bucket" in said, said
    code, found = bucket.scrub()
    assert code != 0 and not found["sound"], found
    code, found = bucket.scrub("--repair-bucket")
    assert code == 0 and found["sound"], found
    print(bucket.all_is_served(), found["tenants"][0]["findings"])


def test_an_older_index_part_that_was_put_back(bucket):
    server, postgres = bucket.followed.pageserver, bucket.followed.postgres
    server.start()
    postgres.start()
    # WAL that a server writes at its end is lost to whoever does not follow it yet.
    bucket.followed.wait_for_receiver("streaming")
    bucket.lsn = all_stored(bucket.followed)
    (path,) = bucket.index_parts()
    older = path.read_bytes()
    postgres.start()
    postgres.bench(500)
    bucket.lsn = all_stored(bucket.followed)
    assert path.read_bytes() != older
    server.stop()
    time.sleep(2.1)
    path.write_bytes(older)
    bucket.start_on_an_empty_disk()
    said = bucket.is_not_served()
    assert "somebody has put back" in said, said
    code, found = bucket.scrub("--repair-bucket")
    assert code == 0 and found["sound"], found
    print(bucket.all_is_served(), found["tenants"][0]["findings"])


def test_a_list_of_layers_that_was_damaged(bucket):
    """Nothing needs it now, but a lost index part would."""
    # Each job has another list written.
    bucket.followed.pageserver.configure(compaction_threshold=0)
    bucket.start_on_an_empty_disk()
    own = lambda: [path for path in bucket.layer_lists() if path.name.startswith("layers-00000002-")]
    (path,) = wait_until(lambda: own() if own() == bucket.layer_lists() else None, 30, what="a list by the new owner")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, found = bucket.scrub()
    assert code != 0 and path.name in json.dumps(found), found
    code, found = bucket.scrub("--repair-bucket")
    assert code == 0 and found["sound"], found
    bucket.all_is_served()


@pytest.mark.parametrize("damage", ["removed", "overwritten"])
def test_generations(bucket, damage):
    newest = bucket.generations()[-1]
    if damage == "removed":
        newest.unlink()
    else:
        newest.write_bytes(b"{}")
    bucket.start_on_an_empty_disk()
    said = bucket.is_not_served()
    assert "chain of generations is damaged" in said and "AttachedSingle" in said, said
    server, tenant = bucket.followed.pageserver, bucket.followed.timeline.tenant
    assert server.http.get(f"/v1/tenant/{tenant}")["state"]["slug"] == "Broken"
    code, found = bucket.scrub("--repair-bucket")
    assert code != 0 and not found["sound"], found
    server.http.put(f"/v1/tenant/{tenant}/location_config", {"mode": "AttachedSingle"})
    code, found = bucket.scrub()
    assert code == 0 and found["sound"], found
    print(bucket.all_is_served())


def test_a_server_is_followed_after_damage_of_the_manifest(bucket):
    """Where WAL comes from is in the manifest, and in the bucket."""
    followed = bucket.followed
    server, manifest = followed.pageserver, followed.timeline.dir() / "manifest"
    server.allow(r"WARN.*manifest.*what the bucket has is taken instead")
    followed.postgres.start()
    for damage in ("flipped", "removed"):
        if damage == "flipped":
            content = bytearray(manifest.read_bytes())
            content[70] ^= 1
            manifest.write_bytes(content)
        else:
            manifest.unlink()
        server.start()
        followed.postgres.bench(200)
        followed.catch_up()
        followed.wait_for_receiver("streaming")
        following = [value for name, value in server.http.metrics().items() if "walreceiver_following" in name]
        assert following == [1.0], following
        server.stop()
    server.start()
    followed.stop_and_compare()
    not_following = lambda: [0.0] == [v for n, v in server.http.metrics().items() if "walreceiver_following" in n]
    wait_until(not_following, 30, what="the metric of a server that is not there")
