#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Reads and writes safetensors files by the format's specification, with the standard library alone.

usage: safetensors_reference.py read FILE     prints tensors and metadata, after checking the file
       safetensors_reference.py write FOLDER  writes files as other programs do

Where the safetensors package is installed, it must read the file as well.
"""
import json
import pathlib
import struct
import sys

CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def values_of(dtype, data):
    count = len(data) // SIZES[dtype]
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[2 * i : 2 * i + 2])[0] for i in range(count)]
    return list(struct.unpack(f"<{count}{CODES[dtype]}", data))


def read(path):
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    text = content[8 : 8 + length]
    assert text.startswith(b"{"), "a header begins with a brace"
    header = json.loads(text)
    data = content[8 + length :]
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values()), "metadata are strings"
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = tensor["data_offsets"]
        size = SIZES[tensor["dtype"]]
        count = 1
        for each in tensor["shape"]:
            count *= each
        assert start == end, "no gap and no overlap"
        assert stop - start == count * size, "as many bytes as the shape says"
        assert start % size == 0 and length % 8 == 0, "aligned, as PyTorch's reader needs it"
        end = stop
        if not name.startswith("cohort."):
            print(name, tensor["dtype"], tensor["shape"], values_of(tensor["dtype"], data[start:stop]))
    assert end == len(data), "tensors cover the file"
    for key, value in sorted(metadata.items()):
        # The convention for loaders that ask which library wrote it; every other value is JSON.
        print("metadata", key, value if key == "format" else repr(json.loads(value)))
    try:
        import safetensors
    except ImportError:
        return
    with safetensors.safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(header)


def write(path, tensors, metadata=None, padding=0):
    header = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, values) in tensors.items():
        if dtype == "BF16":
            piece = b"".join(struct.pack("<f", value)[2:] for value in values)
        else:
            piece = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_all(folder):
    weight = ("F32", [1, 2], [1.5, -2.0])
    bias = ("F32", [1], [0.25])
    write(folder / "bare.safetensors", {"weight": weight, "bias": bias}, {"format": "pt"}, padding=5)
    write(folder / "wrapped.safetensors", {"module.bias": bias, "module.weight": weight})
    write(folder / "prefixed.safetensors", {"model.weight": weight, "model.bias": bias, "other.x": ("U8", [2], [1, 2])})
    write(folder / "half.safetensors", {"weight": ("F16", [1, 2], [1.5, -2.0]), "bias": ("BF16", [1], [0.25])})
    write(folder / "unaligned.safetensors", {"other": ("U8", [1], [7]), "model.weight": weight, "model.bias": bias})
    for name, parts in {
        "sharded": [{"weight": weight}, {"bias": bias}],
        "duplicate": [{"weight": weight}, {"bias": bias, "weight": weight}],
        "single": [{"weight": weight, "bias": bias}],
    }.items():
        (folder / name).mkdir()
        if name == "single":
            write(folder / name / "model.safetensors", parts[0])
            continue
        places = {}
        for number, part in enumerate(parts, 1):
            file = f"model-{number:05}-of-{len(parts):05}.safetensors"
            write(folder / name / file, part, {"format": "pt"})
            for each in part:
                places.setdefault(each, file)
        index = {"metadata": {"total_size": 12}, "weight_map": places}
        (folder / name / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("read", "write"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if sys.argv[1] == "read":
        read(sys.argv[2])
    else:
        write_all(pathlib.Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
