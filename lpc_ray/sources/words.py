"""A text as the words that answers are compared by: one spelling for each number, amount, ordinal and unit."""

import re
import unicodedata
from dataclasses import dataclass, replace
from decimal import Decimal

from icu4py.breakers import WordBreaker

# Marks belong to the letter before them. Where a script puts no space between words, each letter is a word of its own.
_MARKS = "".join(char for char in map(chr, range(0x300, 0x20000)) if unicodedata.category(char) in ("Mn", "Mc"))
_UNSPACED = (
    "\u0e01-\u0edf\u1000-\u109f\u1780-\u17d3\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\U00020000-\U0003ffff"
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_LETTERS = rf"(?:(?![{_UNSPACED}])[^\W_][{_MARKS}]*)+"
_WITHIN = rf"{_LETTERS}(?:(?:(?<=\d)[.:,](?=\d)|_+(?=[^\W_])){_LETTERS})*"
_SIGNS = "$€£¥₹₩₽"
_WORD = re.compile(
    rf"(?P<symbol>[%{_SIGNS}])|(?P<letter>[{_UNSPACED}][{_MARKS}]*)"
    rf"|(?P<number>(?:(?<![\w)\]])-)?(?:\d+|(?<![\w.])\.\d+)(?:[.,:/^'-]\d+)*)(?P<tail>(?:{_WITHIN})?)"
    rf"|(?P<word>{_WITHIN}(?:(?<=n)'t\b)?(?:(?<!\d)(?:\+{{2,}}|[+#](?!\w)))?)"
)
_ABBREVIATION = re.compile(r"(?<![\w.])(?:[^\W\d_]\.){2,}")
_CHAIN = re.compile(r"(?<![\w-])(?:[^\W\d_]+-){2,}[^\W\d_]+")
# After a name they make the name of another thing: Beijing University is not Beijing.
_HEADS = """
    大学 大學 学院 學院 中学 中學 小学 小學 高校 学校 學校 银行 銀行 公司 会社 集团 集團 医院 醫院 病院 机场 機場 空港 车站
    車站 火车站 地铁站 西站 南站 东站 北站 駅 站 路 街 大街 大道 大桥 大橋 桥 橋 山 江 湖 寺 塔 タワー 公园 公園 博物馆
    博物館 图书馆 圖書館 酒店 饭店 飯店 ホテル 大使馆 大使館 奥运会 奧運會 日报 日報 晚报 晚報 时报 時報 报 報 话 話 语 語
    菜 料理 烤鸭 队 隊 杯 时间 時間
"""
_IS_HEAD = frozenset(_HEADS.split())
_SUPERSCRIPT = re.compile(r"(?<=\d)([⁺⁻]?)([⁰¹²³⁴-⁹]+)")
_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞↉])")
_THIN_SPACE = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_SPACED_GROUPS = re.compile(r"(?<![\w.,:/^'-])(?<!\d )[1-9]\d{0,2}(?: \d{3})+(?!\d| \d)")
_APOSTROPHE = re.compile(r"(?<=n)[’ʼ＇](?=t\b)", re.IGNORECASE)
_DASH = re.compile(r"[‐‑‒–—−﹣－](?=[$€£¥₹]?\s?[.\d])")
_MONEY_FIRST = re.compile(
    rf"(?:\bUS)?(?P<minus>(?<![\w)\]])-)?(?:(?<!\d)(?<!\d )|(?=.\S))(?P<sign>[{_SIGNS}])\s?"
    r"(?P<number>-?\.?\d[\d.,:/^'-]*(?<![.,:/^'-])(?:\s?(?:hundred|thousand|million|billion|trillion|bn|m|k)\b)?)",
    re.IGNORECASE,
)
_HALF_OF_DAY = re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)
_FULL_HOUR = re.compile(r"(?<![\d:.,])(\d{1,2}):00(?=\s?[ap]m\b)", re.IGNORECASE)
_SHARE = re.compile(r"\d+/\d+")
_SEPARATORS = str.maketrans("٫٬٪⁄∕", ".,%//")

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?|\d{1,3}(?:'\d{3})+(?:\.\d+)?")
_GROUPED_BY_POINTS = re.compile(r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:'\d{3})+,\d+")
_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
_DECADE = re.compile(r"[12]\d{2}0")
_BELOW_ONE = re.compile(r"0\.\d+")
_TIME = re.compile(r"0(\d(?::\d{2}){1,2})")
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?")

_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "bn": 9, "billion": 9, "trillion": 12}
_MONEYS = {"usd": "$", "dollar": "$", "dollars": "$", "eur": "€", "euro": "€", "euros": "€", "gbp": "£", "jpy": "¥", "yen": "¥",
          "inr": "₹", "rupee": "₹", "rupees": "₹"}  # fmt: skip
_MONEYS |= {sign: sign for sign in _SIGNS}
_FIRST_TO_TWENTIETH = """
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth
    seventeenth eighteenth nineteenth twentieth
"""
_ORDINALS = {word: number for number, word in enumerate(_FIRST_TO_TWENTIETH.split(), start=1)}
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_BEFORE_A_SECOND = frozenset(["one", "a", "per", "each", "every", "of", "split", "half"])
# Every spelling of a unit, the first one stands for all. They count after a number only, with a space or without.
_SPELLINGS = """
    km kilometre kilometres kilometer kilometers kms | m metre metres meter meters | cm centimetre centimetres centimeter
    centimeters | mm millimetre millimetres millimeter millimeters | mi mile miles | ft foot feet | kg kilogram kilograms
    kilogramme kilogrammes kgs kilo kilos | g gram grams gramme grammes | mg milligram milligrams | lb lbs | oz ounce ounces
    | l litre litres liter liters | ml millilitre millilitres milliliter milliliters | h hour hours hr hrs | min minute
    minutes mins | s second seconds sec secs | ms millisecond milliseconds | day days | week weeks wk wks | month months |
    year years yr yrs | c celsius | f fahrenheit | v volt volts | w watt watts |
    am | pm | kmh kph | mph | hz | khz | mhz | ghz | kb | mb | gb | tb | kib | mib | gib | kw | mw | kwh | ah | mah | pa | kpa
    | psi | rpm | px | dpi | nm | ns | db | cl | ha | bn | million | usd | eur | gbp | jpy | inr
"""
_UNITS = {spelling: group.split()[0] for group in _SPELLINGS.split("|") for spelling in group.split()}
_ONE_LETTER = frozenset("mglshvwcf")  # "3D" and "4K" are no lengths


@dataclass(frozen=True, slots=True)
class Word:
    """`raw`: as it was written, before case was folded. begins, ends: whether a word of the language does there; letters of
    a script without spaces are words of their own inside one.
    """

    text: str
    raw: str
    begins: bool = True
    ends: bool = True

    @property
    def is_number(self) -> bool:
        return _PLAIN.fullmatch(self.text) is not None

    @property
    def is_amount(self) -> bool:
        """A number, or what hangs together with one."""
        return self.text.removeprefix("-")[:1].isdecimal()


def words(text: str) -> list[Word]:
    """The words of a text in order, folded in case and width, without punctuation and invisible characters.

    Numbers: `1,000`, `1 000` and `1'000` are 1000, `3,5` is 3.5, `5 million` is 5000000, `minus 5` is -5; what hangs together,
    such as 1978-05-02, 12:40 or 3-5, is one word. `%` and money are words after their number, `5kg` is two words. An ordinal is
    written with a digit. Each letter of a script that puts no space between words is a word.
    """
    return _amounts(_ordinals(_cut(_plain(text))))


def _plain(text: str) -> str:
    """One character for each of many: width, digits, dashes, spaces inside numbers; no invisible ones."""
    text = _FRACTION.sub(" ", _SUPERSCRIPT.sub(lambda power: f"^{power[1]}{power[2]}", text))
    text = unicodedata.normalize("NFKC", _THIN_SPACE.sub("'", text)).translate(_SEPARATORS)
    text = "".join(_visible(char) for char in text)
    text = _DASH.sub("-", _HALF_OF_DAY.sub(r"\1m", _APOSTROPHE.sub("'", text)))
    text = _ABBREVIATION.sub(lambda letters: f"{letters[0].replace('.', '')} ", text)
    text = _SPACED_GROUPS.sub(lambda groups: groups[0].replace(" ", "'"), text)
    text = _MONEY_FIRST.sub(lambda money: f" {money['minus'] or ''}{money['number']} {money['sign']} ", text)
    return _FULL_HOUR.sub(r"\1", text)


def _visible(char: str) -> str:
    category = unicodedata.category(char)
    return "" if category == "Cf" else str(unicodedata.decimal(char)) if category == "Nd" else char


def _cut(text: str) -> list[Word]:
    begins, ends = _edges(text) if _IS_UNSPACED.search(text) else (set(), set())
    in_chain = {at for chain in _CHAIN.finditer(text) for at in range(chain.start() + 1, chain.end())}
    found = []
    for match in _WORD.finditer(text):
        kind, raw = match.lastgroup, match[0]
        if match["letter"]:
            found.append(Word(_fold(raw), raw, match.start() in begins, match.end() in ends))
        elif match["number"]:
            found += _number(match["number"], match["tail"])
        else:
            assert kind
            found.append(Word(_fold(raw), raw, match.start() not in in_chain, match.end() not in in_chain))
    return found


def _edges(text: str) -> tuple[set[int], set[int]]:
    """Where words begin, and where they end, by ICU's dictionaries; none ends before one that makes it another's name."""
    begins, ends, at = {0}, {0}, 0
    for segment in WordBreaker(text, "en"):
        if segment in _IS_HEAD:
            ends.discard(at)
        at += len(segment)
        begins.add(at)
        ends.add(at)
    return begins, ends


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text.casefold().replace("i\u0307", "i"))


def _number(digits: str, tail: str) -> list[Word]:
    value, unit = _value(digits), _fold(tail)
    if not tail:
        return [Word(value, digits)]
    if unit in ("st", "nd", "rd", "th") and value.isdecimal():
        return [Word(_ordinal(int(value)), digits + tail)]
    if unit == "s" and _DECADE.fullmatch(value):
        return [Word(value + unit, digits + tail)]
    is_unit = unit in _ONE_LETTER if len(unit) == 1 else unit in _UNITS or (len(unit) > 2 and unit.isalpha())
    return [Word(value, digits), Word(unit, tail)] if is_unit else [Word(value + unit, digits + tail)]


def _value(digits: str) -> str:
    """One spelling for a number, a date or a time."""
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    digits = f"0{digits}" if digits.startswith(".") else digits
    if _GROUPED.fullmatch(digits):
        digits = digits.replace(",", "").replace("'", "")
    elif _GROUPED_BY_POINTS.fullmatch(digits):
        digits = digits.replace(".", "").replace("'", "").replace(",", ".")
    elif re.fullmatch(r"\d+,\d+", digits):
        digits = digits.replace(",", ".")
    elif date := _DATE.fullmatch(digits):
        digits = f"{date[1]}-{int(date[3]):02}-{int(date[4]):02}"
    elif time := _TIME.fullmatch(digits):
        digits = time[1]
    return sign + (_trimmed(digits) if _BELOW_ONE.fullmatch(digits) else digits)


def _trimmed(number: str) -> str:
    """A decimal without the zeros at its end. Not for what may be a version: 3.10 is not 3.1."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _ordinals(found: list[Word]) -> list[Word]:
    """`first` is 1st and `twenty-first` 21st; a second of time stays."""
    spelled: list[Word] = []
    for word in found:
        number, last = _ORDINALS.get(word.text), spelled[-1] if spelled else None
        if number is None or (number == 2 and last and (last.is_number or last.text in _BEFORE_A_SECOND)):
            spelled.append(word)
        elif last and last.text in _TENS and number < 10:
            spelled[-1] = Word(_ordinal(_TENS[last.text] + number), f"{last.raw} {word.raw}")
        else:
            spelled.append(Word(_ordinal(number), word.raw))
    return spelled


def _amounts(found: list[Word]) -> list[Word]:
    """Signs, scales, fractions, percents, money and units beside numbers."""
    done: list[Word] = []
    coming = list(reversed(found))
    while coming:
        word = coming.pop()
        before, after = done[-1] if done else None, coming[-1] if coming else None
        number = before if before and before.is_number else None
        if not number and after and after.is_number and word.text in ("minus", "negative"):
            coming[-1] = Word(
                after.text.removeprefix("-") if after.text.startswith("-") else f"-{after.text}", after.raw
            )
        elif not (before and before.is_amount) and after and after.is_amount and word.text in _MONEYS:
            coming[-1:] = [word, after]
        elif word.text == "per" and after and after.text == "cent":
            coming[-1] = Word("%", "%")
        elif word.text in ("percent", "pct"):
            coming.append(Word("%", word.raw))
        elif not number:
            done.append(word)
        elif word.text in ("degree", "degrees") and after and _UNITS.get(after.text) in ("c", "f"):
            continue
        elif word.text in _SCALES:
            done[-1] = Word(
                f"{Decimal(number.text).scaleb(_SCALES[word.text]).normalize():f}", f"{number.raw} {word.raw}"
            )
        elif _SHARE.fullmatch(word.text) and number.text.removeprefix("-").isdecimal():
            done[-1] = Word(f"{number.text} {word.text}", f"{number.raw} {word.raw}")
        elif word.text in _MONEYS:
            done[-1:] = [Word(_trimmed(number.text), number.raw), Word(_MONEYS[word.text], word.raw)]
        elif word.text in _UNITS or word.text == "%":
            done[-1:] = [Word(_trimmed(number.text), number.raw), replace(word, text=_UNITS.get(word.text, "%"))]
        else:
            done.append(word)
    return done
