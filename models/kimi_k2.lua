-- The chat format of Kimi K2, which Kimi-Linear uses, for include().
--
-- Every turn is a role marker, a name, <|im_middle|>, text and <|im_end|>.  Tool calls stand in a
-- section of their own inside the assistant's turn, each with an id functions.NAME:INDEX.

local openai = include("openai")

local MARKER = { user = "<|im_user|>", assistant = "<|im_assistant|>", system = "<|im_system|>",
  tool = "<|im_system|>" }

local function turn(out, role, name, text)
  out.marker(MARKER[role])
  out.text(name)
  out.marker("<|im_middle|>")
  out.text(text)
end

local function render_calls(out, calls)
  if #calls == 0 then return end
  out.marker("<|tool_calls_section_begin|>")
  for i, call in ipairs(calls) do
    local text = call.arguments
    if text == nil then text = "{}" end
    out.marker("<|tool_call_begin|>")
    out.text(call.id or ("functions.%s:%d"):format(call.name, i - 1))
    out.marker("<|tool_call_argument_begin|>")
    out.text(json.type(text) == "string" and text or json.encode(text, { spaced = true }))
    out.marker("<|tool_call_end|>")
  end
  out.marker("<|tool_calls_section_end|>")
end

local function render(o, out)
  -- The format has no words for a forced call or a response format: the form of the answer sees to
  -- both.
  if o.tools and #o.tools > 0 and o.tool_choice ~= "none" then
    turn(out, "system", "tool_declare", json.encode(o.tools))
    out.marker("<|im_end|>")
  end
  for _, msg, role, where in openai.each(o.messages) do
    if not MARKER[role] then openai.unknown_role(role, where) end
    local text = openai.content(msg, where)
    if role == "tool" then
      text = ("## Return of %s\n"):format(openai.string(msg, "tool_call_id", where) or "") .. text
    end
    turn(out, role, openai.string(msg, "name", where) or role, text)
    if role == "assistant" then render_calls(out, openai.calls(msg, where)) end
    out.marker("<|im_end|>")
  end
  if o.generation_prompt then
    out.marker("<|im_assistant|>")
    out.text("assistant")
    out.marker("<|im_middle|>")
  end
end

-- NAME of functions.NAME:INDEX
local function tool_name(id)
  local colon = #id
  while colon > 0 and id:sub(colon, colon) ~= ":" do colon = colon - 1 end
  if colon > 0 then id = id:sub(1, colon - 1) end
  return id:sub(1, 10) == "functions." and id:sub(11) or id
end

local function parser(_, emit)
  local place = "content" -- or "section" (between calls), "id", "arguments"
  local id
  local self = {}

  function self.text(text)
    if place == "content" then
      emit.content(text)
    elseif place == "id" then
      id = #id < 256 and id .. text or id
    elseif place == "arguments" then
      emit.tool_args(text)
    end
  end

  function self.marker(name)
    if place == "arguments" then emit.tool_end() end
    if name == "<|tool_call_begin|>" then
      place, id = "id", ""
    elseif name == "<|tool_call_argument_begin|>" and place == "id" then
      place = "arguments"
      emit.tool_begin(tool_name(id))
    elseif name == "<|tool_calls_section_begin|>" or name == "<|tool_call_end|>" then
      place = "section"
    elseif name == "<|tool_calls_section_end|>" or place == "arguments" then
      place = "content"
    end
  end

  function self.finish() end

  return self
end

-- The form of an answer that tools or a response format bind.
local function form(o, f)
  local function call(tool)
    return f.seq{ f.marker("<|tool_call_begin|>"), f.text("functions." .. tool.name .. ":"),
      f.match("^(0|[1-9][0-9]?)$"), f.marker("<|tool_call_argument_begin|>"),
      f.json{ schema = tool.parameters, type = "object", name = tool.name, lenient = not tool.strict },
      f.marker("<|tool_call_end|>") }
  end
  return openai.form(o, f, call, f.marker("<|tool_calls_section_begin|>"), f.marker("<|tool_calls_section_end|>"))
end

return { render = render, parser = parser, form = form }
