"""The wordings in which English declines to answer, as regular expressions over small letters with contractions spelled out.

Negation alone is no decline: "visitors do not have to pay" is an answer. So a wording says who does not say what: the
speaker, the text, or the asked thing. <name> stands for a part; a line that is indented goes on where the last one ended.
"""

import re

_PARTS = {
    "text": r"""
        (?:documents?|documentation|text|handbook|passages?|context|sources?|articles?|materials?|pages?|sections?|
        excerpts?|manual|guide|guidelines|records?|reports?|paragraphs?|stor(?:y|ies)|book|chapters?|files?|data|
        contents?|information|input|snippets?|notes?|description|transcript|conversation|prompt|question|resources?|
        website|faq|knowledge base|corpus|paper|letter|author|writer|extract|statement|summary|wording)
    """,
    "the_text": r"""
        (?:(?:the|this|that|these|those|your|our|my|any|its)\s+(?:[\w'-]+\s+){0,6}?<text>(?:\s+(?:provided|given|
        above|shared|supplied|itself|at hand|(?:that )?(?:you|i|we) (?:have |was |were )?\w+))?)
    """,
    "speaker": r"""
        \b(?:i|we)
    """,
    "how": r"""
        (?:(?:really|simply|actually|currently|explicitly|specifically|directly|clearly|exactly|even|also|yet|
        honestly|just|precisely|expressly|quite|entirely|fully|otherwise|immediately|personally|ever|definitively|
        itself|absolutely|truly|still|anywhere|at all)\s+)*
    """,
    "fact": r"""
        (?:information|info|mention|details?|data|reference|indication|answers?|evidence|statement|context|
        description|discussion|explanation|clues?|specifics|knowledge|idea|hint|basis|means|access|
        ability)(?! (?:desk|office|point|cent(?:re|er)|board|sheet|stand|kiosk|technology|officer|machine|keys?|phone|
        papers?|books?|cards?|store|storage|processing|sharing|shall|must|may|protection))
    """,
    "attribute": r"""
        (?:names?|numbers?|codes?|dates?|prices?|costs?|age|salary|address|location|reasons?|titles?|amounts?|times?|
        years?|identity|owner|founder|size|length|height|weight|colou?r|(?:phone|telephone) number|birthday|password|
        figures?|information|answers?|details?|facts?|data|specifics)
    """,
    "say": r"""
        (?:say|mention|state|specify|tell|indicate|contain|include|cover|provide|give|offer|list|describe|discuss|
        address|answer|explain|reveal|disclose|name|identify|refer|talk about|touch|go into|note|report|detail|
        clarify|define|show|supply|set out|record|elaborate|deal|comment|quote|share|answer|imply|(?:appear|
        seem) to (?:\w+ )?(?:say|mention|state|specify|tell|indicate|contain|include|cover|provide|give|list|discuss|
        have)|make (?:any|clear|mention|reference)|have (?:any|anything|an? (?:answer|section|entry|passage|mention|
        reference)|the (?:answer|information)|(?:that|this|enough|such) ))
    """,
    "says": r"""
        (?:says|mentions|states|specifies|tells|indicates|contains|includes|covers|provides|gives|offers|lists|
        describes|discusses|addresses|answers|explains|reveals|discloses|names|identifies|refers|makes|has|shows|
        supplies|holds)
    """,
    "told": r"""
        (?:mentioned|specified|stated|known|disclosed|indicated|described|discussed|addressed|documented|revealed|
        explained|detailed|defined|spelled out|said|written|answered|noted|reported|clarified|touched on|referenced)
    """,
    "present": r"""
        (?:given|provided|included|covered|listed|available|found|present|shown|named|recorded|contained|clear|
        identified)
    """,
    "end": r"""
        (?=\s*(?:$|,|—|–|-\s))
    """,
    "where": r"""
        \s+(?:(?:anywhere|explicitly|specifically|directly|clearly|publicly)\s*)?(?:(?:any\w*\s+)?(?:in|by|within|
        from|on|inside|throughout|based on|according to)\s+)?(?:any\s+(?:of\s+)?)?<the_text>\b|\s+in\s+<text>\b
    """,
    "after": r"""
        (?:<end>|<where>|\s+(?:anywhere|explicitly|specifically|directly|publicly|yet|either|at all|to me|to us|
        exactly|who|whom|whose|what|when|where|which|why|how|whether|if|so|and|or|because)\b)
    """,
    "be_not": r"""
        (?:(?:is|are|was|were)\s+(?:not|never|nowhere)|(?:has|have|had)\s+(?:not|never)\s+been|remains?\s+un|(?:is|
        are)\s+un)
    """,
    "asked": r"""
        (?:who|whom|whose|what|when|where|which|why|how|whether|if)
    """,
    "find_out": r"""
        (?:predict|calculate|compute|estimate|work out|say|tell|know|determine|answer|be (?:sure|certain)|ascertain|
        identify|judge|infer|establish|find out|conclude|guess)
    """,
}
_WORDINGS = r"""
# The speaker does not know, has nothing to go by, or cannot say.
<speaker> <how>(?:do|did|would|will|could) not <how>(?:know|recall|remember|understand)\b(?! (?:an?|any) (?:better|
  other|nicer))
\b(?:cannot|could not|unable to) <how>(?:find|locate) (?:the|an?|any) (?:[\w'-]+ )?<fact>
<speaker> am (?:clueless|drawing a blank|at a loss|not privy|in the dark)\b
\b(?:you|one|readers?|anyone) (?:cannot|could not) <how><find_out>\b.* (?:from|by|in|with) <the_text>
\b(?:more|further|additional) <fact> (?:is|are|would be) (?:needed|required|necessary)
<speaker> <how>(?:do|did|would|will) not <how>have <how>(?:[\w'-]+ ){0,4}?<fact>
<speaker> <how>have <how>(?:got )?<how>(?:no|zero|insufficient|little) (?:[\w'-]+ ){0,2}?(?:<fact>|way (?:of|to)|
  record)\b
<speaker> <how>(?:lack|do not possess|am missing) (?:[\w'-]+ ){0,3}?<fact>
<speaker> <how>(?:cannot|could not|(?:will|would) not be able to|(?:am|are|was|were) (?:unable|not able|
  not in a position) to) <how>(?:(?:see|find|locate|be (?:sure|certain|of)|speak|comment|respond|recall|remember|
  verify|confirm|discern|help|assist|<find_out>)\b|(?:provide|give|share|offer|access|disclose|supply|make|
  come up with) (?:you (?:with )?)?(?:(?:that|this|it|one)\b|(?:[\w'-]+ ){0,4}?(?:<fact>|<attribute>|response)\b))
\b(?:i|we) (?:can |could |have )?(?:see|find|found|saw|seen) (?:no|nothing|not any)\b(?! (?:problem|trace|reason|
  harm|fault))
<speaker> (?:am|are|was|were) <how>(?:not <how>|un)(?:sure|certain|aware|familiar|clear|informed)\b
<speaker> have not (?:got )?(?:an?|the|any) (?:\w+ ){0,2}?(?:clue|idea|notion|<fact>)
\b(?:i|we|you|one|the reader|readers) (?:am|are|is|was|were) (?:not|never) (?:told\b(?! to\b|.*\b(?:until|unless|
  before)\b)|(?:given|provided with) (?:[\w'-]+ ){0,3}?<fact>)
<speaker> (?:do|did) not (?:see|find) (?:(?:that|this|it|one|anything)\b(?:.* <the_text>|$| about)|(?:an?|any|
  the) (?:[\w'-]+ ){0,3}?<fact>)
<speaker> do not <how>(?:think|believe) (?:that )?(?:<the_text>|it|this|that) <how>(?:<says>\b|is <how>(?:<told>|
  <present>)\b)
<speaker> (?:must|have to|will|would) (?:respectfully )?(?:decline|refuse|pass)\b|\bneither confirm nor deny\b
\bmy (?:knowledge|training|training data|sources?) (?:do|does|did) not\b|\bnot that (?:i|we) (?:know|am aware|
  are aware|can)\b
<speaker> have not <how>(?:been (?:told|given|provided|informed)|(?:found|seen|read|heard|come across) (?:of |
  about )?(?:any|anything|that|this|it|such|an? mention)\b)
<speaker> would (?:only be guessing|have to (?:guess|check|look)|need (?:to (?:check|look)|more (?:information|
  context|details))|rather not|prefer not|be guessing)
<speaker> know (?:of )?(?:nothing|no) ?(?:about|of|on|$)|<speaker> (?:would )?need (?:to know|(?:more|additional|
  further) <fact>)
\bplease (?:provide|share|supply|give) (?:me (?:with )?)?(?:that|this|the|more|additional|further|
  some) (?:\w+ ){0,2}?(?:<fact>|<text>)
\bnot something (?:that )?(?:<the_text>|(?:i|we) (?:know|can|have|am|are))\b|\b(?:beyond|outside|not within) my\b
\bas an? (?:ai|(?:large )?language model)\b
# Nobody knows, nothing says.
\b(?:nobody|no one|no-one|none of us) (?:\w+ )?(?:knows|knew|is (?:sure|certain)(?!-)|(?:can|could) (?:say|tell|
  know)(?=$|,| (?:for|what|who|when|where|why|how|whether|which)))\b(?!.*\bbetter\b)
\bnone of <the_text> <how><say>s?\b|\bnone of (?:the|these|those) (?:[\w'-]+ )?<text> <how><say>s?\b
\bnowhere (?:does|do|did|in|is|was|has)\b|\b(?:is|are|was|were) nowhere <how>(?:to be )?(?:<told>|<present>)
\bnothing (?:more )?(?:(?:about [\w ]+)?(?:is|was|has been) <how><told>\b(?! to (?!me|us))|(?:in|from) <the_text>|
  about\b.* (?:in|from) <the_text>|(?:like )?that (?:says|tells|states|mentions))
\b(?:there|it) (?:is|are|was|were|has been|have been|seems to be|appears to be) (?:simply |just |also )?(?:no|
  not any|not an?|not enough|not sufficient|insufficient|no such|not the|too little) (?:[\w'-]+ ){0,3}?(?:<fact>|
  way (?:to|of) <find_out>|(?:known|definitive) (?:answer|case))\b
\bthere (?:is|are|was|were) (?:no|not any) (?:[\w'-]+ ){1,6}?in <the_text>\b|\bthere is no (?:telling|knowing|
  saying)\b
(?:^|, )no (?:[\w'-]+ ){1,3}?(?:is|are|was|were) <how><told>(?:<end>|<where>| for| of)|
  ^no (?:[\w'-]+ )?<attribute> (?:is|are|was|were) <how>(?:given|listed|provided|available)(?:<end>|<where>| for| of)
\bthere (?:is|was) (?:nothing|not anything) (?:here |there )?(?:(?:said|stated|written|mentioned|about|on (?:that|
  this|it))\b|in <the_text>)
(?:^|, )(?!no (?:idea|means|access|basis|answer) is\b)(?:sorry |unfortunately |regrettably )?(?:no|not any|
  insufficient|not enough|not sufficient) (?:[\w'-]+ ){0,2}?<fact>(?:$|,| (?:(?:is|was|are|were|has been|have been|
  can be|could be) <how>(?:<told>|<present>|there)|exists?|available|given|provided|found|about|of|on|regarding|
  concerning|for|in <the_text>|to <find_out>)\b)
# The text does not say.
<the_text> (?:(?:do|does|did|would) not|cannot|could not) <how><say>\b|<the_text> neither <says>\b|
  \bneither <the_text> nor\b.* <says>\b
<the_text> (?:has|have|had) not <how>(?:<told>|told|given|provided|included|listed)\b
<the_text> <how>(?:gives?|states?|specif(?:y|ies)|names?|quotes?|mentions?|lists?) no [\w'-]+
^(?:he|she|it|they) (?:do|does|did) not (?:say|state|specify|mention|tell)(?: so| anything)?$
\b(?:goes|falls|is|lies) (?:well |far )?(?:beyond|outside)(?: of)? <the_text>
\b(?:it|they|that|this) (?:do|does|did) not <how>(?:(?:state|specify|tell|mention|indicate|elaborate)\b|say(?:$|,|
   (?:anything|in|which|much|on|<asked>)\b)|(?:contain|include|provide|give|have|list|cover|
  offer) (?:[\w'-]+ ){0,3}?<fact>)
^(?:do not <how>(?:know|recall)|(?:does|did) not <how>(?:say|mention|specify|state|tell|know))(?:$|,| (?:that|this|
  it|the answer|anything|about|<asked>)\b)
<the_text> <how>(?:never|nowhere|hardly) <how><says>\b|\b(?:it|they) <how>never <how>(?:mentions?|states?|
  specif\w+)\b
(?:<the_text>|\b(?:it|they)) <how>(?:fails?|neglects?|failed) to\b|<the_text> <how>(?:omits?|lacks?|(?:is|are|
  remains?) (?:silent|unclear|vague|mute)|skips?)\b
(?:<the_text>|\b(?:it|they)) <how>(?:<says>|<say>|mentioned|provided|contained|gave|
  made) (?:absolutely )?no (?:[\w'-]+ ){0,2}?<fact>
(?:<the_text>|\b(?:it|they)) <how>(?:<says>|<say>|said|mentioned) nothing(?:$|,| (?:about|on|of|regarding|
  concerning|as to|that would|on this|to say))
<the_text> (?:has|have|had) no (?:section|entry|passage|chapter|paragraph|word|line|rule|note|answer)s?\b|
  ^none (?:about|on|regarding)\b
(?:<the_text>|\b<fact>) (?:is|are|was|were) <how>(?:insufficient|inconclusive|too vague|not (?:sufficient|enough|
  specific|explicit|clear))\b
\bno conclusions? (?:can|could) be drawn\b|^not (?:its|his|her|their|the) <attribute>\b
\b(?:we|one|you|i) can only (?:guess|speculate)\b|\bi wish i knew\b|\bif only i knew\b|\bnot the (?:right )?(?:one|
  person) to ask\b|^(?:it|that) is a mystery\b|\bleaves? (?:this|that|it) to\b
\b(?:leaves?|left) (?:this|it|that|the \w+)?\s?(?:question )?(?:open|unanswered|unspecified|unsaid|unclear|out)\b
\b(?:outside|beyond)(?: of)? the scope\b
# The asked thing is not told, or cannot be made out.
\b<be_not> <how><told><after>
\b<be_not> <how><present><where>
\b(?:<attribute>|it|that|this)(?: (?:of|for|on|about)(?: [\w'-]+){1,5}?)? (?:(?:is|are|was|were) (?:not|never)|
  (?:has|have) (?:not|never) been) <how>(?:given|provided|listed|recorded|available|clear|there|public)<after>
\b(?:information|answers?|details?|facts?|data|specifics) (?:[\w'-]+ ){0,6}?(?:is|are|was|
  were) not <how><present><after>
\b(?:is|are|was|were|remains?) <how>(?:unknown|unclear|uncertain|unspecified|undisclosed|undetermined|unstated|
  unanswerable|unanswered|unmentioned|undocumented|unrecorded)<after>
\b(?:information|answers?|details?|that|this|it|names?) (?:is|are) <how>(?:missing|absent|lacking|omitted|left out|
  unavailable)<after>
\b(?:missing|absent|omitted|left out|lacking) (?:from|in) <the_text>
\b(?:is|are|was|were) (?:not|nowhere) <how>(?:part of|in|within|among) <the_text>\b
\b(?:do|does|did) not <how>appear (?:anywhere|in <the_text>|to be (?:<told>|<present>))
\b(?:cannot|could not|can never) <how>be <how>(?:determined|answered(?! by (?!<the_text>))|known|inferred|
  ascertained|established|concluded|deduced|derived|(?:found|said|told|identified|gleaned)<where>)
\b(?:impossible|not possible|hard|difficult|tough|not easy) (?:for (?:me|us|anyone) )?to <how><find_out>\b
\b(?:impossible|not possible|difficult) (?:for (?:me|us) )?to (?:provide|give) (?:an?|the|any) (?:[\w'-]+ )?<fact>
\b<fact> (?:is )?(?:not|un)\s?(?:found|available|provided|given|known|specified|mentioned|stated)\b
\b(?:question|it|this|that) (?:is unanswerable|has no answer)\b
# Set phrases, and replies that are nothing but one.
\bno way (?:of (?:knowing|telling)|to <find_out>)\b|\bany(?:body|one)'s guess\b
^not (?:anywhere )?(?:in|part of|on) <the_text>\b|\b(?:that|this) is not <how>(?:covered|included|contained)<end>
\bguess is as good as mine\b|\bbeats me\b|\bgod (?:only )?knows\b|\bwho knows\b|^search me\b
^(?:sorry |unfortunately |still |hm+ )?(?:no (?:idea|clue|answer|comment|data)|not (?:\w+ly )?(?:sure|certain|
  known)|unsure|uncertain)(?:$|,| (?:at all|about|on|regarding|sorry|of|to|for|in|from|that|<asked>)\b)
^(?:it |that )?(?:cannot|could not) (?:be )?(?:say|tell|answer|determine|determined|answered|known|told|help)\b
^(?:not|never|nowhere|none) <how>(?:<told>|<present>|applicable)\b
^(?:still |as yet )?(?:unknown|unclear|unspecified|unanswerable|undetermined|undisclosed|unavailable|unstated|
  indeterminate|n/?a|idk|pass)(?:$|, (?:sorry|i|but|as|since|because|the|not)\b| (?:from|in|to|based|sorry)\b)
"""


def spelled_out(wording: str) -> str:
    """`wording` with every <name> replaced by the part."""
    whole = re.sub(r"<([a-z_]+)>", lambda name: "".join(line[8:] for line in _PARTS[name[1]].split("\n")), wording)
    return whole if whole == wording else spelled_out(whole)


def _lines(text: str) -> list[str]:
    whole = text.replace("\n  ", "").split("\n")
    return [line for line in whole if line and not line.startswith("#")]


WORDINGS = [re.compile(spelled_out(line)) for line in _lines(_WORDINGS)]
