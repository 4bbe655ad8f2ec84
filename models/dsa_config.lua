-- The configuration of a decoder of latent attention with sparse selection (dsa.lua), read and
-- checked, for include().
--
-- `head_dim` is never read: files of these families carry values that belong to other code.

-- Rotary positions.  Old files have rope_theta and rope_scaling, new ones rope_parameters.
local function read_rope(config, pe)
  local s = config:object("rope_parameters", nil) or config:object("rope_scaling", nil)
  local kind = s and (s:string("rope_type", nil) or s:string("type", nil)) or "default"
  local rope = { width = pe, theta = s and s:float("rope_theta", nil) or config:float("rope_theta") }
  if kind == "default" then return rope, 1.0 end
  if kind ~= "yarn" then refuse('rope type "%s" is not supported; "yarn" and "default" are', kind) end
  rope.factor, rope.context = s:float("factor"), s:int("original_max_position_embeddings")
  rope.beta_fast, rope.beta_slow = s:float("beta_fast", 32.0), s:float("beta_slow", 1.0)
  if not s:bool("truncate", true) or s:float("partial_rotary_factor", 1.0) ~= 1 then
    refuse("yarn with truncate false or a partial_rotary_factor is not supported")
  end
  local function magnitude(m)
    return rope.factor > 1 and 0.1 * m * math.log(rope.factor) + 1 or 1.0
  end
  local part, all = s:float("mscale", 0.0), s:float("mscale_all_dim", 0.0)
  local rotated = part ~= 0 and all ~= 0 and magnitude(part) / magnitude(all) or magnitude(1)
  rotated = s:float("attention_factor", rotated)
  if math.abs(rotated - 1) > 1e-6 then
    refuse("yarn would scale rotated elements by %g; only mscale equal to mscale_all_dim is supported", rotated)
  end
  return rope, all ~= 0 and magnitude(all) ^ 2 or 1.0
end

-- For each layer from 0: has it experts?
local function read_mlps(config, n)
  local kinds, first = config:strings("mlp_layer_types", nil), config:int("first_k_dense_replace", 0)
  local freq, sparse = config:int("moe_layer_freq", 1), {}
  if kinds and #kinds ~= n then refuse("mlp_layer_types has %d entries, expected %d", #kinds, n) end
  if freq < 1 then refuse("moe_layer_freq is %d, expected 1 or more", freq) end
  for i = 0, n - 1 do
    if kinds and kinds[i + 1] ~= "sparse" and kinds[i + 1] ~= "dense" then
      refuse('mlp_layer_types has "%s"; "dense" and "sparse" are known', kinds[i + 1])
    end
    sparse[i] = kinds and kinds[i + 1] == "sparse" or not kinds and i >= first and i % freq == 0
  end
  return sparse
end

-- What matrices are stored in; the checkpoint itself decides, this is for planning without one.
local function read_type(config)
  local q = config:object("quantization_config", nil)
  if not q then return "BF16" end
  local method = q:string("quant_method", "")
  if method ~= "fp8" then refuse('quant_method "%s" is not supported; "fp8" is', method) end
  local block = q:ints("weight_block_size", { 128, 128 })
  if block[1] ~= 128 or block[2] ~= 128 then refuse("weight_block_size must be [128, 128]") end
  return "F8_BLOCK"
end

local function only(config, key, read, value)
  local v = config[read](config, key, value)
  if v ~= value then refuse("%s %s is not supported; %s is", key, tostring(v), tostring(value)) end
end

return function(config)
  local c = {}
  for _, key in ipairs { "hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size",
    "moe_intermediate_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
    "index_topk", "index_n_heads", "index_head_dim" } do
    c[key] = config:int(key)
  end
  only(config, "hidden_act", "string", "silu")
  only(config, "scoring_func", "string", "sigmoid")
  only(config, "topk_method", "string", "noaux_tc")
  only(config, "attention_bias", "bool", false)
  only(config, "mlp_bias", "bool", false)
  only(config, "index_kpool", "int", 1)
  local mscale
  c.rope, mscale = read_rope(config, c.qk_rope_head_dim)
  c.scale = (c.qk_nope_head_dim + c.qk_rope_head_dim) ^ -0.5 * mscale
  c.eps = config:float("rms_norm_eps")
  c.sparse = read_mlps(config, c.num_hidden_layers)
  c.groups, c.topk_group = config:int("n_group", 1), config:int("topk_group", 1)
  c.renormalize, c.routed_scale = config:bool("norm_topk_prob", true), config:float("routed_scaling_factor", 1.0)
  c.tied, c.type = config:bool("tie_word_embeddings", false), read_type(config)
  c.predictors = config:int("num_nextn_predict_layers", 0)
  c.interleave = config:bool("indexer_rope_interleave", nil)
  c.context = config:int("max_position_embeddings")
  return c
end
