"""Reads files in the ways of one process, and says where one of them differs from a plain copy on the local disk.

look.py FOLDER PLAIN: every file of PLAIN has a file of its name in FOLDER.
"""

import errno
import mmap
import os
import sys

PIECE = 70_001  # bytes of one pread(): it begins and ends within chunks, pieces and pages

folder, plain = sys.argv[1:]
wrong = []


def compare(way, name, got, expected):
    if got == expected:
        return
    shorter = min(len(got), len(expected))
    first = next((at for at in range(shorter) if got[at] != expected[at]), shorter)
    wrong.append(f"{way}: {name}: {len(got)} bytes of {len(expected)}, other ones from {first} on")


def has_data(content):
    return content != bytes(len(content))


def seek(file, at, whence):
    try:
        return os.lseek(file, at, whence)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def backwards(file, size):
    read = bytearray(size)
    for start in range(size // PIECE * PIECE, -1, -PIECE):
        piece = os.pread(file, PIECE, start)
        read[start : start + len(piece)] = piece
    return read


def data_alone(name, file, size):
    """What a program has that reads what SEEK_DATA shows, and takes the rest for zeros."""
    read, at = bytearray(size), 0
    while (data := seek(file, at, os.SEEK_DATA)) is not None:
        end = seek(file, data, os.SEEK_HOLE)
        if end is None or end <= data or data < at or end > size:
            wrong.append(f"SEEK_HOLE: {name}: data from {data} to {end}, sought from {at} on")
            break
        while data < end:
            piece = os.pread(file, end - data, data)
            if not piece:
                wrong.append(f"SEEK_DATA: {name}: byte {data} can't be read")
                break
            read[data : data + len(piece)] = piece
            data += len(piece)
        at = end
    return read


def check_holes(name, file, expected):
    """From anywhere, what is passed over to the next data is zeros, and so is the byte where a hole begins."""
    size = len(expected)
    for at in filter(range(size).__contains__, {0, 1, size // 3, size // 2, size - 1}):
        data = seek(file, at, os.SEEK_DATA)
        if has_data(expected[at : size if data is None else data]):
            wrong.append(f"SEEK_DATA: {name}: {data} from {at} on, which passes over data")
        hole = seek(file, at, os.SEEK_HOLE)
        if hole is None or not at <= hole <= size or hole < size and expected[hole]:
            wrong.append(f"SEEK_HOLE: {name}: {hole} from {at} on, which is none")
    if seek(file, size, os.SEEK_DATA) is not None:
        wrong.append(f"SEEK_DATA: {name}: data behind the end")


for name in sorted(os.listdir(plain)):
    with open(f"{plain}/{name}", "rb") as source:
        expected = source.read()
    about = os.stat(f"{folder}/{name}")
    if about.st_size != len(expected):
        wrong.append(f"stat: {name}: {about.st_size} bytes of {len(expected)}")
    if about.st_blocks == 0 and has_data(expected):
        wrong.append(f"stat: {name}: no blocks, and there are data")
    with open(f"{folder}/{name}", "rb", buffering=0) as file:
        compare("SEEK_DATA", name, data_alone(name, file.fileno(), len(expected)), expected)
        check_holes(name, file.fileno(), expected)
        compare("pread", name, backwards(file.fileno(), len(expected)), expected)
        file.seek(0)
        compare("read", name, file.readall(), expected)
        # Nothing can't be mapped, on any file system.
        if expected:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                compare("mmap", name, mapped[:], expected)
print("\n".join(wrong))
