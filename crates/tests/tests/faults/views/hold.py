"""Holds files open and changes them step by step, on the mount and in a plain copy alike.

hold.py FOLDER PLAIN NAME...: one step a line on standard input; `done` is the answer to each.
"""

import mmap
import os
import random
import sys

MIB = 1 << 20
HALF = bytes(byte & 0x0F for byte in range(256))

folders, names = sys.argv[1:3], sys.argv[3:]
files = {}


def content(length, *seed):
    """Bytes that a compressor makes half as long."""
    return random.Random(repr(seed)).randbytes(length).translate(HALF)


def change(step, number, folder, name):
    path = f"{folder}/{name}"
    if step == "open":
        files[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        return
    file = files[path]
    size = os.fstat(file).st_size
    if step == "write":  # in the middle, and far behind the end
        os.pwrite(file, content(5003, name, number), size // 2)
        os.pwrite(file, content(777, name, number, "far"), size + MIB + 5)
    elif step == "large":  # as a job writes checkpoints: in large pieces, here with holes between them
        for place in range(2):
            os.pwrite(file, content(MIB + 3, name, number, place), place * 2 * MIB)
    elif step == "extend":
        os.ftruncate(file, size + MIB + 11)
    elif step == "cut":
        os.ftruncate(file, size * 3 // 4)
    elif step == "map":
        with mmap.mmap(file, size) as mapped:
            mapped[size // 3 : size // 3 + 9] = content(9, name, number)
    elif step == "sync":
        os.fsync(file)
    elif step == "rename":
        os.rename(path, f"{folder}/renamed.{name}")
    elif step == "close":
        os.close(files.pop(path))
    else:
        raise ValueError(step)


for number, line in enumerate(sys.stdin):
    for folder in folders:
        for name in names:
            change(line.strip(), number, folder, name)
    print("done", flush=True)
