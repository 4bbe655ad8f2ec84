#!/usr/bin/env python3
"""The server used by plain HTTP clients, on the bundled model.

    server.py BINARY     run from the root of the repository; prints one line per test
"""
import concurrent.futures
import functools
import inspect
import json
import signal
import socket
import sys
import time

from serving import COMPLETIONS, NAME, TOOLS, Server, ask, run, until

BINARY = sys.argv[1]
LONG = {"prompt": "The database", "max_tokens": 3000, "ignore_eos": True}


def test_chat_whole_and_streamed(s):
    whole = s.post(ask("Who are you?"))
    message = whole["choices"][0]["message"]
    assert message["content"].startswith("I am First Light"), message
    assert whole["choices"][0]["finish_reason"] == "stop"
    chunks = s.stream(ask("Who are you?", stream_options={"include_usage": True}))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert text == message["content"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    think = s.post({"messages": [{"role": "user", "content": "Introduce yourself."}]})
    assert think["choices"][0]["message"]["reasoning_content"]


def test_stop_strings_across_tokens(s):
    full = s.post(ask("Who are you?"))["choices"][0]["message"]["content"]
    for begin in range(2, 12, 3):
        stop = full[begin:begin + 6]
        want = full[:full.index(stop)]
        got = s.post(ask("Who are you?", stop=[stop]))["choices"][0]
        assert (got["message"]["content"], got["finish_reason"]) == (want, "stop"), stop
        parts = s.stream(ask("Who are you?", stop=stop))
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in parts) == want


def test_tools_loop(s):
    body = ask("What is the weather in Hanoi?", tools=TOOLS)
    choice = s.post(body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    call = choice["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"city": "Hanoi"}
    parts = [t for c in s.stream(body) for t in c["choices"][0]["delta"].get("tool_calls", [])]
    assert parts[0]["function"]["name"] == "get_weather"
    assert json.loads("".join(p["function"]["arguments"] for p in parts)) == {"city": "Hanoi"}
    body["messages"] += [choice["message"],
                         {"role": "tool", "tool_call_id": call["id"], "content": "14C"}]
    assert "14" in s.post(body)["choices"][0]["message"]["content"]


def test_eight_at_once_equal_one_alone(s):
    bodies = [{"prompt": f"The {w} is", "max_tokens": 20, "temperature": 1, "seed": i}
              for i, w in enumerate("table query index file server user name value".split())]
    alone = [s.post(b, COMPLETIONS)["choices"][0]["text"] for b in bodies]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(
            lambda b: s.post(b, COMPLETIONS)["choices"][0]["text"], bodies))
    assert alone == together


def test_errors_name_the_parameter(s):
    for change, param, status in [({"n": 65}, "n", 400), ({"temperature": 3}, "temperature", 400),
                                  ({"stop": 1}, "stop", 400), ({"model": "x"}, "model", 404),
                                  ({"max_tokens": 5000}, "messages", 400),
                                  ({"top_logprobs": 2}, "top_logprobs", 400), ({"echo": True}, "echo", 400),
                                  ({"response_format": {"type": "json"}},
                                   "response_format", 400)]:
        error = s.post(ask("x", **change), status=status)["error"]
        assert error["param"] == param and error["message"] and error["code"], error
    s.post(ask("x", max_tokens=1, user="me", something_new=1))
    assert s.call("GET", "/nothing")[0].status == 404
    s.idle()


def test_framing_and_size(s):
    body = json.dumps({"model": NAME, "prompt": "x"})
    for head in (f"Content-Length: {len(body)}\r\nContent-Length: {len(body) + 1}",
                 f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked",
                 f"Content-Length : {len(body)}", "Content-Length: +5"):
        with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
            c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n{body}".encode())
            assert c.recv(100).split()[1] == b"400", head
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert c.recv(100).split()[1] == b"413"


def test_queue_bound_and_disconnects():
    with Server(BINARY, "--max-sessions", "1", "--queue", "1") as s:
        running = s.send({**LONG, "stream": True})
        running.recv(1000)
        waiting = s.send(LONG)
        until(lambda: s.metric("vllm:num_requests_waiting") == 1)
        r, text = s.call("POST", COMPLETIONS, {"model": NAME, **LONG})
        assert r.status == 429 and r.getheader("Retry-After"), text
        waiting.close()  # in the queue
        until(lambda: s.metric("vllm:num_requests_waiting") == 0)
        running.close()  # while streaming
        s.idle()
        s.send({**LONG, "prompt": "word " * 900}).close()  # in the prompt
        s.idle()
        whole = s.send(LONG)  # while a whole answer is being made
        time.sleep(0.2)
        whole.close()
        s.idle()


def test_timeouts():
    with Server(BINARY, "--threads", "1", "--max-sessions", "1", "--queue-timeout", "1",
                "--timeout", "2", "--context", "65536") as s:
        endless = {**LONG, "max_tokens": 60000}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(s.post, endless, COMPLETIONS, 504)
            until(lambda: s.metric("vllm:num_requests_running") == 1)
            waits = pool.submit(s.post, endless, COMPLETIONS, 503)
            assert waits.result()["error"]["code"] == "queue_timeout"
            assert first.result()["error"]["code"] == "timeout"
        s.idle()


def test_drain():
    with Server(BINARY) as s:
        c = s.send({**LONG, "max_tokens": 100, "stream": True})
        c.recv(1000)
        s.p.send_signal(signal.SIGTERM)
        s.p.stderr.readline()
        assert s.call("GET", "/ready")[0].status == 503
        assert s.call("GET", "/health")[0].status == 200
        s.post({"prompt": "x"}, COMPLETIONS, 503)
        data = b""
        while part := c.recv(65536):
            data += part
            if b"[DONE]" in data:
                break
        assert b"[DONE]" in data and b'"finish_reason": "length"' in data
        assert s.p.wait(60) == 0


def main():
    tests = [(n, t) for n, t in globals().items() if n.startswith("test_")]
    with Server(BINARY, "--threads", "1") as s:  # of every test that asks for one
        return run([(n, functools.partial(t, s) if inspect.signature(t).parameters else t)
                    for n, t in tests])


if __name__ == "__main__":
    sys.exit(main())
