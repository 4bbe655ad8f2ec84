-- The configuration of the Kimi K3 family, read and checked, for include().
--
-- Every dimension comes from config.json.  What this definition cannot compute is refused by name,
-- and so is a switch that is off while its tensors exist: that is the configuration of another model.

-- For each layer from 0: is it KDA?  The lists of the file count from 1.
local function read_layers(la, n)
  local kda = {}
  for key, is_kda in pairs { kda_layers = true, full_attn_layers = false } do
    for _, i in ipairs(la:ints(key)) do
      if i < 1 or i > n then refuse("linear_attn_config.%s has layer %d of %d", key, i, n) end
      if kda[i - 1] ~= nil then refuse("linear_attn_config lists layer %d twice", i) end
      kda[i - 1] = is_kda
    end
  end
  for i = 0, n - 1 do
    if kda[i] == nil then
      refuse("layer %d is neither in linear_attn_config.kda_layers nor in full_attn_layers", i + 1)
    end
  end
  return kda
end

-- The gated activation as an expression of g and u.
local function read_act(config)
  local act = config:string("hidden_act")
  if act == "silu" then return { "silu(g)*u", consts = {} } end
  if act ~= "situ" then refuse('hidden_act "%s" is not supported; "situ" and "silu" are', act) end
  local b, l = config:float("activation_situ_beta", 1.0), config:float("activation_situ_linear_beta", nil)
  return { "b*tanh(g/b)*sigmoid(g)*" .. (l and "l*tanh(u/l)" or "u"), consts = { b = b, l = l } }
end

-- For each full-attention layer by its ordinal from 0: has it an indexer of its own?
local function read_indexers(config, n_full, n_layers, kda)
  local own, types = {}, config:strings("indexer_types", nil)
  local freq, offset = config:int("index_topk_freq", 1), config:int("index_skip_topk_offset", 2)
  if freq < 1 then refuse("index_topk_freq is %d, expected 1 or more", freq) end
  if types and #types ~= n_full and #types ~= n_layers then
    refuse("indexer_types has %d entries, expected %d (one per full-attention layer)", #types, n_full)
  end
  local ordinal = 0
  for i = 0, n_layers - 1 do
    if not kda[i] then
      local kind = types and types[(#types == n_full and ordinal or i) + 1]
      if types and kind ~= "full" and kind ~= "shared" then
        refuse('indexer_types has "%s"; "full" and "shared" are known', kind)
      end
      own[ordinal] = types and kind == "full" or not types and math.max(ordinal - offset + 1, 0) % freq == 0
      ordinal = ordinal + 1
    end
  end
  if own[0] == false then refuse("the first full-attention layer has no selection to share") end
  return own
end

local function read_config(g, config)
  local c, la = {}, config:object("linear_attn_config")
  for _, key in ipairs { "hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size",
    "first_k_dense_replace", "num_experts", "num_experts_per_token", "num_shared_experts",
    "moe_intermediate_size", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim" } do
    c[key] = config:int(key)
  end
  c.eps, c.act = config:float("rms_norm_eps"), read_act(config)
  c.kda = read_layers(la, c.num_hidden_layers)
  c.heads, c.head_dim, c.taps = la:int("num_heads"), la:int("head_dim"), la:int("short_conv_kernel_size")
  c.full_rank_gate, c.lower = la:bool("use_full_rank_gate", false), la:float("gate_lower_bound", nil)
  c.block = config:int("attn_res_block_size", nil)
  c.q_lora, c.output_gate = config:int("q_lora_rank", nil), config:bool("mla_use_output_gate", false)
  c.latent, c.latent_norm = config:int("routed_expert_hidden_size", nil), config:bool("latent_moe_use_norm", false)
  c.router, c.renormalize = config:string("moe_router_activation_func"), config:bool("moe_renormalize")
  c.scale, c.freq = config:float("routed_scaling_factor"), config:int("moe_layer_freq", 1)
  c.groups, c.topk_group = config:int("num_expert_group", 1), config:int("topk_group", 1)
  c.tied = config:bool("tie_word_embeddings", false)
  c.index_topk = config:int("index_topk", nil)
  local quant = config:object("quantization_config", nil)
  c.expert_type = quant and quant:string("format", "") == "mxfp4-pack-quantized" and "MXFP4" or "BF16"
  if c.router ~= "sigmoid" and c.router ~= "softmax" then
    refuse('moe_router_activation_func "%s" is not supported', c.router)
  end
  if not config:bool("mla_use_nope", false) then refuse("mla_use_nope must be true; rotation is not supported") end
  local n_full = #config:object("linear_attn_config"):ints("full_attn_layers")
  if c.index_topk then
    if config:int("index_kpool", 1) ~= 1 then refuse("index_kpool other than 1 is not supported") end
    if config:int("indexer_rope_dim", 0) ~= 0 then refuse("indexer_rope_dim other than 0 is not supported") end
    if not c.q_lora then refuse("an indexer needs q_lora_rank") end
    c.index_heads, c.index_dim = config:int("index_n_heads"), config:int("index_head_dim")
    c.own_indexer = read_indexers(config, n_full, c.num_hidden_layers, c.kda)
  end
  g:context(config:int("max_position_embeddings", nil) or config:int("model_max_length"))
  return c
end

local function check_switches(g, c)
  local function check(on, key, name)
    if not on and g:has(name) then refuse("%s is not set, but the checkpoint has %s", key, name) end
  end
  check(c.block, "attn_res_block_size", "model.output_attn_res_norm.weight")
  for i = 0, c.num_hidden_layers - 1 do
    local p = ("model.layers.%d."):format(i)
    local a, m = p .. "self_attn.", p .. "block_sparse_moe."
    if c.kda[i] then
      check(c.full_rank_gate, "linear_attn_config.use_full_rank_gate", a .. "g_proj.weight")
    else
      check(c.output_gate, "mla_use_output_gate", a .. "g_proj.weight")
      check(c.q_lora, "q_lora_rank", a .. "q_a_proj.weight")
      check(c.index_topk, "index_topk", a .. "indexer.wk.weight")
    end
    check(c.latent, "routed_expert_hidden_size", m .. "routed_expert_down_proj.weight")
    check(c.latent_norm, "latent_moe_use_norm", m .. "routed_expert_norm.weight")
  end
end

return function(g, config)
  local c = read_config(g, config)
  check_switches(g, c)
  return c
end
