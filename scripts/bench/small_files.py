"""Small files made durably: how many a second by one process and by eight, and how long one takes.

Each file is made, gets 4 KiB that no other file has, is synced if asked for, and closed. The idea: all processes begin at
the same moment and go on for the same time; what counts is how many files are there at the end.
"""

import multiprocessing
import os
import statistics
import time

from bench.failure import Failure

BYTES = 4096
PROCESSES = (1, 8)
BEGIN_WITHIN_SECONDS = 60


def measure(folder, processes, seconds, sync):
    """Files a second of all processes together, and the median time of one file, ms."""
    context = multiprocessing.get_context("fork")
    begin, results = context.Barrier(processes), context.Queue()
    writers = [
        context.Process(target=_write, args=(folder, number, seconds, sync, begin, results), daemon=True)
        for number in range(processes)
    ]
    for writer in writers:
        writer.start()
    try:
        found = [results.get(timeout=BEGIN_WITHIN_SECONDS + 10 * seconds) for _ in writers]
    finally:
        for writer in writers:
            writer.join(timeout=seconds)
            writer.kill()
    failed = [one for one in found if isinstance(one, str)]
    if failed:
        raise Failure(f"small files in {folder}: {failed[0]}")
    times = [one for of_writer in found for one in of_writer]
    _compare(folder, len(times))
    return len(times) / seconds, statistics.median(times) * 1e3


def _write(folder, number, seconds, sync, begin, results):
    try:
        content, times = bytearray(os.urandom(BYTES)), []
        begin.wait(BEGIN_WITHIN_SECONDS)
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            content[:8] = len(times).to_bytes(8, "little")
            descriptor = os.open(folder / f"small.N{number}.T{len(times)}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(descriptor, content)
            if sync:
                os.fsync(descriptor)
            os.close(descriptor)
            times.append(time.monotonic() - began)
        results.put(times)
    except OSError as error:
        results.put(str(error))


def _compare(folder, count):
    """All files are there, each as long as it was written."""
    sizes = [entry.stat().st_size for entry in os.scandir(folder)]
    if len(sizes) != count or any(size != BYTES for size in sizes):
        raise Failure(f"{folder} holds {len(sizes)} files of {count} that were written, or some of another length")


def clear(folder):
    for entry in os.scandir(folder):
        os.unlink(entry.path)
