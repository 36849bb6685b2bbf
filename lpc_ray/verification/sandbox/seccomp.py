"""The system calls that a sandboxed program does without: those that take memory which no limit of ours counts.

A filter is a program of classic BPF over the call's number, as bubblewrap's `--seccomp` takes it.
"""

import errno
import platform
import struct

from lpc_ray.errors import VerificationError

# AUDIT_ARCH, then the numbers of shmget, msgget, memfd_create and memfd_secret.
_CALLS = {
    "x86_64": (0xC000003E, (29, 68, 319, 447)),
    "aarch64": (0xC00000B7, (194, 186, 279, 447)),
}
_X32 = 0x40000000  # the first number of x86's third table of calls
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def memory_filter() -> bytes:
    """Makes System V shared memory and message queues, and anonymous files, fail with ENOSYS; all of it in another machine
    mode than the interpreter's own.

    Raises: VerificationError on a machine whose numbers are not known.
    """
    machine = platform.machine()
    if machine not in _CALLS:
        raise VerificationError(f"sandbox: got a machine of type {machine}, wanted {' or '.join(_CALLS)}")
    architecture, numbers = _CALLS[machine]
    last = 4 + len(numbers) + 1  # where calls fail; the instruction before it allows
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 0, last - 2, architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, last - 4, 0, _X32),
        *((_IF_EQUAL, last - at - 1, 0, number) for at, number in enumerate(numbers, start=4)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
