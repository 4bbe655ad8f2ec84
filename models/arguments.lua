-- The arguments of a tool call that arrive one by one, written as the text of one JSON object; for
-- include() by parsers.  A string is passed on as it grows; another value is held until it is whole,
-- and is a string after all if it is no JSON.  Of two arguments with one name the first counts.

return function(emit)
  local self, seen, count = {}, {}, 0
  local state -- nil: between arguments; "string", "value", or "drop"
  local held, types

  -- types: a set of JSON types that a value may have, or nil for any
  local function flush()
    local text, kind = table.concat(held), nil
    json.decode(text, function(v) kind = json.type(v) end)
    local fits = kind and kind ~= "string" and
      (not types or types[kind] or (kind == "integer" and types.number))
    emit.tool_args(fits and text or json.encode(text))
  end

  function self.begin(name, is_string, allowed)
    self.stop()
    if seen[name] then
      state = "drop"
      return
    end
    seen[name], count = true, count + 1
    emit.tool_args((count == 1 and "{" or ", ") .. json.encode(name) .. ": ")
    state, held, types = is_string and "string" or "value", {}, allowed
    if is_string then emit.tool_args('"') end
  end

  function self.text(text)
    if state == "string" then
      emit.tool_args(json.encode(text):sub(2, -2))
    elseif state == "value" then
      table.insert(held, text)
    end
  end

  -- Ends the argument that is open, if one is.
  function self.stop()
    if state == "string" then emit.tool_args('"') end
    if state == "value" then flush() end
    state = nil
  end

  -- Ends the object.
  function self.close()
    self.stop()
    emit.tool_args(count == 0 and "{}" or "}")
  end

  return self
end
