"""Dataclasses as JSON data and back, without loss: tuples, None, and NumPy arrays."""

from __future__ import annotations

import base64
import zlib
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

PLAIN = 64
"""Arrays up to this size are written as numbers, larger ones as compressed base64."""


def encoded(value: Any) -> Any:
    """A dataclass and all it holds as JSON data."""
    if isinstance(value, np.ndarray):
        if value.size <= PLAIN:
            return {"shape": list(value.shape), "type": value.dtype.str, "numbers": value.ravel().tolist()}
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes(), 1)).decode("ascii")
        return {"shape": list(value.shape), "type": value.dtype.str, "base64": data}
    if is_dataclass(value):
        return {f.name: encoded(getattr(value, f.name)) for f in fields(value)}
    return [encoded(v) for v in value] if isinstance(value, tuple) else value


def decoded(kind: Any, plain: Any) -> Any:
    """The value of this type from `encoded` data; of a dataclass, missing fields have their defaults.

    Raises ValueError, TypeError, LookupError or AttributeError for other data.
    """
    origin, args = get_origin(kind), get_args(kind)
    if plain is None:
        return None
    if origin in (Union, UnionType):
        return decoded(next(one for one in args if one is not NoneType), plain)
    if origin is tuple:
        kinds = repeat(args[0]) if args[-1] is Ellipsis else args
        return tuple(decoded(one, v) for one, v in zip(kinds, plain))  # noqa: B905
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        return kind(**{name: decoded(types[name], plain[name]) for name in types if name in plain})
    return _array(plain) if _is_array(kind) else plain


@cache
def _types(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, cached: resolving them takes longer than reading a state."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _is_array(kind: Any) -> bool:
    """Whether the annotated type is an array: from NumPy 2.5 on, `NDArray` is an alias of that type."""
    origin = get_origin(kind)
    return (get_origin(getattr(origin, "__value__", None)) or origin) is np.ndarray


def _array(plain: dict[str, Any]) -> Any:
    kind = np.dtype(plain["type"])
    if "numbers" in plain:
        return np.array(plain["numbers"], dtype=kind).reshape(plain["shape"])
    try:
        content = zlib.decompress(base64.b64decode(plain["base64"]))
    except zlib.error as error:
        raise ValueError(f"damaged array: {error}") from error
    return np.frombuffer(content, dtype=kind).reshape(plain["shape"])
