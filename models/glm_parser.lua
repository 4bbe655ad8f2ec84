-- Reading an answer in GLM's format as it comes, for include().
--
-- The markers are control tokens, so every text stands in a known place.  Whether the text of an
-- argument is a string or another value is in the tool's schema; without one, what reads as JSON is
-- that value.  Markers out of place mean what they can: a call that opens ends the call before, a
-- value without a key is dropped.  An answer that is cut short inside a call leaves it unended.

local arguments, prompt = include("arguments"), include("prompt")

local MAX_NAME = 1024 -- bytes of the name of a tool or an argument

-- The JSON types that a schema allows as a set, or nil for any.
local function types_of(schema)
  local kind = json.type(schema) == "object" and schema.type
  if json.type(kind) == "string" then return { [kind] = true } end
  if json.type(kind) ~= "array" then return nil end
  local set = {}
  for i = 1, #kind do
    if json.type(kind[i]) == "string" then set[kind[i]] = true end
  end
  return set
end

local function only_string(types)
  if not types then return false end
  for kind in pairs(types) do
    if kind ~= "string" then return false end
  end
  return types.string or false
end

return function(thinking, emit)
  local place = thinking and "reasoning" or "content" -- or "name", "key", "value", "call"
  local name, key = "", ""
  local args -- of the call that is open
  local known = {} -- tool -> argument -> types

  local self = {}

  -- The tools of the request, if there are any; called before all else.
  function self.tools(tools)
    for i = 1, #tools do
      local f = prompt.tool_function(tools[i], i)
      local parameters = json.type(f.parameters) == "object" and f.parameters.properties
      if json.type(f.name) == "string" and json.type(parameters) == "object" then
        known[f.name] = {}
        for argument, schema in pairs(parameters) do known[f.name][argument] = types_of(schema) end
      end
    end
  end

  function self.text(text)
    if place == "reasoning" then
      emit.reasoning(text)
    elseif place == "content" then
      emit.content(text)
    elseif place == "name" then
      name = #name < MAX_NAME and name .. text or name
    elseif place == "key" then
      key = #key < MAX_NAME and key .. text or key
    elseif place == "value" then
      args.text(text)
    end
  end

  -- The name is whole when anything follows it.
  local function end_name()
    if place ~= "name" then return end
    name = prompt.strip(name)
    emit.tool_begin(name)
    place, args = "call", arguments(emit)
  end

  local function end_call()
    end_name()
    if not args then return end
    args.close()
    emit.tool_end()
    place, args = "content", nil
  end

  local function begin_value()
    local types = known[name] and known[name][key]
    args.begin(key, only_string(types), types)
    place = "value"
  end

  function self.marker(marker)
    if marker == "</think>" and place == "reasoning" then
      place = "content"
    elseif marker == "<think>" and place == "content" then
      place = "reasoning"
    elseif marker == "<tool_call>" then
      end_call()
      place, name = "name", ""
    elseif marker == "</tool_call>" then
      end_call()
    elseif args or place == "name" then
      end_name()
      if marker == "<arg_key>" then
        args.stop()
        place, key = "key", ""
      elseif marker == "<arg_value>" and key ~= "" then
        begin_value()
      elseif marker == "</arg_value>" then
        args.stop()
        place, key = "call", ""
      elseif marker == "</arg_key>" then
        place = "call"
      end
    end
  end

  function self.finish() end

  return self
end
