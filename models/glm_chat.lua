-- The chat format of GLM-5 and its successors, for include(): a function of the configuration.
--
-- Turns begin with a role's marker and have no end; the next role's marker ends an answer.  Tool
-- arguments are written without their types, strings without quotes, so reading them needs the
-- tools' schemas.  From GLM-5.2 on a line says how much to think and turns without thinking have an
-- empty thought; that release shares indexers between layers, which tells it from the ones before.

local openai, prompt, parser = include("openai"), include("prompt"), include("glm_parser")

local MARKERS = { "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>" }
local TOOLS = "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
  .. "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
local USAGE = "</tools>\n\nFor each function call, output the function name and arguments within the "
  .. "following XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}"
  .. "</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"
local EFFORTS = { low = "Low", high = "High" } -- all else is the most

-- A tool as the later releases show it: the members of its function, but for two.
local function describe(f)
  local members = {}
  for key, value in pairs(f) do
    if key ~= "defer_loading" and key ~= "strict" then
      table.insert(members, json.encode(key) .. ": " .. json.encode(value, { spaced = true }))
    end
  end
  return "{" .. table.concat(members, ", ") .. "}"
end

local function render_tools(w, tools, later)
  w.marker("<|system|>")
  w.text(TOOLS)
  for i = 1, #tools do
    local f = prompt.tool_function(tools[i], i)
    w.text((later and describe(f) or json.encode(tools[i], { spaced = true })) .. "\n")
  end
  w.fixed(USAGE)
end

-- Reasoning and content of an answer; a client may have left the thought in the text.
local function parts_of(msg, where)
  local content = openai.content(msg, where)
  local reasoning = openai.string(msg, "reasoning_content", where) or openai.string(msg, "reasoning", where)
  local close = not reasoning and content:find("</think>")
  if close then
    reasoning, content = content:sub(1, close - 1), content:sub(close + #"</think>")
    local open = reasoning:find("<think>")
    if open then reasoning = reasoning:sub(open + #"<think>") end
  end
  return reasoning, content
end

local function render_assistant(w, msg, where, keeps_thinking, later)
  local reasoning, content = parts_of(msg, where)
  w.marker("<|assistant|>")
  if keeps_thinking and reasoning then
    w.marker("<think>")
    w.text(reasoning)
  elseif later then
    w.marker("<think>")
  end
  w.marker("</think>")
  w.text(prompt.strip(content))
  for _, call in ipairs(openai.calls(msg, where)) do
    w.marker("<tool_call>")
    w.text(call.name)
    prompt.arguments(call, function(name, value)
      w.marker("<arg_key>")
      w.text(name)
      w.marker("</arg_key>")
      w.marker("<arg_value>")
      w.text(json.type(value) == "string" and value or json.encode(value, { spaced = true }))
      w.marker("</arg_value>")
    end)
    w.marker("</tool_call>")
  end
end

local function render(o, out, later)
  local w = prompt.writer(out, MARKERS)
  local tools, last_user = prompt.tools(o), prompt.last_user(o.messages)
  w.marker("[gMASK]")
  w.marker("<sop>")
  if later and o.thinking then
    w.marker("<|system|>")
    w.text("Reasoning Effort: " .. (EFFORTS[o.effort or ""] or "Max"))
  end
  if tools then render_tools(w, tools, later) end
  local previous
  for at, msg, role, where in openai.each(o.messages) do
    if role == "assistant" then
      render_assistant(w, msg, where, at + 1 > last_user, later)
    elseif role == "system" or role == "user" then
      w.marker("<|" .. role .. "|>")
      w.text(openai.content(msg, where))
    elseif role == "tool" then
      if previous ~= "tool" then w.marker("<|observation|>") end
      w.marker("<tool_response>")
      w.text(openai.content(msg, where))
      w.marker("</tool_response>")
    else
      openai.unknown_role(role, where)
    end
    previous = role
  end
  if o.generation_prompt then
    w.marker("<|assistant|>")
    if later or o.thinking then w.marker("<think>") end
    if not o.thinking then w.marker("</think>") end
  end
  w.finish()
end

-- ---- the form of an answer ----

local function form(o, f)
  local function argument(value, key)
    return f.seq{ f.marker("<arg_key>"), f.text(key), f.marker("</arg_key>"), f.marker("<arg_value>"),
      f.alt{ f.raw(value), openai.other_value(f, value) }, f.marker("</arg_value>") }
  end

  local function call(tool)
    return f.seq{ f.marker("<tool_call>"), f.text(tool.name), openai.each_argument(f, tool, argument),
      f.marker("</tool_call>") }
  end

  local answer = openai.form(o, f, call)
  return o.thinking and f.seq{ f.any(), f.marker("</think>"), answer } or answer
end

local function shares_indexers(config)
  for _, kind in ipairs(config:strings("indexer_types", {})) do
    if kind == "shared" then return true end
  end
  return config:has("index_topk_freq") and config:int("index_topk_freq") > 1
end

return function(config)
  local later = shares_indexers(config)
  local function render_one(o, out) render(o, out, later) end
  return { render = render_one, parser = parser, form = form }
end
