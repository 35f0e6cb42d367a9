"""Writes python_written.safetensors next to this script.

Versions used: safetensors 0.8.0, Python 3.11. The values are byte patterns that the C++ test
rebuilds: byte i of tensor number t is (31 t + i) % 256.
"""

import ctypes
import pathlib

import safetensors

TENSORS = [  # name, dtype, shape, bytes
    ("embed.weight", "float32", [3, 5], 60),
    ("half", "float16", [4], 8),
    ("brain", "bfloat16", [2, 2, 2], 16),
    ("ids", "int64", [2], 16),
    ("mask", "bool", [3], 3),
    ("scalar", "float64", [], 8),
    ("empty", "float32", [0, 7], 0),
    ("quoted \"name\" \u00e9", "uint8", [1], 1),
]

buffers, data = [], {}
for t, (name, dtype, shape, size) in enumerate(TENSORS):
    # serialize() reads through the address, so the buffer has to stay alive.
    buffers.append((ctypes.c_uint8 * size)(*((31 * t + i) % 256 for i in range(size))))
    address = ctypes.addressof(buffers[-1])
    data[name] = safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=address, data_len=size)
path = pathlib.Path(__file__).with_name("python_written.safetensors")
path.write_bytes(safetensors.serialize(data, {"format": "pt", "note": "caf\u00e9"}))
