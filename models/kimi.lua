-- The layers of Kimi K3, Kimi-Linear and K3 with a DSA indexer, for include().
--
-- A hybrid decoder: most layers are Kimi Delta Attention (a fixed-size state), some multi-head
-- latent attention without rotation; the first layers have a dense MLP, the others experts that may
-- work in a smaller latent space.  K3 mixes block snapshots of the residual stream before every
-- sub-layer (attention residuals); Kimi-Linear has the plain residual stream.

local read_config = include("kimi_config")

-- The builders of sub-layers, for the graph g and the configuration c.
local function builders(g, c)
  local D, b = c.hidden_size, {}
  local selection -- of the last indexer

  local function linear(x, name, out, inn)
    return g.linear{ x, g:weight(name .. ".weight", { out, inn }) }
  end

  function b.norm(x, name, n, eps)
    return g.rmsnorm{ x, g:vector(name .. ".weight", n), eps = eps or c.eps }
  end

  function b.mlp(x, name, width)
    return linear(g.expr{ c.act[1], g = linear(x, name .. "gate_proj", width, D),
      u = linear(x, name .. "up_proj", width, D), b = c.act.consts.b, l = c.act.consts.l },
      name .. "down_proj", D, width)
  end

  -- The attention residual: a learned mix of the block snapshots and the running sum.
  function b.mix(bank, x, name)
    if #bank == 0 then return x end
    local n, p = g:vector(name .. "_norm.weight", D), g:vector(name .. "_proj.weight", D)
    local inputs = { g.expr{ "n*p", n = n, p = p }, table.unpack(bank) }
    table.insert(inputs, x)
    inputs.eps = c.eps
    return g.residual_mix(inputs)
  end

  function b.kda(x, a)
    local H, d, y = c.heads, c.head_dim, {}
    local W = H * d
    for _, n in ipairs { "q", "k", "v" } do
      local tail = g:state{ name = a .. n .. "_tail", width = (c.taps - 1) * W }
      local taps = g:vector(a .. n .. "_conv1d.weight", { W, c.taps }, "F32")
      local z = g.conv1d{ linear(x, a .. n .. "_proj", W, D), taps, tail }
      y[n] = g.view{ g.expr{ "silu(z)", z = z }, dims = { H, d } }
    end
    local q, k = g.l2norm{ y.q, eps = 1e-6, scale = d ^ -0.5 }, g.l2norm{ y.k, eps = 1e-6 }
    local z = g.view{ linear(linear(x, a .. "f_a_proj", d, D), a .. "f_b_proj", W, d), dims = { H, d } }
    local A_log = g:vector(a .. "A_log", g:size(a .. "A_log") or H, "F32") -- one per head, then padding
    local decay = g.expr{ c.lower and "lower*sigmoid(A*(z+bias))" or "-A*softplus(z+bias)", z = z, lower = c.lower,
      A = g.expr{ "exp(a)", a = g.view{ A_log, dims = { H, 1 } } }, bias = g:vector(a .. "dt_bias", { H, d }, "F32") }
    local beta = g.expr{ "sigmoid(z)", z = linear(x, a .. "b_proj", H, D) }
    local o = g.delta_rule{ q, k, y.v, decay, beta, g:state{ name = a .. "state", width = H * d * d } }
    local gate = c.full_rank_gate and linear(x, a .. "g_proj", W, D)
      or linear(linear(x, a .. "g_a_proj", d, D), a .. "g_b_proj", W, d)
    o = g.rmsnorm{ o, g:vector(a .. "o_norm.weight", d, "F32"), eps = c.eps }
    o = g.expr{ "o*sigmoid(s)", o = o, s = g.view{ gate, dims = { H, d } } }
    return linear(o, a .. "o_proj", D, W)
  end

  -- The positions that a full-attention layer looks at; nil for all of them.
  local function select(x, qa, a, ordinal)
    if not c.index_topk then return nil end
    if g.dense then return g:unused(a .. "indexer.") end
    if not c.own_indexer[ordinal] then return selection end
    g:at(a .. "indexer", "indexer")
    local H, d, name = c.index_heads, c.index_dim, a .. "indexer."
    local q = g.view{ linear(qa, name .. "wq_b", H * d, c.q_lora), dims = { H, d } }
    local k = g.layernorm{ linear(x, name .. "wk", d, D), g:vector(name .. "k_norm.weight", d),
      g:vector(name .. "k_norm.bias", d), eps = 1e-6 }
    local w = linear(x, name .. "weights_proj", H, D)
    local keys = g:state{ name = name .. "keys", paged = true, width = d }
    g.cache_write{ keys, k }
    selection = g.index_select{ q, w, keys, topk = c.index_topk, scale = (H * d) ^ -0.5 }
    g:tap("select", ordinal, selection)
    g:at(a, "mla")
    return selection
  end

  function b.mla(x, a, ordinal)
    local H, dv, lat = c.num_attention_heads, c.v_head_dim, c.kv_lora_rank
    local nope, pe = c.qk_nope_head_dim, c.qk_rope_head_dim
    local qa, q -- the two low-rank norms have their class's own epsilon
    if c.q_lora then
      qa = b.norm(linear(x, a .. "q_a_proj", c.q_lora, D), a .. "q_a_layernorm", c.q_lora, 1e-6)
      q = linear(qa, a .. "q_b_proj", H * (nope + pe), c.q_lora)
    else
      q = linear(x, a .. "q_proj", H * (nope + pe), D)
    end
    local kv = linear(x, a .. "kv_a_proj_with_mqa", lat + pe, D)
    local latent = b.norm(g.view{ kv, dims = { lat } }, a .. "kv_a_layernorm", lat, 1e-6)
    local cache = g:state{ name = a .. "cache", paged = true, width = lat + pe }
    g.cache_write{ cache, latent, pe > 0 and g.view{ kv, offset = lat, dims = { pe } } or nil }
    local kv_b = g:weight(a .. "kv_b_proj.weight", { H * (nope + dv), lat })
    local o = g.mla{ g.view{ q, dims = { H, nope + pe } }, kv_b, cache, select(x, qa, a, ordinal), v_dim = dv,
      scale = (nope + pe) ^ -0.5 }
    if c.output_gate then
      o = g.expr{ "o*sigmoid(s)", o = o, s = g.view{ linear(x, a .. "g_proj", H * dv, D), dims = { H, dv } } }
    end
    return linear(o, a .. "o_proj", D, H * dv)
  end

  function b.moe(x, f)
    local E, Z, I = c.num_experts, c.latent or D, c.moe_intermediate_size
    local function stack(n, out, inn)
      return g:stack(f .. "experts.%d." .. n .. ".weight", E, { out, inn }, c.expert_type)
    end
    g:at(f .. "gate", "router")
    local bias = g:vector(f .. "gate.e_score_correction_bias", E, "F32")
    local ids, weights = g.route{ linear(x, f .. "gate", E, D), bias, topk = c.num_experts_per_token,
      func = c.router, renormalize = c.renormalize, scale = c.scale, groups = c.groups, topk_groups = c.topk_group }
    local z = x
    if c.latent then
      g:at(f .. "experts", "latent")
      z = linear(x, f .. "routed_expert_down_proj", Z, D)
    end
    g:at(f .. "experts", "experts")
    local y = g.experts{ z, ids, weights, stack("w1", I, Z), stack("w3", I, Z), stack("w2", Z, I),
      act = c.act[1], consts = c.act.consts }
    if c.latent then g:at(f .. "experts", "latent") end
    if c.latent_norm then y = b.norm(y, f .. "routed_expert_norm", Z) end
    if c.latent then y = linear(y, f .. "routed_expert_up_proj", D, Z) end
    if c.num_shared_experts == 0 then return y end
    g:at(f .. "shared_experts", "shared experts")
    return g.expr{ "a+b", a = y, b = b.mlp(x, f .. "shared_experts.", I * c.num_shared_experts) }
  end
  return b
end

return function(g, config)
  local c = read_config(g, config)
  local b, D, V = builders(g, c), c.hidden_size, c.vocab_size
  g:at("embedding", "embedding")
  local embedding = g:weight("model.embed_tokens.weight", { V, D })
  local x, bank, ordinal = g.embed{ embedding }, {}, 0
  for i = 0, c.num_hidden_layers - 1 do
    local p = ("model.layers.%d."):format(i)
    if i >= g.layers then
      g:unused(p)
    else
      local snap, moe = c.block and i % c.block == 0, i >= c.first_k_dense_replace and i % c.freq == 0
      g:at(p .. "input_layernorm", "norms")
      local h = b.mix(bank, x, p .. "self_attention_res")
      if c.block and #bank == 0 then g:unused(p .. "self_attention_res_") end -- nothing to mix yet
      if snap then table.insert(bank, x) end
      h = b.norm(h, p .. "input_layernorm", D)
      g:at(p .. "self_attn", c.kda[i] and "kda" or "mla")
      if c.kda[i] then
        h = b.kda(h, p .. "self_attn.")
      else
        h, ordinal = b.mla(h, p .. "self_attn.", ordinal), ordinal + 1
      end
      x = snap and h or g.expr{ "a+b", a = x, b = h }
      g:at(p .. "post_attention_layernorm", "norms")
      h = b.norm(b.mix(bank, x, p .. "mlp_res"), p .. "post_attention_layernorm", D)
      g:at(p .. "mlp", "dense mlp")
      local experts, dense = p .. "block_sparse_moe.", p .. "mlp."
      if g:has(experts .. "gate_proj.weight") then dense = experts end -- as transformers saves it
      h = moe and b.moe(h, experts) or b.mlp(h, dense, c.intermediate_size)
      x = g.expr{ "a+b", a = x, b = h }
      g:tap("layer", i, x)
      g:layer(i, (c.kda[i] and "kda" or "mla") .. (moe and " + experts" or " + dense"))
    end
  end
  g:at("output", "output")
  x = g.gather_logits{ b.mix(bank, x, "model.output_attn_res") }
  x = b.norm(x, "model.norm", D)
  g:output(g.linear{ x, c.tied and embedding or g:weight("lm_head.weight", { V, D }) })
end
