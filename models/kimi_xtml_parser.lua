-- The parser of Kimi K3's answers, for include().
--
-- It gets whole characters (text) and control tokens (marker), one token after the other.  A tag is
-- an open or close marker, text and a sep marker; the text is held back until the tag is whole.
-- Between tags the channel says where text goes.  Models make mistakes, so every order of tags has a
-- meaning: what opens ends what was open, text outside of channels is content, tags that nobody
-- knows are dropped.  An answer that is cut short inside a tool call leaves that call unended.

local MAX_TAG = 8192 -- bytes; an open marker followed by more text than this was no tag

-- The name and the attributes of: call tool="x" index="1"
local function read_tag(text)
  local attrs, at = {}, text:find(" ")
  local name = at and text:sub(1, at - 1) or text
  while at do
    local equals = text:find('="', at)
    local stop = equals and text:find('"', equals + 2)
    if not stop then break end
    local value = text:sub(equals + 2, stop - 1)
    attrs[text:sub(at + 1, equals - 1)] = value:replace("&quot;", '"'):replace("&amp;", "&")
    at = text:find(" ", stop)
  end
  return name, attrs
end

-- text without the white space that it begins with
local function skip_space(text)
  for i = 1, #text do
    local c = text:byte(i)
    if c ~= 32 and (c < 9 or c > 13) then return text:sub(i) end
  end
  return ""
end

return function(thinking, emit)
  local channel = thinking and "think" or "response" -- or "argument", "json", "drop"; nil: outside
  local fresh = true -- outside, nothing but white space since the last tag
  local tag, tag_size, closing -- the pieces of an unfinished tag
  local call -- the tool call that is open: { keys = seen so far, n = how many, raw = a json block }
  local held -- the pieces of an argument that is not a string

  local function put(text)
    if channel == "think" then
      emit.reasoning(text)
    elseif channel == "response" then
      emit.content(text)
    elseif channel == "argument" and held then
      table.insert(held, text)
    elseif channel == "argument" then
      emit.tool_args(json.encode(text):sub(2, -2))
    elseif channel == "json" then
      emit.tool_args(text)
    elseif channel == nil then
      if fresh then text = skip_space(text) end
      fresh = fresh and text == ""
      emit.content(text)
    end
  end

  local function begin_argument(attrs)
    local key = attrs.key or ""
    if call.raw or call.keys[key] then
      channel = "drop"
      return
    end
    call.keys[key] = true
    emit.tool_args((call.n == 0 and "{" or ", ") .. json.encode(key) .. ": ")
    call.n = call.n + 1
    held = attrs.type ~= "string" and {} or nil
    if not held then emit.tool_args('"') end
    channel = "argument"
  end

  local function end_argument()
    if channel == "argument" and held then
      local text = table.concat(held)
      local function show(value) emit.tool_args(json.encode(value, { spaced = true })) end
      if not json.decode(text, show) then show(text) end
    elseif channel == "argument" then
      emit.tool_args('"')
    end
    channel, held = nil, nil
  end

  local function end_call()
    if not call then return end
    end_argument()
    if not call.raw then emit.tool_args(call.n == 0 and "{}" or "}") end
    emit.tool_end()
    call = nil
  end

  local function opened(name, attrs)
    if name == "think" or name == "response" then
      end_call()
      channel = name
    elseif name == "tools" or name == "message" then
      end_call()
      channel = nil
    elseif name == "call" then
      end_call()
      channel = nil
      call = { keys = {}, n = 0 }
      emit.tool_begin(attrs.tool or "")
    elseif name == "argument" and call then
      end_argument()
      begin_argument(attrs)
    elseif name == "json" and call then
      end_argument()
      channel = (call.raw or call.n > 0) and "drop" or "json"
      call.raw = call.n == 0
    end
  end

  local function closed(name)
    if name == "message" then
      end_call()
      channel = nil
    elseif name == "call" or name == "tools" then
      end_call()
    elseif (name == "argument" or name == "json") and call then
      end_argument()
    elseif name == channel then
      channel = nil
    end
  end

  local function end_tag()
    local name, attrs = read_tag(table.concat(tag))
    tag, fresh = nil, true
    if closing then closed(name) else opened(name, attrs) end
  end

  local parser = {}

  function parser.text(text)
    if not tag then return put(text) end
    table.insert(tag, text)
    tag_size = tag_size + #text
    if tag_size > MAX_TAG then
      text, tag = table.concat(tag), nil
      put(text)
    end
  end

  function parser.marker(name)
    if name == "<|open|>" or name == "<|close|>" then
      if tag then end_tag() end
      tag, tag_size, closing = {}, 0, name == "<|close|>"
    elseif name == "<|sep|>" and tag then
      end_tag()
    end
  end

  function parser.finish() end

  return parser
end
