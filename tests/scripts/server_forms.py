#!/usr/bin/env python3
"""Response formats and forced tool calls against a running server with the bundled model.

    server_forms.py BINARY     run from the root of the repository; prints one line per test
"""
import json
import sys

from serving import TOOLS, ask, run_on_one

BINARY = sys.argv[1]
WEATHER = "What is the weather in Hanoi?"
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
          "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 16},
                         "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "mail": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.org$"},
                         "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]},
                                  "minItems": 1, "maxItems": 3}}}
CLOCK = {"type": "function", "function": {
    "name": "set_clock", "strict": True, "parameters": {
        "type": "object", "additionalProperties": False, "required": ["hour", "zone"],
        "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23},
                       "zone": {"enum": ["UTC", "CET"]}, "note": {"type": ["string", "null"],
                                                                  "maxLength": 10}}}}}


def schema(s, name="person"):
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": s}}


def check_person(text):
    v = json.loads(text)
    assert set(v) <= set(PERSON["properties"]) and {"name", "age", "tags"} <= set(v), v
    assert 1 <= len(v["name"]) <= 16 and type(v["age"]) is int and 0 <= v["age"] <= 150, v
    assert 1 <= len(v["tags"]) <= 3 and set(v["tags"]) <= {"a", "b", "c"}, v


def check_clock(text):
    v = json.loads(text)
    assert 0 <= v["hour"] <= 23 and v["zone"] in ("UTC", "CET"), v
    assert set(v) <= {"hour", "zone", "note"}, v


def test_schema(s):
    for seed in range(8):
        whole = s.post(ask("Describe a person.", response_format=schema(PERSON), temperature=1.5,
                           seed=seed))["choices"][0]
        assert whole["finish_reason"] == "stop", whole
        check_person(whole["message"]["content"])
    body = ask("Describe a person.", response_format=schema(PERSON))
    check_person("".join(c["choices"][0]["delta"].get("content", "") for c in s.stream(body)))


def test_schema_after_reasoning(s):
    m = s.post({"messages": [{"role": "user", "content": "Introduce yourself."}],
                "response_format": schema(PERSON), "max_tokens": 400})["choices"][0]
    assert m["finish_reason"] == "length" or m["message"]["reasoning_content"]
    if m["finish_reason"] == "stop":
        check_person(m["message"]["content"])


def test_any_object_and_several_answers(s):
    answers = s.post(ask("JSON please.", response_format={"type": "json_object"}, n=3, temperature=1,
                         seed=3, max_tokens=300))["choices"]
    for a in answers:
        text = a["message"]["content"]
        assert text.startswith("{"), text
        assert a["finish_reason"] == "length" or isinstance(json.loads(text), dict)


def test_forced_calls(s):
    tools = [*TOOLS, CLOCK]
    named = {"type": "function", "function": {"name": "set_clock"}}
    for seed in range(4):
        a = s.post(ask(WEATHER, tools=tools, tool_choice=named, temperature=1.5, seed=seed)
                   )["choices"][0]
        assert a["finish_reason"] == "stop" and len(a["message"]["tool_calls"]) == 1, a
        check_clock(a["message"]["tool_calls"][0]["function"]["arguments"])
    a = s.post(ask("Tell me a story.", tools=tools, tool_choice="required", max_tokens=600)
               )["choices"][0]
    assert a["finish_reason"] in ("tool_calls", "length") and a["message"]["tool_calls"], a
    a = s.post(ask("Tell me a story.", tools=[CLOCK], tool_choice="required", temperature=1, seed=1,
                   parallel_tool_calls=False))["choices"][0]
    assert a["finish_reason"] == "tool_calls" and len(a["message"]["tool_calls"]) == 1, a
    check_clock(a["message"]["tool_calls"][0]["function"]["arguments"])
    body = ask(WEATHER, tools=tools, tool_choice=named)
    parts = [t for c in s.stream(body) for t in c["choices"][0]["delta"].get("tool_calls", [])]
    assert parts[0]["function"]["name"] == "set_clock"
    check_clock("".join(p["function"]["arguments"] for p in parts))


def test_strict_tool_left_to_the_model(s):
    a = s.post(ask(WEATHER, tools=[{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}])
               )["choices"][0]
    assert a["finish_reason"] == "tool_calls", a
    assert json.loads(a["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Hanoi"}


def test_other_dialects(s):
    tool = {"name": "set_clock", "input_schema": CLOCK["function"]["parameters"]}
    m = s.post({"messages": [{"role": "user", "content": WEATHER}], "max_tokens": 300,
                "tools": [tool], "tool_choice": {"type": "tool", "name": "set_clock"},
                "thinking": {"type": "disabled"}}, "/v1/messages")
    assert m["stop_reason"] == "tool_use", m
    check_clock(json.dumps([b for b in m["content"] if b["type"] == "tool_use"][0]["input"]))
    r = s.post({"input": "Describe a person.", "reasoning": {"effort": "none"}, "max_output_tokens": 300,
                "text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}},
               "/v1/responses")
    texts = [c["text"] for o in r["output"] if o["type"] == "message" for c in o["content"]]
    check_person("".join(texts))


def test_refusals_name_what_is_wrong(s):
    for change, param, words in [
            ({"response_format": schema({"type": "object", "not": {}})}, "response_format", '"not"'),
            ({"response_format": schema({"type": "array", "items": {"$ref": "#"}, "minItems": 1})},
             "response_format", "no document"),
            ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
             "tool_choice", "not among the tools"),
            ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
                "type": "object", "properties": {"a": {"multipleOf": 3}}}}}]}, "tools", "multipleOf")]:
        error = s.post(ask("x", **change), status=400)["error"]
        assert error["param"] == param and words in error["message"], error


def test_free_requests_are_untouched(s):
    plain = s.post(ask("Who are you?"))["choices"][0]
    text = s.post(ask("Who are you?", response_format={"type": "text"}))["choices"][0]
    assert plain == text


if __name__ == "__main__":
    sys.exit(run_on_one(BINARY, globals()))
