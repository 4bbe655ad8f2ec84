#!/usr/bin/env python3
"""The server used by the client libraries of OpenAI and Anthropic, on the bundled model.

    clients.py BUILD     run from the root of the repository by scripts/check --clients
"""
import functools
import json
import os
import pathlib
import sys
import threading
import time

import anthropic
import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
from serving import NAME, TOOLS, Server, run  # noqa: E402

BINARY = os.path.join(sys.argv[1], "firstlight")
QUIET = {"chat_template_kwargs": {"thinking": False}}
WHO = [{"role": "user", "content": "Who are you?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Hanoi?"}]
A_TOOLS = [{"name": t["function"]["name"], "description": t["function"]["description"],
            "input_schema": t["function"]["parameters"]} for t in TOOLS]


def open_ai(s):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0)


def messages_client(s):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key="none",
                               max_retries=0)


def chat(s, messages, **more):
    more = {"temperature": 0, "extra_body": QUIET, **more}
    return open_ai(s).chat.completions.create(model=NAME, messages=messages, **more)


def test_openai_chat(s):
    r = chat(s, WHO)
    assert r.choices[0].message.content.startswith("I am First Light"), r
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert [m.id for m in open_ai(s).models.list()] == [NAME]


def test_openai_stream(s):
    whole = chat(s, WHO)
    text, usage, ends = "", None, []
    for chunk in chat(s, WHO, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for c in chunk.choices:
            text += c.delta.content or ""
            ends += [c.finish_reason] if c.finish_reason else []
    assert text == whole.choices[0].message.content and ends == ["stop"]
    assert usage.completion_tokens == whole.usage.completion_tokens
    with open_ai(s).chat.completions.stream(model=NAME, messages=WHO, temperature=0,
                                            extra_body=QUIET) as stream:
        assert stream.get_final_completion().choices[0].message.content == text


def test_openai_tools_in_a_full_loop(s):
    for streamed in (False, True):
        messages = list(WEATHER)
        if streamed:
            with open_ai(s).chat.completions.stream(model=NAME, messages=messages, tools=TOOLS,
                                                    temperature=0, extra_body=QUIET) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            choice = chat(s, messages, tools=TOOLS).choices[0]
            assert choice.finish_reason == "tool_calls"
            message = choice.message
        call = message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"city": "Hanoi"}
        messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "14C"}]
        assert "14" in chat(s, messages, tools=TOOLS).choices[0].message.content


def test_openai_logprobs(s):
    choice = chat(s, WHO, logprobs=True, top_logprobs=2).choices[0]
    assert "".join(t.token for t in choice.logprobs.content) == choice.message.content
    assert all(len(t.top_logprobs) == 2 for t in choice.logprobs.content)


def test_openai_several_answers(s):
    r = open_ai(s).completions.create(model=NAME, prompt="The table", n=3, max_tokens=8,
                                      temperature=1, seed=3)
    assert [c.index for c in r.choices] == [0, 1, 2] and len({c.text for c in r.choices}) > 1
    two = open_ai(s).completions.create(model=NAME, prompt=["The table", "The database"], n=3,
                                        max_tokens=8, temperature=1, seed=3)
    assert [c.text for c in two.choices[:3]] == [c.text for c in r.choices]
    assert [c.index for c in two.choices] == list(range(6)) and two.usage.completion_tokens == 48


def test_openai_json_schema(s):
    schema = {"type": "object", "required": ["city", "degrees"], "additionalProperties": False,
              "properties": {"city": {"type": "string", "maxLength": 20},
                             "degrees": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema,
                                                   "strict": True}}
    for seed in range(3):
        r = chat(s, WEATHER, response_format=form, temperature=1.5, seed=seed)
        d = json.loads(r.choices[0].message.content)
        assert isinstance(d["city"], str) and isinstance(d["degrees"], int) and len(d) == 2


def test_openai_responses(s):
    r = open_ai(s).responses.create(model=NAME, input="Who are you?", reasoning={"effort": "none"},
                                    temperature=0)
    assert r.output_text.startswith("I am First Light"), r
    with open_ai(s).responses.stream(model=NAME, input="Who are you?", temperature=0,
                                     reasoning={"effort": "none"}) as stream:
        kinds = [e.type for e in stream]
        assert stream.get_final_response().output_text == r.output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    tools = [{"type": "function", **t["function"]} for t in TOOLS]
    r = open_ai(s).responses.create(model=NAME, input=WEATHER, tools=tools, temperature=0,
                                    reasoning={"effort": "none"})
    call = r.output[-1]
    assert json.loads(call.arguments) == {"city": "Hanoi"}
    r = open_ai(s).responses.create(
        model=NAME, temperature=0, tools=tools, reasoning={"effort": "none"},
        input=[*WEATHER, *[o.to_dict() for o in r.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "14C"}])
    assert "14" in r.output_text


def test_openai_errors(s):
    for kind, more in ((openai.NotFoundError, {"model": "other"}),
                       (openai.BadRequestError, {"model": NAME, "temperature": 9})):
        try:
            open_ai(s).chat.completions.create(messages=WHO, **more)
        except kind as e:
            assert e.param in more and e.code
        else:
            raise AssertionError(f"{more} was taken")


def test_openai_cancel(s):
    stream = open_ai(s).completions.create(model=NAME, prompt="The database", max_tokens=3000,
                                           stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    s.idle()
    # A whole answer that nobody waits for any more: the client gives up after a moment.
    try:
        open_ai(s).with_options(timeout=0.3).completions.create(
            model=NAME, prompt="The database", max_tokens=3000, extra_body={"ignore_eos": True})
    except openai.APITimeoutError:
        pass
    s.idle()


def test_anthropic_messages(s):
    body = {"model": NAME, "max_tokens": 300, "messages": WHO, "extra_body": {"temperature": 0}}
    m = messages_client(s).messages.create(**body)
    assert m.content[0].text.startswith("I am First Light") and m.stop_reason == "end_turn", m
    with messages_client(s).messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == m.content[0].text
        assert stream.get_final_message().usage.output_tokens == m.usage.output_tokens
    n = messages_client(s).messages.count_tokens(model=NAME, messages=WHO).input_tokens
    assert n == m.usage.input_tokens + (m.usage.cache_read_input_tokens or 0)
    think = messages_client(s).messages.create(**{
        **body, "messages": [{"role": "user", "content": "Introduce yourself."}],
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000})
    assert [b.type for b in think.content] == ["thinking", "text"]


def test_anthropic_tools(s):
    body = {"model": NAME, "max_tokens": 300, "tools": A_TOOLS, "extra_body": {"temperature": 0}}
    for streamed in (False, True):
        messages = list(WEATHER)
        if streamed:
            with messages_client(s).messages.stream(messages=messages, **body) as stream:
                m = stream.get_final_message()
        else:
            m = messages_client(s).messages.create(messages=messages, **body)
        use = m.content[-1]
        assert m.stop_reason == "tool_use" and use.input == {"city": "Hanoi"}, m
        messages += [{"role": "assistant", "content": [b.to_dict() for b in m.content]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id,
                                                   "content": "14C"}]}]
        assert "14" in messages_client(s).messages.create(messages=messages, **body).content[0].text


def test_anthropic_errors(s):
    try:
        messages_client(s).messages.create(model="other", max_tokens=5, messages=WHO)
    except anthropic.NotFoundError as e:
        assert e.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("an unknown model was taken")


def test_sixteen_clients_at_once(s):
    alone = chat(s, WHO).choices[0].message.content
    answers, threads = [], []
    for _ in range(16):
        threads.append(threading.Thread(
            target=lambda: answers.append(chat(s, WHO).choices[0].message.content)))
        threads[-1].start()
        time.sleep(0.01)
    for t in threads:
        t.join()
    assert answers == [alone] * 16


def main():
    with Server(BINARY, "--threads", "1") as s:
        status = run([(n, functools.partial(t, s)) for n, t in globals().items()
                      if n.startswith("test_")])
        s.idle()
    return status


if __name__ == "__main__":
    sys.exit(main())
