#!/usr/bin/env python3
"""How fast memory can be used for the first time, and again: a virtual machine whose host takes free memory back pays
for each page that nobody has used for some seconds, and a benchmark that needs some GiB measures that as well.

Touches each page of so many GiB, frees all of it, and does the same at once and after a pause.
"""

import argparse
import mmap
import time

MIB = 1 << 20
STEP = 256 * MIB
PAGE = mmap.PAGESIZE


def touch(size: int) -> list[float]:
    """Touches `size` bytes of fresh memory, and frees them; MiB/s of each quarter of a GiB."""
    rates = []
    with mmap.mmap(-1, size) as memory:
        for start in range(0, size, STEP):
            began = time.monotonic()
            end = min(start + STEP, size)
            for at in range(start, end, PAGE):
                memory[at] = 1
            rates.append((end - start) / MIB / (time.monotonic() - began))
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4, help="memory to use; must be free")
    parser.add_argument("--pause", type=float, default=60, help="seconds until the third time")
    args = parser.parse_args()
    for when, pause in (("first", 0), ("at once again", 0), (f"{args.pause:.0f} s later", args.pause)):
        time.sleep(pause)
        rates = touch(int(args.gib * (1 << 30)))
        print(f"{when}: {args.gib * 1024 / sum(STEP / MIB / rate for rate in rates):.0f} MiB/s, "
              f"slowest and fastest quarter of a GiB {min(rates):.0f} and {max(rates):.0f}")


if __name__ == "__main__":
    main()
