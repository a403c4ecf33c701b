#!/usr/bin/env python3
"""What does the validation of a chat's body cost?

    python benchmarks/bodies.py [--rounds 2000]

A body of 40 names that many servers know, and one of two. Microseconds of this thread's CPU, the
least mean of ten tenths. Compare two commits in turns, each by its own checkout.
"""

import argparse
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from switchyard.app.chat.request import chat  # noqa: E402

SHORT = {"model": "x", "messages": [{"role": "user", "content": "Hello!"}]}
LONG = {
    **SHORT,
    **{"max_tokens": 64, "min_tokens": 1, "n": 1, "seed": 7, "stop": ["x"], "stop_token_ids": [7]},
    **{"stream": True, "stream_options": {"include_usage": True}, "user": "x", "timings": True},
    **{"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "top_a": 0.0, "tfs": 1.0},
    **{"typical_p": 1.0, "xtc_probability": 0.1, "xtc_threshold": 0.2, "skew": 0.0},
    **{"repetition_penalty": 1.1, "repetition_penalty_range": 64, "frequency_penalty": 0.1},
    **{"presence_penalty": 0.1, "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3},
    **{"dry_range": 64, "logit_bias": {"7": 1.0}, "banned_strings": ["y"], "ignore_eos": False},
    **{"logprobs": True, "top_logprobs": 2, "include_stop_str_in_output": False, "priority": 0},
    **{"timeout": 60.0, "tool_choice": "none", "reasoning_effort": "low"},
}


def cost(body, rounds):
    """Microseconds of one validation."""
    found = []
    for _ in range(10):
        begin = time.thread_time()
        for _ in range(rounds // 10):
            chat(body)
        found.append((time.thread_time() - begin) / (rounds // 10))
    return 1e6 * min(found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000)
    args = parser.parse_args()
    header()
    for body in (SHORT, LONG):
        print(f"{len(body):3d} names {cost(body, args.rounds):7.1f} us")


if __name__ == "__main__":
    main()
