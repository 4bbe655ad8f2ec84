-- Writing a prompt as one text with control tokens in it, for include() by chat formats whose
-- release renders a whole string and tokenises that: pieces of text that touch become one segment,
-- because a token may begin in one and end in the next.

local prompt = {}

-- A writer over `out`.  names: the control tokens that `fixed` looks for.
function prompt.writer(out, names)
  local pieces, self = {}, {}

  local function flush()
    if #pieces > 0 then out.text(table.concat(pieces)) end
    pieces = {}
  end

  -- Text from anywhere; nothing in it becomes a control token.
  function self.text(text)
    if text ~= "" then table.insert(pieces, text) end
  end

  function self.marker(name)
    flush()
    out.marker(name)
  end

  -- Text of the format itself, in which names are control tokens.
  function self.fixed(text)
    local at = 1
    while at <= #text do
      local first, found
      for _, name in ipairs(names) do
        local place = text:find(name, at)
        if place and (not first or place < first) then first, found = place, name end
      end
      if not first then return self.text(text:sub(at)) end
      self.text(text:sub(at, first - 1))
      self.marker(found)
      at = first + #found
    end
  end

  self.finish = flush
  return self
end

local SPACE = { [0x20] = true, [0x85] = true, [0xa0] = true, [0x1680] = true, [0x2028] = true,
  [0x2029] = true, [0x202f] = true, [0x205f] = true, [0x3000] = true }
for c = 9, 13 do SPACE[c] = true end
for c = 28, 31 do SPACE[c] = true end
for c = 0x2000, 0x200a do SPACE[c] = true end

-- text without white space at both ends: Python's str.strip.
function prompt.strip(text)
  local first, last = 1, #text
  while first <= last and SPACE[utf8.codepoint(text, first)] do first = utf8.offset(text, 2, first) end
  while last >= first do
    local start = utf8.offset(text, 0, last)
    if not SPACE[utf8.codepoint(text, start)] then break end
    last = start - 1
  end
  return text:sub(first, last)
end

-- The index from 1 of the last message of a user, or 0.
function prompt.last_user(messages)
  local last = 0
  for i = 1, #messages do
    if json.type(messages[i]) == "object" and messages[i].role == "user" then last = i end
  end
  return last
end

-- Calls f(name, value) for each argument of a call, in order; arguments are an object or its JSON
-- text, and none at all are no arguments.
function prompt.arguments(call, f)
  local function each(object)
    if json.type(object) ~= "object" then
      refuse("%s.function.arguments is of type %s, expected an object", call.where, json.type(object))
    end
    for name, value in pairs(object) do f(name, value) end
  end
  local arguments = call.arguments
  if arguments == nil or arguments == "" then return end
  if json.type(arguments) ~= "string" then return each(arguments) end
  local good, why = json.decode(arguments, each)
  if not good then refuse("%s.function.arguments is not JSON: %s", call.where, why) end
end

-- The tools that a prompt shows; tool_choice "none" hides them.  A forced call has no words here: the
-- form of the answer sees to it.
function prompt.tools(o)
  return o.tool_choice ~= "none" and o.tools and #o.tools > 0 and o.tools or nil
end

-- The description of a tool: its member `function`.
function prompt.tool_function(tool, i)
  local f = json.type(tool) == "object" and tool["function"]
  if json.type(f) ~= "object" then refuse("tools[%d].function is missing", i - 1) end
  return f
end

-- The schema that an answer is asked to satisfy, or nil.
function prompt.schema(format)
  local kind = json.type(format) == "object" and format.type
  if format == nil or kind == "text" or kind == "json_object" then return nil end
  local schema = json.type(format.json_schema) == "object" and format.json_schema.schema
  if kind ~= "json_schema" or json.type(schema) ~= "object" then
    refuse('response_format must be "text", "json_object" or "json_schema" with a schema')
  end
  return schema
end

return prompt
