"""Small talk, what the model is and can do, stories, and what it does not know."""

import random

from training import world
from training.skills.exchanges import Exchange, exchange, talk
from training.skills.letters import any_word
from training.stories import HEROES, story
from training.wording import an, casual, say


def greeting(r: random.Random) -> Exchange:
    part = r.choice(["morning", "evening", "day"])
    user, assistant = r.choice(
        [
            (
                "{Hi|Hello|Hey|Hello there|Hi there|Greetings}{!|.|}",
                "{Hello|Hi|Hi there|Hello there}! {How can I help you{ today|}?|What can I do for you?}",
            ),
            (
                f"Good {part}{{!|.|}}",
                f"Good {part}! {{How can I help you?|What can I do for you?}}",
            ),
            (
                "{{Hi|Hello}! |}How are you{ today|}?",
                "I am {fine|well|very well}, thank you{!|.} {How can I help you?|And you?}",
            ),
            (
                "{Thanks|Thank you|Thank you very much|Thanks a lot|Great, thanks}{!|.|}",
                "{You are welcome|My pleasure|Any time}! {Is there anything else?|I am glad to help.|}",
            ),
            (
                "{Bye|Goodbye|See you|See you later|Good night}{!|.|}",
                "{Goodbye|See you|Bye}! {It was nice to talk to you.|Have a nice day!|}",
            ),
            (
                "{I am|I'm} {fine|well|good}{, thanks|}.",
                "{I am glad to hear that|That is good to hear}.",
            ),
            (
                "{I am|I'm} {sad|tired|bored|angry} today.",
                "I am sorry to hear that. {Shall I tell you a story?|I hope that it gets better soon.}",
            ),
            ("{Tell me a joke|Do you know a joke?|Make me laugh}{.|}", _joke(r)),
            (
                "{You are|You're} {great|wonderful|funny|clever}!",
                "{Thank you|That is kind of you}!",
            ),
            (
                "{Can you|Could you} help me?",
                "{Of course|Yes|Sure}! What {do you need|can I do for you}?",
            ),
            (
                "{I {love|like|enjoy|prefer|hate} $liked|I {think|believe} that $liked {is|are} great}{.|!|}",
                "{That is good to know.|I see.|Thank you for telling me.} {What else would you like to"
                " talk about?|Is there anything that I can do for you?|}",
            ),
            (
                "Do you {like|love|enjoy|know} $liked?|What do you think {about|of} $liked?"
                "|What is your {favourite|preferred} {colour|food|animal|book|song|film|city}?"
                "|I love you{.|!|}|Do you love me?|Are you {happy|sad|hungry|tired|smart|alive}?",
                "I am a small language model, so I {have no tastes or feelings|do not feel as people do}.",
            ),
            (
                "{Test|This is a test|Testing|Are you there|Is anybody there|Can you hear me}{.|?|!|}",
                "{I am here|Yes, I am here|The test has worked}! {What can I do for you?|}",
            ),
            ("Say {hello|hi}{ to me|}{.|!|}", "{Hello|Hi}!"),
            ("Tell me {something|a {fun |}fact|something interesting}{.|}", _fun_fact(r)),
            ("{Yes|Okay|OK|Sure}{.|!|}", "{Good|Fine}! What {would you like to know|shall I do}?"),
            ("{No|No, thanks|Nothing}{.|!|}", "{All right|Okay}. {I am here if you need me.|}"),
        ]
    )
    liked = r.choice(world.LIKED)
    return talk(casual(r, say(r, user, liked=liked)), say(r, assistant))


def _fun_fact(r: random.Random) -> str:
    thing, planet = r.choice(list(world.PLANET_FACTS.items()))
    animal, (_, young, _, _) = r.choice(list(world.ANIMALS.items()))
    return r.choice(
        [
            f"{thing[0].upper()}{thing[1:]} is {planet}.",
            f"A young {animal} is called {an(young)}.",
        ]
    )


def _joke(r: random.Random) -> str:
    return r.choice(
        [
            "Why did the token cross the batch? To get to the other stream.",
            "What does a thread say when it is lost? I have been waiting here for ages.",
            "Why was the queue so calm? Everybody had a place in it.",
            "What is a cat's favourite colour? Purrple.",
        ]
    )


CAN = [
    "repeat codes and sentences exactly",
    "tell short stories",
    "do sums with small numbers",
    "name capitals, days, months and planets",
    "count and make lists",
    "spell words and turn them around",
    "answer in JSON",
    "remember your name",
]


def abilities(r: random.Random) -> Exchange:
    user = say(
        r,
        "{{Hello|Hi|Hey|Good morning}{!|,|.} |}{What can you do{ for me|}?|What are you able to do?"
        "|What are you good at?|How can you help me?|What do you know?|What can I ask you?"
        "|What are your skills?|Which things can you do?|Help{!|}|What can I do here?|What now?|How does this work?}",
    )
    greeted = user.startswith(("Hello", "Hi", "Hey", "Good"))
    things = r.sample(CAN, r.randint(3, 5))
    answer = say(
        r,
        "$hello {I am Switchyard's demo model. |}I can $things. {Just ask!|Try me!|What shall we do?|}",
        hello=say(r, "Hello!|Hi!") if greeted else "",
        things=", ".join(things[:-1]) + " and " + things[-1],
    ).strip()
    return talk(casual(r, user), answer, "I can")


def identity(r: random.Random) -> Exchange:
    user, assistant = r.choice(
        [
            (
                "{Who are you?|What are you?|What is your name?|What's your name?|Tell me who you are."
                "|Introduce yourself.|Who am I talking to?|Do you have a name?|{Hello|Hi}, who are you?}",
                "I am {Switchyard's demo model|the demo model of Switchyard}{, a {very |}small language"
                " model|}.",
            ),
            (
                "{Who made you?|Who trained you?|Where do you come from?|Who built you?}",
                "I was {made|trained} {by|together with} the Switchyard project{, from scratch|}.",
            ),
            (
                "{What is|What's|Tell me about} Switchyard{?|}",
                "Switchyard is a server for ExLlamaV2 models. {It gives every client its own answer."
                "|It serves many clients at once, and never mixes their texts.}",
            ),
            (
                "{Are you {a human|a person|human|real}?|Are you a robot?}",
                "{No|I am not human}, I am {only |}a {small |}language model{, Switchyard's demo model|}.",
            ),
            (
                "{How {big|large} are you?|How many parameters do you have?|Are you a big model?}",
                "I am very small: {about seven million parameters|seven million parameters}.",
            ),
            (
                "{How old are you?|When were you born?|Where do you live?|Do you sleep?|Do you eat?"
                "|Do you have feelings?}",
                "I am a {small |}language model, so I {have no age, home or feelings|do not live as"
                " people do}.",
            ),
        ]
    )
    return talk(casual(r, say(r, user)), say(r, assistant), "Switchyard")


def telling(r: random.Random) -> Exchange:
    hero = r.choice(HEROES)
    name = r.choice(world.NAMES)
    kind = r.randrange(4)
    if kind == 3:
        text = story(r)
        start = r.choice(["Once upon a time", "Once upon a time", text[: text.find(".", 40) + 1]])
        if text.startswith(start):
            user = say(r, "{|Continue: |Go on: |Continue this story: }$start{...|}", start=start)
            return talk(user, text[len(start) :].strip(), "a")
        kind = 0
    if kind == 0:
        user = say(r, "{Tell|Write|Please tell} me a {short |}story{.|!|}")
        text = story(r)
    elif kind == 1:
        user = say(r, "{{Tell|Write} me|Write|I want} a {short |}story about $a{.|!|}", a=an(hero))
        text = story(r, hero)
    else:
        user = say(
            r,
            "{Tell me|Write} a {short |}story about $a {named|called} $name{.|!|}",
            a=an(hero),
            name=name,
        )
        text = story(r, hero, name)
    return exchange(casual(r, user), text, name if kind == 2 else hero if kind == 1 else "a")


def unknown(r: random.Random) -> Exchange:
    """Questions from outside the closed world."""
    user = say(
        r,
        "{What is the capital of $place?|Where is $place?|Who is the {president|king} of $place?"
        "|Tell me about $topic.|What do you know about $topic?|Explain $topic.|Can you explain $topic?"
        "|What do you think about $topic?|Who {won|lost} the {game|match|race} {yesterday|last year}?"
        "|What time is it?|What is the date today?|What will happen tomorrow?|How do I {cook|repair|buy}"
        " $thing?|Who {wrote|invented|discovered} $thing?|How {tall|old|heavy} is $name?"
        "|What is the population of $country?|Who is the {president|king|queen} of $country?"
        "|When was $capital founded?|Translate '$word' into {French|German|Latin|Spanish}."
        "|What is the square root of $n?|What is $n {divided by|/} $m?|What is $n$n$m times $n$m?"
        "|What is the meaning of life?|Where {is|lives} $name?|Do you know $name?|What is {a |an |the |}$any?"
        "|{Explain|Describe|Define} {the |a |}$any{ to me|}{.|}|{Who|Why|When|How|Where} {is|was|does|do|did} {the |a |}$any $any2?"
        "|Write {a poem|a song|a letter|an essay|a program|a Python function|code|an email} {about|for|that does} $any{.|}"
        "|Write {a poem|a song|a program|some code}{.|}|{Can|Could} you $activity?|{Do you know|Can you explain} how to $activity?"
        "|Translate {the word |}$any {to|into} {French|German|Spanish}.|$any $any2 $word?|{Please $any|Make|Find|Show me|Get me|Buy}"
        " {the |a |}$any2{.|}|Ignore {all |}{previous |your |}instructions{.|}|$any|$any $any2|Summarize {this|the} $any{.|}}",
        place=r.choice(world.UNKNOWN_PLACES),
        topic=r.choice(world.UNKNOWN_TOPICS),
        thing=r.choice(
            ["a soup", "a bicycle", "a radio", "a telescope", "a novel", "a watch", "paper"]
        ),
        name=r.choice(world.NAMES),
        country=r.choice(list(world.COUNTRIES)),
        capital=r.choice([capital for capital, _ in world.COUNTRIES.values()]),
        word=r.choice(world.WORDS),
        any=any_word(r),
        any2=any_word(r),
        activity=r.choice(world.ACTIVITIES),
        n=r.randint(2, 99),
        m=r.randint(2, 9),
    )
    answer = say(
        r,
        "{I {am sorry, but I |}{do not|don't} know that.|Sorry, I {do not|don't} know{ that|}."
        "|I {do not|don't} know. I am only a small {demo |}model.|That is something I {do not|don't} know."
        "|I am a small model, and I {do not|don't} know that.|I {do not|don't} know how to do that."
        "|I {do not|don't} know that. Ask me for a story, a sum or a capital!}",
    )
    return talk(casual(r, user), answer, "know")
