#!/usr/bin/env python3
"""Runs a command while an S3 server of its own answers on loopback; the environment tells the command where.

BENCH_S3_KIND says which: weed (SeaweedFS, the default) or versity (versitygw). BENCH_S3_DIR says where its
data is, such as in memory; by default where temporary files are.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "test_runner"))

from fixtures.s3 import BUCKET, KEY, KINDS, SECRET  # noqa: E402

NAMES = {"weed": "SeaweedFS", "versity": "versitygw"}


def main() -> int:
    kind = os.environ.get("BENCH_S3_KIND", "weed")
    with tempfile.TemporaryDirectory(prefix="bench-s3-", dir=os.environ.get("BENCH_S3_DIR")) as place:
        server = KINDS[kind](Path(place) / kind).start()
        try:
            environment = {
                **os.environ, "BENCH_S3_ENDPOINT": server.endpoint(), "BENCH_S3_BUCKET": BUCKET,
                "BENCH_S3_SERVER": NAMES[kind], "BENCH_S3_PID": str(server.process.pid),
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            }
            return subprocess.run(sys.argv[1:], env=environment).returncode
        finally:
            server.destroy()


if __name__ == "__main__":
    sys.exit(main())
