"""What the model is taught: each skill draws one exchange from a `random.Random`."""

from training.skills.exchanges import Exchange, exchange, talk
from training.skills.facts import fact
from training.skills.letters import code, made_up_name, repeated_code, repetition, spelling, word
from training.skills.lists import json_answer, listing
from training.skills.memories import Memory, memory, name_memory, not_told
from training.skills.numbers import addition, arithmetic, counting, product, subtraction
from training.skills.talking import abilities, greeting, identity, telling, unknown

__all__ = [
    "Exchange",
    "Memory",
    "abilities",
    "addition",
    "arithmetic",
    "code",
    "counting",
    "exchange",
    "fact",
    "greeting",
    "identity",
    "json_answer",
    "listing",
    "made_up_name",
    "memory",
    "name_memory",
    "not_told",
    "product",
    "repeated_code",
    "repetition",
    "spelling",
    "subtraction",
    "talk",
    "telling",
    "unknown",
    "word",
]
