#!/usr/bin/env python3
"""The server on a GPU: two clients at once get, word for word, what the same server on the processor
answers to each question alone.

    server_gpu.py BINARY     run from the root of the repository; exit status 77 where there is no GPU
"""
import concurrent.futures
import sys

from serving import COMPLETIONS, TOOLS, Server, ask

WORDS = "table query index file server user name value".split()


def questions():
    """(path, body) pairs: chats, tool calls, plain text, and one longer than a chunk of a prompt."""
    yield None, ask("Who are you?", max_tokens=60)
    yield None, ask("What is the weather in Hanoi?", tools=TOOLS, max_tokens=60)
    for w in WORDS:
        yield COMPLETIONS, {"prompt": f"The {w} is", "max_tokens": 40}
    yield COMPLETIONS, {"prompt": "The database keeps a row for each user. " * 40, "max_tokens": 40}


def answer(s, question):
    path, body = question
    choice = s.post(body, path)["choices"][0] if path else s.post(body)["choices"][0]
    if "text" in choice:
        return choice["text"]
    m = choice["message"]
    return m.get("content"), [c["function"] for c in m.get("tool_calls") or []]


def main():
    binary, all_questions = sys.argv[1], list(questions())
    with Server(binary, "--device", "auto") as gpu:
        if not gpu.device or gpu.device.startswith("cpu"):
            print("skipped:", gpu.device or "the server names no device")
            return 77
        with concurrent.futures.ThreadPoolExecutor(2) as clients:
            streams = [clients.submit(lambda q: [answer(gpu, x) for x in q], q)
                       for q in (all_questions, all_questions[::-1])]
            there = [s.result() for s in streams]
    with Server(binary, "--device", "cpu") as cpu:
        here = [answer(cpu, q) for q in all_questions]
    assert there[0] == here, (there[0], here)
    assert there[1][::-1] == here, (there[1][::-1], here)
    print(f"{gpu.device}: {2 * len(here)} answers to two clients are the processor's")
    return 0


sys.exit(main())
