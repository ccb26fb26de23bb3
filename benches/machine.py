"""What stands above the tables of every report: when, of what, where, and by which command."""

import os
import platform
import subprocess
from datetime import date


def machine(command, *more):
    names = (line for line in open("/proc/cpuinfo") if line.startswith("model name"))
    model = next((line.split(":", 1)[1].strip() for line in names), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    yield from (f"* date: {date.today()}", f"* commit: {commit}", f"* machine: {os.cpu_count()} cores, {model}",
                f"* kernel: {platform.release()}", f"* command: {command}", *more, "")
