#!/usr/bin/env python3
"""Many clients for a long time: good requests, broken ones, clients that leave and that read slowly.

    soak.py BINARY [SECONDS [CLIENTS [SEED]]]     300 seconds of 64 clients

Every whole answer must equal the one that was given before to the same request alone; every broken
request must be refused with the status that it deserves; and in the end nothing may be held and
memory may not have grown.  Run from the root of the repository.
"""
import collections
import json
import random
import socket
import sys
import threading
import time

from serving import CHAT, COMPLETIONS, NAME, TOOLS, Server, ask

BINARY = sys.argv[1]
SECONDS, CLIENTS, SEED = (int(sys.argv[i]) if len(sys.argv) > i else d
                          for i, d in ((2, 300), (3, 64), (4, 1)))
WORDS = "table query index file server user name value page key".split()
QUESTIONS = ["Who are you?", "Good morning!", "What is the weather in Hanoi?",
             "What is the weather in Paris?"]
BROKEN = [  # body or bytes, status
    (b"{", 400), (b"[]", 400), (b"\xff\xfe", 400), ({"prompt": "x", "n": 0}, 400),
    ({"prompt": "x", "temperature": "hot"}, 400), ({"prompt": [1, "x"]}, 400),
    ({"prompt": "x", "logit_bias": {"99999999": 1}}, 400), ({"prompt": "x", "model": "y"}, 404),
    ({"prompt": "word " * 20000}, 400), ({"prompt": "x", "max_tokens": 100000}, 400)]


def requests():
    for i, word in enumerate(WORDS):
        yield COMPLETIONS, {"prompt": f"The {word} is", "max_tokens": 30, "temperature": 1,
                            "seed": i, "n": 1 + i % 3}
        yield COMPLETIONS, {"prompt": f"The {word} " * 60, "max_tokens": 5, "temperature": 0}
    for q in QUESTIONS:
        yield CHAT, {**ask(q, tools=TOOLS), "temperature": 0, "max_tokens": 120}
        yield CHAT, {**ask(q), "temperature": 0.7, "seed": 3, "max_tokens": 120,
                     "chat_template_kwargs": {"thinking": True}}
        yield CHAT, {**ask(q), "temperature": 1, "seed": 4, "response_format": FORM}


SCHEMA = {"type": "object", "required": ["a"], "additionalProperties": False,
          "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 5}}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


class Soak:
    def __init__(self, server):
        self.s = server
        self.bodies = [(path, {"model": NAME, **body}) for path, body in requests()]
        self.wanted = [self.choices(*r) for r in self.bodies]
        self.end = time.time() + SECONDS
        self.done = collections.Counter()
        self.wrong = []

    def choices(self, path, body):
        while True:
            r, text = self.s.call("POST", path, body)
            if r.status != 429:
                assert r.status == 200, (r.status, text)
                return [self.normal(c) for c in json.loads(text)["choices"]]
            self.done["refused: queue full"] += 1
            time.sleep(0.2)

    @staticmethod
    def normal(choice):
        for call in choice.get("message", {}).get("tool_calls", []):
            del call["id"]
        return choice

    def good(self, rng):
        i = rng.randrange(len(self.bodies))
        got = self.choices(*self.bodies[i])
        assert got == self.wanted[i], f"{self.bodies[i]}: {got} instead of {self.wanted[i]}"

    def streamed(self, rng, slow=False):
        i = rng.randrange(len(self.bodies))
        path, body = self.bodies[i]
        c = self.s.send({**body, "stream": True}, path)
        data = b""
        while part := c.recv(200 if slow else 65536):
            data += part
            if slow:
                time.sleep(0.02)
            if b"[DONE]" in data or b" 429 " in data:
                break
        c.close()
        if b" 429 " in data[:20]:
            self.done["refused: queue full"] += 1
            return
        text = [""] * body.get("n", 1)
        for line in unchunked(data).split("\n\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text[choice["index"]] += (choice.get("text") or
                                              choice.get("delta", {}).get("content") or "")
        want = [c["text"] if "text" in c else c["message"]["content"] or ""
                for c in self.wanted[i]]
        assert text == want, f"{body}: {text} instead of {want}"

    def slow(self, rng):
        self.streamed(rng, slow=True)

    def leaver(self, rng):
        """Leaves at any moment: before the body is whole, while waiting, while reading."""
        path, body = rng.choice(self.bodies)
        data = json.dumps({**body, "stream": rng.random() < 0.5, "max_tokens": 2000,
                           "ignore_eos": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", self.s.port), timeout=120) as c:
            c.sendall((head + data)[:rng.choice([10, len(head) + 5, 10 ** 9])])
            if rng.random() < 0.5:
                c.settimeout(rng.random() * 2)
                try:
                    c.recv(1000)
                except TimeoutError:
                    pass
            if rng.random() < 0.5:  # not even a farewell
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def broken(self, rng):
        body, status = rng.choice(BROKEN)
        body = body if isinstance(body, bytes) else {"model": NAME, **body}
        r, text = self.s.call("POST", COMPLETIONS, body)
        assert r.status in (status, 429), (body, r.status, text)
        assert json.loads(text)["error"]["message"]

    def client(self, number):
        rng = random.Random(SEED * 1000 + number)
        while time.time() < self.end:
            act = rng.choice([self.good, self.good, self.streamed, self.slow, self.leaver,
                              self.broken])
            try:
                act(rng)
                self.done[act.__name__] += 1
            except Exception as e:  # collected: the others go on
                self.wrong.append(f"{act.__name__}: {type(e).__name__}: {e}")

    def memory(self):
        with open(f"/proc/{self.s.p.pid}/status", encoding="ascii") as f:
            return int(next(line for line in f if line.startswith("VmRSS")).split()[1]) // 1024

    def run(self):
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        time.sleep(SECONDS / 4)
        early = self.memory()
        for t in threads:
            t.join()
        self.s.idle()
        late = self.memory()
        print(f"memory: {early} MiB after a quarter, {late} MiB in the end")
        print("done:", dict(self.done))
        if late > early * 1.05 + 16:
            self.wrong.append(f"memory grew from {early} to {late} MiB")
        for w in self.wrong[:20]:
            print("WRONG", w)
        return 1 if self.wrong or not self.done["good"] else 0


def unchunked(data):
    """The body of a response sent in chunks, as far as it came."""
    body, out = data.partition(b"\r\n\r\n")[2], b""
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size or b"0", 16)
        out, body = out + body[:n], body[n + 2:]
    return out.decode()


def main():
    with Server(BINARY, "--threads", "1", "--max-sessions", "8", "--queue", "64") as s:
        return Soak(s).run()


if __name__ == "__main__":
    sys.exit(main())
