-- The tokenizer of the Kimi models, for include(): a tiktoken vocabulary and the rules that its file
-- does not hold.

-- Letters but for lower (upper and title) case, and marks, without Han: PCRE2 has no intersections.
local UPPER = [=[[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]]=]
local LOWER = [=[[^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]]=]
local TAIL = [[(?i:'s|'t|'re|'ve|'m|'ll|'d)?]]
return {
  kind = "tiktoken", file = "tiktoken.model", reserved = "<|reserved_token_%d|>",
  max_chars = 400000, max_run = 25000,
  pattern = [[\p{sc:Han}+]]
    .. [=[|[^\r\n\p{L}\p{N}]?]=] .. UPPER .. "*" .. LOWER .. "+" .. TAIL
    .. [=[|[^\r\n\p{L}\p{N}]?]=] .. UPPER .. "+" .. LOWER .. "*" .. TAIL
    .. [[|\p{N}{1,3}| ?[^\p{wspace}\p{L}\p{N}]+[\r\n]*|\p{wspace}*[\r\n]+]]
    .. [[|\p{wspace}+(?!\P{wspace})|\p{wspace}+]],
}
