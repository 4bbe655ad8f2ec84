#!/usr/bin/env python3
"""Every endpoint and parameter of the server, by plain HTTP, on the bundled model.

    server_api.py BINARY     run from the root of the repository; prints one line per test
"""
import concurrent.futures
import http.client
import json
import math
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile

from serving import CHAT, COMPLETIONS, NAME, TOOLS, Server, ask, run_on_one, until

BINARY = sys.argv[1]
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
WEATHER = "What is the weather in Hanoi?"
A_TOOLS = [{"name": t["function"]["name"], "description": t["function"]["description"],
            "input_schema": t["function"]["parameters"]} for t in TOOLS]
R_TOOLS = [{"type": "function", **t["function"]} for t in TOOLS]


def named_events(s, body, path):
    """The events of a stream with names, as (name, data); each names itself twice."""
    r, text = s.call("POST", path, {"model": NAME, "temperature": 0, "stream": True, **body})
    assert r.status == 200, text
    events = []
    for block in text.strip("\n").split("\n\n"):
        name, data = re.fullmatch(r"event: (\S+)\ndata: (.*)", block, re.S).groups()
        events.append((name, json.loads(data)))
        assert events[-1][1]["type"] == name
    return events


def test_n_and_seed(s):
    body = {"prompt": "The table", "max_tokens": 8, "temperature": 1, "seed": 5}
    four = s.post({**body, "n": 4}, COMPLETIONS)
    texts = [c["text"] for c in four["choices"]]
    assert [c["index"] for c in four["choices"]] == [0, 1, 2, 3] and len(set(texts)) > 1
    assert s.post(body, COMPLETIONS)["choices"][0]["text"] == texts[0]
    assert s.post({**body, "n": 4}, COMPLETIONS)["choices"] == four["choices"]
    assert four["usage"]["completion_tokens"] == 32 and four["usage"]["prompt_tokens"] < 8
    parts = ["", "", "", ""]
    ends = []
    for chunk in s.stream({**body, "n": 4}, COMPLETIONS):
        c = chunk["choices"][0]
        parts[c["index"]] += c["text"]
        ends += [c["index"]] if c["finish_reason"] == "length" else []
    assert parts == texts and sorted(ends) == [0, 1, 2, 3]
    stop = texts[1][-3:]  # ends one choice, not the others
    one = s.post({**body, "n": 4, "stop": stop}, COMPLETIONS)["choices"]
    assert one[1]["finish_reason"] == "stop" and one[1]["text"] == texts[1][:texts[1].index(stop)]
    assert [c["text"] for c in one] == [t.split(stop)[0] for t in texts]


def test_prompt_lists(s):
    prompts = ["The table", "The database", "Once upon"]
    body = {"max_tokens": 8, "temperature": 1, "seed": 5, "n": 2, "logprobs": 1}
    alone = [s.post({**body, "prompt": p}, COMPLETIONS) for p in prompts]
    choices = [c for r in alone for c in r["choices"]]
    for i, c in enumerate(choices):  # prompt by prompt, and each as if it had come alone
        c["index"] = i
    assert len({c["text"] for c in choices}) == 6
    whole = s.post({**body, "prompt": prompts}, COMPLETIONS)
    assert whole["choices"] == choices
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert whole["usage"][name] == sum(r["usage"][name] for r in alone)
    ids = [s.post({"prompt": p}, "/tokenize")["tokens"] for p in prompts]
    assert s.post({**body, "prompt": ids}, COMPLETIONS)["choices"] == choices
    assert s.post({**body, "prompt": [prompts[0], *ids[1:]]}, COMPLETIONS)["choices"] == choices
    texts, ends = [""] * 6, []
    for chunk in s.stream({**body, "prompt": prompts, "stream_options": {"include_usage": True}},
                          COMPLETIONS):
        for c in chunk["choices"]:
            texts[c["index"]] += c["text"]
            ends += [c["index"]] if c["finish_reason"] == "length" else []
    assert texts == [c["text"] for c in choices] and sorted(ends) == list(range(6))
    assert not chunk["choices"] and chunk["usage"]["completion_tokens"] == 48
    stop = texts[3][-3:]  # ends one choice, not the others
    cut = s.post({**body, "prompt": prompts, "stop": stop}, COMPLETIONS)["choices"]
    assert [c["text"] for c in cut] == [t.split(stop)[0] for t in texts]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, "two"]}}}
    for c in s.post({**body, "prompt": prompts, "response_format": form}, COMPLETIONS)["choices"]:
        assert json.loads(c["text"]) in (1, "two")


def test_long_prompt_lists(s):
    """More prompts than have room at once, and what makes a list fail as a whole."""
    prompts = [f"Number {i} is" for i in range(50)]
    body = {"max_tokens": 3, "prompt": prompts}
    whole = [c["text"] for c in s.post(body, COMPLETIONS)["choices"]]
    assert len(whole) == 50 and len(set(whole)) > 1
    for i in (0, 31, 49):
        one = s.post({**body, "prompt": prompts[i]}, COMPLETIONS)["choices"][0]
        assert one["text"] == whole[i]
    for wrong in ([], [[]], ["x", ""], ["x", 5], [5, "x"], [["x"]], [[5], None], ["x"] * 2049,
                  ["x", "x " * 5000], [[5]] * 40 + [[10 ** 6]]):
        e = s.post({**body, "prompt": wrong}, COMPLETIONS, 400)["error"]
        assert e["message"] and e["param"] in ("prompt", None), (wrong, e)
    with s.send({"max_tokens": 4000, "prompt": prompts, "stream": True, "ignore_eos": True}) as c:
        assert b" 200 " in c.recv(100)
        until(lambda: s.metric("vllm:num_requests_running") > 1)
    s.idle()  # the client went, and with it all that was asked and all that was not


def test_logprobs_of_chat(s):
    body = ask("Who are you?", logprobs=True, top_logprobs=3)
    whole = s.post(body)["choices"][0]
    marks = whole["logprobs"]["content"]
    assert "".join(m["token"] for m in marks) == whole["message"]["content"]
    for m in marks:
        assert m["bytes"] == list(m["token"].encode()) and len(m["top_logprobs"]) == 3
        assert m["top_logprobs"][0]["token"] == m["token"] and m["logprob"] <= 0
    chunks = s.stream(body)
    pieces = [c["choices"][0] for c in chunks]
    streamed = [m for c in pieces if c["logprobs"] for m in c["logprobs"]["content"]]
    assert streamed == marks
    for c in pieces:  # each piece has the tokens of its own text
        if c["delta"].get("content"):
            assert "".join(m["token"] for m in c["logprobs"]["content"]) == c["delta"]["content"]
    plain = s.post(ask("Who are you?", logprobs=True))["choices"][0]["logprobs"]["content"]
    assert [m["logprob"] for m in plain] == [m["logprob"] for m in marks]
    assert plain[0]["top_logprobs"] == []
    text = whole["message"]["content"]
    stop = text[6:11]
    cut = s.post({**body, "stop": stop})["choices"][0]
    assert "".join(m["token"] for m in cut["logprobs"]["content"]).startswith(
        cut["message"]["content"])
    tool = s.post(ask(WEATHER, tools=TOOLS, logprobs=True))["choices"][0]
    assert tool["message"]["tool_calls"] and tool["logprobs"]["content"] == []
    think = s.post({"messages": [{"role": "user", "content": "Introduce yourself."}],
                    "logprobs": True})["choices"][0]
    assert "".join(m["token"] for m in think["logprobs"]["content"]) == think["message"]["content"]


def test_logprobs_of_completions(s):
    body = {"prompt": "The database", "max_tokens": 6, "logprobs": 2}
    whole = s.post(body, COMPLETIONS)["choices"][0]
    lp = whole["logprobs"]
    assert "".join(lp["tokens"]) == whole["text"] and len(lp["token_logprobs"]) == 6
    assert all(t in top for t, top in zip(lp["tokens"], lp["top_logprobs"]))
    assert lp["text_offset"] == [len("".join(lp["tokens"][:i])) for i in range(6)]
    assert all(math.isfinite(x) for x in lp["token_logprobs"])
    streamed = [c["choices"][0]["logprobs"] for c in s.stream(body, COMPLETIONS)]
    assert sum((x["tokens"] for x in streamed), []) == lp["tokens"]


def test_bias_and_ids(s):
    ids = s.post({"prompt": " the"}, "/tokenize")["tokens"]
    r = s.post({"prompt": "The database", "max_tokens": 3, "logit_bias": {str(ids[0]): 100}},
               COMPLETIONS)
    assert r["choices"][0]["text"] == " the" * 3
    r = s.post({"prompt": "The database", "max_tokens": 9, "logit_bias": {str(ids[0]): 100},
                "stop_token_ids": [ids[0]]}, COMPLETIONS)["choices"][0]
    assert (r["text"], r["finish_reason"]) == ("", "stop")
    prompt = s.post({"prompt": "The database"}, "/tokenize")["tokens"]
    a = s.post({"prompt": prompt, "max_tokens": 5}, COMPLETIONS)
    b = s.post({"prompt": "The database", "max_tokens": 5}, COMPLETIONS)
    assert a["choices"] == b["choices"] and a["usage"] == b["usage"]
    long = ask("Who are you?", min_tokens=60, max_tokens=80)
    assert s.post(long)["usage"]["completion_tokens"] >= 60 > \
        s.post(ask("Who are you?"))["usage"]["completion_tokens"]
    full = b["choices"][0]["text"]
    r = s.post({"prompt": prompt, "max_tokens": 5, "stop": full[3:6],
                "include_stop_str_in_output": True}, COMPLETIONS)["choices"][0]
    assert r["text"] == full[:full.index(full[3:6]) + 3]


def test_switches_of_thinking(s):
    def reasons(**more):
        m = s.post({"messages": [{"role": "user", "content": "Introduce yourself."}],
                    "max_tokens": 200, **more})
        n = m["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert bool(n) == ("reasoning_content" in m["choices"][0]["message"])
        return n > 0
    assert reasons() and reasons(reasoning_effort="low") and reasons(thinking={"type": "enabled"})
    assert not reasons(thinking={"type": "disabled"}) and not reasons(reasoning_effort="none")
    assert not reasons(chat_template_kwargs={"enable_thinking": False})
    e = s.post(ask("x", reasoning_effort="medium", chat_template_kwargs={"thinking": True}),
               status=400)["error"]
    assert e["param"] == "reasoning_effort", e


def test_one_call_and_choice_of_tools(s):
    assert s.post(ask(WEATHER, tools=TOOLS, tool_choice="auto", parallel_tool_calls=False)
                  )["choices"][0]["finish_reason"] == "tool_calls"
    assert s.post(ask("x", tool_choice="required"), status=400)["error"]["param"] == "tool_choice"
    assert s.post(ask("x", tools=TOOLS, tool_choice="often"), status=400)["error"]["param"] == \
        "tool_choice"
    cut = s.post(ask(WEATHER, tools=TOOLS, max_tokens=14))["choices"][0]
    assert cut["finish_reason"] == "length"


SCHEMA = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "age": {"type": "integer", "minimum": 0, "maximum": 99},
                         "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}}


def test_response_format(s):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}

    def check(text):
        d = json.loads(text)
        assert list(d) == ["name", "age", "tags"] and 0 <= d["age"] <= 99 and len(d["tags"]) <= 3
    for seed in range(6):  # hot: nothing but the form makes the answer valid
        body = ask("Hello", response_format=form, temperature=2, seed=seed)
        whole = s.post(body)["choices"][0]
        assert whole["finish_reason"] == "stop"
        check(whole["message"]["content"])
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in s.stream(body))
        assert text == whole["message"]["content"]
    two = s.post(ask("Hello", response_format=form, temperature=1.5, seed=3, n=3))["choices"]
    for c in two:
        check(c["message"]["content"])
    any_object = s.post(ask("Hello", response_format={"type": "json_object"}, max_tokens=900,
                            temperature=1.5, seed=1))["choices"][0]
    if any_object["finish_reason"] == "stop":
        assert isinstance(json.loads(any_object["message"]["content"]), dict)
    think = s.post({"messages": [{"role": "user", "content": "Hello"}], "response_format": form})
    check(think["choices"][0]["message"]["content"])
    assert think["choices"][0]["message"]["reasoning_content"]
    check(s.post({"prompt": "JSON: ", "max_tokens": 400, "temperature": 2, "seed": 1,
                  "response_format": form}, COMPLETIONS)["choices"][0]["text"])
    r = s.post({"input": "Hello", "reasoning": {"effort": "none"}, "text": {"format": {
        "type": "json_schema", "name": "x", "schema": SCHEMA}}}, RESPONSES)
    check(r["output"][0]["content"][0]["text"])
    r = s.post({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400,
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, MESSAGES)
    check(r["content"][0]["text"])
    for bad in ({"type": "xml"}, {"type": "json_schema"}, 5, {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "object", "not": {}}}}):
        e = s.post(ask("x", response_format=bad), status=400)["error"]
        assert e["param"] == "response_format", e


def test_forced_tools(s):
    other = {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "required": ["a", "b"], "additionalProperties": False,
        "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"enum": ["x", "y"]}}},
        "strict": True}}
    tools = TOOLS + [other]
    for seed in range(4):
        body = ask("Hello", tools=tools, temperature=1.5, seed=seed)
        c = s.post({**body, "tool_choice": {"type": "function", "function": {"name": "add"}}}
                   )["choices"][0]
        call, = c["message"]["tool_calls"]
        args = json.loads(call["function"]["arguments"])
        assert call["function"]["name"] == "add" and c["finish_reason"] == "stop"
        assert sorted(args) == ["a", "b"] and args["a"] <= 9 and args["b"] in "xy"
        body.update(tool_choice="required", parallel_tool_calls=False, max_tokens=600)
        c = s.post(body)["choices"][0]
        if c["finish_reason"] != "length":
            assert c["finish_reason"] == "tool_calls" and len(c["message"]["tool_calls"]) == 1
            json.loads(c["message"]["tool_calls"][0]["function"]["arguments"])
    e = s.post(ask("x", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "no"}}),
               status=400)["error"]
    assert e["param"] == "tool_choice", e
    m = s.post({"max_tokens": 300, "tools": A_TOOLS, "messages": [
        {"role": "user", "content": "Hello"}], "tool_choice": {"type": "tool", "name": "get_weather"}},
        MESSAGES)
    assert m["stop_reason"] == "tool_use" and m["content"][-1]["name"] == "get_weather", m


def test_tokens_and_template(s):
    text = "Grüße, 世界 🙂"
    r = s.post({"prompt": text, "return_token_strs": True}, "/tokenize")
    assert r["count"] == len(r["tokens"]) == len(r["token_strs"]) and r["max_model_len"] == 4096
    assert s.post({"tokens": r["tokens"]}, "/detokenize")["prompt"] == text
    chat = ask("Hello")
    rendered = s.post(chat, "/apply-template")["prompt"]
    assert "Hello" in rendered
    ids = s.post(chat, "/tokenize")["tokens"]
    assert s.post({"prompt": rendered, "parse_special": True}, "/tokenize")["tokens"] == ids
    assert s.post(chat)["usage"]["prompt_tokens"] == len(ids)
    for body, path in [({}, "/tokenize"), ({"tokens": [99999999]}, "/detokenize"),
                       ({"tokens": "x"}, "/detokenize"), ({}, "/apply-template")]:
        assert s.post(body, path, 400)["error"]["message"]


def test_messages(s):
    body = {"max_tokens": 300, "system": "Be brief.",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Who are you?"}]}]}
    m = s.post(body, MESSAGES)
    assert (m["type"], m["role"], m["stop_reason"]) == ("message", "assistant", "end_turn")
    text = m["content"][0]["text"]
    assert s.post(body, MESSAGES + "/count_tokens")["input_tokens"] == m["usage"]["input_tokens"]
    events = named_events(s, body, MESSAGES)
    names = [n for n, _ in events if n != "ping"]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(d["delta"]["text"] for n, d in events if n == "content_block_delta") == text
    assert events[-2][1]["usage"]["output_tokens"] == m["usage"]["output_tokens"]
    stop = text[5:9]
    m = s.post({**body, "stop_sequences": ["zzz", stop]}, MESSAGES)
    assert (m["stop_reason"], m["stop_sequence"]) == ("stop_sequence", stop)
    m = s.post({**body, "thinking": {"type": "enabled", "budget_tokens": 1024}}, MESSAGES)
    assert [b["type"] for b in m["content"]] == ["thinking", "text"], m
    assert s.post({**body, "max_tokens": 2}, MESSAGES)["stop_reason"] == "max_tokens"


def test_messages_tools(s):
    body = {"max_tokens": 300, "tools": A_TOOLS, "messages": [{"role": "user", "content": WEATHER}]}
    m = s.post(body, MESSAGES)
    use = m["content"][-1]
    assert m["stop_reason"] == "tool_use" and use["input"] == {"city": "Hanoi"}, m
    events = named_events(s, body, MESSAGES)
    parts = "".join(d["delta"].get("partial_json", "") for n, d in events
                    if n == "content_block_delta")
    assert json.loads(parts) == {"city": "Hanoi"}
    starts = [d["content_block"] for n, d in events if n == "content_block_start"]
    assert starts[-1]["type"] == "tool_use" and starts[-1]["input"] == {}
    body["messages"] += [{"role": "assistant", "content": m["content"]},
                         {"role": "user", "content": [
                             {"type": "tool_result", "tool_use_id": use["id"], "content": "14C"}]}]
    answer = s.post(body, MESSAGES)
    assert "14" in answer["content"][0]["text"], answer


def test_messages_errors(s):
    for body, status in [({"messages": []}, 400), ({"max_tokens": 5}, 400),
                         ({"max_tokens": 5, "messages": [{"role": "x", "content": "y"}]}, 400),
                         ({"max_tokens": 5, "messages": [{"role": "user", "content": [
                             {"type": "image", "source": {}}]}]}, 400),
                         ({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
                           "model": "other"}, 404)]:
        e = s.post(body, MESSAGES, status)
        assert e["type"] == "error" and e["error"]["message"], e


def test_responses(s):
    body = {"input": "Who are you?", "reasoning": {"effort": "none"}, "metadata": {"a": "b"}}
    r = s.post(body, RESPONSES)
    assert (r["object"], r["status"], r["metadata"]) == ("response", "completed", {"a": "b"})
    text = r["output"][0]["content"][0]["text"]
    assert text.startswith("I am First Light") and r["usage"]["total_tokens"] > 0
    events = named_events(s, body, RESPONSES)
    assert [d["sequence_number"] for _, d in events] == list(range(len(events)))
    names = [n for n, _ in events]
    assert names[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert names[-4:] == ["response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.completed"]
    assert "".join(d["delta"] for n, d in events if n == "response.output_text.delta") == text
    assert events[-1][1]["response"]["output"][0]["content"] == r["output"][0]["content"]
    r = s.post({"input": "Introduce yourself."}, RESPONSES)
    assert [o["type"] for o in r["output"]] == ["reasoning", "message"]
    again = s.post({"input": [{"role": "user", "content": "Introduce yourself."}, *r["output"],
                              {"role": "user", "content": [
                                  {"type": "input_text", "text": "Who are you?"}]}],
                    "instructions": "Be brief."}, RESPONSES)
    assert again["status"] == "completed"
    r = s.post({**body, "max_output_tokens": 2}, RESPONSES)
    assert r["incomplete_details"] == {"reason": "max_output_tokens"}
    e = s.post({"input": "x", "previous_response_id": "resp_1"}, RESPONSES, 400)["error"]
    assert e["param"] == "previous_response_id"


def test_responses_tools(s):
    body = {"input": [{"role": "user", "content": WEATHER}], "tools": R_TOOLS,
            "reasoning": {"effort": "none"}}
    r = s.post(body, RESPONSES)
    call = r["output"][-1]
    assert call["type"] == "function_call" and json.loads(call["arguments"]) == {"city": "Hanoi"}
    events = named_events(s, body, RESPONSES)
    done = [d for n, d in events if n == "response.function_call_arguments.done"]
    parts = [d["delta"] for n, d in events if n == "response.function_call_arguments.delta"]
    assert "".join(parts) == done[0]["arguments"] == call["arguments"]
    body["input"] += [*r["output"], {"type": "function_call_output", "call_id": call["call_id"],
                                     "output": "14C"}]
    assert "14" in s.post(body, RESPONSES)["output"][-1]["content"][0]["text"]


def test_keys_and_limits(_):
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("# two users\nsecret-a name=ann concurrent=1 context=50\n\n"
                "secret-b name=bob tokens-per-minute=40\n")
        f.flush()
        with Server(BINARY, "--threads", "1", "--metrics", "--api-key-file", f.name) as s:
            body = {"model": NAME, "prompt": "x", "max_tokens": 2}
            for headers in ({}, {"Authorization": "Bearer secret"}, {"x-api-key": "secret-aa"}):
                r, text = s.call("POST", COMPLETIONS, body, headers)
                assert r.status == 401 and json.loads(text)["error"]["code"] == "invalid_api_key"
            assert s.call("GET", "/v1/models")[0].status == 401
            assert s.call("GET", "/health")[0].status == 200
            assert s.call("GET", "/metrics")[0].status == 200
            a, b = {"Authorization": "Bearer secret-a"}, {"x-api-key": "secret-b"}
            assert s.call("POST", COMPLETIONS, body, a)[0].status == 200
            r, text = s.call("POST", COMPLETIONS, {**body, "max_tokens": 60}, a)
            assert r.status == 400 and json.loads(text)["error"]["code"] == "context_length_exceeded"
            data = json.dumps({**body, "max_tokens": 40, "ignore_eos": True, "stream": True}).encode()
            with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
                c.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nx-api-key: secret-a\r\n"
                          f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
                c.recv(100)
                r, text = s.call("POST", COMPLETIONS, body, a)
                assert r.status in (200, 429), text  # the stream may have ended
            assert s.call("POST", COMPLETIONS, {**body, "max_tokens": 45, "ignore_eos": True},
                          b)[0].status == 200
            r, text = s.call("POST", COMPLETIONS, body, b)
            assert r.status == 429 and int(r.getheader("Retry-After")) > 1, text
            s.idle()


def test_prefixes(s):
    system = {"role": "system", "content": "Answer in few words. " * 20}
    body = ask("Who are you?", temperature=0)
    body["messages"].insert(0, system)
    first = s.post(body)
    s.idle()
    again = s.post(body)
    assert again["choices"] == first["choices"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0.5 * first["usage"]["prompt_tokens"], again["usage"]
    body["messages"] += [first["choices"][0]["message"], {"role": "user", "content": "Good morning!"}]
    second = s.post(body)
    reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= cached, second["usage"]
    assert s.metric("vllm:prefix_cache_hits_total") >= cached + reused
    m = s.post({"max_tokens": 5, "system": system["content"], "messages": [
        {"role": "user", "content": "Who are you?"}]}, MESSAGES)["usage"]
    assert m["cache_read_input_tokens"] > 0 and m["input_tokens"] > 0
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("a\nb\nc shared\nd shared\n")
        f.flush()
        with Server(BINARY, "--threads", "1", "--metrics", "--api-key-file", f.name) as t:
            def found(key):
                text = t.call("POST", CHAT, {"model": NAME, **body}, {"x-api-key": key})[1]
                t.idle()
                return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert [found(k) > 0 for k in "abbcda"] == [False, False, True, False, True, True]


def test_prefixes_on_disk(_):
    with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile("w") as f:
        body = ask("Who are you?")
        body["messages"].insert(0, {"role": "system", "content": "Answer in few words. " * 40})

        def cached(s, key):
            text = s.call("POST", CHAT, {"model": NAME, "temperature": 0, **body}, {"x-api-key": key})[1]
            return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]

        def keys(text):
            f.truncate(0)
            f.seek(0)
            f.write(text)
            f.flush()
        keys("alice\nbob\n")
        options = ("--threads", "1", "--prefix-dir", d, "--api-key-file", f.name)
        s = Server(BINARY, *options)
        assert cached(s, "alice") == 0
        saved = "firstlight:prefixes_saved_total"
        until(lambda: float(re.search(rf"^{saved}{{.*}} (\S+)$", s.call("GET", "/metrics", None, {
            "x-api-key": "alice"})[1], re.M)[1]) > 0)
        s.p.kill()  # what was saved is there to stay
        s.p.wait()
        s.p.stderr.close()
        keys("carol\nbob\nalice\n")  # whoever stands in alice's line does not get what is hers
        with Server(BINARY, *options) as s:
            assert [cached(s, k) > 0 for k in ("carol", "bob", "alice")] == [False, False, True]
            assert s.call("GET", "/metrics")[0].status == 401


def test_log_and_ids(_):
    s = Server(BINARY, "--threads", "1", "--map-effort", "none=low,medium=high", "--log", "--alias", "one,two", "--cors", "https://a.example")
    with s:
        body = {"model": "two", "prompt": "A secret", "max_tokens": 3, "user": "u\n1",
                "metadata": {"k": 1}}
        r, text = s.call("POST", COMPLETIONS, body, {"X-Request-Id": "my-id"})
        assert r.status == 200 and r.getheader("X-Request-Id") == "my-id"
        assert r.getheader("Access-Control-Allow-Origin") == "https://a.example"
        line = s.p.stderr.readline()
        for part in ("event=request", 'request_id="my-id"', "status=200", "end=length",
                     "completion=3", 'user="u\\n1"', 'metadata={"k": 1}', f"path={COMPLETIONS}"):
            assert part in line, (part, line)
        assert "secret" not in line and json.loads(text)["choices"][0]["text"] not in line
        assert s.call("POST", COMPLETIONS, {"model": "three"})[0].status == 404
        assert "code=model_not_found param=model" in s.p.stderr.readline()
        assert [m["id"] for m in json.loads(s.call("GET", "/v1/models")[1])["data"]] == \
            ["one", "two"]
        body = {"model": "one", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        assert s.call("POST", CHAT, {**body, "reasoning_effort": "medium"})[0].status == 200
        assert s.call("POST", CHAT, {**body, "reasoning_effort": "mediu"})[0].status == 400
        r, _ = s.call("OPTIONS", CHAT, headers={"Origin": "https://a.example",
                                                "Access-Control-Request-Headers": "authorization"})
        assert r.status == 204 and r.getheader("Access-Control-Allow-Headers") == "authorization"


def test_metrics_can_be_read(s):
    text = s.call("GET", "/metrics")[1]
    seen = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            assert line not in seen
            seen.add(line)
        else:
            assert re.fullmatch(r'[a-z0-9:_]+\{model_name="[^"]*",engine="0"(,[a-z_]+="[^"]*")?\} '
                                r'[-+.0-9e]+', line), line
    assert "# TYPE vllm:time_to_first_token_seconds histogram" in seen
    counts = [float(x) for x in re.findall(r"^vllm:e2e_request_latency_seconds_bucket.* (\S+)$",
                                           text, re.M)]
    assert counts == sorted(counts) and counts[-1] > 10
    assert s.metric("vllm:prompt_tokens_total") > 100 and s.metric("vllm:generation_tokens_total") > 100


def test_tls(_):
    with tempfile.TemporaryDirectory() as folder:
        cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        try:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                            "/CN=localhost", "-keyout", key, "-out", cert], check=True,
                           capture_output=True)
        except FileNotFoundError:
            print("     skipped: there is no openssl to make a certificate with")
            return
        with Server(BINARY, "--threads", "1", "--tls-cert", cert, "--tls-key", key) as s:
            trust = ssl.create_default_context(cafile=cert)
            c = http.client.HTTPSConnection("localhost", s.port, timeout=60, context=trust)
            c.request("POST", COMPLETIONS, json.dumps({"model": NAME, "prompt": "x",
                                                       "max_tokens": 2}))
            r = c.getresponse()
            assert r.status == 200 and json.loads(r.read())["usage"]["completion_tokens"] == 2
            c.close()


def test_held_memory(_):
    with open(BINARY, "rb") as f:
        binary = f.read()
    if b"__asan_init" in binary or b"__tsan_init" in binary:
        print("     skipped: a sanitizer holds memory of its own")
        return
    with Server(BINARY, "--threads", "1", "--ram", "0.1") as s:
        words = [f"number {i} and" for i in range(300)]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda i: s.post({"prompt": " ".join(words[i:] + words[:i]),
                                            "max_tokens": 5}, COMPLETIONS), range(12)))
        with open(f"/proc/{s.p.pid}/status", encoding="ascii") as f:
            peak = int(next(line for line in f if line.startswith("VmHWM")).split()[1]) * 1024
        assert peak <= 100e6, peak


def test_notify(_):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as n:
            n.bind(path)
            n.settimeout(60)
            with Server(BINARY, "--threads", "1", "--notify-socket", path):
                assert n.recv(100) == b"READY=1"
            assert n.recv(100) == b"STOPPING=1"


if __name__ == "__main__":
    sys.exit(run_on_one(BINARY, globals()))
