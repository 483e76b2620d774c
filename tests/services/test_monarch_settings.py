"""What importing Monarch with this package's settings changes in a process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import zorplex_rl.services.monarch_settings
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    bytes(bytearray(4 << 20))
before = faults()
for _ in range(50):
    bytes(bytearray(4 << 20))
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_a_freed_message_leaves_its_memory_for_the_next_one():
    """Given back to the system, each of fifty messages would fault its 1024 pages in anew."""
    said = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(said.stdout.split()[-1]) < 1024
