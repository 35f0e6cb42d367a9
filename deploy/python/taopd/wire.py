"""The messages of teacher.proto as bytes. The file beside this one is a link to
proto/taopd/v1/teacher.proto, and a copy in packages.

Arrays are packed little-endian 32-bit words on the wire, so an array of NumPy is sent and received with one copy, where
protobuf's Python package makes a Python object of each number. A test compares MESSAGES with what protoc reads, and the
bytes with protobuf's.

Kinds of fields: string, bool, uint32, uint64, int32 (also of enums), float, fixed32; `KIND[]` is repeated;
`map` is map<uint32, float>; any other kind is the name of a message.
"""

import pathlib
import re
import struct
from typing import Any, Iterator, Mapping

import numpy as np


def read_messages(proto: str) -> dict[str, dict[int, tuple[str, str]]]:
    """Returns the messages of a .proto file as message -> field number -> (name, kind)."""
    proto = re.sub(r"//.*", "", proto)
    enums = re.findall(r"^enum (\w+)", proto, re.M)

    def kind_of(label: str, type_name: str) -> str:
        kind = "int32" if type_name in enums else "map" if type_name == "map<uint32, float>" else type_name
        return kind + "[]" * (label == "repeated ")
    return {message: {int(number): (name, kind_of(label, type_name)) for label, type_name, name, number in
                      re.findall(r"(repeated |optional )?(\w+|map<[\w, ]+>) (\w+) = (\d+);", body)}
            for message, body in re.findall(r"^message (\w+) \{(.*?)(?:^\}|\}$)", proto, re.M | re.S)}


MESSAGES = read_messages(pathlib.Path(__file__).with_name("teacher.proto").read_text(encoding="ascii"))
# Ids are unsigned on the wire and below 2^31 in every model, so they become int32, which other libraries index with.
ARRAYS = {"fixed32[]": np.dtype("<i4"), "float[]": np.dtype("<f4")}
DEFAULTS = {"string": "", "bool": False, "uint32": 0, "uint64": 0, "int32": 0, "float": 0.0}

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes cannot be parsed as the message."""


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative int32 have ten bytes
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(number: int, data: bytes) -> list[bytes]:
    return [_varint(number << 3 | BYTES), _varint(len(data)), data]


def _field(number: int, kind: str, value: Any) -> list[bytes]:
    if kind in ARRAYS:
        return _sized(number, np.asarray(value, ARRAYS[kind]).tobytes())
    if kind == "uint32[]":
        return _sized(number, b"".join(map(_varint, value)))
    if kind == "string":
        return _sized(number, value.encode())
    if kind == "float":
        return [_varint(number << 3 | FIXED32), struct.pack("<f", value)]
    if kind == "map":
        entries = (_varint(1 << 3) + _varint(key) + _varint(2 << 3 | FIXED32) + struct.pack("<f", bias)
                   for key, bias in value.items())
        return [part for entry in entries for part in _sized(number, entry)]
    if kind in MESSAGES:
        return _sized(number, encode(kind, value))
    return [_varint(number << 3), _varint(int(value))]


def encode(message: str, values: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a message. Fields that are None are not sent; unknown names are a KeyError."""
    numbers = {name: (number, kind) for number, (name, kind) in MESSAGES[message].items()}
    parts: list[bytes] = []
    for name, value in values.items():
        if value is not None:
            parts += _field(*numbers[name], value)
    return b"".join(parts)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise WireError("a number is cut off or too long")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yields (number, wire type, integer or bytes) of each field."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire_type = tag & 7
        value: Any
        if wire_type == VARINT:
            value, at = _read_varint(data, at)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(wire_type)
            if wire_type == BYTES:
                size, at = _read_varint(data, at)
            if size is None or size > len(data) - at:
                raise WireError(f"field {tag >> 3} is cut off or has the unknown wire type {wire_type}")
            value = memoryview(data)[at:at + size]
            at += size
        yield tag >> 3, wire_type, value


def _packed_varints(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at)
        values.append(value)
    return values


def _array(dtype: np.dtype[Any], pieces: list[Any]) -> np.ndarray[Any, Any]:
    """Joins the pieces of a repeated field in one copy: the array is aligned, writable, and
    does not keep the message."""
    if any(len(piece) % 4 for piece in pieces):
        raise WireError("an array has a part of a number")
    if len(pieces) == 1:
        return np.frombuffer(pieces[0], dtype).copy()
    return np.frombuffer(b"".join(pieces), dtype).copy()


def _scalar(kind: str, wire_type: int, value: Any) -> Any:
    if kind == "string":
        return str(value, "utf-8")
    if kind == "float":
        return struct.unpack("<f", value)[0]
    if kind == "bool":
        return bool(value)
    if kind == "int32":
        return (value & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)
    return value & 0xFFFFFFFF if kind == "uint32" else value


EXPECTED = {"string": BYTES, "float": FIXED32}


def decode(message: str, data: bytes) -> dict[str, Any]:
    """Returns the fields of a message by name. Arrays are NumPy's, scalars that are absent have their default, and
    messages that are absent are None. Unknown fields are skipped."""
    table = MESSAGES[message]
    values: dict[str, Any] = {}
    pieces: dict[str, list[Any]] = {}
    for name, kind in table.values():
        if kind.endswith("[]"):
            pieces[name] = []
        else:
            values[name] = DEFAULTS.get(kind)
    for number, wire_type, value in _fields(data):
        if number not in table:
            continue
        name, kind = table[number]
        if kind in ARRAYS and wire_type in (BYTES, FIXED32):
            pieces[name].append(value)
        elif kind == "uint32[]" and wire_type in (BYTES, VARINT):
            pieces[name] += _packed_varints(value) if wire_type == BYTES else [value]
        elif kind in MESSAGES and wire_type == BYTES:
            values[name] = decode(kind, bytes(value))
        elif kind in DEFAULTS and wire_type == EXPECTED.get(kind, VARINT):
            values[name] = _scalar(kind, wire_type, value)
        else:
            raise WireError(f"{message}.{name} has the wire type {wire_type}")
    for name, kind in table.values():
        if name in pieces:
            values[name] = _array(ARRAYS[kind], pieces[name]) if kind in ARRAYS else pieces[name]
    return values
