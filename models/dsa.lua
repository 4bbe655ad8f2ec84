-- The decoder that several families share, for include(): latent attention with rotary positions,
-- of which an indexer selects what each token looks at (sparse attention), and experts chosen by a
-- sigmoid router after some dense layers.  Plain pre-norm residual stream.
--
-- c is what dsa_config.lua reads, and
--   c.pairing     how the indexer pairs the elements that it turns: "half" or "interleaved"; the
--                 attention itself pairs them interleaved
--   c.own_indexer for each layer from 0: false where it looks where the layer before it looked

local function builders(g, c)
  local D, b, rope = c.hidden_size, {}, {}
  local selection -- of the last layer with an indexer

  local function linear(x, name, out, inn, type)
    return g.linear{ x, g:weight(name .. ".weight", { out, inn }, type or c.type) }
  end

  function b.norm(x, name, n, eps)
    return g.rmsnorm{ x, g:vector(name .. ".weight", n), eps = eps or c.eps }
  end

  -- Turns the elements of x from offset on.
  local function turn(x, offset, pairing)
    if c.rope.width == 0 then return x end
    local r = { x, offset = offset, pairing = pairing }
    for key, value in pairs(c.rope) do r[key] = value end
    return g.rope(r)
  end

  -- The positions that layer i looks at; nil for all of them.  The release also turns queries and
  -- keys by a Hadamard matrix before it rounds them to 8 bits: without rounding that changes nothing.
  local function select(x, qa, a, i)
    local H, d, name = c.index_n_heads, c.index_head_dim, a .. "indexer."
    if g.dense or not c.own_indexer[i] then
      g:unused(name)
      return not g.dense and selection or nil
    end
    g:at(a .. "indexer", "indexer")
    local q = g.view{ linear(qa, name .. "wq_b", H * d, c.q_lora_rank), dims = { H, d } }
    local k = g.layernorm{ linear(x, name .. "wk", d, D), g:vector(name .. "k_norm.weight", d),
      g:vector(name .. "k_norm.bias", d), eps = 1e-6 }
    local w = linear(x, name .. "weights_proj", H, D, "BF16")
    local keys = g:state{ name = name .. "keys", paged = true, width = d }
    g.cache_write{ keys, turn(k, 0, c.pairing) }
    selection = g.index_select{ turn(q, 0, c.pairing), w, keys, topk = c.index_topk, scale = (H * d) ^ -0.5 }
    g:tap("select", i, selection)
    g:at(a, "mla")
    return selection
  end

  function b.attention(x, a, i)
    local H, dv, lat = c.num_attention_heads, c.v_head_dim, c.kv_lora_rank
    local nope, pe = c.qk_nope_head_dim, c.qk_rope_head_dim
    -- The two low-rank norms have their class's own epsilon.
    local qa = b.norm(linear(x, a .. "q_a_proj", c.q_lora_rank, D), a .. "q_a_layernorm", c.q_lora_rank, 1e-6)
    local q = g.view{ linear(qa, a .. "q_b_proj", H * (nope + pe), c.q_lora_rank), dims = { H, nope + pe } }
    local kv = linear(x, a .. "kv_a_proj_with_mqa", lat + pe, D)
    local latent = b.norm(g.view{ kv, dims = { lat } }, a .. "kv_a_layernorm", lat, 1e-6)
    local cache = g:state{ name = a .. "cache", paged = true, width = lat + pe }
    g.cache_write{ cache, latent, pe > 0 and turn(g.view{ kv, offset = lat, dims = { pe } }, 0) or nil }
    local o = g.mla{ turn(q, nope), g:weight(a .. "kv_b_proj.weight", { H * (nope + dv), lat }, c.type), cache,
      select(x, qa, a, i), v_dim = dv, scale = c.scale }
    return linear(o, a .. "o_proj", D, H * dv)
  end

  function b.mlp(x, f, width)
    local gate, up = linear(x, f .. "gate_proj", width, D), linear(x, f .. "up_proj", width, D)
    return linear(g.expr{ "silu(g)*u", g = gate, u = up }, f .. "down_proj", D, width)
  end

  function b.moe(x, f)
    local E, I = c.n_routed_experts, c.moe_intermediate_size
    local function stack(n, out, inn)
      return g:stack(f .. "experts.%d." .. n .. ".weight", E, { out, inn }, c.type)
    end
    g:at(f .. "gate", "router")
    local bias = g:vector(f .. "gate.e_score_correction_bias", E, "F32")
    local ids, weights = g.route{ linear(x, f .. "gate", E, D, "BF16"), bias, topk = c.num_experts_per_tok,
      func = "sigmoid", renormalize = c.renormalize, scale = c.routed_scale, groups = c.groups, topk_groups = c.topk_group }
    g:at(f .. "experts", "experts")
    local y = g.experts{ x, ids, weights, stack("gate_proj", I, D), stack("up_proj", I, D), stack("down_proj", D, I),
      act = "silu(g)*u" }
    if c.n_shared_experts == 0 then return y end
    g:at(f .. "shared_experts", "shared experts")
    return g.expr{ "a+b", a = y, b = b.mlp(x, f .. "shared_experts.", I * c.n_shared_experts) }
  end
  return b
end

return function(g, c)
  local b, D, V = builders(g, c), c.hidden_size, c.vocab_size
  if not c.own_indexer[0] then refuse("the first layer has no selection to share") end
  g:context(c.context)
  g:at("embedding", "embedding")
  local embedding = g:weight("model.embed_tokens.weight", { V, D })
  local x = g.embed{ embedding }
  -- Layers that draft further tokens follow the decoder's own.
  for i = c.num_hidden_layers, c.num_hidden_layers + c.predictors - 1 do g:unused(("model.layers.%d."):format(i)) end
  for i = 0, c.num_hidden_layers - 1 do
    local p = ("model.layers.%d."):format(i)
    if i >= g.layers then
      g:unused(p)
    else
      g:at(p .. "input_layernorm", "norms")
      local h = b.norm(x, p .. "input_layernorm", D)
      g:at(p .. "self_attn", "mla")
      x = g.expr{ "a+b", a = x, b = b.attention(h, p .. "self_attn.", i) }
      g:at(p .. "post_attention_layernorm", "norms")
      h = b.norm(x, p .. "post_attention_layernorm", D)
      g:at(p .. "mlp", "dense mlp")
      h = c.sparse[i] and b.moe(h, p .. "mlp.") or b.mlp(h, p .. "mlp.", c.intermediate_size)
      x = g.expr{ "a+b", a = x, b = h }
      g:tap("layer", i, x)
      g:layer(i, (c.own_indexer[i] and "mla + indexer" or "mla") .. (c.sparse[i] and " + experts" or " + dense"))
    end
  end
  g:at("output", "output")
  x = b.norm(g.gather_logits{ x }, "model.norm", D)
  g:output(g.linear{ x, c.tied and embedding or g:weight("lm_head.weight", { V, D }) })
end
