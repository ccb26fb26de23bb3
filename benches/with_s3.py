#!/usr/bin/env python3
"""Runs a command while a private S3 server answers on loopback; environment variables give the command its address.

BENCH_S3_KIND selects the server: weed (SeaweedFS, the default) or versity (versitygw). BENCH_S3_DIR selects where its
data is, such as in memory; by default it is with the temporary files.
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
