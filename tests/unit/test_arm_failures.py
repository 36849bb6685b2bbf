"""Which errors end one arm, and in what words."""

import pytest
import torch

from lpc_ray.adapters.ray.ranks import AgreedError, failure_of
from lpc_ray.errors import ArtifactError, ConfigError, DataError, DivergedError, StorageError

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 3 GiB is free.\n"
    "Process 1 has 76 GiB memory in use. See documentation for Memory Management (https://pytorch.org/docs/stable/notes)"
)
CPU = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(CUDA),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(CPU),
        MemoryError(),
        MemoryError("Unable to allocate 9 TiB for an array"),
    ],
    ids=lambda error: f"{type(error).__name__}: {str(error)[:30]}",
)
def test_whatever_says_that_memory_is_short_ends_the_arm_and_a_rerun_tries_it_again(error):
    failure = failure_of(error, 7, 3)
    assert failure is not None and (failure.status, failure.step, failure.is_final) == ("out of memory", 7, False)
    assert failure.why.startswith("rank 3 had not enough memory (") and failure.why.endswith(" need less")
    assert "\n" not in failure.why and len(failure.why) < 300


@pytest.mark.parametrize("kind", [DataError, ConfigError, ArtifactError, ValueError, AgreedError])
def test_what_is_refused_ends_the_arm_in_its_own_words(kind):
    failure = failure_of(kind("got this,\nwanted that"), 0, 1)
    assert failure is not None and (failure.status, failure.why) == ("failed", "got this, wanted that")


def test_what_diverged_is_final():
    failure = failure_of(DivergedError("got loss nan"), 9, 0)
    assert failure is not None and (failure.status, failure.step, failure.is_final) == ("diverged", 9, True)


@pytest.mark.parametrize(
    "error", [StorageError("disk full"), RuntimeError("Connection closed by peer"), KeyError("x"), AssertionError()]
)
def test_what_no_arm_is_to_blame_for_ends_none(error):
    assert failure_of(error, 1, 0) is None


def test_a_reason_is_short_enough_to_be_broadcast():
    failure = failure_of(DataError("x" * 5000), 1, 0)
    assert failure is not None and len(failure.why) == 400
