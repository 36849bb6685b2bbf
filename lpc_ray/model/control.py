"""Text kept apart from control tokens: what a message or a document says never becomes a token that marks turns.

Inside the tokenizer every control token bears a name that is drawn when the tokenizer is read and that no text can hold. A
chat template's own control tokens are put under these names before they are tokenised; the same words in a text are
tokenised as any others. All else (normalisation, pre-tokenisation, what stands beside) is the tokenizer's own.
"""

import json
import re
import secrets
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

from lpc_ray.errors import DataError
from lpc_ray.model.thinking import CLOSES, OPENS


class SeparatedTokenizer:
    """A tokenizer of the `tokenizers` library in which text is never a control token.

    serialised: the content of a `tokenizer.json`; its truncation, padding, post-processing and BPE dropout are left out, for
    they would change a text. named: control tokens that a configuration names (`eos_token` and the like), beside those that
    are marked as special.
    Raises: ValueError where the serialised tokenizer cannot be read.
    """

    def __init__(self, serialised: str, named: Iterable[str] = ()):
        told = json.loads(serialised)
        told |= {"truncation": None, "padding": None, "post_processor": None}
        if "dropout" in told["model"]:
            told["model"]["dropout"] = None
        ids = {token["content"]: token["id"] for token in told["added_tokens"]}
        vocabulary = _vocabulary(told["model"])
        for content in named:
            if content not in ids and content in vocabulary:
                ids[content] = vocabulary[content]
                told["added_tokens"].append(_added(content, vocabulary[content]))
        special = {token["content"] for token in told["added_tokens"] if token["special"]} | (set(named) & set(ids))
        self.control_tokens = {text: ids[text] for text in sorted(special) if text.strip() and not _is_thinking(text)}
        eager = {token["content"] for token in told["added_tokens"] if token["rstrip"]}
        self._anchor = next((text for text in self.control_tokens if text not in eager), "")
        self._names = _drawn(self.control_tokens)
        self._masks = _drawn(self.control_tokens)
        _rename(told, self._names)
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(told))
        except Exception as error:  # the tokenizers library raises plain Exception
            raise ValueError(" ".join(str(error).split())) from error
        for text, name in self._names.items():
            if self._tokenizer.token_to_id(name) != ids[text]:
                raise ValueError(f"its control token {text!r} cannot be told from text")
        self._control = _any_of(self._names)
        self._unmask = {mask: text for text, mask in self._masks.items()}
        self._unname = {name: text for text, name in self._names.items()}
        self._named, self._masked = _any_of(self._unname), _any_of(self._unmask)

    @property
    def max_id(self) -> int:
        """The highest token id there is."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str) -> Any:
        """The library's encoding (`ids`, `offsets`) of a text, without special tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return self._named.sub(lambda found: self._unname[found[0]], text)

    def mask(self, text: str) -> str:
        """A text whose control tokens are hidden from `encode_rendered`, to be put into a chat template."""
        return self._control.sub(lambda found: self._masks[found[0]], text)

    def unmask(self, rendered: str) -> str:
        return self._masked.sub(lambda found: self._unmask[found[0]], rendered)

    def encode_rendered(self, rendered: str) -> list[int]:
        """Token ids of a rendered conversation: its control tokens are those that the template wrote.

        rendered: from messages masked by `mask`. Raises: DataError where the template has torn a mask.
        """
        named = self._control.sub(lambda found: self._names[found[0]], rendered)
        text = self.unmask(named)
        mask = next(iter(self._masks.values()), None)
        if mask is not None and (mask[:5] in text or mask[-5:] in text):
            raise DataError("a message holds a control token's text, and the model's chat template takes it to pieces")
        return self.encode(text).ids

    def encode_after(self, rendered: str) -> list[int]:
        """As `encode_rendered`, of text that goes on after other tokens: nothing is put before its first word that only a
        text's beginning has.
        """
        return self.encode_rendered(self._anchor + rendered)[1 if self._anchor else 0 :]

    def first_control(self, rendered: str) -> int | None:
        """Where the first control token of a rendered text ends."""
        found = self._control.search(rendered)
        return found.end() if found else None


def _is_thinking(text: str) -> bool:
    """Tags around thinking mark no turn: a model's answers hold them, and so do written ones."""
    return (OPENS.fullmatch(text) or CLOSES.fullmatch(text)) is not None


def _drawn(texts: Iterable[str]) -> dict[str, str]:
    """Text → a name for it: no other text holds one, and none is the beginning of another."""
    secret = secrets.token_hex(16)
    return {text: f"\ufdd0{secret}{number:06d}{secret}\ufdd1" for number, text in enumerate(texts)}


def _any_of(texts: Iterable[str]) -> re.Pattern:
    """A pattern of the longest of `texts`, which finds nothing when there are none."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def _vocabulary(model: dict[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    return vocabulary if isinstance(vocabulary, dict) else {text: place for place, (text, _) in enumerate(vocabulary)}


def _added(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": True}


def _rename(told: dict[str, Any], names: dict[str, str]) -> None:
    """Put the tokens of a serialised tokenizer under other names, in its list of added tokens and in its model, so that no
    merge and no piece of the model spells them either. Mutates `told`.
    """
    model = told["model"]
    for token in told["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "single_word": False}  # what a template writes always counts
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(text, text): number for text, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, names)]


def _touches(merge: str | list[str], names: dict[str, str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
