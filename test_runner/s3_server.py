"""`python test_runner/s3_server.py weed DIR`: an S3 server on loopback with a bucket, until standard input ends.

Prints the pageserver settings for it, one `key=value` per line, then an empty line.
"""

import sys
from pathlib import Path

from fixtures.s3 import KINDS


def main(kind: str, place: str):
    server = KINDS[kind](Path(place))
    try:
        server.start()
        for name, value in server.settings("demo").items():
            print(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
        print(flush=True)
        sys.stdin.read()
    finally:
        server.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
