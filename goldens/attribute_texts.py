"""Looks at the texts of an object's attributes in the file's own bytes, before HDF5 does.

HDF5 keeps them in heaps and believes what these say: with one flipped bit HDF5 2.0 allocates up to
4 GiB for a text, or never comes back.  Golden files are written with HDF5's earliest layouts, so
those are all that is known here; the names are the HDF5 file format specification's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

_ATTRIBUTE = 0x000C
_CONTINUATION = 0x0010
_SHARED = 0x02
_VARIABLE_LENGTH = 9
#: an object header or a heap of a golden is a few hundred bytes long; this is far beyond
_LARGEST_BLOCK = 1 << 20


class AttributeTexts:
    """Checks objects of one open file; a ValueError says what is wrong with one."""

    def __init__(self, file: BinaryIO, longest: int) -> None:
        self._file = file
        self._longest = longest
        #: heap address -> size of every object in it
        self._heaps: dict[int, dict[int, int]] = {}

    def check(self, address: int) -> None:
        """Check the attributes of the object whose header is at ``address``."""
        start = self._bytes(0, 32)
        # superblock version 0, 8-byte offsets and lengths, base address 0
        if start[8] != 0 or start[13:15] != b"\x08\x08" or any(start[24:32]):
            raise ValueError("has another superblock than HDF5's version 0")
        for message in self._attribute_messages(address):
            self._check_attribute(message)

    def _bytes(self, address: int, size: int) -> bytes:
        if size <= _LARGEST_BLOCK and address < 1 << 62:
            self._file.seek(address)
            found = self._file.read(size)
            if len(found) == size:
                return found
        raise ValueError(f"needs {size} bytes at {address}, which the file does not have")

    def _attribute_messages(self, address: int) -> Iterator[bytes]:
        version, size = struct.unpack("<B7xI4x", self._bytes(address, 16))
        if version != 1:
            raise ValueError("has another object header than HDF5's version 1")
        blocks = [(address + 16, size)]
        total = 0
        for start, length in blocks:
            # A header may go on elsewhere, and a hostile one goes on for ever.
            total += length
            if total > _LARGEST_BLOCK:
                raise ValueError("has an object header that is too long")
            block = self._bytes(start, length)
            at = 0
            while at + 8 <= length:
                kind, size, flags = struct.unpack_from("<HHB3x", block, at)
                message = block[at + 8 : at + 8 + size]
                if len(message) != size:
                    raise ValueError("has an object header with a message beyond its end")
                if kind == _CONTINUATION and size >= 16:
                    blocks.append(struct.unpack_from("<QQ", message))
                elif kind == _ATTRIBUTE:
                    if flags & _SHARED:
                        raise ValueError("has a shared attribute")
                    yield message
                at += 8 + size

    def _check_attribute(self, message: bytes) -> None:
        if len(message) < 9 or message[0] not in (1, 2, 3):
            raise ValueError("has an attribute of an unknown version")
        version, flags, *sizes = struct.unpack_from("<BBHHH", message)
        if version == 1:  # padded to 8 bytes each; flags and encoding do not exist
            at, flags, sizes = 8, 0, [-(-size // 8) * 8 for size in sizes]
        else:  # version 3 has the name's encoding in between
            at = 8 if version == 2 else 9
        if flags:
            raise ValueError("has an attribute of a named datatype")
        name, datatype, dataspace = sizes
        kind = message[at + name : at + name + datatype]
        if not kind or kind[0] & 15 != _VARIABLE_LENGTH:
            return
        data = message[at + name + datatype + dataspace :]
        if len(data) < 16:
            raise ValueError("has an attribute without its value")
        length, heap, index = struct.unpack_from("<IQI", data)
        if length > self._longest:
            raise ValueError(f"has an attribute of {length} bytes, allowed are {self._longest}")
        if (length or index) and self._heap(heap).get(index) != length:
            raise ValueError("has an attribute whose text is not in the heap")

    def _heap(self, address: int) -> dict[int, int]:
        if address in self._heaps:
            return self._heaps[address]
        signature, size = struct.unpack("<8sQ", self._bytes(address, 16))
        if signature != b"GCOL\x01\0\0\0":
            raise ValueError("has an attribute whose text is not in a heap")
        heap = self._bytes(address, size)
        found: dict[int, int] = {}
        at = 16
        while at + 16 <= size:
            index, length = struct.unpack_from("<H6xQ", heap, at)
            # object 0 is the free space; its length counts its own head, which the others' do not
            step = length if index == 0 else 16 + -(-length // 8) * 8
            if step < 16 or at + step > size or index in found:
                raise ValueError("has a heap of texts whose objects do not fit into it")
            found[index] = length
            at += step
        self._heaps[address] = found
        return found
