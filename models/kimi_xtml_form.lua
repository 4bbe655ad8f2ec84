-- The form of Kimi K3's answers when tools or a response format bind them, for include().
--
-- An answer begins inside the think or the response channel, which the prompt opened, and goes on as
-- the renderer writes an assistant's message.  Reasoning is always free.

local openai = include("openai")

local TYPES = { "string", "number", "boolean", "null", "object", "array" }

return function(o, form)
  local tools, must, single = openai.callable(o)
  local document = openai.document(o, form)

  local function tag(marker, text)
    return form.seq{ form.marker(marker), form.text(text), form.marker("<|sep|>") }
  end

  local function quoted(text)
    return (text:replace("&", "&amp;"):replace('"', "&quot;"))
  end

  -- A value of each type that the schema allows, under a tag that names the type.
  local function argument(tool, p)
    local ways = {}
    for _, type in ipairs(TYPES) do
      local value = { schema = p.schema, root = tool.parameters, type = type, name = p.key,
        lenient = not tool.strict }
      table.insert(ways, form.seq{
        tag("<|open|>", ('argument key="%s" type="%s"'):format(quoted(p.key), type)),
        type == "string" and form.raw(value) or form.json(value) })
    end
    return form.seq{ form.alt(ways), tag("<|close|>", "argument") }
  end

  local function arguments(tool)
    local list, parts = openai.parameters(tool), {}
    if not list then -- more than a list of properties: as one JSON block
      return form.seq{ tag("<|open|>", 'json type="object"'),
        form.json{ schema = tool.parameters, type = "object", name = tool.name, lenient = not tool.strict },
        tag("<|close|>", "json") }
    end
    for _, p in ipairs(list) do
      local one = argument(tool, p)
      table.insert(parts, p.required and one or form.alt{ one, form.seq{} })
    end
    return form.seq(parts)
  end

  local function calls()
    local ways = {}
    for _, tool in ipairs(tools) do
      table.insert(ways, form.seq{ form.marker("<|open|>"),
        form.text(('call tool="%s" index="'):format(quoted(tool.name))), form.match("^[1-9][0-9]?$"),
        form.text('"'), form.marker("<|sep|>"), arguments(tool), tag("<|close|>", "call") })
    end
    local one = form.alt(ways)
    return form.seq{ tag("<|open|>", "tools"), one, single and form.seq{} or form.many(one),
      tag("<|close|>", "tools") }
  end

  local parts = {}
  if o.thinking then
    table.insert(parts, form.any())
    table.insert(parts, tag("<|close|>", "think"))
    table.insert(parts, tag("<|open|>", "response"))
  end
  local done = tag("<|close|>", "response")
  if must then
    table.insert(parts, form.seq{ done, calls() })
  elseif document and #tools > 0 then
    table.insert(parts, form.alt{ form.seq{ document, done }, form.seq{ done, calls() } })
  elseif #tools > 0 then
    table.insert(parts, form.seq{ form.any(), done, form.alt{ calls(), form.seq{} } })
  else
    table.insert(parts, form.seq{ document or form.any(), done })
  end
  table.insert(parts, tag("<|close|>", "message"))
  return form.seq(parts)
end
