"""Which tensors of a program's state this rank saves, and which bytes a tensor has."""

import ctypes
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stdchk._errors import make
from stdchk._layout import Array
from stdchk.torch import _state

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    **{getattr(torch, name): short for name, short in (
        ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"), ("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"),
    ) if hasattr(torch, name)},
}  # fmt: skip
OF_SHORT = {short: dtype for dtype, short in DTYPES.items()}


@dataclass(frozen=True)
class Shard:
    """The part of a tensor that a rank has: the whole tensor's shape, and where the part begins."""

    of: tuple[int, ...]
    at: tuple[int, ...]


@dataclass
class Kept:
    """A tensor that this rank saves. ``later``: only an optimizer's step changes it, so it may be copied until then."""

    array: Array
    tensor: torch.Tensor
    shard: Shard | None
    later: bool


@dataclass(frozen=True)
class Gathered:
    """A state to be saved: its JSON, the tensors of this rank, and the names of those that ranks have alike or have parts of."""

    tree: Any
    kept: list[Kept]
    alike: list[str]
    sharded: list[str]


def gather(state: dict[str, Any], rank: int, ranks: int, known_alike: Collection[str] = ()) -> Gathered:
    """Takes a state apart. An object with ``state_dict`` stands for what that gives.

    ``known_alike``: parts that the caller knows to be the same on all ranks.
    """
    stepped_at = {pointer for value in state.values() for pointer in _stepped_at(value)}
    alike_at = set(_alike_at(state)) if ranks > 1 else set()
    kept: dict[str, Kept] = {}
    alike: list[str] = []
    sharded: list[str] = []
    known: dict[tuple[Any, ...], str] = {}
    used: set[str] = set()
    # Temporaries stay until all is gathered, or the next one would have the address of one that is gone.
    held: list[torch.Tensor] = []

    def keep(part: str) -> _state.Keep:
        def keeper(name: str, tensor: torch.Tensor) -> str:
            local, shard, is_first = local_part(tensor)
            held.append(local)
            is_alike = ranks > 1 and (part in known_alike or storage_of(local) in alike_at)
            views = (local.is_conj(), local.is_neg())
            same = (local.data_ptr(), local.shape, local.stride(), local.dtype, views, local.device, shard)
            if local.numel() and same in known:
                return known[same]
            while name in used:
                name += "'"
            used.add(name)
            known[same] = name
            if shard is not None:
                sharded.append(name)
            elif is_alike:
                alike.append(name)
            is_mine = is_first if shard is not None else not is_alike or rank == 0
            if is_mine:
                later = storage_of(local) in stepped_at
                kept[name] = Kept(array_of(name, local), local, shard, later)
            return name

        return keeper

    tree = ["d", *([part, _state.flatten(state_of(value), part, keep(part))] for part, value in state.items())]
    return Gathered(tree, list(kept.values()), alike, sharded)


def state_of(value: Any) -> Any:
    """The saved form of a value: of an object its ``state_dict``."""
    return value.state_dict() if hasattr(value, "state_dict") else value


def storage_of(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor's part in this process lies."""
    return int(local_part(tensor.detach())[0].untyped_storage().data_ptr())


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterable[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Each parameter, and the tensors of the optimizer's state that belong to it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            tensors = state.values() if isinstance(state, dict) else ()
            yield parameter, [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]


def _stepped_at(value: Any) -> Iterable[int]:
    """Where the memory lies that a step of this optimizer changes, and nothing before: its parameters and its own state.

    The optimizer is hooked, so the copies are waited for. Parameters of others are copied at once: PyTorch doesn't count the
    changes of fused optimizers and of sharded tensors, so they would not be noticed.
    """
    for parameter, state in _of_optimizer(value) if isinstance(value, torch.optim.Optimizer) else ():
        yield from map(storage_of, [parameter, *state])


def _alike_at(state: dict[str, Any]) -> Iterable[int]:
    """Where plain tensors lie that are the same on all ranks: those of ``DistributedDataParallel``, and an optimizer's of them.

    An optimizer's plain tensors that belong to a sharded parameter, such as its count of steps, are the same as well.
    """
    owned: set[int] = set()
    for value in state.values():
        if isinstance(value, torch.nn.parallel.DistributedDataParallel):
            ignored = set(value.parameters_to_ignore)
            named = value.module.named_parameters(remove_duplicate=False)
            owned |= {storage_of(parameter) for name, parameter in named if name not in ignored}
            if value.broadcast_buffers:
                owned |= {storage_of(buffer) for name, buffer in value.module.named_buffers() if name not in ignored}
    yield from owned
    for value in state.values():
        for parameter, tensors in _of_optimizer(value) if isinstance(value, torch.optim.Optimizer) else ():
            if is_distributed(parameter) or storage_of(parameter) in owned:
                yield from (storage_of(tensor) for tensor in tensors if not is_distributed(tensor))


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether it is a ``DTensor``."""
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, Shard | None, bool]:
    """The part of a tensor that this process has; which part that is; and whether no rank before this one has it."""
    if not is_distributed(tensor):
        if tensor.layout != torch.strided or tensor.is_quantized:
            cause = f"a tensor of layout {tensor.layout} is not saved"
            raise make({"code": "invalid", "object": "state", "cause": cause, "next_step": "save its dense parts"}, [])
        return tensor.detach(), None, True
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as Sharded
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placed: Any = tensor
    if not all(isinstance(place, Replicate | Sharded) for place in placed.placements):
        cause = f"a tensor that is placed as {placed.placements} is not saved"
        raise make({"code": "invalid", "object": "state", "cause": cause, "next_step": "redistribute it as shards"}, [])
    shape, offset = compute_local_shape_and_global_offset(placed.shape, placed.device_mesh, placed.placements)
    coordinate = placed.device_mesh.get_coordinate()
    is_first = coordinate is not None and all(
        at == 0 for at, place in zip(coordinate, placed.placements, strict=True) if isinstance(place, Replicate)
    )
    local = placed.to_local().detach()
    is_first = is_first and local.numel() > 0
    return local.reshape(tuple(shape)), Shard(tuple(placed.shape), tuple(offset)), is_first


def array_of(name: str, tensor: torch.Tensor) -> Array:
    """The tensor's entry in a file."""
    short = DTYPES.get(tensor.dtype)
    if short is None:
        cause = f"tensors of {tensor.dtype} are not saved"
        raise make({"code": "invalid", "object": name, "cause": cause, "next_step": "save it as another type"}, [])
    return Array(name, short, tuple(tensor.shape))


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the host, to be written to."""
    return memoryview((ctypes.c_ubyte * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())).cast("B")
