"""A running server, with the bundled model if no other is named, for the scripts that test it."""
import functools
import http.client
import json
import os
import re
import socket
import subprocess
import time
import traceback

TINY = "models/firstlight-tiny"
NAME = "firstlight-tiny"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a city.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "City name"}}}}}]
NAMES_OF_WORK = ("vllm:num_requests_running", "vllm:num_requests_waiting",
                 "firstlight:cache_tokens_used", "firstlight:connections_generating")


def until(condition, seconds=60):
    """Waits for condition() to be true."""
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "it did not happen"
        time.sleep(0.01)


class Server:
    """with Server(binary, option...) as s: started and ended once; the exit status must be 0."""

    def __init__(self, binary, *options, model=TINY):
        self.name = os.path.basename(model)
        self.p = subprocess.Popen(
            [binary, "serve", model, "--port", "0", "--context", "4096", *options],
            stderr=subprocess.PIPE, text=True)
        self.device, found, words = None, None, ""
        while not found:
            line = self.p.stderr.readline()
            words += line
            assert line, words
            if line.startswith("device: "):
                self.device = line.removeprefix("device: ").strip()
            found = re.search(r":(\d+)/v1", line)
        self.port = int(found.group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.terminate()
        try:
            status = self.p.wait(120)
            words = self.p.stderr.read()
        except subprocess.TimeoutExpired:
            self.p.kill()
            raise
        finally:
            self.p.stderr.close()
        assert status == 0, f"exit {status}: {words}"

    def call(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request(method, path, body if body is None or isinstance(body, bytes) else
                  json.dumps(body), headers or {})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r, text

    def post(self, body, path=CHAT, status=200):
        """The answer to a greedy request, as Python has it."""
        r, text = self.call("POST", path, {"model": self.name, "temperature": 0, **body})
        assert r.status == status, (r.status, text)
        return json.loads(text)

    def stream(self, body, path=CHAT):
        """The events of a greedy streamed request."""
        r, text = self.call("POST", path, {"model": self.name, "temperature": 0, "stream": True,
                                         **body})
        assert r.status == 200 and r.getheader("Content-Type") == "text/event-stream", text
        events = [e.removeprefix("data: ") for e in text.split("\n\n") if e]
        assert events[-1] == "[DONE]"
        return [json.loads(e) for e in events[:-1]]

    def metric(self, name):
        return float(re.search(rf"^{name}{{.*}} (\S+)$", self.call("GET", "/metrics")[1], re.M)[1])

    def idle(self):
        """Waits until nothing runs, waits or is held."""
        until(lambda: not any(self.metric(n) for n in NAMES_OF_WORK))

    def send(self, body, path=COMPLETIONS):
        """A request on a bare socket, unanswered."""
        data = json.dumps({"model": self.name, **body}).encode()
        s = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                  + data)
        return s


def ask(text, **more):
    """A question that is answered without thinking."""
    return {"messages": [{"role": "user", "content": text}],
            "chat_template_kwargs": {"thinking": False}, **more}


def run_on_one(binary, names):
    """Runs the functions test_* of a script, all on one server; the exit status."""
    with Server(binary, "--threads", "1") as s:
        status = run([(n, functools.partial(t, s)) for n, t in names.items() if n.startswith("test_")])
        s.idle()
    return status


def run(tests):
    """Runs (name, function) pairs, prints a line each; the exit status."""
    failed = 0
    for name, test in tests:
        start = time.time()
        try:
            test()
            print(f"ok   {name} ({time.time() - start:.1f} s)", flush=True)
        except Exception as e:  # report every failing test, not only the first
            failed += 1
            at = [f.lineno for f in traceback.extract_tb(e.__traceback__)]
            print(f"FAIL {name}: {type(e).__name__}: {e} (lines {at})", flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0
