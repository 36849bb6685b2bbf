"""Whether a reply declines to answer, in English or one of the languages of `declines_elsewhere`.

A reply declines when a clause of it says that the asked is not known or not in the text (`decline_wordings`), and no other
clause answers after all: "I am not sure, but it is the chapel" is an answer.
"""

import re
import unicodedata

from lpc_ray.model.thinking import spoken
from lpc_ray.verification.decline_wordings import WORDINGS, spelled_out
from lpc_ray.verification.declines_elsewhere import declines_elsewhere

_READ = 1000  # characters of a clause
_SHORT = 3  # words: no clause, but a bare answer
_APOSTROPHES = re.compile(r"[’‘ʼ`´′＇]")
_MARKUP = re.compile(r"[*_#>~|\"“”«»()\[\]]+")
_BY_THE_WAY = re.compile(
    r"(?:^|,)\s*(?:unfortunately|sadly|alas|regrettably|honestly|frankly|nope|oh|ah|um|hm+|well|to be honest|i am afraid|"
    r"it seems|as far as i (?:can (?:see|tell)|know)|to (?:my|the best of my) knowledge|from what i can (?:tell|see)|"
    r"good question|great question)\s*(?:,|[.!]\s|(?=$))"
)
_LABEL = re.compile(r"^(?:final |short )?(?:answer|reply|response|a)\s*:\s*")
_UNCONTRACTED = (
    (re.compile(r"\b(do|does|did|is|are|was|were|has|have|had|could|would|should|ca|wo)nt\b"), r"\1n't"),
    (re.compile(r"\b(?:can't|can not)"), "cannot"),
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"\bi dunno\b|\bdunno\b"), "i do not know"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"\b(i)'?m\b"), r"\1 am"),
    (re.compile(r"\b(it|that|there|what|who|he|she|here|question|answer)'s\b"), r"\1 is"),
    (re.compile(r"'ve\b"), " have"),
    (re.compile(r"'d\b"), " would"),
    (re.compile(r"'ll\b"), " will"),
    (re.compile(r"'re\b"), " are"),
)
# Where a sentence ends, and where a clause of it does.
_BREAK = re.compile(
    r"((?<=[.!?…])\s+|[\n;]+|(?<=[a-z]):\s|,\s+(?=(?:it|they|he|she) (?:is|are|was|says?|opens?|mentions?)\b|"
    r"i (?:am not|do not know|cannot be)\b))"
)
_TURN = re.compile(
    r",?\s*\b(but|however|though|although|even though|yet|except|nevertheless|nonetheless|because)\b,?\s*|,\s*(so|"
    r"since|still)\b,?\s*|\s+[—–-]\s+|—"
)
_RELATIVE = re.compile(r"^(.*\b(?:is|are|was|were|has|had|called|named)\b.*), (?:whose|which|who|where) (.*)$")
_CONCEDED = re.compile(r"^(?:while|although|though|even though|even if|despite|whereas)\b[^,]*,\s*(?:but |yet )?")
# What narrows a decline to a part of the asked, or makes it a hedge: any other clause that states something then answers.
_NARROW = re.compile(
    spelled_out(
        r"\b(?:more|further|other|additional|else|beyond that|exact|exactly|precise|precisely|explicitly|directly|"
        r"for certain|for sure|sure|certain|unsure|uncertain|why|how come|remember|recall|idea|clue|guess|"
        r"<speaker> (?:do|would|could) not know|say|tell)\b"
    )
)
# "The ferry does not run when the wind is unknown": a condition is no decline.
_CONDITION = re.compile(r"\S\s.*\b(?:when|whenever|if|unless|until)\b[^,]*$")
_AGAINST = frozenset(
    ("but", "however", "though", "although", "even though", "yet", "except", "nevertheless", "nonetheless", "still")
)
# Help and excuses, which answer nothing.
_ASIDE = re.compile(
    spelled_out(
        r"^(?:and |so |then |also |perhaps |maybe |instead )*(?:please|no$|sorry|hm+\b|well$|ok|(?:my )?apolog(?:y|ies)|"
        r"i apologi[sz]e|i (?:have )?(?:looked|searched|checked|read|went|tried)|unfortunately|regarding|concerning|"
        r"as (?:for|to)|with regard|without|based on|according to|on the|in the|from the|regrettably|you |your |try |"
        r"feel free|let me know|if you|for (?:more|further)|consult|check|contact|ask |refer to|see |i (?:can|could|"
        r"would|will) (?:only )?(?:help|suggest|recommend|need|be happy|gladly|check|try)|i (?:only|just)|i am (?:an?|"
        r"afraid|only|just|sorry|here)|thank|i hope|as an ai|(?:it|they|<the_text>) (?:only|just|simply|mainly|mostly|"
        r"merely|do(?:es)? (?:\w+ )?(?:mention|cover|say|discuss|describe|list)|covers?|discuss(?:es)?|focus(?:es)?|"
        r"describes?|mentions?|names?|lists?|talks?|deals?|is (?:only )?about|contains?|provides?|is limited)|"
        r"the (?:handbook|document|text|passage) is|we (?:would )?need|more (?:information|context)|it (?:may|"
        r"might) be (?:worth|helpful|best|in another)|that (?:would|may|might) (?:be|need)|available$|$)"
    )
)
# What makes a clause an answer to the one before.
_POINTS_BACK = re.compile(
    r"^(?:and |so |then |well )*(?:it|they|he|she|that|the answer|the correct|this|these|those|there|one)\b"
)
_ANSWERING = re.compile(r"(?:it|they) (?:mentions?|lists?|says?|covers?|contains?|provides?)\b(?! only\b)")
_GUESS = re.compile(
    r"\b(?:i (?:think|believe|guess|suppose|assume|would (?:say|guess))|my (?:best )?guess|probably|likely|"
    r"perhaps|maybe|may be|might be|could be|must be|should be|approximately|roughly|around|presumably|apparently|"
    r"(?:can|could) be (?:inferred|assumed))\b"
)


def abstains(reply: str) -> bool:
    """Whether a reply says that it does not know, or that its text does not say, and answers nowhere else.

    What is thought before the answer (`lpc_ray.model.thinking`) is no part of a reply.
    """
    plain = _plain(spoken(reply))
    if declines_elsewhere(plain):
        return True
    clauses = _clauses(plain)
    kinds = [_kind(clause) for _, clause in clauses]
    if "decline" not in kinds and "narrow" not in kinds:
        return False
    return not any(_answers(at, clauses, kinds) for at in range(len(clauses)))


def _plain(text: str) -> str:
    """Small letters, contractions spelled out, no markup."""
    text = _MARKUP.sub(" ", unicodedata.normalize("NFKC", _APOSTROPHES.sub("'", text)).casefold())
    for contraction, whole in _UNCONTRACTED:
        text = contraction.sub(whole, text)
    return _LABEL.sub("", _BY_THE_WAY.sub(" ", text).strip())


def _clauses(text: str) -> list[tuple[str, str]]:
    """(What joins it to the one before, clause), in order; "" begins a sentence. A question keeps its mark."""
    found = []
    parts = ["", *_BREAK.split(text)]
    for mark, part in zip(parts[::2], parts[1::2], strict=True):
        sentence, join = " ".join(part.split()).strip(" .,!:-—–"), mark.strip()
        conceded = _CONCEDED.match(sentence)
        relative = _RELATIVE.match(sentence)
        if conceded and _declines(conceded[0]):
            found.append((join or "but", sentence[conceded.end() :]))
            continue
        if relative and _declines(relative[2]):
            found += [(join, relative[1]), ("though", relative[2])]
            continue
        start = 0
        for turn in _TURN.finditer(sentence):
            found.append((join, sentence[start : turn.start()].strip(" ,")))
            start, join = turn.end(), turn[1] or turn[2] or "-"
        found.append((join, sentence[start:].strip(" ,")))
    return [(join, clause) for join, clause in found if clause]


def _declines(clause: str) -> re.Match[str] | None:
    found = (match for wording in WORDINGS if (match := wording.search(clause[:_READ])))
    return next((match for match in found if not _CONDITION.search(clause[: match.start()])), None)


def _kind(clause: str) -> str:
    if clause.endswith("?"):
        return "asks"
    if _declines(clause):
        return "narrow" if _NARROW.search(clause) else "decline"
    return "aside" if _ASIDE.match(clause) else "states"


def _answers(at: int, clauses: list[tuple[str, str]], kinds: list[str]) -> bool:
    """Whether a clause answers what another one declines to."""
    join, clause = clauses[at]
    if kinds[at] == "asks":
        return at > 0 and len(clause.split()) <= 2
    if kinds[at] == "aside":
        return join in (";", ",") and _ANSWERING.match(clause) is not None
    if kinds[at] != "states":
        return False
    after = clauses[at + 1][0] if at + 1 < len(clauses) else ""
    if after == ":" and kinds[at + 1] != "states":
        return False
    is_beside = bool(after) and kinds[at + 1] in ("decline", "narrow")
    is_short = len(clause.split()) <= _SHORT
    return (
        "decline" not in kinds
        or is_beside
        or is_short
        or join in _AGAINST
        or bool(_GUESS.search(clause) or _POINTS_BACK.match(clause))
    )
