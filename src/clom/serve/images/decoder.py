"""The decoder process: limited memory, no torch, no file access, and safe to kill.

It is told on its input: side of the square, number of bytes, the bytes; it answers with a status, a number of bytes,
and those: width and height of the picture and its square `[side, side, 3]`, or what is wrong. It ends when its input
does.

Tested by tests/serve/images/test_decoder_pool.py.
"""

from __future__ import annotations

import struct
import sys
from io import BytesIO

from clom.data.decoding import decode_with_size
from clom.errors import DataError

QUESTION, REPLY, SIZE = struct.Struct(">II"), struct.Struct(">BI"), struct.Struct(">II")
GOOD, BAD = 0, 1


def main() -> None:
    memory, seconds = int(sys.argv[1]), int(sys.argv[2])
    decode_or_reason(b"", 1)  # loads Pillow's plug-ins before the memory limit is set
    limit(memory)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while len(header := source.read(QUESTION.size)) == QUESTION.size:
        size, length = QUESTION.unpack(header)
        alarm(seconds)
        status, content = decode_or_reason(source.read(length), size)
        alarm(0)
        target.write(REPLY.pack(status, len(content)) + content)
        target.flush()


def decode_or_reason(content: bytes, size: int) -> tuple[int, bytes]:
    try:
        if not content:
            raise DataError("the file is empty")
        square, taken = decode_with_size(BytesIO(content), size)
        return GOOD, SIZE.pack(*taken) + square.tobytes()
    except DataError as problem:
        return BAD, str(problem).encode()
    except MemoryError:
        return BAD, b"too large for the memory it may use"


def limit(memory: int) -> None:
    """Limit additional memory and forbid writing files, where the system supports it."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return  # not Linux: other systems do not enforce the limit
    resource.setrlimit(resource.RLIMIT_AS, (held + memory, held + memory))


def alarm(seconds: int) -> None:
    """Kill this process after the given number of seconds; 0 cancels."""
    if sys.platform != "win32":
        import signal

        signal.alarm(seconds)


if __name__ == "__main__":
    main()
