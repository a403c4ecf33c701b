"""Documents to learn from: conversations of one to many exchanges, and plain stories."""

import dataclasses
import random
import zlib
from collections.abc import Callable

from training import skills, world
from training.skills import Exchange
from training.stories import story
from training.wording import an, say

SKILLS: dict[Callable[[random.Random], Exchange], float] = {
    skills.greeting: 5,
    skills.abilities: 3,
    skills.identity: 4,
    skills.fact: 20,
    skills.arithmetic: 16,
    skills.counting: 4,
    skills.listing: 5,
    skills.repetition: 18,
    skills.spelling: 6,
    skills.telling: 6,
    skills.unknown: 5,
    skills.json_answer: 8,
}
SHORT = [
    skills.greeting,
    skills.identity,
    skills.fact,
    skills.fact,
    skills.arithmetic,
    skills.unknown,
]
MAX_EXCHANGES = 16
TEST_SHARE = 10  # one of so many keys is kept for the evaluation


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """`system` is empty if there is no such message."""

    system: str
    exchanges: tuple[Exchange, ...]


def is_held_out(key: str) -> bool:
    """Whether `key` belongs to the evaluation; training never shows it."""
    return bool(key) and zlib.crc32(key.encode()) % TEST_SHARE == 0


def draw(
    r: random.Random, skill: Callable[[random.Random], Exchange], held_out: bool = False
) -> Exchange:
    """Draws from those kept back, or from the others."""
    while True:
        exchange = skill(r)
        if is_held_out(exchange.key) == held_out:
            return greeted(r, exchange) if r.random() < 0.04 else exchange


def greeted(r: random.Random, exchange: Exchange) -> Exchange:
    """With a greeting before the question."""
    hello = say(r, "{Hello|Hi|Hey|Good morning|Hello there}{!|,|.}")
    return dataclasses.replace(exchange, user=f"{hello} {exchange.user}")


def document(r: random.Random) -> Conversation | str:
    """A conversation, or a plain story now and then."""
    if r.random() < 0.06:
        return story(r)
    if r.random() < 0.16:
        return persona(r)
    num_exchanges = r.choices([1, 2, 3, 5, 8, MAX_EXCHANGES], [46, 18, 14, 12, 7, 3])[0]
    chosen = r.choices(list(SKILLS), list(SKILLS.values()), k=num_exchanges)
    exchanges = [draw(r, skill) for skill in chosen]
    if r.random() < 0.3:
        exchanges = with_memory(r, exchanges)
    return Conversation(say(r, SYSTEM) if r.random() < 0.2 else "", tuple(exchanges))


SYSTEM = (
    "You are {a {helpful|friendly|kind|small} {assistant|model|demo model}|an assistant}.|You are Switchyard's"
    " demo model.|Answer {briefly|politely|in English}.|You are a helpful assistant. Be brief."
)


def with_memory(r: random.Random, exchanges: list[Exchange]) -> list[Exchange]:
    """Something told early and asked later; or asked, and never told."""
    if r.random() < 0.12:
        return [skills.not_told(r), *exchanges][: r.randint(1, len(exchanges) + 1)]
    memories: list[skills.Memory] = []
    for memory in (skills.memory(r) for _ in range(r.choice([1, 1, 2, 3]))):
        if not is_held_out(memory.told.user) and memory.asked.assistant[:9] not in {
            other.asked.assistant[:9] for other in memories
        }:
            memories.append(memory)
    exchanges = list(exchanges)
    for memory in memories:
        at = r.randint(0, min(len(exchanges), 2))
        exchanges.insert(at, memory.told)
        exchanges.insert(r.randint(at + 1, len(exchanges)), memory.asked)
    return exchanges


def recall(r: random.Random) -> Conversation:
    """A name told in words that were kept back, an exchange about something else, the question."""
    while True:
        memory = skills.name_memory(r)
        if is_held_out(memory.told.user):
            break
    between = draw(r, r.choice([skills.fact, skills.arithmetic]), held_out=True)
    return Conversation("", (memory.told, between, memory.asked))


# System messages that change how the model speaks

Style = tuple[str, Callable[[Exchange], str]]


def persona(r: random.Random) -> Conversation:
    """A system message and answers that keep to it."""
    if r.random() < 0.25:
        return _named_persona(r)
    system, speak = _style(r)
    exchanges = [draw(r, r.choice(SHORT)) for _ in range(r.randint(1, 4))]
    if r.random() < 0.35:
        exchanges = with_memory(r, exchanges)
    styled = (dataclasses.replace(e, assistant=speak(e), expected="") for e in exchanges)
    return Conversation(system, tuple(styled))


def _style(r: random.Random) -> Style:
    tail = r.choice(world.WORDS)
    head = r.choice([skills.word(r).capitalize(), r.choice(["Well", "Listen", "Ah", "Hm", "So"])])
    styles: list[Style] = [
        (
            say(
                r,
                "{You are a pirate|Speak like a pirate|Answer like a pirate|You are a pirate captain}."
                "{ Stay in character.|}",
            ),
            lambda e: f"Arr! {e.assistant} Yo ho ho!",
        ),
        (
            say(r, "{You are a robot|Speak like a robot|Answer like a robot}."),
            lambda e: f"BEEP. {e.assistant} BOOP.",
        ),
        (
            say(r, "{You are a butler|Speak like a butler|You are a polite butler}."),
            lambda e: f"Very well, sir. {e.assistant}",
        ),
        (
            say(
                r, "{Answer|Write|Reply|Speak} {in|only in} {capital letters|upper case|capitals}."
            ),
            lambda e: e.assistant.upper(),
        ),
        (
            say(r, "{Answer|Write|Reply} {in|only in} {lower case|small letters}."),
            lambda e: e.assistant.lower(),
        ),
        (
            say(r, "{End every {answer|reply} with|Always end with} {the word |}'$w'.", w=tail),
            lambda e: f"{e.assistant} {tail}",
        ),
        (
            say(
                r,
                "{Begin every {answer|reply} with|Always {begin|start} with} {the word |}'$w'.",
                w=head,
            ),
            lambda e: f"{head}: {e.assistant}",
        ),
        (
            say(r, "{You are cheerful|Be cheerful|You are always happy|Be enthusiastic}."),
            lambda e: f"Hooray! {e.assistant} :-)",
        ),
        (
            say(
                r,
                "{Answer|Reply} {with the answer only|as briefly as you can|in one word if possible}.",
            ),
            lambda e: e.expected.removeprefix("is ") if e.key else e.assistant,
        ),
    ]
    return r.choice(styles)


def _named_persona(r: random.Random) -> Conversation:
    name = skills.made_up_name(r)
    job = an(
        say(
            r,
            "{|friendly |old |young |famous }{cook|sailor|teacher|gardener|doctor|pirate|poet|knight"
            "|wizard|librarian|farmer|pilot|engineer}",
        )
    )
    system = say(
        r, "You are $n, $j.{ Stay in character.|}|Your name is $n. You are $j.", n=name, j=job
    )
    asked = say(
        r,
        "{Who are you?|What is your name?|What's your name?|Introduce yourself.|Tell me who you are."
        "|What are you?|Hello! Who are you?}",
    )
    answer = say(
        r,
        "{I am $n, $j.|I am $n, $j. How can I help you?|My name is $n, and I am $j.}",
        n=name,
        j=job,
    )
    exchanges = [skills.talk(asked, answer, name)]
    exchanges += [draw(r, r.choice(SHORT[2:])) for _ in range(r.randint(0, 3))]
    if r.random() < 0.4:
        r.shuffle(exchanges)
    return Conversation(system, tuple(exchanges))
