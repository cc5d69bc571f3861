"""Files of checkpoints: safetensors, laid out so that a tensor that didn't change is stored once.

A tensor of a chunk or more begins at a chunk of its own, wherever it stood before; between tensors lie holes, which the pool does
not store. A hole belongs to a tensor ``__stdchk_hole.N``, since safetensors wants every byte to belong to one. Smaller tensors
stand one behind the other, in front. All but tensors is JSON in ``__metadata__``. Nothing is pickled.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stdchk._agent import Piece
from stdchk._errors import DamagedError, make

CHUNK_BYTES = 1 << 20
"""Tensors of this size or more are aligned to it: the pool's own chunk size, or a multiple of it."""
HEADER_ALIGN = 4096
REGION_ALIGN = 64
HEADER_BYTES_MAX = 100 << 20
"""As the safetensors library has it."""
HOLE = "__stdchk_hole."
ABOUT = "__metadata__"

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Array:
    """A tensor of a file: its name, its type as safetensors has it, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @cached_property
    def bytes(self) -> int:
        """Its size."""
        count = ITEM_BYTES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class Layout:
    """Where everything lies. ``regions``: offset of each tensor in the region, by its name."""

    header: bytes
    regions: dict[str, int]
    region_bytes: int
    pieces: list[Piece]
    length: int


def _up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def lay_out(arrays: Iterable[Array], about: dict[str, str]) -> Layout:
    """Lays the tensors out. ``about`` becomes ``__metadata__``."""
    arrays = list(arrays)
    for array in arrays:
        if array.name == ABOUT or array.name.startswith(HOLE):
            cause, next_step = "files of safetensors use this name themselves", "give the tensor another name"
            raise make({"code": "invalid", "object": array.name, "cause": cause, "next_step": next_step}, [])
    small = sorted(
        (array for array in arrays if array.bytes < CHUNK_BYTES), key=lambda array: (-ITEM_BYTES[array.dtype], array.name)
    )
    large = sorted((array for array in arrays if array.bytes >= CHUNK_BYTES), key=lambda array: array.name)
    # The offsets in the header are relative to its end, which depends on the length of the header. With a generous first guess
    # the second turn always fits.
    room = 0
    while True:
        header, offsets, end = _header(small, large, about, room)
        if len(header) <= room:
            break
        room = _up(len(header) + HEADER_ALIGN // 2, HEADER_ALIGN)
    header = header[:8] + header[8:].ljust(room - 8)
    header = (room - 8).to_bytes(8, "little") + header[8:]
    if room > HEADER_BYTES_MAX:
        raise ValueError(f"the names and shapes of {len(arrays)} tensors take more than {HEADER_BYTES_MAX} bytes")
    regions: dict[str, int] = {}
    pieces = [Piece(0, 0, room)]
    at = _up(room, REGION_ALIGN)
    if small:
        begin = at
        for array in small:
            regions[array.name] = at
            at += array.bytes
        if at > begin:
            pieces.append(Piece(room + offsets[small[0].name], begin, at - begin))
    for array in large:
        at = _up(at, REGION_ALIGN)
        regions[array.name] = at
        pieces.append(Piece(room + offsets[array.name], at, array.bytes))
        at += array.bytes
    return Layout(header, regions, at, pieces, room + end)


def _header(small: list[Array], large: list[Array], about: dict[str, str], room: int) -> tuple[bytes, dict[str, int], int]:
    """The header if it took ``room`` bytes: its text, where each tensor lies behind it, and the end of the last one."""
    entries: dict[str, Any] = {ABOUT: about}
    offsets: dict[str, int] = {}
    at = 0
    for array in small + large:
        if array.bytes >= CHUNK_BYTES and (room + at) % CHUNK_BYTES:
            begin = _up(room + at, CHUNK_BYTES) - room
            entries[f"{HOLE}{len(entries)}"] = {"dtype": "U8", "shape": [begin - at], "data_offsets": [at, begin]}
            at = begin
        offsets[array.name] = at
        entries[array.name] = {"dtype": array.dtype, "shape": list(array.shape), "data_offsets": [at, at + array.bytes]}
        at += array.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text, offsets, at


@dataclass(frozen=True)
class Stored:
    """A tensor of a file that is there: ``begin`` is its offset in the file."""

    array: Array
    begin: int


def read_header(first: bytes, name: str) -> int:
    """The bytes of the header behind the first eight, which are ``first``."""
    length = int.from_bytes(first, "little")
    if len(first) != 8 or length > HEADER_BYTES_MAX:
        raise damaged(name, "its header is no header of safetensors")
    return length


def parse(text: bytes, size: int, name: str) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of a file by their names, and its metadata, from the text of its header. ``size``: bytes of the file."""
    try:
        entries = json.loads(text)
        about = {str(key): str(value) for key, value in entries.pop(ABOUT, {}).items()}
        found = {}
        for key, entry in entries.items():
            if key.startswith(HOLE):
                continue
            array = Array(key, entry["dtype"], tuple(int(extent) for extent in entry["shape"]))
            begin, end = (int(offset) for offset in entry["data_offsets"])
            if min(array.shape, default=0) < 0 or not 0 <= begin <= end or end - begin != array.bytes:
                raise damaged(name, f"tensor {key!r} has {end - begin} bytes, and shape {array.shape} of {array.dtype}")
            if 8 + len(text) + end > size:
                raise damaged(name, f"tensor {key!r} ends behind the file")
            found[key] = Stored(array, 8 + len(text) + begin)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, DamagedError):
            raise
        raise damaged(name, f"its header can't be read: {error}") from error
    return found, about


def damaged(name: str, cause: str) -> Exception:
    """The error of a file that can't be used."""
    return make({"code": "damaged", "object": name, "cause": cause, "next_step": "an older set is taken, if there is one"}, [])
