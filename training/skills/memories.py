"""Something told, and a question for it that comes later."""

import dataclasses
import random

from training import world
from training.skills.exchanges import Exchange, exchange, talk
from training.skills.letters import code, made_up_name
from training.wording import casual, say


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    told: Exchange
    asked: Exchange


def memory(r: random.Random) -> Memory:
    kind = r.choice(["name", "name", "name", "number", "colour", "city", "pet", "code", "age"])
    if kind == "name":
        return name_memory(r)
    what, value = {
        "number": lambda: ("number", str(r.randint(1, 99999))),
        "colour": lambda: ("favourite colour", r.choice(world.COLOURS)),
        "city": lambda: ("home town", r.choice([c for c, _ in world.COUNTRIES.values()])),
        "pet": lambda: ("cat's name", made_up_name(r)),
        "code": lambda: ("code", code(r, r.randint(4, 12))),
        "age": lambda: ("age", str(r.randint(5, 99))),
    }[kind]()
    user = say(
        r,
        "{My $w is $v{.|}|{Please remember|Remember|Note}{:|} my $w is $v{.|}"
        "|{Remember that|Keep in mind that|You should know that} my $w is $v{.|}}",
        w=what,
        v=value,
    )
    answer = say(r, "{I will remember that|Noted|All right|Okay}: your $w is $v.", w=what, v=value)
    told = exchange(user, answer, value, user)
    asked = exchange(
        say(
            r,
            "{What is my $w?|What's my $w?|Do you remember my $w?|Tell me my $w{.|}"
            "|What was my $w{ again|}?|Which $w did I tell you?|Can you tell me my $w?}",
            w=what,
        ),
        say(r, "Your $w is $v.", w=what, v=value),
        value,
        told.user,
    )
    return Memory(told, asked)


def name_memory(r: random.Random) -> Memory:
    name = made_up_name(r)
    user = say(
        r,
        "{{Hi|Hello|Hey}{!|,} |}{My name is|I am|I'm|Call me|You can call me|I am called} $n{.|!|}"
        "{ {How are you?|Nice to meet you.}|||}",
        n=name,
    )
    answer = say(
        r,
        "{{Hello|Hi}, $n! {Nice to meet you.|How can I help you?|What can I do for you?}"
        "|Nice to meet you, $n{!|.}}",
        n=name,
    )
    told = exchange(user, answer, name, user)
    asked = exchange(
        say(
            r,
            "{What is my name?|What's my name?|Who am I?|Do you {know|remember} my name?|Tell me my name{.|}"
            "|What was my name{ again|}?|Can you tell me my name?|Which name did I tell you?}",
        ),
        say(r, "{Your name is $n.|Your name is $n.|You are $n.}", n=name),
        name,
        told.user,
    )
    return Memory(told, asked)


def not_told(r: random.Random) -> Exchange:
    """The question of a `memory` that there is none of."""
    asked = memory(r).asked
    answer = say(r, "{You have not told me{ yet|}.|I do not know, you have not told me.}")
    return talk(casual(r, asked.user), answer, "not told")
