"""Streams whose every token is checked, for the engines that have the backend of `telling`.

`python -m tests.cluster.streams URL NUMBER TOKENS [SECONDS]`: the streams begin within SECONDS.
Writes one JSON object: how many were whole, wrong or lost, and when the first was lost.
"""

import collections
import http.client
import json
import sys
import threading
import time
import urllib.parse


def ask(url, prompt, tokens):
    """Returns what became of the stream, the reason, and the seconds until its first text."""
    began, first, text, fault = time.time(), None, "", ""
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
    body = {"prompt": [prompt], "max_tokens": tokens, "stream": True, "ignore_eos": True}
    is_done = False
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            fault = f"{answer.status} {answer.read(200).decode(errors='replace')}"
        else:
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        fault = event["error"]["message"]
                        break
                    text += "".join(choice["text"] for choice in event["choices"])
                    first = first or (time.time() if text else None)
                is_done = is_done or line.startswith(b"data: [DONE]")
    except (OSError, http.client.HTTPException) as error:
        fault = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    wanted = "".join(f" {prompt}.{i}" for i in range(tokens))
    if not wanted.startswith(text) or (is_done and not fault and text != wanted):
        kind = "wrong"
    elif is_done and not fault:
        kind = "whole"
    else:
        kind = "lost"
    return kind, fault or ("" if is_done else "cut off"), first and first - began, time.time()


def main():
    url, number, tokens = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    results = []

    def one(i):
        time.sleep(seconds * i / number)
        results.append(ask(url, i % 4000 + 1, tokens))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kinds = collections.Counter(kind for kind, *_ in results)
    waits = sorted(wait for *_, wait, _ in results if wait is not None)
    lost = [end for kind, _, _, end in results if kind == "lost"]
    found = {
        **{kind: kinds[kind] for kind in ("whole", "wrong", "lost")},
        "faults": collections.Counter(fault[:120] for _, fault, *_ in results if fault),
        "first_lost": min(lost, default=None),
        "last_lost": max(lost, default=None),
        "first_text_p50": waits[len(waits) // 2] if waits else None,
        "first_text_p99": waits[len(waits) * 99 // 100] if waits else None,
        "first_text_max": waits[-1] if waits else None,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
