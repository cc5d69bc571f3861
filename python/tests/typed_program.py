"""A user's program, which `mypy --strict` accepts as it stands."""

import stdchk
import stdchk.aio


def resume(path: str) -> int:
    with stdchk.connect() as pool:
        heat = pool["heat"]
        heat.policy["naming"] = "restart.{step}.{rank}"
        newest = heat.latest(wait=60)
        if newest is None:
            return 0
        restored: stdchk.Restored = newest.restore(path, progress=lambda done, total: print(done, total))
        with newest.open(rank=0) as file:
            head: bytes = file.read(8)
        with heat.open("restart.7.0", "wb") as new:
            new.write(head)
        try:
            heat.remove("nothing")
        except stdchk.NotFoundError as error:
            print(error.code, error.object, error.cause, error.next_step)
        return restored.bytes


async def sizes() -> list[int]:
    pool = await stdchk.aio.connect()
    async with pool, pool["heat"].open("x", "wb") as file:
        await file.write(b"1")
    return [entry.size for entry in await pool["heat"].ls()]
