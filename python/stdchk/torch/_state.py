"""The state of a program as JSON and tensors: dictionaries, lists, tuples, numbers, texts, bytes; nothing is pickled unasked.

A value that JSON has no form for becomes a list with a mark in front: ``["d", [key, value], …]`` a dictionary, ``["l", …]`` a
list, ``["t", …]`` a tuple, ``["x", name]`` a tensor, ``["p", name]`` the pickle of a :class:`Pickled`, ``["f", text]`` a number
that is not finite, ``["b", text]`` bytes, ``["dtype", name]`` a type of PyTorch.
"""

import base64
import enum
import io
import math
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from stdchk._errors import Error, make


class Pickled:
    """An object that is saved by ``pickle``, since its user says so. Loading it runs code of whoever wrote the checkpoint."""

    def __init__(self, value: Any) -> None:
        self.value = value


Keep = Callable[[str, torch.Tensor], str]
"""Takes a tensor and the name that it should have; the name that it has."""


def flatten(value: Any, path: str, keep: Keep) -> Any:
    """The JSON of a value whose tensors are kept apart. ``path`` names it in errors, and the tensors below."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, torch.Tensor):
        return ["x", keep(path, value)]
    if isinstance(value, enum.Enum) or hasattr(value, "_fields"):
        raise _refused(path, value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ["f", repr(float(value))]
    if isinstance(value, bytes | bytearray):
        return ["b", base64.b64encode(value).decode()]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, Pickled):
        content = io.BytesIO()
        pickle.dump(value.value, content)
        return ["p", keep(path, torch.frombuffer(content.getbuffer(), dtype=torch.uint8).clone())]
    if isinstance(value, dict):
        below = ([flatten(key, path, keep), flatten(held, f"{path}.{key}", keep)] for key, held in value.items())
        return ["c" if isinstance(value, Counter) else "d", *below]
    if isinstance(value, list | tuple):
        mark = "l" if isinstance(value, list) else "t"
        return [mark, *(flatten(held, f"{path}.{number}", keep) for number, held in enumerate(value))]
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return _flatten_array(value, path, keep)
    raise _refused(path, value)


def _flatten_array(value: Any, path: str, keep: Keep) -> Any:
    """An array of numpy, or a number of it."""
    try:
        return ["n", keep(path, torch.as_tensor(value).clone())]
    except (TypeError, ValueError) as error:
        raise _refused(path, value) from error


def _refused(path: str, value: Any) -> Exception:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    next_step = "give its numbers and tensors instead, or say `stdchk.torch.Pickled(value)` to have it pickled"
    return make(
        {"code": "invalid", "object": path, "cause": f"a {kind} is no tensor and no plain value", "next_step": next_step}, []
    )


def rebuild(tree: Any, tensor: Callable[[str], torch.Tensor]) -> Any:
    """The value that :func:`flatten` took apart; ``tensor`` gives those of a name."""
    if not isinstance(tree, list):
        return tree
    mark, *rest = tree
    match mark:
        case "d":
            return {_key(rebuild(key, tensor)): rebuild(value, tensor) for key, value in rest}
        case "c":
            return Counter({_key(rebuild(key, tensor)): rebuild(value, tensor) for key, value in rest})
        case "l":
            return [rebuild(value, tensor) for value in rest]
        case "t":
            return tuple(rebuild(value, tensor) for value in rest)
        case "x":
            return tensor(rest[0])
        case "n":
            return tensor(rest[0]).numpy()
        case "p":
            return pickle.loads(tensor(rest[0]).numpy().tobytes())
        case "f":
            return float(rest[0])
        case "b":
            return base64.b64decode(rest[0])
        case "dtype":
            return getattr(torch, rest[0])
    raise ValueError(f"a checkpoint has a value of kind {mark!r}, which this version of stdchk does not know")


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def names(tree: Any) -> list[str]:
    """The names of all tensors in a tree, in its order."""
    if not isinstance(tree, list):
        return []
    mark, *rest = tree
    if mark in ("x", "n", "p"):
        return [rest[0]]
    if mark in ("d", "c"):
        return [name for pair in rest for part in pair for name in names(part)]
    return [name for value in rest for name in names(value)] if mark in ("l", "t") else []


def no_tensors(name: str) -> torch.Tensor:
    """For values that have none."""
    raise ValueError(f"a value that should have no tensors has {name!r}")


def with_pickled(value: Any) -> Any:
    """A value with :class:`Pickled` around what has no other form."""
    if isinstance(value, dict):
        return {key: with_pickled(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        held = [with_pickled(one) for one in value]
        return held if isinstance(value, list) else tuple(held)
    try:
        flatten(value, "", lambda name, _: name)
    except Error:
        return Pickled(value)
    return value


def has_pickled(tree: Any) -> bool:
    """Whether rebuilding it runs code of whoever wrote it."""
    if not isinstance(tree, list):
        return False
    mark, *rest = tree
    if mark in ("d", "c"):
        return any(has_pickled(part) for pair in rest for part in pair)
    return mark == "p" or (mark in ("l", "t") and any(map(has_pickled, rest)))
