-- Reading OpenAI chat messages, for include() by chat formats.  What does not fit is refused with
-- its place: messages[2].content[0].

local openai = {}

-- A field that is a string or absent.
function openai.string(object, key, where)
  local kind = json.type(object[key])
  if kind ~= "string" and kind ~= "null" then
    refuse("%s.%s is of type %s, expected a string", where, key, kind)
  end
  return object[key]
end

-- A message's text: a string, nothing, or a list of text parts.
function openai.content(msg, where)
  local content = msg.content
  if json.type(content) ~= "array" then return openai.string(msg, "content", where) or "" end
  local parts = {}
  for i = 1, #content do
    local part = content[i]
    if json.type(part) ~= "object" or part.type ~= "text" or json.type(part.text) ~= "string" then
      refuse("%s.content[%d] is not a text part; only text is supported", where, i - 1)
    end
    table.insert(parts, part.text)
  end
  return table.concat(parts)
end

-- The tool calls of a message as a list of { id, name, arguments, where }.
function openai.calls(msg, where)
  local calls, list = msg.tool_calls, {}
  if calls == nil then return list end
  if json.type(calls) ~= "array" then refuse("%s.tool_calls is not a list", where) end
  for i = 1, #calls do
    local at = ("%s.tool_calls[%d]"):format(where, i - 1)
    local f = json.type(calls[i]) == "object" and calls[i]["function"]
    if json.type(f) ~= "object" or json.type(f.name) ~= "string" then
      refuse("%s.function.name is missing", at)
    end
    table.insert(list, { id = openai.string(calls[i], "id", at), name = f.name,
      arguments = f.arguments, where = at })
  end
  return list
end

-- The messages one by one, as index from 0, message, role and place.  What OpenAI came to call a
-- developer is the system.
function openai.each(messages)
  local i = 0
  return function()
    local at, msg = i, messages[i + 1]
    if at >= #messages then return nil end
    i = i + 1
    local where = ("messages[%d]"):format(at)
    if json.type(msg) ~= "object" then refuse("%s is not an object", where) end
    local role = openai.string(msg, "role", where)
    return at, msg, role == "developer" and "system" or role, where
  end
end

function openai.unknown_role(role, where)
  refuse("%s.role is %s; system, user, assistant and tool are known", where,
    role and '"' .. role .. '"' or "missing")
end

return openai
