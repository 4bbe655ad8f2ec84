-- Youtu-LLM: the family that docs/porting.md is about.
--
-- Latent attention with rotary positions in interleaved pairs, and a dense MLP; a plain pre-norm
-- residual stream; the embedding is the head.

local model = {
  name = "youtu", stop = { "<|end_of_text|>" },
  tokenizer = { kind = "hf", file = "tokenizer.json" },
}

function model.match(config)
  return config:string("model_type", "") == "youtu"
end

local function read_config(config)
  local c = {}
  for _, key in ipairs { "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "max_position_embeddings" } do
    c[key] = config:int(key)
  end
  c.eps = config:float("rms_norm_eps")
  local rope = config:object("rope_parameters")
  if rope:string("rope_type", "default") ~= "default" then refuse("only plain rotary positions are known") end
  c.theta = rope:float("rope_theta")
  c.pairing = config:bool("rope_interleave", true) and "interleaved" or "half"
  return c
end

local function builders(g, c)
  local D, b = c.hidden_size, {}

  local function linear(x, name, out, inn)
    return g.linear{ x, g:weight(name .. ".weight", { out, inn }) }
  end

  function b.norm(x, name, n, eps)
    return g.rmsnorm{ x, g:vector(name .. ".weight", n), eps = eps or c.eps }
  end

  function b.attention(x, a)
    local H, nope, pe, dv = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
    local lat = c.kv_lora_rank
    local function turn(v, offset)
      return g.rope{ v, offset = offset, width = pe, theta = c.theta, pairing = c.pairing }
    end
    g:at(a, "attention")
    local qa = b.norm(linear(x, a .. "q_a_proj", c.q_lora_rank, D), a .. "q_a_layernorm", c.q_lora_rank, 1e-6)
    local q = g.view{ linear(qa, a .. "q_b_proj", H * (nope + pe), c.q_lora_rank), dims = { H, nope + pe } }
    local kv = linear(x, a .. "kv_a_proj_with_mqa", lat + pe, D)
    local latent = b.norm(g.view{ kv, dims = { lat } }, a .. "kv_a_layernorm", lat, 1e-6)
    local cache = g:state{ name = a .. "cache", paged = true, width = lat + pe }
    g.cache_write{ cache, latent, turn(g.view{ kv, offset = lat, dims = { pe } }, 0) }
    local o = g.mla{ turn(q, nope), g:weight(a .. "kv_b_proj.weight", { H * (nope + dv), lat }), cache,
      v_dim = dv, scale = (nope + pe) ^ -0.5 }
    return linear(o, a .. "o_proj", D, H * dv)
  end

  function b.mlp(x, m)
    g:at(m, "mlp")
    local I = c.intermediate_size
    local h = g.expr{ "silu(g)*u", g = linear(x, m .. "gate_proj", I, D), u = linear(x, m .. "up_proj", I, D) }
    return linear(h, m .. "down_proj", D, I)
  end
  return b
end

function model.build(g, config)
  local c = read_config(config)
  local b, D = builders(g, c), c.hidden_size
  g:context(c.max_position_embeddings)
  g:at("embedding", "embedding")
  local embedding = g:weight("model.embed_tokens.weight", { c.vocab_size, D })
  local x = g.embed{ embedding }
  for i = 0, c.num_hidden_layers - 1 do
    local p = ("model.layers.%d."):format(i)
    if i >= g.layers then
      g:unused(p)
    else
      g:at(p .. "norms", "norms")
      local h = b.norm(x, p .. "input_layernorm", D)
      x = g.expr{ "a+b", a = x, b = b.attention(h, p .. "self_attn.") }
      g:at(p .. "norms", "norms")
      h = b.norm(x, p .. "post_attention_layernorm", D)
      x = g.expr{ "a+b", a = x, b = b.mlp(h, p .. "mlp.") }
      g:tap("layer", i, x)
      g:layer(i, "mla + dense")
    end
  end
  g:at("output", "output")
  x = b.norm(g.gather_logits{ x }, "model.norm", D)
  if not config:bool("tie_word_embeddings") then embedding = g:weight("lm_head.weight", { c.vocab_size, D }) end
  g:output(g.linear{ x, embedding })
end

return model
