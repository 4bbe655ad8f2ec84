-- DeepSeek-V3.2 (also V3.2-Exp and V3.2-Speciale).
--
-- Every layer has an indexer, which turns the first elements of its heads in half-split pairs, while
-- the attention turns the last ones of its heads in interleaved pairs.

local read_config, build = include("dsa_config"), include("dsa")
local model = {
  name = "deepseek_v32", stop = { "<｜end▁of▁sentence｜>" },
  tokenizer = { kind = "hf", file = "tokenizer.json" }, chat = include("deepseek_chat"),
}

function model.match(config)
  return config:string("model_type", "") == "deepseek_v32"
end

function model.build(g, config)
  local c = read_config(config)
  c.pairing, c.own_indexer = c.interleave and "interleaved" or "half", {}
  for i = 0, c.num_hidden_layers - 1 do c.own_indexer[i] = true end
  build(g, c)
end

return model
