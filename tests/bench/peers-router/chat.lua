-- What wrk sends: one of many conversations that begin alike. Arguments: characters of a prompt, tokens to answer, stream.

local characters, tokens, stream = 200, 1, "false"
local bodies = {}

function init(args)
  characters, tokens, stream = tonumber(args[1]), tonumber(args[2]), args[3]
  -- Words, not noise: tokenizers take as long as for text.
  local words = { "the", "ship", "follows", "a", "coast", "line", "drawn", "from", "harbour", "to", "cape" }
  local text, length, at = {}, 0, 1
  while length < characters do
    local word = words[(at * at + 3 * at) % #words + 1]
    text[#text + 1] = word
    length = length + #word + 1
    at = at + 1
  end
  local shared = table.concat(text, " ", 1, math.floor(#text * 0.8))
  local own = table.concat(text, " ", math.floor(#text * 0.8) + 1)
  for number = 1, 64 do
    bodies[number] = string.format(
      '{"model":"bench","max_tokens":%d,"stream":%s,"messages":[{"role":"system","content":"%s"},'
        .. '{"role":"user","content":"Voyage %d: %s"}]}',
      tokens, stream, shared, number, own)
  end
end

local turn = 0
local headers = { ["Content-Type"] = "application/json", ["Authorization"] = "Bearer bench" }

function request()
  turn = turn % #bodies + 1
  return wrk.format("POST", "/v1/chat/completions", headers, bodies[turn])
end

function done(summary, latency)
  local failed = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write
    + summary.errors.timeout
  io.write(string.format(
    '\n{"requests":%d,"failed":%d,"seconds":%f,"p50_ms":%f,"p99_ms":%f}\n',
    summary.requests, failed, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
