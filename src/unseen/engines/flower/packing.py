"""Tensors as bytes in Flower's ConfigRecords, and back: exact, and nothing that the sender claims is believed.

Flower moves every object of a message (the message itself, its RecordDict, each record, each array, each piece of an
array) by requests of its own, four times on its way, and each costs the SuperLink several transactions. So the tensors
of one kind are one string of bytes, in the message's first record if there is room, and their names, dtypes and shapes
are the form beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from unseen.core.types import Tensors

PIECE = 10 * 2**20  # bytes in one record: nginx.conf lets 16 MB through
MOST_AXES = 16
MOST_LETTERS = 500  # of what a site says
REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*REAL, *WHOLE, torch.bool)}


class Unreadable(Exception):
    """A message that is not one: the sentence says what is wrong with it. A site's own words in it may be megabytes."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence[:MOST_LETTERS])


@dataclass(frozen=True)
class Packed:
    """Some tensors: their form as JSON, and their numbers."""

    form: str
    data: bytes

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Packed:
        rows = [(name, str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in tensors.items()]
        parts: dict[str, list[Tensor]] = {dtype: [] for dtype in _in_order(dtype for _, dtype, _ in rows)}
        for (_, dtype, _), value in zip(rows, tensors.values(), strict=True):
            parts[dtype].append(value.detach().cpu().reshape(-1).view(torch.uint8))
        return cls(json.dumps(rows), torch.cat([part for same in parts.values() for part in same]).numpy().tobytes())


class Packer:
    """Packs each set of tensors once: what goes to all clients is written a single time."""

    def __init__(self) -> None:
        self._done: dict[tuple[tuple[str, int], ...], tuple[list[Tensor], Packed]] = {}

    def put(self, content: RecordDict, first: ConfigRecord, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """The form into the message's first record, the bytes too if they fit in, else into records of their own."""
        if not tensors:
            return
        key = tuple((name, id(value)) for name, value in tensors.items())
        if key not in self._done:
            # The tensors are kept with their bytes, so that no other tensor can get the id of one of them.
            self._done[key] = (list(tensors.values()), Packed.of(tensors))
        packed = self._done[key][1]
        first[f"{kind}.form"] = packed.form
        if len(packed.data) + sum(len(there) for there in first.values() if isinstance(there, bytes)) <= PIECE:
            first[f"{kind}.data"] = packed.data
            return
        for number, start in enumerate(range(0, len(packed.data), PIECE)):
            content[f"{kind}.{number}"] = ConfigRecord({"data": packed.data[start : start + PIECE]})


def unpack(content: RecordDict, first: Mapping[str, object], kind: str) -> Tensors:
    """The tensors of one kind; they share memory. What the form says must fit the bytes exactly."""
    if f"{kind}.form" not in first:
        return {}
    rows = _rows(first[f"{kind}.form"], kind)
    data = _data(content, first, kind)
    sizes = [math.prod(shape) for _, _, shape in rows]
    starts: dict[str, int] = {}
    end = 0
    for dtype in _in_order(dtype for _, dtype, _ in rows):
        starts[dtype] = end
        end += DTYPES[dtype].itemsize * sum(size for size, row in zip(sizes, rows, strict=True) if row[1] == dtype)
    if end != len(data):
        raise Unreadable(f'the tensors of "{kind}" are said to need {end} bytes, and {len(data)} were sent')
    buffer = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    tensors: Tensors = {}
    for (name, dtype, shape), size in zip(rows, sizes, strict=True):
        start, starts[dtype] = starts[dtype], starts[dtype] + size * DTYPES[dtype].itemsize
        numbers = buffer[start : starts[dtype]]
        if dtype == "bool" and bool((numbers > 1).any()):
            raise Unreadable(f'the tensor "{name}" is said to be bool, and has other bytes than 0 and 1')
        try:
            tensors[name] = numbers.view(DTYPES[dtype]).reshape(shape)
        except (RuntimeError, TypeError, OverflowError):  # no numbers at all, in a shape that torch cannot count
            raise Unreadable(f'the tensor "{name}" is said to have a shape that no tensor has') from None
    return tensors


def _in_order(dtypes: Iterable[str]) -> list[str]:
    """The dtypes as their bytes follow each other: the widest first, so that each begins at a multiple of its width."""
    return sorted(dict.fromkeys(dtypes), key=lambda name: -DTYPES[name].itemsize)


def _rows(form: object, kind: str) -> list[tuple[str, str, list[int]]]:
    try:
        rows = [(name, dtype, shape) for name, dtype, shape in json.loads(form)]  # type: ignore[arg-type]
        sound = all(
            isinstance(name, str)
            and len(name) <= MOST_LETTERS
            and isinstance(dtype, str)
            and isinstance(shape, list)
            and len(shape) <= MOST_AXES
            and all(type(n) is int and n >= 0 for n in shape)
            for name, dtype, shape in rows
        )
    except (TypeError, ValueError, RecursionError):  # text that is nested too deeply, too
        sound = False
    if not sound or len({name for name, _, _ in rows}) != len(rows):
        raise Unreadable(f'the names and shapes of "{kind}" cannot be read')
    for name, dtype, _ in rows:
        if dtype not in DTYPES:
            raise Unreadable(f'the tensor "{name}" is said to be {dtype[:50]}, which is no type of a tensor')
    return rows


def _data(content: RecordDict, first: Mapping[str, object], kind: str) -> bytearray:
    """All bytes of a kind, in memory that may be written to."""
    pieces = [first[f"{kind}.data"]] if f"{kind}.data" in first else []
    while (more := content.config_records.get(f"{kind}.{len(pieces)}")) is not None:
        pieces.append(more.get("data"))
    data = bytearray()
    for piece in pieces:
        if not isinstance(piece, bytes):
            raise Unreadable(f'the numbers of "{kind}" cannot be read')
        data += piece
    return data
