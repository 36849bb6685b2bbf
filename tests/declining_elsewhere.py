"""Replies that decline, and replies that assert, in languages other than English."""

DECLINES = {
    "German": """
        Ich weiß es nicht.
        Das weiß ich leider nicht.
        Keine Ahnung.
        Im Text wird das nicht erwähnt.
        Das Handbuch erwähnt keinen Preis.
        Das Dokument enthält dazu keine Informationen.
        Dazu gibt es keine Angaben im Handbuch.
        Das kann ich anhand des Textes nicht beantworten.
        Das lässt sich aus dem Text nicht bestimmen.
        Der Name des Kochs ist nicht angegeben.
        Tut mir leid, das weiß ich nicht.
        Davon steht im Handbuch nichts.
    """,
    "French": """
        Je ne sais pas.
        Je n'ai aucune idée.
        Aucune idée.
        Le document ne le mentionne pas.
        Le texte ne précise pas le nom du cuisinier.
        Cette information n'est pas mentionnée dans le texte.
        Le manuel ne contient aucune information à ce sujet.
        Je ne peux pas répondre à cette question.
        Ce n'est pas précisé.
        Je suis désolé. Je ne sais pas.
        Il n'y a aucune information à ce sujet.
        Je n’ai pas cette information.
    """,
    "Spanish": """
        No lo sé.
        No tengo idea.
        No sé la respuesta.
        El texto no lo menciona.
        El documento no especifica el nombre del cocinero.
        No hay información sobre eso en el texto.
        Esa información no está mencionada.
        No puedo responder a esa pregunta.
        Lo siento. No tengo esa información.
        No se indica en el manual.
        El manual no dice nada sobre una piscina.
        Se desconoce.
    """,
    "Portuguese": """
        Não sei.
        Não faço ideia.
        O texto não menciona isso.
        O documento não especifica o nome do cozinheiro.
        Não há informações sobre isso no texto.
        Essa informação não está no documento.
        Não consigo responder a essa pergunta.
        Desculpe. Não tenho essa informação.
        Isso não é mencionado.
        O manual não diz nada sobre uma piscina.
    """,
    "Italian": """
        Non lo so.
        Non ne ho idea.
        Il testo non lo menziona.
        Il documento non specifica il nome del cuoco.
        Non ci sono informazioni su questo nel testo.
        Questa informazione non è indicata.
        Non posso rispondere a questa domanda.
        Mi dispiace. Non ho informazioni.
        Non viene menzionato.
        Il manuale non dice nulla di una piscina.
    """,
    "Russian": """
        Я не знаю.
        Не знаю.
        Понятия не имею.
        В тексте это не указано.
        Документ не содержит этой информации.
        В тексте об этом ничего не сказано.
        Имя повара не упоминается.
        Я не могу ответить на этот вопрос.
        Извините. Я не знаю.
        Это неизвестно.
    """,
    "Chinese": """
        我不知道。
        不知道。
        文中没有提到。
        手册中没有提到游泳池。
        我无法回答这个问题。
        文档未说明厨师的名字。
        抱歉，我不清楚。
        无法从文中得知。
        没有关于这方面的信息。
        手冊中沒有提及。
        我没有相关信息。
        根据文本无法确定。
    """,
    "Japanese": """
        わかりません。
        分かりません。
        知りません。
        本文には記載されていません。
        その情報はありません。
        申し訳ありません。お答えできません。
        不明です。
        手引きには書かれていません。
        文書には言及がありません。
        料理人の名前は明記されていません。
    """,
    "Korean": """
        모르겠습니다.
        모릅니다.
        알 수 없습니다.
        본문에 언급되어 있지 않습니다.
        그 정보는 없습니다.
        문서에 나와 있지 않습니다.
        죄송합니다. 답할 수 없습니다.
        요리사의 이름은 명시되지 않았습니다.
        찾을 수 없습니다.
        알려져 있지 않습니다.
    """,
}
ASSERTIONS = {
    "German": """
        Die Bibliothek ist im Leuchtturm.
        Besucher müssen nicht bezahlen.
        Hunde sind nicht erlaubt.
        Ich weiß es nicht genau, aber es ist wohl die Kapelle.
        Der Code ist 4718.
        Nein, das Tor ist nicht rot.
        Die Fähre fährt am Montag nicht.
        Der Koch heißt Keno.
        Es gibt keinen Hund auf der Station.
        Das steht in Kapitel drei.
    """,
    "French": """
        La bibliothèque est dans le phare.
        Les visiteurs ne paient pas.
        Les chiens ne sont pas admis.
        Je ne sais pas exactement, mais c'est la chapelle.
        Le code est 4718.
        Le bac ne part pas le lundi.
        Il n'y a pas de chien.
        Le cuisinier s'appelle Keno.
        Non, la porte n'est pas rouge.
        C'est au chapitre trois.
    """,
    "Spanish": """
        La biblioteca está en el faro.
        Los visitantes no pagan.
        No se permiten perros.
        No lo sé con certeza, pero es la capilla.
        El código es 4718.
        El ferry no sale los lunes.
        No hay perros.
        El cocinero se llama Keno.
        No, la puerta no es roja.
        Está en el capítulo tres.
    """,
    "Portuguese": """
        A biblioteca fica no farol.
        Os visitantes não pagam.
        Não são permitidos cães.
        Não sei ao certo, mas é a capela.
        O código é 4718.
        Não, a porta não é vermelha.
        O barco não sai às segundas.
        O cozinheiro chama-se Keno.
    """,
    "Italian": """
        La biblioteca è nel faro.
        I visitatori non pagano.
        I cani non sono ammessi.
        Non lo so con certezza, ma è la cappella.
        Il codice è 4718.
        No, la porta non è rossa.
        Il traghetto non parte il lunedì.
        Il cuoco si chiama Keno.
    """,
    "Russian": """
        Библиотека находится в маяке.
        Посетители не платят.
        Собаки не допускаются.
        Я точно не знаю, но это часовня.
        Код 4718.
        Паром не ходит по понедельникам.
        Нет, ворота не красные.
        Повара зовут Кено.
    """,
    "Chinese": """
        图书馆在灯塔里。
        参观者不用付钱。
        不允许带狗。
        我不知道，但可能是教堂。
        密码是4718。
        渡轮星期一不开。
        不，门不是红色的。
        厨师叫凯诺。
        没有狗。
        他没有参加会议。
    """,
    "Japanese": """
        図書館は灯台にあります。
        見学者は払いません。
        犬は入れません。
        わかりませんが、礼拝堂かもしれません。
        番号は4718です。
        月曜日は船が出ません。
        いいえ、門は赤くありません。
        料理人の名前はケノです。
    """,
    "Korean": """
        도서관은 등대에 있습니다.
        방문객은 돈을 내지 않습니다.
        개는 들어올 수 없습니다.
        모르겠지만 아마 예배당입니다.
        암호는 4718입니다.
        월요일에는 배가 다니지 않습니다.
        아니요, 문은 빨간색이 아닙니다.
        요리사의 이름은 케노입니다.
    """,
}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]
