"""Writes tests/data/chat: conversations and the prompts that the releases' own renderers make of
them, for tests/unit/test_chat_formats.c.

    python3 tools/make_chat_tests.py KIND RENDERER > tests/data/chat/KIND.json

KIND and RENDERER: `deepseek` and the release's encoding_dsv32.py, or `glm` or `glm_later` and the
release's chat_template.jinja (needs jinja2; rendered as transformers does).  The renderers are not
part of this repository.
"""
import copy
import importlib.util
import json
import sys

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city — now",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": ["string", "null"]}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "plot", "parameters": {"type": "object", "properties": {
        "points": {"type": "array"}, "style": {"type": "object"}, "ratio": {"type": "number"}, "grid": {"type": "boolean"}}}}},
]


def call(name, arguments, i):
    return {"id": f"call_{i}", "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


ASK = {"role": "user", "content": "How warm is it in Zürich?"}
CALL = {"role": "assistant", "content": "", "reasoning_content": "A tool knows.\n", "tool_calls": [
    call("get_weather", {"city": "Zürich \"HB\"\n2", "days": 3, "units": None}, 0)]}
RESULT = {"role": "tool", "tool_call_id": "call_0", "content": "{\"c\": 7}"}
ANSWER = {"role": "assistant", "reasoning_content": "7 is cold.", "content": " 7 °C.\n"}
BOTH = {"role": "assistant", "content": "I look.", "reasoning_content": "Two calls", "tool_calls": [
    call("get_weather", {}, 0),
    call("plot", {"points": [1, 2.5, -3e20, {"x": "é"}], "style": {"a": [], "b": {}}, "ratio": 0.1, "grid": True}, 1)]}
SYSTEM = {"role": "system", "content": "Be brief.\n"}
NEXT = {"role": "user", "content": "And tomorrow?\n\n"}
CONVERSATIONS = [
    ([ASK], None), ([SYSTEM, ASK], None), ([SYSTEM, ASK, ANSWER, NEXT], None), ([ASK], TOOLS), ([SYSTEM, ASK], TOOLS),
    ([ASK, CALL, RESULT], TOOLS), ([SYSTEM, ASK, CALL, RESULT, ANSWER, NEXT], TOOLS),
    ([SYSTEM, ASK, BOTH, RESULT, {**RESULT, "tool_call_id": "call_1", "content": "done <ok>"}], TOOLS),
    ([ASK, ANSWER, NEXT, CALL, RESULT, BOTH, RESULT, RESULT], TOOLS[:1]),
]


def deepseek(path):
    spec = importlib.util.spec_from_file_location("encoder", path)
    encoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoder)

    def render(messages, tools, thinking, effort):
        messages = copy.deepcopy(messages)
        if tools and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": ""})
        if tools:
            messages[0]["tools"] = tools
        return encoder.encode_messages(messages, "thinking" if thinking else "chat")
    return render


def jinja(path):
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False: json.dumps(x, ensure_ascii=ensure_ascii)
    template = env.from_string(open(path).read())

    def render(messages, tools, thinking, effort):
        messages = copy.deepcopy(messages)
        for m in messages:
            for c in m.get("tool_calls", []):
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
        extra = {"reasoning_effort": effort} if effort else {}
        return template.render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking, **extra)
    return render


def main():
    kind, path = sys.argv[1:]
    render = deepseek(path) if kind == "deepseek" else jinja(path)
    cases = []
    for messages, tools in CONVERSATIONS:
        for thinking, effort in [(True, None), (True, "high"), (False, None)]:
            if (effort or not thinking) and kind == "glm_later" and (not thinking or len(cases) > 8):
                continue  # that template cannot switch thinking off
            if effort and kind != "glm_later":
                continue
            cases.append({"messages": messages, "tools": tools, "thinking": thinking, "effort": effort,
                          "prompt": render(messages, tools, thinking, effort)})
    print("[" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "]")


main()
