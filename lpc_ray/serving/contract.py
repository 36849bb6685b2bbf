"""What a request with prefixes carries into the engine: the server writes it, the connector reads and checks it.

vLLM finds a cached block again by its token ids, those before them, and the request's cache salt. A prefix stands in a
prompt as placeholders, whose ids say nothing of its keys and values; so the salt must.

**The invariant: two requests that share a block have equal keys and values in it.** A salt names every prefix by digest
and served length, in order, so that it fixes the keys and values at each position before the client's own prompt; from
there on the token ids do. A request whose salt names other prefixes than it asks for is refused, and so none computes
placeholders as text, or text as placeholders, under a salt that others use. A cache belongs to one engine, and a digest
to one model.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.records import PrefixRef

REQUEST_KEY = "lpc"
MAX_COMPOSED = 8
_SALT = "lpc:"
_TENANT = "@"
_DIGEST = re.compile(r"[0-9a-f]{32,64}")


@dataclass(frozen=True, slots=True)
class Part:
    """One prefix of a request: its first `num_tokens` rows stand at `offset`, after the rows of the prefixes before it."""

    digest: str
    folder: str
    num_tokens: int
    offset: int


def cache_salt(prefixes: Sequence[PrefixRef], tenant: str | None = None) -> str | None:
    """The salt of a request with these prefixes; None for one without any that shares its blocks with everybody.

    tenant: whose requests alone may share the blocks.
    """
    named = "+".join(f"{prefix.digest}/{prefix.num_tokens}" for prefix in prefixes)
    if tenant is not None:
        return f"{_SALT}{named}{_TENANT}{tenant}"
    return f"{_SALT}{named}" if named else None


def transfer_params(prefixes: Sequence[PrefixRef]) -> dict[str, Any]:
    """The `kv_transfer_params` of a request that uses these prefixes, in order; folders are local."""
    return {
        REQUEST_KEY: {
            "prefixes": [
                {"digest": prefix.digest, "folder": prefix.folder, "num_tokens": prefix.num_tokens}
                for prefix in prefixes
            ]
        }
    }


def placed(params: Any, salt: str | None, num_prompt_tokens: int) -> tuple[Part, ...]:
    """The prefixes of a request with these `kv_transfer_params`; none for one without.

    Raises: DataError for anything but what `transfer_params` and `cache_salt` write, and for a prompt without a token of
    its own.
    """
    asked = params.get(REQUEST_KEY) if isinstance(params, dict) else None
    parts = _parts(asked) if asked is not None else ()
    found = (salt or "").partition(_TENANT)[0]
    wanted = cache_salt([PrefixRef(part.digest, part.folder, part.num_tokens) for part in parts])
    if found.startswith(_SALT) and found != (wanted or _SALT) or parts and found != wanted:
        raise DataError(f"got cache salt {salt!r}, wanted {wanted!r}, which names the prefixes asked for")
    total = total_tokens(parts)
    if parts and total >= num_prompt_tokens:
        raise DataError(
            f"got a prompt of {num_prompt_tokens} tokens, wanted the prefixes' {total} placeholders and at least one more"
        )
    return parts


def check_own_fields(params: Any, salt: str | None) -> None:
    """For a server that lets clients send these fields for other uses. Raises: DataError when they touch the contract."""
    if isinstance(params, dict) and REQUEST_KEY in params:
        raise DataError(f"kv_transfer_params.{REQUEST_KEY}: set by the server: name a prefix in `model` instead")
    if (salt or "").startswith(_SALT):
        raise DataError(f"cache_salt: got {salt!r}, wanted one that does not begin with {_SALT!r}")


def total_tokens(parts: Sequence[Part]) -> int:
    return sum(part.num_tokens for part in parts)


def _parts(asked: Any) -> tuple[Part, ...]:
    given = asked.get("prefixes") if isinstance(asked, dict) and len(asked) == 1 else None
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_COMPOSED:
        raise DataError(f"{REQUEST_KEY}: wanted an object with prefixes, a list of 1 to {MAX_COMPOSED}")
    parts: list[Part] = []
    for prefix in given:
        match prefix:
            case {"digest": str(digest), "folder": str(folder), "num_tokens": int(num_tokens), **rest} if (
                _DIGEST.fullmatch(digest) and not rest and num_tokens > 0 and num_tokens is not True
            ):
                parts.append(Part(digest, folder, num_tokens, total_tokens(parts)))
            case _:
                raise DataError(
                    f"{REQUEST_KEY}.prefixes[{len(parts)}]: wanted a digest, a folder and a number of tokens, no more"
                )
    return tuple(parts)
