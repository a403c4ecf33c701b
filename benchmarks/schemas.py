#!/usr/bin/env python3
"""What does the free order of properties cost, beside llguidance's fixed order?

    python benchmarks/schemas.py TOKENIZER_JSON [--schemas 240]

Random schemas: flat objects, nested ones to depth 6, enums, arrays, unions, references, string
formats; up to 64 properties. A valid text of each, its properties in a random order here and in the
schema's order for llguidance, token by token. Seconds of this thread's CPU.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from llguidance import LLMatcher, LLTokenizer  # noqa: E402

from benchmarks.client import percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.grammar.grammars import LIMITS  # noqa: E402

# fmt: off
WORDS = [
    "name", "age", "city", "country", "street", "zip", "code", "active", "created", "updated",
    "description", "price", "quantity", "items", "total", "first", "last", "email", "phone",
    "status", "kind", "user", "order", "notes", "url", "score", "rank", "source",
]
# fmt: on
FORMATS = {
    "date": "2024-02-29",
    "email": "ann@example.org",
    "uuid": f"{'1' * 8}-2222-4333-8444-{'5' * 12}",
}


def leaf(rng):
    """A schema and a value of it."""
    number = rng.randrange(1000)
    form = rng.choice(list(FORMATS))
    some = [rng.choice(WORDS) for _ in range(rng.randint(2, 8))]
    return rng.choices(
        [
            ({"type": "string"}, " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))),
            ({"type": "integer"}, number),
            ({"type": "number", "minimum": 0}, number / 4),
            ({"type": "boolean"}, rng.random() < 0.5),
            ({"enum": some}, some[-1]),
            ({"type": "string", "format": form}, FORMATS[form]),
            ({"type": "string", "maxLength": 40}, rng.choice(WORDS)),
            ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ],
        weights=[8, 4, 2, 2, 3, 1, 1, 3],
    )[0]


def made(rng, depth, definitions):
    kind = rng.random()
    if depth == 0 or kind < 0.6:
        return leaf(rng)
    if kind < 0.75:
        schema, _ = pair = made(rng, depth - 1, definitions)
        return {"type": "array", "items": schema}, [pair[1]] * rng.randint(0, 4)
    schema, value = an_object(rng, rng.randint(1, 8), depth - 1, definitions)
    if kind < 0.85:
        name = f"d{len(definitions)}"
        definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}, value
    if kind < 0.9:
        return {"anyOf": [schema, {"type": "null"}]}, value
    return schema, value


def an_object(rng, number, depth, definitions):
    names = {f"{rng.choice(WORDS)}_{rng.choice(WORDS)}" for _ in range(number)}
    pairs = {name: made(rng, depth, definitions) for name in sorted(names)}
    required = [name for name in pairs if rng.random() < 0.6]
    schema = {"type": "object", "properties": {n: s for n, (s, _) in pairs.items()}}
    schema |= {"required": required}
    if rng.random() < 0.5:
        schema["additionalProperties"] = False
    return schema, {n: v for n, (_, v) in pairs.items() if n in required or rng.random() < 0.6}


def shuffled(rng, value):
    if isinstance(value, list):
        return [shuffled(rng, item) for item in value]
    if isinstance(value, dict):
        return {n: shuffled(rng, value[n]) for n in rng.sample(list(value), len(value))}
    return value


def measure(tokenizer, make, text):
    """Seconds to compile, and of each mask."""
    begin = time.thread_time()
    matcher = LLMatcher(tokenizer, make(), log_level=0, limits=LIMITS)
    compiled = time.thread_time() - begin
    masks = []
    for token_id in tokenizer.tokenize_str(text):
        begin = time.thread_time()
        matcher.compute_bitmask()
        masks.append(time.thread_time() - begin)
        if not matcher.consume_token(token_id):
            sys.exit(f"{text}: {matcher.get_error()[:300]}")
    return compiled, masks


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer")
    parser.add_argument("--schemas", type=int, default=240)
    args = parser.parse_args()
    header()
    tokenizer = LLTokenizer(pathlib.Path(args.tokenizer).read_text())
    print(f"{args.schemas} schemas, vocabulary of {tokenizer.vocab_size}")
    rng = random.Random(1)
    found = {"fixed order": [], "any order": []}
    for i in range(args.schemas):
        definitions = {}
        number = rng.choice([3, 4, 5, 6, 6, 8, 8, 10, 12, 16, 20, 32, 64])
        depth = rng.choice([0, 0, 0, 1, 1, 2, 3, 5])
        schema, value = an_object(rng, number, depth, definitions)
        schema["$defs"] = definitions
        first, second = json.dumps(value), json.dumps(shuffled(rng, value))
        if i == 0:  # what is made once
            engine.constraints.json_schema(schema)
        fixed = measure(tokenizer, lambda s=schema: LLMatcher.grammar_from_json_schema(s), first)
        free = measure(
            tokenizer, lambda s=schema: engine.constraints.json_schema(s).grammar, second
        )
        found["fixed order"].append(fixed)
        found["any order"].append(free)
    means = {}
    for name, pairs in found.items():
        compiled = [1e3 * seconds for seconds, _ in pairs]
        masks = [1e6 * seconds for _, ones in pairs for seconds in ones]
        means[name] = statistics.mean(masks)
        print(
            f"{name:11}  compile p50 {statistics.median(compiled):5.2f}  p99"
            f" {percentile(compiled, 0.99):6.2f} ms  mask mean {means[name]:5.0f}"
            f"  p50 {statistics.median(masks):5.0f}  p99 {percentile(masks, 0.99):5.0f} us"
        )
    print(f"masks, any order / fixed order: {means['any order'] / means['fixed order']:.2f}")


if __name__ == "__main__":
    main()
