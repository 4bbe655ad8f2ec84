-- Reading an answer in DeepSeek's format as it comes, for include().
--
-- Tags are text around a control token: <｜DSML｜invoke name="f">.  What may be the beginning of one
-- is held back: up to two line ends, then < or </.  The line ends before a block of calls belong to
-- it; those inside of a parameter are its own.  Tags out of place mean what they can: a call that
-- opens ends the call before, a tag that nobody knows is text of a parameter and dropped elsewhere.
-- An answer that is cut short inside a call leaves that call unended.

local arguments = include("arguments")

local TOKEN = "｜DSML｜"
local KNOWN = { function_calls = true, invoke = true, parameter = true }
local MAX_TAG = 8192 -- bytes; what goes on longer was no tag

-- The value of an attribute of: invoke name="f"
local function attribute(tag, key)
  local at = tag:find(" " .. key .. '="')
  local first = at and at + #key + 3
  local last = first and tag:find('"', first)
  return last and tag:sub(first, last - 1)
end

-- Where the end of text that may begin a tag starts.
local function tail(text)
  local at = #text + 1
  if text:sub(-2) == "</" then at = at - 2 elseif text:sub(-1) == "<" then at = at - 1 end
  for _ = 1, 2 do
    if at > 1 and text:byte(at - 1) == 10 then at = at - 1 end
  end
  return at
end

return function(thinking, emit)
  local place = thinking and "reasoning" or "content" -- or "calls", "call", "parameter"
  local held = "" -- text that may belong to a tag
  local tag, closing, before -- an unfinished tag, its kind, the line ends before it
  local args

  local function put(text)
    if text == "" then return end
    if place == "reasoning" then
      emit.reasoning(text)
    elseif place == "content" then
      emit.content(text)
    elseif place == "parameter" then
      args.text(text)
    end
  end

  local function end_call()
    if not args then return end
    args.close()
    emit.tool_end()
    args = nil
  end

  local function opened(text)
    local name = text:sub(1, (text:find(" ") or 0) - 1)
    if name == "function_calls" then
      end_call()
      place = "calls"
    elseif name == "invoke" then
      end_call()
      emit.tool_begin(attribute(text, "name") or "")
      place, args = "call", arguments(emit)
    elseif name == "parameter" and args then
      args.begin(attribute(text, "name") or "", attribute(text, "string") ~= "false")
      place = "parameter"
    else
      return false
    end
    return true
  end

  local function closed(text)
    if text == "parameter" and place == "parameter" then
      args.stop()
      place = "call"
    elseif text == "invoke" and args then
      end_call()
      place = "calls"
    elseif text == "function_calls" then
      end_call()
      place = "content"
    else
      return false
    end
    return true
  end

  local function end_tag(text)
    if place == "parameter" then
      -- the line ends are the parameter's, whatever the tag is
      put(before)
      before = ""
      local name = text:sub(1, (text:find(" ") or 0) - 1)
      if not KNOWN[name] then return put((closing and "</" or "<") .. TOKEN .. text .. ">") end
    end
    local done
    if closing then done = closed(text) else done = opened(text) end
    if not done then put(before) end
  end

  local self = {}

  function self.text(text)
    if tag then
      tag = tag .. text
      local stop = tag:find(">")
      if not stop and #tag <= MAX_TAG then return end
      local whole = tag
      tag = nil
      if not stop then return put(before .. (closing and "</" or "<") .. TOKEN .. whole) end
      end_tag(whole:sub(1, stop - 1))
      return self.text(whole:sub(stop + 1))
    end
    text = held .. text
    local at = tail(text)
    held = text:sub(at)
    put(text:sub(1, at - 1))
  end

  function self.marker(name)
    if name == TOKEN and place ~= "reasoning" and not tag and held:sub(-1) ~= "\n" and held ~= "" then
      closing = held:sub(-2) == "</"
      before = held:sub(1, closing and -3 or -2)
      tag, held = "", ""
      return
    end
    if tag then
      -- a control token inside of a tag: it was none
      local text = before .. (closing and "</" or "<") .. TOKEN .. tag
      tag = nil
      put(text)
    end
    local text = held
    held = ""
    put(text)
    if name == TOKEN then
      put(name)
    elseif name == "</think>" and place == "reasoning" then
      place = "content"
    elseif name == "<think>" and place == "content" then
      place = "reasoning"
    end
  end

  function self.finish()
    put(held)
  end

  return self
end
