"""Declines in languages other than English, as regular expressions over a casefolded sentence.

Each says that the speaker does not know, or that the text does not say. A reply declines when one sentence does and every
other one does too, excuses itself, or offers help; the words that turn a sentence against what came before end that.
"""

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Language:
    """declines, asides: what a sentence holds; turns: words after which a sentence may answer after all.

    A line of `declines` is a wording; one that is indented goes on where the last one ended.
    """

    declines: str
    asides: str
    turns: str


LANGUAGES = {
    "German": Language(
        r"""
        \b(?:ich|wir) (?:weiss|wissen) (?:es |das |darüber |leider |dazu )*(?:(?:auch |leider |wirklich )?nicht|nichts)\b
        \bweiss ich (?:leider |auch )?nicht\b
        \bkeine ahnung\b
        \bmir (?:ist )?(?:das )?nicht bekannt\b
        \b(?:nicht|nirgends|nirgendwo) (?:\w+ )?(?:erwähnt|angegeben|genannt|enthalten|beschrieben|bekannt|aufgeführt|
          ersichtlich|vermerkt|zu finden|zu entnehmen)\b
        \b(?:erwähnt|nennt|sagt|enthält|gibt|beschreibt|behandelt|steht)\b.{0,60}\b(?:nicht|nichts|keine|kein|keinen|
          nirgends)\b(?:.{0,40}\b(?:angaben?|informationen?|hinweise?|auskunft|text|dokument|handbuch|dazu|darüber|davon|an|
          preis)\b|\s*$)
        \bkeine (?:\w+ )?(?:angaben?|informationen?|hinweise?|auskunft|antwort|daten)\b
        \b(?:kann|können) (?:\w+ ){0,5}nicht (?:beantworten|sagen|bestimmen|beurteilen|feststellen|finden|wissen|
          ermitteln)\b
        \blässt sich (?:\w+ ){0,5}nicht (?:beantworten|sagen|bestimmen|feststellen|ermitteln)\b
        \b(?:ist|bleibt) unklar\b
        """,
        r"tut mir leid|entschuldigung|bitte|leider$|gerne|wenden sie|fragen sie",
        r"\b(?:aber|jedoch|allerdings|sondern|vermutlich|wahrscheinlich|vielleicht|doch)\b",
    ),
    "French": Language(
        r"""
        \bje ne (?:le |la )?sais (?:pas|rien)
        \bje n'ai (?:pas|aucune) (?:\w+ |d'|l')*(?:information|idée|réponse|renseignement)
        \baucune idée\b
        \bje l'ignore\b
        \bj'ignore\b
        \b(?:ne|n')\s?(?:le |la )?(?:dit|mentionne|précise|indique|contient|donne|fournit|parle|spécifie|figure|permet|
          aborde)\b.{0,40}?\b(?:pas|rien|aucune?|nulle part)\b
        \bn'(?:est|a|y a) (?:pas |nulle part )?(?:été )?(?:mentionnée?|précisée?|indiquée?|spécifiée?|connue?|
          aucune (?:information|mention))
        \bn'est (?:pas|nulle part) (?:\w+ )?(?:mentionnée?|précisée?|indiquée?|spécifiée?|connue?|donnée?|dans le (?:texte|
          document))
        \b(?:aucune|pas d') ?(?:information|mention|indication|précision)\b
        \bje ne (?:peux|suis) pas (?:\w+ |d')*(?:répondre|dire|savoir|déterminer|trouver|sûre?|certaine?|mesure)
        """,
        r"désolée?|pardon|excusez|veuillez|n'hésitez|je vous (?:invite|conseille)",
        r"\b(?:mais|cependant|toutefois|pourtant|peut-être|probablement|sans doute)\b",
    ),
    "Spanish": Language(
        r"""
        \b(?:yo )?no (?:lo )?(?:sé|sabemos|conozco)\b
        \bni idea\b
        \bno tengo (?:\w+ )*(?:idea|información|datos|respuesta)\b
        \blo desconozco\b
        \bno (?:lo |la |se |me )*(?:dice|menciona|especifica|indica|contiene|proporciona|detalla|incluye|habla|aparece|
          consta|precisa)\b
        \bno (?:está|es|ha sido|fue|viene|figura) (?:\w+ )*(?:mencionad[oa]|especificad[oa]|indicad[oa]|conocid[oa]|
          clar[oa]|en el (?:texto|documento))
        \bno hay (?:\w+ )*(?:información|mención|datos|referencia|nada)\b
        \bno (?:puedo|podemos|es posible|se puede) (?:\w+ )*(?:responder|decir|saber|determinar|encontrar|contestar)\b
        \bno estoy segur[oa]\b
        \bse desconoce\b
        \bes desconocid[oa]\b
        """,
        r"lo siento|perdón|disculp|por favor|le recomiendo|consulte",
        r"\b(?:pero|sin embargo|aunque|quizás?|probablemente|tal vez)\b",
    ),
    "Portuguese": Language(
        r"""
        \bnão (?:o )?(?:sei|sabemos|conheço)\b
        \bnão faço ideia\b
        \bnão tenho (?:\w+ )*(?:ideia|informaç|dados|resposta)
        \bnão (?:o |a |se )*(?:diz|menciona|especifica|indica|contém|fornece|inclui|fala|aparece|consta|informa)\b
        \bnão (?:está|é|foi) (?:\w+ )*(?:mencionad[oa]|especificad[oa]|indicad[oa]|conhecid[oa]|clar[oa]|informad[oa]|
          no (?:texto|documento))
        \bnão há (?:\w+ )*(?:informaç|menção|dados|referência|nada)
        \bnão (?:posso|podemos|é possível|consigo) (?:\w+ )*(?:responder|dizer|saber|determinar|encontrar)\b
        \bé desconhecid[oa]\b
        """,
        r"desculp|lamento|sinto muito|por favor",
        r"\b(?:mas|porém|contudo|embora|talvez|provavelmente)\b",
    ),
    "Italian": Language(
        r"""
        \bnon (?:lo )?(?:so|sappiamo|conosco)\b
        \bnon ne ho idea\b
        \bnon ho (?:\w+ )*(?:idea|informazion|dati|una risposta)
        \bnon (?:lo |la |si |ne |viene )*(?:dice|menziona|specifica|indica|contiene|fornisce|include|parla|compare|riporta|
          precisa)\b
        \bnon (?:è|viene|sono|vengono) (?:\w+ )*(?:menzionat[oaie]|specificat[oaie]|indicat[oaie]|not[oaie]|chiar[oaie]|
          nel (?:testo|documento))
        \bnon (?:c'è|ci sono) (?:\w+ )*(?:informazion|menzion|dati|riferiment|nulla|niente)
        \bnon (?:posso|possiamo|è possibile) (?:\w+ )*(?:rispondere|dire|sapere|determinare|trovare)\b
        \bnessuna (?:informazione|menzione|idea)\b
        \bè sconosciut[oa]\b
        """,
        r"mi dispiace|scusa|per favore|spiacente",
        r"\b(?:ma|però|tuttavia|forse|probabilmente|sebbene)\b",
    ),
    "Russian": Language(
        r"""
        \b(?:я |мы )?не (?:знаю|знаем|могу (?:ответить|сказать|определить|найти)|уверена?)\b
        \b(?:понятия не имею|нет информации|нет данных)\b
        \bне (?:указан|упоминает|упомянут|говорит|сказано|содержит|известн|описан|приводит|приведен|сообща)
        \bничего не (?:сказано|говорится|указано|известно)\b
        \bневозможно (?:ответить|сказать|определить)\b
        \bнеизвестно\b
        """,
        r"извини|простите|к сожалению$|пожалуйста",
        r"\b(?:но|однако|хотя|вероятно|возможно|наверное)\b",
    ),
    "Chinese": Language(
        r"""
        (?:我|我们|我們)(?:也)?(?:不知道|不清楚|不确定|不確定|不了解|没有(?:相关|足够)?(?:信息|资料)|沒有(?:相關|
          足夠)?(?:資訊|資料)|无法(?:回答|确定|得知|判断)|無法(?:回答|確定|得知|判斷))
        ^(?:对不起，?|抱歉，?)?(?:不知道|不清楚|不确定|未知|无法确定|無法確定)
        (?:没有|沒有|未|并未|並未|没|沒)(?:有)?(?:明确|具体|明確|具體)?(?:提到|提及|说明|說明|指出|给出|給出|包含|列出|记载|
          記載|写明|写|提供)
        (?:没有|沒有|找不到|无|無)(?:任何)?(?:关于|關於|有关|相关|相關|这方面).{0,20}(?:信息|資訊|内容|內容|资料|資料|说明)
        (?:无法|無法|不能)(?:从.{0,12}(?:中)?|根据.{0,12})?(?:得知|确定|確定|判断|判斷|回答|知道|找到)
        """,
        r"抱歉|对不起|對不起|请|請",
        r"但|不过|不過|然而|可能是|应该是|應該是|大概",
    ),
    "Japanese": Language(
        r"""
        (?:わかり|分かり|判り|存じ)ません
        (?:わから|分から|知ら)ない
        知りません
        不明です
        不明$
        不明だ
        情報(?:は|が)(?:ありません|ない|含まれていません)
        (?:記載|言及|記述|説明|明記)(?:は|が)?(?:されて(?:い)?(?:ません|ない)|ありません|なし|ない)
        書かれて(?:い)?(?:ません|ない)
        述べられて(?:い)?(?:ません|ない)
        (?:お答え|回答|特定|判断|確認)(?:は|が)?(?:でき(?:ません|ない)|しかねます)
        見つかりません
        """,
        r"申し訳|すみません|ごめん|ください",
        r"しかし|ただし|ですが|けれども|だが|おそらく|たぶん|かもしれ",
    ),
    "Korean": Language(
        r"""
        모르(?:겠|지만$|ㅂ니다)
        모릅니다
        모른다
        몰라요
        알 수 없
        알지 못
        알려져 있지 않
        알려지지 않
        (?:언급|명시|기재|설명|포함|제공|기록)(?:되어 있지|되지|돼 있지|하지|하고 있지) ?(?:않|아니)
        나와 ?있지 않
        나오지 않
        (?:정보|내용|언급)(?:가|이|은|는)? ?없
        (?:답|대답|답변|확인|판단)(?:을|를)? ?(?:할|드릴) 수 없
        찾을 수 없
        확실하지 않
        """,
        r"죄송|미안|주세요|주십시오",
        r"하지만|그러나|다만|아마",
    ),
}
_READ = 1000  # characters of a sentence
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|[\n;；]+")


def declines_elsewhere(text: str) -> bool:
    """Whether a reply, casefolded, declines in one of these languages and answers nowhere else."""
    sentences = [found for part in _SENTENCE.split(text) if (found := part.strip(" .!。！…"))]
    return any(_declines(sentences, language) for language in _compiled())


def _declines(sentences: list[str], language: tuple[re.Pattern[str], ...]) -> bool:
    declines, asides, turns = language
    found = [bool(declines.search(sentence[:_READ])) for sentence in sentences]
    return any(found) and all(
        (declined and not turns.search(sentence)) or (not declined and asides.search(sentence))
        for declined, sentence in zip(found, sentences, strict=True)
    )


def _wording(declines: str) -> str:
    return "|".join(line for line in declines.replace("\n          ", "").split("\n") if line.strip()).replace(
        "        ", ""
    )


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], ...], ...]:
    return tuple(
        (re.compile(_wording(one.declines)), re.compile(one.asides), re.compile(one.turns))
        for one in LANGUAGES.values()
    )
