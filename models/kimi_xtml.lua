-- The chat format of Kimi K3 ("XTML"), for include().
--
-- A prompt is a row of messages made of tags: <|open|>name key="value"<|sep|> ... <|close|>name<|sep|>.
-- The markers are control tokens; every other piece is plain text, an attribute being four pieces.
-- The answer comes in channels: think, response, tools.  Strings as in the released renderer.

local openai = include("openai")

local TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n%s\n```"
local MORE_TOOLS = "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
  .. "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
  .. "```json\n%s\n```"
local EFFORT = "`thinking_effort` guides on how much to think in your thinking channel (not including "
  .. "the response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the "
  .. "system is invoked with `thinking_effort=%s`."
local EFFORTS = { low = true, high = true, max = true } -- the released renderer takes no "medium"
local CHOICES = {
  required = "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
  none = "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
local FORMAT = "The system is invoked with `response_format=%s`.\nYour response must be raw JSON data without "
  .. "markdown code blocks (```json) or any additional formatting."
local SCHEMA = "\nThe JSON data must match the following schema:\n```json\n%s\n```"

local function compact(value)
  return json.encode(value, { sorted = true })
end

-- ---- tags ----

local function open(out, name, ...)
  out.marker("<|open|>")
  out.text(name)
  local attrs = table.pack(...)
  for i = 1, attrs.n, 2 do
    if attrs[i + 1] then
      out.text(" " .. attrs[i])
      out.text('="')
      out.text((attrs[i + 1]:replace("&", "&amp;"):replace('"', "&quot;")))
      out.text('"')
    end
  end
  out.marker("<|sep|>")
end

local function close(out, name)
  out.marker("<|close|>")
  out.text(name)
  out.marker("<|sep|>")
end

local function element(out, name, text, ...)
  open(out, name, ...)
  out.text(text)
  close(out, name)
end

local function message(out, text, ...)
  element(out, "message", text, ...)
  out.marker("<|end_of_msg|>")
end

-- ---- the assistant's turn ----

local function render_object(out, object, where)
  if json.type(object) ~= "object" then
    refuse("%s.function.arguments is of type %s, expected an object", where, json.type(object))
  end
  for key, value in pairs(object) do
    local kind = json.type(value)
    local text = kind == "string" and value or json.encode(value, { spaced = true })
    element(out, "argument", text, "key", key, "type", kind == "integer" and "number" or kind)
  end
end

local function render_call(out, call, index)
  open(out, "call", "tool", call.name, "index", tostring(index))
  if json.type(call.arguments) ~= "string" then
    if call.arguments ~= nil then render_object(out, call.arguments, call.where) end
  elseif not json.decode(call.arguments, function(v) render_object(out, v, call.where) end) then
    element(out, "json", call.arguments, "type", "object")
  end
  close(out, "call")
end

local function render_assistant(out, msg, where, thinking, calls)
  open(out, "message", "role", "assistant", "name", openai.string(msg, "name", where))
  if thinking then
    element(out, "think", openai.string(msg, "reasoning_content", where)
      or openai.string(msg, "reasoning", where) or "")
  end
  element(out, "response", openai.content(msg, where))
  if #calls > 0 then
    open(out, "tools")
    for i, call in ipairs(calls) do render_call(out, call, i) end
    close(out, "tools")
  end
  close(out, "message")
  out.marker("<|end_of_msg|>")
end

-- ---- tool results ----

-- Renders results, in the order of the calls that they answer; those that answer none come last.
-- count: results rendered since the assistant's last message.  Returns the new count.
local function render_results(out, results, calls, count)
  local order = {}
  for i, result in ipairs(results) do
    local place = #calls + i
    for c = #calls, 1, -1 do
      if calls[c].id and calls[c].id == result.id then place, result.name = c, calls[c].name end
    end
    if not result.name then refuse("%s answers no tool call and has no name", result.where) end
    order[i] = { place = place * (#results + 1) + i, result = result }
  end
  table.sort(order, function(a, b) return a.place < b.place end)
  for i, o in ipairs(order) do
    message(out, o.result.text, "role", "tool", "tool", o.result.name, "index", tostring(count + i))
  end
  return count + #results
end

-- ---- the whole ----

local function render_history(out, messages, thinking)
  local calls, results, count = {}, {}, 0
  for _, msg, role, where in openai.each(messages) do
    if role == "tool" then
      table.insert(results, { where = where, text = openai.content(msg, where),
        id = openai.string(msg, "tool_call_id", where),
        name = openai.string(msg, "name", where) or openai.string(msg, "tool", where) })
    else
      count = render_results(out, results, calls, count)
      results = {}
      if role == "assistant" then
        calls, count = openai.calls(msg, where), 0
        render_assistant(out, msg, where, thinking, calls)
      elseif role == "system" and json.type(msg.tools) == "array" then
        message(out, MORE_TOOLS:format(compact(msg.tools)), "role", "system", "type", "tool-declare")
      elseif role == "system" or role == "user" then
        message(out, openai.content(msg, where), "role", role, "name", openai.string(msg, "name", where))
      else
        openai.unknown_role(role, where)
      end
    end
  end
  render_results(out, results, calls, count)
end

local function render_format(out, format)
  local kind = json.type(format) == "object" and format.type
  if format == nil or kind == "text" then return end
  if kind ~= "json_object" and kind ~= "json_schema" then
    refuse('response_format.type must be "text", "json_object" or "json_schema"')
  end
  local text = FORMAT:format(kind)
  if kind == "json_schema" then
    local schema = json.type(format.json_schema) == "object" and format.json_schema.schema
    if json.type(schema) ~= "object" then refuse("response_format.json_schema.schema is missing") end
    text = text .. SCHEMA:format(compact(schema))
  end
  message(out, text, "role", "system", "type", "response-format")
end

local function render(o, out)
  if o.tools and #o.tools > 0 then
    message(out, TOOLS:format(compact(o.tools)), "role", "system", "type", "tool-declare")
  end
  if o.thinking and o.effort then
    if not EFFORTS[o.effort] then
      refuse('the thinking effort is "%s"; low, high and max are known', o.effort)
    end
    message(out, EFFORT:format(o.effort), "role", "system", "type", "thinking-effort")
  end
  render_history(out, o.messages, o.thinking)
  local choice = o.tool_choice
  if json.type(choice) == "object" then
    openai.callable(o) -- refuses what it cannot be
    choice = "required" -- which one, the form sees to
  end
  if choice ~= nil and choice ~= "auto" then
    local text = CHOICES[choice]
      or refuse('tool_choice must be "auto", "required", "none" or name a function')
    message(out, text, "role", "system", "type", "tool-choice")
  end
  render_format(out, o.response_format)
  if o.generation_prompt then
    open(out, "message", "role", "assistant")
    open(out, o.thinking and "think" or "response")
  end
end

return { render = render, parser = include("kimi_xtml_parser"), form = include("kimi_xtml_form") }
