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

-- ---- what an answer must be ----

-- The tools that an answer may call, as a list of { name, parameters, strict }; whether it must
-- call one; whether it may call one only.
function openai.callable(o)
  local choice, list, only = o.tool_choice, {}, nil
  if json.type(choice) == "object" then
    local f = choice["function"]
    only = json.type(f) == "object" and f.name or choice.name
    if json.type(only) ~= "string" then refuse("tool_choice.function.name is missing") end
  elseif choice ~= nil and choice ~= "auto" and choice ~= "none" and choice ~= "required" then
    refuse('tool_choice must be "auto", "required", "none" or name a function')
  end
  for i = 1, choice ~= "none" and o.tools and #o.tools or 0 do
    local tool = o.tools[i]
    local f = json.type(tool) == "object" and tool["function"]
    if json.type(f) ~= "object" or json.type(f.name) ~= "string" then
      refuse("tools[%d].function.name is missing", i - 1)
    end
    if not only or f.name == only then
      table.insert(list, { name = f.name, parameters = f.parameters, strict = f.strict == true })
    end
  end
  local must = only ~= nil or choice == "required"
  if must and #list == 0 then
    refuse(only and "tool_choice names a function that is not among the tools"
      or 'tool_choice is "required" and there are no tools')
  end
  return list, must, only ~= nil or o.one_call
end

-- A form for what response_format asks for, or nil for free text.
function openai.document(o, form)
  local format = o.response_format
  local kind = json.type(format) == "object" and format.type
  if format == nil or kind == "text" then return nil end
  if kind == "json_object" then return form.json{ type = "object" } end
  if kind ~= "json_schema" then
    refuse('response_format.type must be "text", "json_object" or "json_schema"')
  end
  local schema = json.type(format.json_schema) == "object" and format.json_schema.schema
  if json.type(schema) ~= "object" then refuse("response_format.json_schema.schema is missing") end
  return form.json{ schema = schema, name = "schema" }
end

-- The form of an answer that is a document, or calls, or text that calls may follow.  call(tool): the
-- form of one call; first, last: of what stands before all of them and behind, or nil.
function openai.form(o, form, call, first, last)
  local tools, must, single = openai.callable(o)
  local document, ways = openai.document(o, form), {}
  for _, tool in ipairs(tools) do table.insert(ways, call(tool)) end
  if #ways == 0 then return document or form.any() end
  local one, nothing = form.alt(ways), form.seq{}
  local calls = form.seq{ first or nothing, one, single and nothing or form.many(one), last or nothing }
  if must then return calls end
  if document then return form.alt{ document, calls } end
  return form.seq{ form.any(), form.alt{ calls, nothing } }
end

-- The parameters of a tool one by one, as a list of { key, schema, required }, or nil when its
-- schema says more than a plain list of properties.
function openai.parameters(tool)
  local plain = { type = true, properties = true, required = true, additionalProperties = true,
    title = true, description = true, ["$schema"] = true, ["$defs"] = true, definitions = true }
  local schema, list, needed = tool.parameters, {}, {}
  if schema == nil then return list end
  if json.type(schema) ~= "object" or (schema.type ~= nil and schema.type ~= "object") then return nil end
  for key in pairs(schema) do
    if not plain[key] then return nil end
  end
  if json.type(schema.required) == "array" then
    for i = 1, #schema.required do needed[schema.required[i]] = true end
  end
  if json.type(schema.properties) == "object" then
    for key, value in pairs(schema.properties) do
      if value == false then return nil end
      table.insert(list, { key = key, schema = value, required = needed[key] })
      needed[key] = nil
    end
  end
  for _ in pairs(needed) do return nil end -- required and not declared
  return list
end

-- The forms of a tool's arguments one after the other, for a format that has no other way to write
-- them.  argument(value, key): the form of one, value being what form.json and form.raw take.
function openai.each_argument(form, tool, argument)
  local list, parts = openai.parameters(tool), {}
  if not list then
    refuse("the parameters of tool %s are no plain list of properties; this chat format cannot bind them",
      tool.name)
  end
  for _, p in ipairs(list) do
    local one = argument({ schema = p.schema, root = tool.parameters, name = p.key, lenient = not tool.strict },
      p.key)
    table.insert(parts, p.required and one or form.alt{ one, form.seq{} })
  end
  return form.seq(parts)
end

local OTHERS = { "number", "boolean", "null", "object", "array" }

-- A value that is not a string, of any type that its schema allows.
function openai.other_value(form, value)
  local ways = {}
  for _, type in ipairs(OTHERS) do
    table.insert(ways, form.json{ schema = value.schema, root = value.root, type = type, name = value.name,
      lenient = value.lenient })
  end
  return form.alt(ways)
end

return openai
