"""The face for asyncio, against a real pool."""

import asyncio
import os

import pytest

import stdchk
import stdchk.aio


def run(data, work):
    async def all_of_it():
        async with await stdchk.aio.connect(data=data) as pool:
            return await work(pool)

    return asyncio.run(all_of_it())


def test_files_are_written_and_read_at_the_same_time(data, folder):
    async def work(pool):
        own = pool[folder.path]
        await asyncio.gather(*(own.write_bytes(f"{number}", b"%d" % number * 1000) for number in range(16)))
        found = await asyncio.gather(*(own.read_bytes(f"{number}") for number in range(16)))
        assert found == [b"%d" % number * 1000 for number in range(16)]
        assert len(await own.ls()) == 16 and await own.exists("3") and not await own.exists("16")
        file = await own.open("3")
        assert await file.read(4) == b"3333" and file.tell() == 4
        buffer = bytearray(10)
        assert await file.readinto(buffer) == 10 and buffer == b"3" * 10

    run(data, work)


def test_an_exception_gives_the_version_up(data, folder):
    async def work(pool):
        own = pool[folder.path]
        await own.mkdir()
        with pytest.raises(RuntimeError):
            async with own.open("x", "wb") as file:
                await file.write(b"1")
                raise RuntimeError
        assert await own.ls() == []
        async with own.open("x", "wb") as file:
            await file.write(b"12")
        assert file.version == 1
        with pytest.raises(FileNotFoundError):
            await own.read_bytes("nothing")

    run(data, work)


def test_sets_come_back_with_progress(data, folder, tmp_path):
    async def work(pool):
        own = pool[folder.path]
        assert (await own.policy())["redundancy"] == "replicate:2"
        await own.set_policy(naming="restart.{step}.{rank}", ranks=1)
        assert await own.latest() is None
        for timestep in (1, 2):
            await own.write_bytes(f"restart.{timestep}.0", b"state")
        newest = await own.latest()
        assert newest.timestep == "2"
        async with newest.open() as file:
            assert await file.read() == b"state"
        moved = []
        await newest.restore(tmp_path, progress=lambda *done: moved.append(done))
        assert moved[-1] == (5, 5)
        assert [found.timestep async for found in own.watch(every=0.05, timeout=0.1)] == ["2"]
        assert [fate.goes for fate in await own.done(dry_run=True)] == [False, True]
        assert len(await own.sets()) == 2

    run(data, work)


def test_a_cancelled_task_ends_its_operation(data, folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    held = os.open(tmp_path / "pipe", os.O_RDWR)

    async def work(pool):
        own = pool[folder.path]
        await own.mkdir()
        putting = asyncio.create_task(own.put(tmp_path / "pipe", "x"))
        await asyncio.sleep(0.3)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        for _ in range(50):
            if not await own.ls():
                break
            await asyncio.sleep(0.1)
        assert await own.ls() == []

    try:
        run(data, work)
    finally:
        os.close(held)


def test_the_loop_goes_on_while_it_waits(data, folder):
    content = os.urandom(64 << 20)

    async def work(pool):
        own = pool[folder.path]
        ticks = 0
        writing = asyncio.create_task(own.write_bytes("x", content))
        while not writing.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await writing
        assert ticks > 10

    run(data, work)


def test_both_faces_have_the_same_names():
    ours = {
        one.__name__: {name for name in dir(one) if not name.startswith("_")}
        for one in (stdchk.Pool, stdchk.Folder, stdchk.CheckpointSet)
    }
    theirs = {
        one.__name__: {name for name in dir(one) if not name.startswith("_")}
        for one in (stdchk.aio.Pool, stdchk.aio.Folder, stdchk.aio.CheckpointSet)
    }
    assert theirs["Folder"] - ours["Folder"] == {"set_policy"}
    assert {name: ours[name] - theirs[name] for name in ours} == {
        "Pool": set(),
        "Folder": set(),
        "CheckpointSet": {"member"},
    }
