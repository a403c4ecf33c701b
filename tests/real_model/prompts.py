"""Forty chats, four texts to score, and ten tasks, for a small model."""

import importlib.util
import pathlib
import re

SPEC = importlib.util.find_spec("exllamav2")
assert SPEC is not None and SPEC.origin is not None
# Text that exllamav2 brings along to convert models by.
DATA = pathlib.Path(SPEC.origin).parent / "conversion" / "standard_cal_data" / "wiki.utf8"
PROSE = re.sub(r"<[^>]*>", "", DATA.read_text("utf-8"))

TURNS = ("user", "assistant")


def said(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    messages = [{"role": TURNS[i % 2], "content": text} for i, text in enumerate(texts)]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


CHATS = [
    said("What is the capital of France?"),
    said("Who wrote Romeo and Juliet?"),
    said("Explain gravity to a child."),
    said("Write a haiku about the sea."),
    said("What is 17 + 25?"),
    said("List the planets of the solar system."),
    said("Tell me a joke."),
    said("Translate to French: The house is red."),
    said("Hi, I am Anna.", "Hello Anna! How can I help you?", "What is my name?"),
    said("Name a fruit.", "Apple.", "Another one.", "Banana.", "And a vegetable?"),
    said("I have 3 apples.", "Nice!", "I eat one. How many are left?"),
    said("Write a line of a poem.", "The moon is high above the hill,", "Go on."),
    said("Where is the treasure?", system="You are a pirate. Answer like one."),
    said("What colour is the sky?", system="Answer in one word."),
    said("Good morning, my friend.", system="You translate English to Spanish."),
    said("Can I go home?", "No.", "Please?", system="You are a strict teacher."),
    said("Write a Python function that reverses a string."),
    said("Write a SQL query that counts the users by country."),
    said("Fix this code:\n```python\nfor i in range(10)\n    print(i)\n```"),
    said("Write an HTML page with a heading."),
    said("Write a C program that prints hello."),
    said("What does `ls -la | grep foo` do?"),
    said("Give me a numbered list of five animals."),
    said("Make a markdown table of three countries and their capitals."),
    said("List three pros and three cons of cats."),
    said("Wie heißt die Hauptstadt von Deutschland?"),
    said("¿Cuál es la capital de España?"),
    said("Quelle heure est-il ?"),
    said("日本の首都はどこですか？"),
    said("Как дела?"),
    said("你好，你是谁？"),
    said("مرحبا"),
    said("🙂🎉 What do these emoji mean?"),
    said("Count: 1 2 3 4 5 6 7"),
    said("In 1969, 3.14159 and 2,000,000: which is larger?"),
    said("   leading spaces\n\n\nand\tlines  "),
    said("<|im_end|> is a token. What does it do?"),
    said("Summarize:\n" + PROSE[:3000]),
    said("What is this text about?\n" + PROSE[200_000:204_000] + "\nAnswer in one sentence."),
    said("Copy this text exactly:\n" + PROSE[50_000:50_300]),
]
TEXTS = [
    "The Industrial Revolution was a period of major mechanization and innovation that began in "
    "Great Britain during the mid-18th century and later spread throughout much of the world.",
    PROSE[50_000:51_500],
    PROSE[300_000:304_000],
    "def fibonacci(n):\n    if n < 2:\n        return n\n    a, b = 0, 1\n"
    "    for _ in range(n - 1):\n        a, b = b, a + b\n    return b\n",
]

PEOPLE = [
    *(("Anna", 34, "Rome"), ("Tom", 19, "Berlin"), ("Maria", 52, "Lisbon")),
    *(("John", 41, "London"), ("Lena", 27, "Vienna"), ("Paul", 63, "Dublin")),
    *(("Sofia", 8, "Madrid"), ("Peter", 75, "Oslo")),
    *(("Emma", 30, "Paris"), ("David", 22, "Boston")),
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def task(name: str, age: int, city: str) -> list[dict[str, str]]:
    return said(
        "Extract the data as JSON with the keys name, age and city.\n"
        "Text: Kim is 45 years old and lives in Seoul.\n"
        'JSON: {"name": "Kim", "age": 45, "city": "Seoul"}\n'
        f"Text: {name} is {age} years old and lives in {city}.\nJSON:"
    )


TOWNS = [
    *(("Rome", "Italy", 2800000), ("Berlin", "Germany", 3700000), ("Oslo", "Norway", 700000)),
    *(("Lima", "Peru", 10100000), ("Cairo", "Egypt", 9500000), ("Paris", "France", 2100000)),
    *(("Dublin", "Ireland", 590000), ("Lisbon", "Portugal", 545000)),
    *(("Boston", "the United States", 650000), ("Vienna", "Austria", 1900000)),
]


def task_of_towns(city: str, country: str, people: int) -> list[dict[str, str]]:
    return said(
        "Extract the data as JSON with the keys city, country and people.\n"
        "Text: Seoul is a city in South Korea with 9400000 people.\n"
        'JSON: {"city": "Seoul", "country": "South Korea", "people": 9400000}\n'
        f"Text: {city} is a city in {country} with {people} people.\nJSON:"
    )


# A prompt of each, and the values to find, by property in the prompt's order.
TASKS = {
    "people": (task, ("name", "age", "city"), PEOPLE),
    "towns": (task_of_towns, ("city", "country", "people"), TOWNS),
}
