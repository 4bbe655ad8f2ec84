-- GLM-5, 5.1 and 5.2.
--
-- Everything turns in interleaved pairs.  From 5.2 on most layers have no indexer and look where the
-- last layer that has one looked.

local read_config, build = include("dsa_config"), include("dsa")
local model = {
  name = "glm_moe_dsa", stop = { "<|endoftext|>", "<|user|>", "<|observation|>" },
  tokenizer = { kind = "hf", file = "tokenizer.json" }, chat = include("glm_chat"),
}

function model.match(config)
  return config:string("model_type", "") == "glm_moe_dsa"
end

-- A list of one kind per layer: "full" or "F", "shared" or "S"; also a string of the letters.
local function read_list(list, key, n)
  local own = {}
  if #list ~= n then refuse("%s has %d entries, expected %d", key, #list, n) end
  for i = 1, n do
    local kind = type(list) == "string" and list:sub(i, i) or list[i]
    own[i - 1] = kind == "full" or kind == "F"
    if not own[i - 1] and kind ~= "shared" and kind ~= "S" then
      refuse('%s has "%s"; "full" and "shared" are known', key, kind)
    end
  end
  return own
end

-- For each layer from 0: has it an indexer of its own?  A list says it.  Without one the tensors
-- that exist do, and where there are none to look at, a period.
local function read_indexers(g, config, n)
  local list = config:strings("indexer_types", nil)
  if list then return read_list(list, "indexer_types", n) end
  local found, pattern = pcall(config.string, config, "index_topk_pattern", nil)
  if not found then pattern = config:strings("index_topk_pattern") end
  if pattern then return read_list(pattern, "index_topk_pattern", n) end
  local period, offset = config:int("index_topk_freq", 1), config:int("index_skip_topk_offset", 2)
  if period < 1 then refuse("index_topk_freq is %d, expected 1 or more", period) end
  local ruled, there, any = {}, {}, false
  for i = 0, n - 1 do
    ruled[i] = math.max(i - offset + 1, 0) % period == 0
    for _, name in ipairs { "wq_b.weight", "wk.weight", "weights_proj.weight" } do
      there[i] = there[i] or g:has(("model.layers.%d.self_attn.indexer.%s"):format(i, name))
    end
    any = any or there[i]
  end
  return any and there or ruled
end

function model.build(g, config)
  local c = read_config(config)
  c.pairing = c.interleave == false and "half" or "interleaved"
  c.own_indexer = read_indexers(g, config, c.num_hidden_layers)
  build(g, c)
end

return model
