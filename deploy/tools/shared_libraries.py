"""Finds the shared libraries that a program needs, and sets where it looks for them."""

import os
import pathlib
import re
import struct
import subprocess

# The C library and its loader belong to the system: they must fit each other and the kernel.
# libcuda is NVIDIA's driver.
SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|util|pthread|resolv|anl|cuda)|linux-vdso)\.so(\.\d+)?$")
# A library -> those that it opens at run time from its own directory, so that ldd does not name them.
# LibTorch's linear algebra on CUDA (libtorch_cuda_linalg.so, with cuSOLVER) is missing, because the
# programs do not use it.
OPENED = {"libtorch_cuda.so": "libcaffe2_nvrtc.so", "libcudnn.so.9": "libcudnn_*.so.9",
          "libnvrtc.so.13": "libnvrtc-builtins.so.13*"}

DT_NULL, DT_STRTAB, DT_STRSZ, DT_RPATH, DT_RUNPATH = 0, 5, 10, 15, 29
PT_LOAD, PT_DYNAMIC = 1, 2


class LibraryError(Exception):
    """Names the library and the file of a problem."""


def needed(program):
    """Returns name -> path of every library that `program` loads, without those of the C library."""
    # NVIDIA's packages beside LibTorch take precedence over a CUDA toolkit of the system.
    torch = ldd(program)[0].get("libtorch_cuda.so")
    directories = sorted(torch.parents[2].glob("nvidia/*/lib")) if torch else []
    found, unread = {}, [pathlib.Path(program)]
    while unread:
        linked, missing = ldd(unread[0], directories)
        if missing:
            hint = " (NVIDIA's come with deploy/setup --cuda)" if torch else ""
            raise LibraryError(f"{unread[0]} needs {', '.join(missing)}, which are not on this machine{hint}")
        del unread[0]
        for name, path in linked.items():
            if name in found:
                continue
            found[name] = path
            opened = [each for each in sorted(path.parent.glob(OPENED.get(name, "-"))) if each.name not in found]
            found |= {each.name: each for each in opened}
            unread += opened
    return found


def ldd(program, directories=()):
    """Returns ({name: path}, [missing names]) of the libraries that the loader looks for, without
    those of the C library."""
    environment = os.environ | ({"LD_LIBRARY_PATH": ":".join(map(str, directories))} if directories else {})
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise LibraryError(f"ldd {program}: {done.stderr.strip()}")
    found, missing = {}, []
    for line in done.stdout.splitlines():
        match = re.match(r"\s*(\S+)(?: => (\S.*?))?(?: \(0x[0-9a-f]+\))?$", line)
        if not match or SYSTEM.match(pathlib.PurePath(match[1]).name):
            continue
        if match[2] == "not found":
            missing.append(match[1])
        elif match[2]:
            found[match[1]] = pathlib.Path(match[2])
    return found, missing


def needed_glibc(path):
    """Returns the newest version of the C library whose symbols the file at `path` needs, such as (2, 36)."""
    done = subprocess.run(["readelf", "--version-info", "--wide", str(path)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise LibraryError(f"readelf {path}: {done.stderr.strip()}")
    return max(((int(major), int(minor)) for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", done.stdout)),
               default=(0, 0))


def search_in(path, directory):
    """Lets the loader look for the libraries of the program at `path`, and for theirs, in `directory` only.

    It overwrites the old search path, so `directory` must not be longer. DT_RPATH, unlike DT_RUNPATH, also holds for
    the libraries that these libraries need.
    """
    data = bytearray(pathlib.Path(path).read_bytes())
    if data[:6] != b"\x7fELF\x02\x01":
        raise LibraryError(f"{path} is not a 64-bit little-endian ELF file")
    header_offset, = struct.unpack_from("<Q", data, 32)
    header_size, num_headers = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, header_offset + i * header_size) for i in range(num_headers)]
    dynamic = next((segment for segment in segments if segment[0] == PT_DYNAMIC), None)
    if dynamic is None:
        raise LibraryError(f"{path} has no dynamic section")
    entries, offset = {}, dynamic[2]
    while True:
        tag, value = struct.unpack_from("<qQ", data, offset)
        if tag == DT_NULL:
            break
        entries[tag] = (offset, value)
        offset += 16
    tag = DT_RUNPATH if DT_RUNPATH in entries else DT_RPATH
    if tag not in entries or DT_STRTAB not in entries:
        raise LibraryError(f"{path} has no search path for libraries")
    address = entries[DT_STRTAB][1] + entries[tag][1]
    segment = next(s for s in segments if s[0] == PT_LOAD and s[3] <= address < s[3] + s[5])
    start = segment[2] + address - segment[3]
    length = data.index(0, start) - start
    text = directory.encode()
    if len(text) > length:
        raise LibraryError(f"{path}: its search path has {length} bytes, {directory} needs {len(text)}")
    data[start:start + length] = text.ljust(length, b"\0")
    struct.pack_into("<q", data, entries[tag][0], DT_RPATH)
    pathlib.Path(path).write_bytes(data)
