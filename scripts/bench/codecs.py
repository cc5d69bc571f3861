"""Compressors of numbers from the Python world, each run over the files of a set in a process of its own.

    python codecs.py PEER FOLDER      prints rows as JSON: the files one by one, and one behind the other

Relies on the packages of scripts/requirements-peers.txt, which only the chosen peer imports. The idea: none of them knows
formats, so each sees plain numbers of every width that it takes, and the width that it does best with counts. What comes
back is compared byte by byte.
"""

import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path


class Blosc2:
    name, package, widths = "blosc2", "blosc2", (2, 4, 8)
    how = "shuffle, zstd at level 5, one thread"

    def __init__(self):
        import blosc2

        blosc2.set_nthreads(1)
        self.library = blosc2

    def pack(self, data, width):
        library = self.library
        return library.compress2(data, typesize=width, codec=library.Codec.ZSTD, clevel=5,
                                 filters=[library.Filter.SHUFFLE], nthreads=1)  # fmt: skip

    def unpack(self, packed, _width):
        return self.library.decompress2(packed, nthreads=1)


class Numbers:
    """Takes whole numbers; the bytes behind the last one are kept as they are."""

    def __init__(self):
        import numpy

        self.numpy = numpy

    def pack(self, data, width):
        whole = len(data) // width * width
        numbers = self.numpy.frombuffer(data, self.types[width], whole // width).copy()
        return self.pack_numbers(numbers), data[whole:]

    def unpack(self, packed, _width):
        numbers, tail = packed
        return self.unpack_numbers(numbers).tobytes() + tail


class Pcodec(Numbers):
    name, package, widths = "pcodec", "pcodec", (2, 4, 8)
    how = "level 8, its default"
    types = {2: "<u2", 4: "<f4", 8: "<f8"}

    def __init__(self):
        super().__init__()
        from pcodec import ChunkConfig, standalone

        self.library, self.config = standalone, ChunkConfig()

    def pack_numbers(self, numbers):
        return self.library.simple_compress(numbers, self.config)

    def unpack_numbers(self, packed):
        return self.library.simple_decompress(packed)


class Fpzip(Numbers):
    name, package, widths = "fpzip", "fpzip", (4, 8)
    how = "without loss, one dimension"
    types = {4: "<f4", 8: "<f8"}

    def __init__(self):
        super().__init__()
        import fpzip

        self.library = fpzip

    def pack_numbers(self, numbers):
        return self.library.compress(numbers, precision=0, order="C")

    def unpack_numbers(self, packed):
        return self.library.decompress(packed, order="C")


class Zipnn:
    name, package, widths = "zipnn", "zipnn", (2, 4)
    how = "zstd over groups of bytes, one thread"

    def __init__(self):
        import zipnn

        self.library = zipnn

    # A new one for each call: decompressing leaves settings behind that compressing trips over.
    def pack(self, data, width):
        return self.library.ZipNN(bg_partitions=width, zstd_threads=1).compress(data)

    def unpack(self, packed, width):
        return self.library.ZipNN(bg_partitions=width, zstd_threads=1).decompress(packed)


PEERS = {peer.name: peer for peer in (Blosc2, Pcodec, Fpzip, Zipnn)}


def length(packed):
    """Bytes of what was packed."""
    return sum(map(len, packed)) if isinstance(packed, tuple) else len(packed)


def measured(name, width, pieces):
    """Bytes and processor seconds of pieces with one width; what doesn't come back is an error."""
    peer = PEERS[name]()
    stored, packing, unpacking = 0, 0.0, 0.0
    for piece in pieces:
        began = time.process_time()
        packed = peer.pack(piece, width)
        middle = time.process_time()
        back = peer.unpack(packed, width)
        unpacking += time.process_time() - middle
        packing += middle - began
        if bytes(back) != piece:
            raise ValueError(f"numbers of {width} bytes don't come back as they were")
        stored += length(packed)
    return {"width": width, "stored_bytes": stored, "pack_cpu_seconds": packing, "unpack_cpu_seconds": unpacking}


def best(name, pieces):
    """The width with the fewest bytes, of those that come back. Each has a process of its own, as some crash."""
    done, failed = [], []
    for width in PEERS[name].widths:
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
                done.append(process.submit(measured, name, width, pieces).result())
        except Exception as failure:  # whatever a peer raises is its refusal
            failed.append(f"{type(failure).__name__}: {failure}")
    return min(done, key=lambda row: row["stored_bytes"]) if done else {"refused": "; ".join(failed)}


def rows(name, folder):
    """One row for the files one by one, one for all of them in a row."""
    peer = PEERS[name]
    files = [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size]
    said = {"name": name, "how": f"{peer.how}, {metadata.version(peer.package)}", "raw_bytes": sum(map(len, files))}
    return [
        said | {"of": "files"} | best(name, files),
        said | {"of": "concatenation"} | best(name, [b"".join(files)]),
    ]


if __name__ == "__main__":
    print(json.dumps(rows(sys.argv[1], Path(sys.argv[2]))))
