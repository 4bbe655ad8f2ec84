-- The chat format of DeepSeek-V3.2, for include(): turns of plain markers, thinking that is opened
-- in the prompt, tool calls in DSML, tool results in the same turn.  Strings as in the release's own
-- encoder.

local openai, prompt = include("openai"), include("prompt")

local BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
local MARKERS = { "｜DSML｜", "<think>", "</think>" }

local TOOLS = [[
## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
]]
local FORMAT = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"

-- What is asked of the whole conversation stands behind the first system message.
local function render_demands(w, o)
  local tools, schema = prompt.tools(o), prompt.schema(o.response_format)
  if tools then
    w.text("\n\n")
    w.fixed(TOOLS)
    for i = 1, #tools do
      if i > 1 then w.text("\n") end
      w.text(json.encode(prompt.tool_function(tools[i], i), { spaced = true }))
    end
    w.text("\n</functions>\n")
  end
  if schema then w.text(FORMAT .. json.encode(schema, { spaced = true })) end
end

local function render_calls(w, calls)
  if #calls == 0 then return end
  w.fixed("\n\n<｜DSML｜function_calls>")
  for _, call in ipairs(calls) do
    local first = true
    w.fixed("\n<｜DSML｜invoke name=\"")
    w.text(call.name .. '">\n')
    prompt.arguments(call, function(name, value)
      local is_string = json.type(value) == "string"
      w.fixed((first and "" or "\n") .. '<｜DSML｜parameter name="')
      w.text(name .. '" string="' .. (is_string and "true" or "false") .. '">')
      w.text(is_string and value or json.encode(value, { spaced = true }))
      w.fixed("</｜DSML｜parameter>")
      first = false
    end)
    w.fixed("\n</｜DSML｜invoke>")
  end
  w.fixed("\n</｜DSML｜function_calls>")
end

local function render_assistant(w, msg, where, keeps_thinking)
  if keeps_thinking then
    w.text(openai.string(msg, "reasoning_content", where) or openai.string(msg, "reasoning", where) or "")
    w.marker("</think>")
  end
  w.text(openai.content(msg, where))
  render_calls(w, openai.calls(msg, where))
  w.marker(EOS)
end

local function render(o, out)
  local w = prompt.writer(out, MARKERS)
  local n, last_user = #o.messages, prompt.last_user(o.messages)
  local open_calls, results = 0, 0 -- of the last assistant's message
  w.marker(BOS)
  if n == 0 or o.messages[1].role ~= "system" then render_demands(w, o) end
  for at, msg, role, where in openai.each(o.messages) do
    local text, thinks = openai.content(msg, where), o.thinking and at + 1 >= last_user
    local is_last = at + 1 == n
    if role == "system" then
      w.text(text)
      if at == 0 then render_demands(w, o) end
    elseif role == "user" then
      w.marker("<｜User｜>")
      w.text(text)
      if not is_last or o.generation_prompt then
        w.marker("<｜Assistant｜>")
        w.marker(thinks and "<think>" or "</think>")
      end
    elseif role == "assistant" then
      open_calls, results = #openai.calls(msg, where), 0
      render_assistant(w, msg, where, o.thinking and at + 1 > last_user)
    elseif role == "tool" then
      results = results + 1
      if results > open_calls then refuse("%s answers no tool call", where) end
      if results == 1 then w.text("\n\n<function_results>") end
      w.text("\n<result>" .. text .. "</result>")
      if is_last or o.messages[at + 2].role ~= "tool" then
        w.text("\n</function_results>")
        if not is_last or o.generation_prompt then
          w.text("\n\n")
          w.marker(thinks and "<think>" or "</think>")
        end
      end
    else
      openai.unknown_role(role, where)
    end
  end
  w.finish()
end

-- ---- the form of an answer ----

local function form(o, f)
  local function tag(before, text)
    return f.seq{ f.text(before), f.marker("｜DSML｜"), f.text(text) }
  end

  local function argument(value, key)
    local function as(is_string, way)
      return f.seq{ tag("<", ('parameter name="%s" string="%s">'):format(key, is_string)), way }
    end
    return f.seq{ f.alt{ as("true", f.raw(value)), as("false", openai.other_value(f, value)) },
      tag("</", "parameter>\n") }
  end

  local function call(tool)
    return f.seq{ tag("<", ('invoke name="%s">\n'):format(tool.name)), openai.each_argument(f, tool, argument),
      tag("</", "invoke>\n") }
  end

  local answer = openai.form(o, f, call, tag("\n\n<", "function_calls>\n"), tag("</", "function_calls>"))
  return o.thinking and f.seq{ f.any(), f.marker("</think>"), answer } or answer
end

return { render = render, parser = include("deepseek_parser"), form = form }
